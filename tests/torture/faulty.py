"""Run ndtool once for each of its system calls, with a failure of that call.

faulty.py CALLS WRONGS NAMELESS ARGUMENTS...

CALLS is a list such as open,pwrite. WRONGS is a list of errors (EIO) that the call raises instead,
or of signals (SIGTERM) that the process receives before the call, or with + (SIGTERM+) after it.
NAMELESS is 0 for a file system without O_TMPFILE. After each run, a line of JSON on stdout has
[call, wrong, number, status, stderr]; the next run waits for a line on stdin. The last number of
each call is one that the run did not reach, with status UNREACHED: nothing failed.
A call may also be import, of a module that is not loaded yet, or import/7: every seventh of them.
For the other calls the run's modules are imported before: that is most of its time.
"""

import errno
import importlib
import json
import mmap
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

UNREACHED = 99
MODULES = (
    "cli.commands",
    "cli.program",
    "cli.reporter",
    "engine.narrow",
    "engine.scatters",
    "runs.steps",
    "formats.npy",
    "formats.npz.writer",
    "publish.newfile",
    "publish.permissions",
)


def wrong(name: str) -> Callable[[], None]:
    """Return the failure: an OSError, or a signal to this process."""

    def fail() -> None:
        number = getattr(errno, name)
        raise OSError(number, os.strerror(number))

    def hit() -> None:
        os.kill(os.getpid(), getattr(signal, name.rstrip("+")))

    return hit if name.startswith("SIG") else fail


def patch(call: str, name: str, at: int) -> Callable[[], bool]:
    """Let call number `at` fail; return a function that returns whether it was reached."""
    happen, count = wrong(name), 0

    def imported(event: str, _: Any) -> None:
        nonlocal count
        count += event == "import"
        if count == at and event == "import":
            happen()

    if call == "import":
        sys.addaudithook(imported)
        return lambda: count >= at
    home: Any = mmap if call == "mmap" else os
    real = getattr(home, call)

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


def run(call: str, name: str, at: int, message: int) -> int:
    """Run ndtool in a child; return its status, negative for a signal."""
    child = os.fork()
    if child == 0:
        os.dup2(message, 2)
        from ndtool.__main__ import main

        reached = patch(call, name, at)
        status = main()
        os._exit(UNREACHED if status == 0 and not reached() else status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    calls, wrongs, unnamed, *arguments = sys.argv[1:]
    if unnamed == "0":
        del os.O_TMPFILE
    sys.argv = ["ndtool", *arguments]
    if not calls.startswith("import"):
        for name in MODULES:
            importlib.import_module(f"ndtool.{name}")

    for call, _, step in (call.partition("/") for call in calls.split(",")):
        for name in wrongs.split(","):
            at, status = 1 - int(step or 1), 0
            while status != UNREACHED:
                at += int(step or 1)
                message = os.memfd_create("stderr")
                status = run(call, name, at, message)
                text = os.pread(message, 1 << 16, 0).decode("utf-8", "replace")
                os.close(message)
                print(json.dumps([call, name, at, status, text]), flush=True)
                sys.stdin.readline()


if __name__ == "__main__":
    main()
