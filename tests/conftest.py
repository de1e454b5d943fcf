"""What holds for all tests."""

import signal

# Whoever runs the tests in the background may ignore these, and what we start would do so too.
for name in ("SIGINT", "SIGTERM", "SIGHUP"):
    number = getattr(signal, name, None)
    if number is not None and signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
