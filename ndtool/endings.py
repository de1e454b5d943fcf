"""How the command line ends where Python could not end it: at a lost page, in a long kernel.

A map whose file became shorter, or whose disk fails, gives SIGBUS; and a signal that asks the
run to end must not wait for the thousands of reads that one kernel call may need. Both end the
process in the signal's handler, which knows its last words and the one file that must go.
"""

import os
import signal

from ndtool import _kernels
from ndtool.errors import STOPS, Status


def prepare(lost: bytes, stopped: bytes) -> None:
    """End the process with words on stderr at a lost page, with others when asked to stop."""
    words = {name: (status, stopped) for name, status in STOPS.items()}
    words["SIGBUS"] = (Status.OUTPUT, lost)
    for name, (status, text) in words.items():
        number = getattr(signal, name, None)
        if number is not None:
            _kernels.end_on(number, status, text)


def remove(folder: int, name: str) -> None:
    """Remove a file in the directory `folder` at such an end; an empty name for none."""
    _kernels.remove_at_end(folder, os.fsencode(name))


def settle(settled: bool = True) -> None:
    """From now on let no signal end the run: its output is about to get its name."""
    _kernels.settle(settled)
