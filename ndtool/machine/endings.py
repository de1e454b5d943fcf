"""Signal handling of the command line: exit status, message and cleanup.

Access to a memory map raises SIGBUS if the file was truncated or the disk fails. A signal that
ends the run must not wait for the thousands of reads of a long kernel. Handlers in C end the
process in both cases: they write a message and unlink temporary files. Any other fatal signal has
its default action after they unlink these files.

Cleanup that C cannot do is done by functions called from a Python handler. No signal raises an
exception: running code might discard it, or it might leave threads writing.
"""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress

from ndtool import _kernels
from ndtool.errors import STOPS, OutputError, Status

_DEFAULT_ACTION = -1  # as in _endings.pxd: the signal's default action instead of an exit status
_is_published = False  # whether the Python handler ignores signals
_handled: list[int] = []  # signals whose default action follows the removal of temporary files
_cleanups: list[Callable[[], object]] = []
_FAULTS = ("SIGABRT", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP")  # no Python code may run
_HARMLESS = ("CHLD", "CONT", "INFO", "KILL", "STOP", "TSTP", "TTIN", "TTOU", "URG", "WINCH")


def install_handlers(lost: bytes, fd: int, stopped: bytes) -> None:
    """Install signal handlers that write a message and end the process.

    lost: the message for SIGBUS. fd: the standard stream for it. stopped: the message, on stderr,
    for signals that stop the run.
    """
    words = {name: (status, 2, stopped) for name, status in STOPS.items()}
    words["SIGBUS"] = (Status.OUTPUT, fd, lost)
    for name, (status, stream, text) in words.items():
        number = getattr(signal, name, None)
        if number is not None:
            _kernels.end_on(number, status, stream, text)
    rest = {getattr(signal, name, 0) for name in (*words, *(f"SIG{name}" for name in _HARMLESS))}
    _handled[:] = signal.valid_signals() - rest
    for number in _handled:
        _kernels.end_on(number, _DEFAULT_ACTION, 2, b"")


def is_command_line() -> bool:
    """Whether this process is the command line: `prepare` was called."""
    return bool(_handled)


def register_file(folder: int, name: str) -> int:
    """Register a file in the directory `folder` for removal by the signal handlers.

    Returns a slot for `forget`. Raises OutputError if all slots are taken.
    """
    slot = _kernels.remember(folder, os.fsencode(name))
    if slot < 0:
        raise OutputError("more files are written at once than can be cleaned up: at most 64")
    return slot


def unregister_file(slot: int) -> None:
    """Unregister a file that was removed or has its final name."""
    _kernels.forget(slot)


def set_published(settled: bool = True) -> None:
    """Ignore (True) or honor (False) signals that stop the run: outputs are being renamed."""
    global _is_published
    _is_published = settled
    _kernels.settle(settled)


def add_cleanup(cleanup: Callable[[], object]) -> None:
    """Register a function to call before a signal ends the command line.

    It does what a handler in C cannot: remove folders, abort uploads, stop writers. The functions
    run in the main thread, the last registered first, between two bytecode instructions and after
    the current kernel. A function may wait for other threads, but not for long, as they may wait
    for the main one. The process ends afterwards.
    """
    if not _handled:
        return  # a library installs no signal handlers
    _cleanups.append(cleanup)
    if threading.current_thread() is threading.main_thread():
        for number in _signals():
            signal.signal(number, _clean_up)


def remove_cleanup(cleanup: Callable[[], object]) -> None:
    """Unregister a cleanup function."""
    if cleanup in _cleanups:
        _cleanups.remove(cleanup)


def _signals() -> list[int]:
    """Return the fatal signals that a Python handler can serve."""
    stops = [getattr(signal, name) for name in STOPS]
    ours = [number for number in stops if signal.getsignal(number) is not signal.SIG_IGN]
    faults = {getattr(signal, name, 0) for name in _FAULTS}
    others = [number for number in _handled if number not in faults]
    default = (signal.SIG_DFL, _clean_up)
    return ours + [number for number in others if signal.getsignal(number) in default]


def _clean_up(number: int, _: object) -> None:
    if _is_published:
        return
    for other in _signals():
        signal.signal(other, signal.SIG_IGN)  # a second signal must not interrupt the cleanup
    while _cleanups:
        with suppress(BaseException):
            _cleanups.pop()()
    _kernels.end(number)
