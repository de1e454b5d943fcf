"""How the command line ends where Python could not end it: at a lost page, in a long kernel.

A map whose file became shorter, or whose disk fails, gives SIGBUS; and a signal that asks the
run to end must not wait for the thousands of reads that one kernel call may need. Both end the
process in the signal's handler, which knows its last words and the files that must go. Of
any other signal that ends a process, ndtool dies too, once those files are gone.
"""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from ndtool import _kernels
from ndtool.errors import STOPS, Died, OutputError, Status

_DIES = -1  # as in _endings.pxd: no status, the signal's own end
_settled = False  # as the handlers below see it
_prepared: list[int] = []  # signals of which the process dies, once its files are gone
_FAULTS = ("SIGABRT", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP")  # Python cannot go on
_HARMLESS = ("CHLD", "CONT", "INFO", "KILL", "STOP", "TSTP", "TTIN", "TTOU", "URG", "WINCH")


def prepare(lost: bytes, fd: int, stopped: bytes) -> None:
    """End the process with words at a lost page, with others on stderr when asked to stop.

    fd: the standard stream where the words about a lost page go.
    """
    words = {name: (status, 2, stopped) for name, status in STOPS.items()}
    words["SIGBUS"] = (Status.OUTPUT, fd, lost)
    for name, (status, stream, text) in words.items():
        number = getattr(signal, name, None)
        if number is not None:
            _kernels.end_on(number, status, stream, text)
    rest = {getattr(signal, name, 0) for name in (*words, *(f"SIG{name}" for name in _HARMLESS))}
    _prepared[:] = signal.valid_signals() - rest
    for number in _prepared:
        _kernels.end_on(number, _DIES, 2, b"")


def remember(folder: int, name: str) -> int:
    """Remove a file in the directory `folder` at such an end; return what `forget` takes.

    Raises OutputError for more files than there is room for.
    """
    slot = _kernels.remember(folder, os.fsencode(name))
    if slot < 0:
        raise OutputError("more files are written at once than can be cleaned up: at most 64")
    return slot


def forget(slot: int) -> None:
    """Remove a file no more: it is gone, or has its final name."""
    _kernels.forget(slot)


def settle(settled: bool = True) -> None:
    """Let no signal end the run: outputs are about to get their names; False: let it again."""
    global _settled
    _settled = settled
    _kernels.settle(settled)


def unwind() -> None:
    """From now on, let what asks the run to end raise as it did before `prepare`, others Died.

    For outputs that no handler can remove: folders, and what is sent to others. It is heard
    between two calls of kernels, and while somebody waits for a reply.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # whose signals are not ours
    for name in STOPS:
        number = getattr(signal, name)
        handler = signal.getsignal(number)
        if callable(handler) and not hasattr(handler, "unless_settled"):
            signal.signal(number, _Handler(handler))
    for number in set(_prepared) - {getattr(signal, name, 0) for name in _FAULTS}:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _Handler(_die))


def _die(number: int, _: Any) -> None:
    for one in _prepared:  # another one must not disturb the cleaning up
        if isinstance(signal.getsignal(one), _Handler):
            signal.signal(one, signal.SIG_IGN)
    raise Died(number)


class _Handler:
    """A handler that does nothing once it is too late to stop."""

    unless_settled = True

    def __init__(self, handler: Callable[[int, Any], Any]) -> None:
        self._handler = handler

    def __call__(self, number: int, frame: Any) -> None:
        if not _settled:
            self._handler(number, frame)
