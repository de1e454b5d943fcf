"""Signal handling of the command line: exit status, message and cleanup.

Access to a memory map raises SIGBUS if the file was truncated or the disk fails. A signal that
stops the run must not wait until a long kernel has read its pages. Handlers in C end the process in
both cases: they write a message and unlink temporary files. Any other fatal signal has its default
action after they unlink these files.

Cleanup functions that need Python are called from a Python handler. No signal raises an exception:
the interrupted code might discard it, or threads might continue to write.
"""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress

import ndtool._kernels as _kernels  # `from ndtool` would search its public names
from ndtool.errors import SIGNAL_STATUSES, OutputError, Status

_DEFAULT_ACTION = -1  # instead of an exit status: the signal's default action; see _signals.pxd
_is_published = False  # whether the output is published: the Python handler ignores signals
_handled: list[int] = []  # signals with a C handler and then their default action
_cleanups: list[Callable[[], object]] = []
_FAULTS = ("SIGABRT", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP")  # for C handlers only
unregister_file = _kernels.unregister_file  # one that was removed or renamed to its final name
_HARMLESS = ("CHLD", "CONT", "INFO", "KILL", "STOP", "TSTP", "TTIN", "TTOU", "URG", "WINCH")


def install_handlers(sigbus_message: bytes, fd: int, stop_message: bytes) -> None:
    """Install signal handlers that write a message and end the process.

    fd: the standard stream for sigbus_message. stop_message: written to stderr for signals that
    stop the run, such as SIGINT.
    """
    actions = {name: (status, 2, stop_message) for name, status in SIGNAL_STATUSES.items()}
    actions["SIGBUS"] = (Status.OUTPUT, fd, sigbus_message)
    for name, (status, stream, message) in actions.items():
        number = getattr(signal, name, None)
        if number is not None:
            _kernels.install_handler(number, status, stream, message)
    names = (*actions, *(f"SIG{name}" for name in _HARMLESS))
    excluded = {getattr(signal, name, 0) for name in names}
    _handled[:] = signal.valid_signals() - excluded
    for number in _handled:
        _kernels.install_handler(number, _DEFAULT_ACTION, 2, b"")


def is_command_line() -> bool:
    """Whether this process is the command line: `install_handlers` was called."""
    return bool(_handled)


def register_file(folder: int, name: str) -> int:
    """Register a file in the directory `folder` for removal by the signal handlers.

    Returns a slot for `unregister_file`. Raises OutputError if no slot is free.
    """
    slot = _kernels.register_file(folder, os.fsencode(name))
    if slot < 0:
        raise OutputError("more files are written at once than can be cleaned up: at most 64")
    return slot


def set_published(published: bool = True) -> None:
    """Ignore (True) or handle (False) signals that stop the run, as outputs are being renamed."""
    global _is_published
    _is_published = published
    _kernels.set_published(published)


def add_cleanup(cleanup: Callable[[], object]) -> None:
    """Register a function to call before a signal ends the command line.

    Cleanup functions remove folders, abort uploads and stop writers. They run in the main thread,
    the last registered first, between two bytecode instructions and after the current kernel. A
    function must not wait long for other threads, as they may wait for the main thread. Then the
    process ends.
    """
    if not _handled:
        return  # a library installs no signal handlers
    _cleanups.append(cleanup)
    if threading.current_thread() is threading.main_thread():
        for number in _caught_signals():
            signal.signal(number, _clean_up)


def remove_cleanup(cleanup: Callable[[], object]) -> None:
    """Unregister a cleanup function."""
    if cleanup in _cleanups:
        _cleanups.remove(cleanup)


def _caught_signals() -> list[int]:
    """Return the fatal signals that the Python handler catches."""
    candidates = [getattr(signal, name) for name in SIGNAL_STATUSES]
    stop_signals = [n for n in candidates if signal.getsignal(n) is not signal.SIG_IGN]
    faults = {getattr(signal, name, 0) for name in _FAULTS}
    default_signals = [number for number in _handled if number not in faults]
    default = (signal.SIG_DFL, _clean_up)
    return stop_signals + [n for n in default_signals if signal.getsignal(n) in default]


def _clean_up(number: int, _: object) -> None:
    if _is_published:
        return
    for caught in _caught_signals():
        signal.signal(caught, signal.SIG_IGN)  # a second signal must not interrupt the cleanup
    while _cleanups:
        with suppress(BaseException):
            _cleanups.pop()()
    _kernels.end_process(number)
