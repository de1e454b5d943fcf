"""What holds for all tests."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import bucket
import pytest
from bucket import Bucket
from hypothesis import settings

from ndtool.engine import tuning

SMALL = tuning.SMALL

if settings.get_current_profile_name() == "default":  # a busy machine takes its time
    settings.register_profile("patient", deadline=None)
    settings.load_profile("patient")

# Whoever runs the tests in the background may ignore these, and what we start would do so too.
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"):
    number = getattr(signal, name, None)
    if number is not None and signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def by_kernels() -> None:
    """Let small arrays go the way of large ones: most tests of strides have no others."""
    tuning.COPIED = tuning.SMALL = 0


@pytest.fixture(scope="module")
def short_calls() -> Iterator[None]:
    """Let small calls on plain arrays go their own way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "SMALL", SMALL)
        yield


@pytest.fixture(scope="session", autouse=True)
def frozen() -> None:
    """Let collections pass over what the tests imported: torch and JAX are a second each."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def interruptible() -> None:
    """Let SIGINT be heard: pytest-xdist has its workers ignore it, and a library may, too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def all_closed() -> Iterator[None]:
    """See that a test leaves no file open."""
    gc.collect()
    before = set(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) <= before


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep coverage out of processes that may not write what it measured, or lack the memory."""
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Bucket]:
    """Run an S3 server with one bucket."""
    with bucket.serving() as running:
        yield running


@pytest.fixture
def s3(s3_server: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """Let s3:// mean that server, whose bucket is empty."""
    for name, value in bucket.settings(s3_server.endpoint).items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    yield s3_server
    s3_server.empty()
