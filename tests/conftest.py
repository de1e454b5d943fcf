"""Fixtures and settings of all tests."""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bucket
import forkserver
import pytest
from bucket import Bucket
from hypothesis import settings

from ndtool.engine import tuning
from ndtool.runs.external import choice

SMALL = tuning.SMALL_CALL

if settings.get_current_profile_name() == "default":  # a loaded machine is slow
    settings.register_profile("patient", deadline=None)
    settings.load_profile("patient")

# Tests run in the background may inherit ignored signals, and pass them on to child processes.
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"):
    number = getattr(signal, name, None)
    if number is not None and signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a slow test that does not say what it alone proves."""
    for item in items:
        for mark in item.iter_markers("slow"):
            if not mark.args:
                raise pytest.UsageError(f"{item.nodeid} is slow: say what it alone proves")


@pytest.fixture(scope="session", autouse=True)
def by_kernels() -> None:
    """Disable the fast path of normalization, so that small arrays test the kernels."""
    tuning.NUMPY_COPY = tuning.SMALL_CALL = 0


@pytest.fixture(scope="module")
def short_calls() -> Iterator[None]:
    """Enable the fast path of small calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "SMALL_CALL", SMALL)
        yield


@pytest.fixture(scope="session", autouse=True)
def frozen() -> None:
    """Exclude modules that tests import from garbage collection: torch and JAX take seconds."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def interruptible() -> None:
    """Enable SIGINT, which pytest-xdist's workers, and some libraries, ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def leveled(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that makes all runs use a number of levels."""

    def use(levels: int) -> None:
        real = choice._partitionings_by_levels

        def chosen(partition: Any, budget: int) -> Any:
            return [one for one in real(partition, budget) if one.levels == levels]

        monkeypatch.setattr(choice, "_partitionings_by_levels", chosen)

    return use


def open_files() -> set[tuple[str, str]]:
    """Return each open descriptor with its file, except the tests' own."""
    found = set()
    for number in set(os.listdir("/proc/self/fd")) - forkserver.descriptors():
        try:
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
        except FileNotFoundError:
            pass  # of the listing itself
    return found


@pytest.fixture
def all_closed() -> Iterator[None]:
    """Fail a test that leaves a file open."""
    before = open_files()
    yield
    if not open_files() <= before:
        gc.collect()  # 0.2 s with all tests' packages
        assert open_files() <= before


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable coverage in processes that may not write its data, or lack the memory."""
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Bucket]:
    """Run an S3 server with one bucket."""
    with bucket.serving() as running:
        yield running


@pytest.fixture
def s3(s3_server: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """Direct s3:// to that server, with an empty bucket."""
    for name, value in bucket.settings(s3_server.endpoint).items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    yield s3_server
    s3_server.empty()
