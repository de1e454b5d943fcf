"""Fixtures and settings of all tests."""

import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import bucket
import forkserver
import pytest
import thresholds
import webserver
from _pytest.faulthandler import fault_handler_stderr_fd_key
from bucket import Bucket
from hypothesis import HealthCheck, settings

from ndtool.engine import tuning
from ndtool.outofcore import partitioning

COMPILED_CALL = tuning.COMPILED_CALL

# dask's profiler can deadlock with the start of a thread before Python 3.11.9 (CPython 106883)
os.environ["DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED"] = "False"

if settings.get_current_profile_name() == "default":  # a loaded machine is slow
    patient = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    examples = int(os.environ.get("NDTOOL_TEST_EXAMPLES", "15"))
    settings.register_profile("patient", **patient, max_examples=examples)
    settings.load_profile("patient")

# Tests run in the background may inherit ignored signals, and pass them on to child processes.
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"):
    signum = getattr(signal, name, None)
    if signum is not None and signal.getsignal(signum) is signal.SIG_IGN:
        signal.signal(signum, signal.SIG_DFL)


LIMIT = 600  # seconds, pytest's own in pyproject.toml


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Limit the waits of fixtures after a failed test, for which pytest cancels its own limit."""
    stderr = item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(LIMIT, exit=True, file=stderr)


def pytest_unconfigure() -> None:
    """Limit the wait for threads that a test has left."""
    faulthandler.dump_traceback_later(LIMIT, exit=True, file=sys.__stderr__)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a slow test that does not say what it alone proves."""
    for item in items:
        for mark in item.iter_markers("slow"):
            if not mark.args:
                raise pytest.UsageError(f"{item.nodeid} is slow: say what it alone proves")


@pytest.fixture(scope="session", autouse=True)
def force_kernels() -> None:
    """Disable compiled calls, so that small scatters test the general path."""
    tuning.COMPILED_CALL = 0


@pytest.fixture(scope="module")
def fast_small_calls() -> Iterator[None]:
    """Enable the fast path of small calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "COMPILED_CALL", COMPILED_CALL)
        yield


@pytest.fixture(scope="session", autouse=True)
def freeze_imports() -> None:
    """Exclude imported modules from garbage collection, which takes seconds with torch and JAX."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def clean_workdir(workdir: Path) -> Iterator[None]:
    """Fail a test that leaves a temporary file in the directory."""
    yield
    assert not [name for name in os.listdir(workdir) if "ndtool-" in name]


@pytest.fixture(autouse=True)
def enable_sigint() -> None:
    """Enable SIGINT, which pytest-xdist's workers, and some libraries, ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(
    params=[(), (thresholds.KERNELS, thresholds.STORAGE)],
    ids=["default thresholds", "small thresholds"],
)
def small_thresholds(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test by default, and with thresholds at which tiny arrays are divided and spooled."""
    with thresholds.patched_thresholds(*request.param):
        yield


@pytest.fixture(params=["unnamed", "named"])
def tmpfile_mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Create outputs as unnamed files, or as files with temporary names."""
    if request.param == "named":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    kind: str = request.param
    return kind


@pytest.fixture
def force_depth(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that sets how often all runs partition their tuples."""

    def set_depth(depth: int) -> None:
        monkeypatch.setattr(partitioning, "DEPTHS", [depth])

    return set_depth


def open_files() -> set[tuple[str, str]]:
    """Return each open descriptor with its file, except those of the fork servers."""
    files = set()
    for fd in set(os.listdir("/proc/self/fd")) - forkserver.descriptors():
        try:
            files.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
        except FileNotFoundError:
            pass  # the descriptor of the listing itself
    return files


@pytest.fixture
def check_files_closed() -> Iterator[None]:
    """Fail a test that leaves a file open."""
    initial = open_files()
    yield
    if not open_files() <= initial:
        gc.collect()  # takes 0.2 s with the packages of all tests
        assert open_files() <= initial


@pytest.fixture
def without_coverage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable coverage in processes that cannot write its data or lack memory for it."""
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)


@pytest.fixture
def web() -> Iterator[webserver.Server]:
    """Run an HTTP server."""
    pytest.importorskip("aiohttp")
    with webserver.serving() as running:
        yield running


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Bucket]:
    """Run an S3 server with one bucket."""
    with bucket.run_server() as server_bucket:
        yield server_bucket


@pytest.fixture
def s3(s3_server: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """Send requests for s3:// to the test server; empty its bucket at the end."""
    for name, value in bucket.client_environment(s3_server.endpoint).items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    yield s3_server
    s3_server.clear()
