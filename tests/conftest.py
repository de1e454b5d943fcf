"""What holds for all tests."""

import signal

import pytest

# Whoever runs the tests in the background may ignore these, and what we start would do so too.
for name in ("SIGINT", "SIGTERM", "SIGHUP"):
    number = getattr(signal, name, None)
    if number is not None and signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep coverage out of processes that may not write what it measured, or lack the memory."""
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
