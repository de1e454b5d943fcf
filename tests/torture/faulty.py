"""Run ndtool once for every system call it makes, in a system where that call goes wrong.

faulty.py CALLS WRONGS NAMELESS ARGUMENTS...

CALLS is a list such as open,pwrite. WRONGS is a list of errors (EIO) that the call gives instead,
or of signals (SIGTERM) that the process gets before the call, and with a + (SIGTERM+) after it.
NAMELESS is 0 for a file system without O_TMPFILE. After each run a line of JSON on stdout tells
[call, wrong, number, status, stderr]; the next run waits for a line on stdin. The last number of
each call is one that the run did not come to, and UNREACHED its status: nothing went wrong.
"""

import errno
import json
import mmap
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

UNREACHED = 99


def wrong(name: str) -> Callable[[], None]:
    """Return what happens: an OSError, or a signal to this process."""

    def fail() -> None:
        number = getattr(errno, name)
        raise OSError(number, os.strerror(number))

    def hit() -> None:
        os.kill(os.getpid(), getattr(signal, name.rstrip("+")))

    return hit if name.startswith("SIG") else fail


def patch(call: str, name: str, at: int) -> Callable[[], bool]:
    """Let the call go wrong the time `at`; return what tells whether it came to that."""
    home: Any = mmap if call == "mmap" else os
    real, happen, count = getattr(home, call), wrong(name), 0

    def instead(*arguments: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        if count == at and not name.endswith("+"):
            happen()
        try:
            return real(*arguments, **named)
        finally:
            if count == at and name.endswith("+"):
                happen()

    setattr(home, call, instead)
    return lambda: count >= at


def run(call: str, name: str, at: int, said: int) -> int:
    """Run ndtool in a child; return its status, negative where a signal ended it."""
    child = os.fork()
    if child == 0:
        os.dup2(said, 2)
        reached = patch(call, name, at)
        from ndtool.__main__ import main

        status = main()
        os._exit(UNREACHED if status == 0 and not reached() else status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    calls, wrongs, nameless, *arguments = sys.argv[1:]
    if nameless == "0":
        del os.O_TMPFILE
    sys.argv = ["ndtool", *arguments]

    for call in calls.split(","):
        for name in wrongs.split(","):
            at, status = 0, 0
            while status != UNREACHED:
                at += 1
                said = os.memfd_create("stderr")
                status = run(call, name, at, said)
                text = os.pread(said, 1 << 16, 0).decode("utf-8", "replace")
                os.close(said)
                print(json.dumps([call, name, at, status, text]), flush=True)
                sys.stdin.readline()


if __name__ == "__main__":
    main()
