"""Run ndtool once for each of its system calls, with a failure of that call.

faulty.py CALLS FAULTS UNNAMED ARGUMENTS...

CALLS is a list such as open,pwrite. FAULTS is a list of errors (EIO) that the call raises, or of
signals (SIGTERM) that the process receives before the call, or with + (SIGTERM+) after it.
UNNAMED is 0 to simulate a file system without O_TMPFILE. After each run, a line of JSON on stdout
has [call, fault, number of the call, status, stderr]; the next run waits for a line on stdin. The
last run for each call makes fewer calls than this number, so it has the status NOT_REACHED.
A call may also be import, of a module that is not loaded yet, or import/7: every seventh import.
For other calls the modules are imported before the runs, because imports take most of the time.
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

NOT_REACHED = 99  # exit status of a run without the call that was to fail
MODULES = (
    "cli.commands",
    "cli.program",
    "cli.reporter",
    "engine.scatters",
    "runs.steps",
    "formats.npy",
    "formats.npz.writer",
    "publish.newfile",
)


def make_fault(name: str) -> Callable[[], None]:
    """Return a function that raises an OSError, or sends a signal to this process."""

    def raise_error() -> None:
        number = getattr(errno, name)
        raise OSError(number, os.strerror(number))

    def send_signal() -> None:
        os.kill(os.getpid(), getattr(signal, name.rstrip("+")))

    return send_signal if name.startswith("SIG") else raise_error


def inject_fault(call: str, name: str, call_number: int) -> Callable[[], bool]:
    """Inject a fault into one call; return a function that returns whether it was reached."""
    fault, count = make_fault(name), 0

    def count_imports(event: str, _: Any) -> None:
        nonlocal count
        count += event == "import"
        if count == call_number and event == "import":
            fault()

    if call == "import":
        sys.addaudithook(count_imports)
        return lambda: count >= call_number
    module: Any = mmap if call == "mmap" else os
    real_call = getattr(module, call)

    def call_with_fault(*arguments: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count == call_number and not name.endswith("+"):
            fault()
        try:
            return real_call(*arguments, **kwargs)
        finally:
            if count == call_number and name.endswith("+"):
                fault()

    setattr(module, call, call_with_fault)
    return lambda: count >= call_number


def run(call: str, name: str, call_number: int, stderr_fd: int) -> int:
    """Run ndtool in a child; return its status, negative for a signal."""
    child = os.fork()
    if child == 0:
        os.dup2(stderr_fd, 2)
        from ndtool.__main__ import main

        reached = inject_fault(call, name, call_number)
        status = main()
        os._exit(NOT_REACHED if status == 0 and not reached() else status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    calls, faults, unnamed, *arguments = sys.argv[1:]
    if unnamed == "0":
        del os.O_TMPFILE
    sys.argv = ["ndtool", *arguments]
    if not calls.startswith("import"):
        for name in MODULES:
            importlib.import_module(f"ndtool.{name}")

    for call, _, step in (call.partition("/") for call in calls.split(",")):
        for name in faults.split(","):
            call_number, status = 1 - int(step or 1), 0
            while status != NOT_REACHED:
                call_number += int(step or 1)
                stderr_fd = os.memfd_create("stderr")
                status = run(call, name, call_number, stderr_fd)
                text = os.pread(stderr_fd, 1 << 16, 0).decode("utf-8", "replace")
                os.close(stderr_fd)
                print(json.dumps([call, name, call_number, status, text]), flush=True)
                sys.stdin.readline()


if __name__ == "__main__":
    main()
