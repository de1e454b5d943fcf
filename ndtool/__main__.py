"""The program, as `ndtool` and `python -m ndtool`: every way in which a run can end."""

import atexit
import os
import sys
from typing import Any, NoReturn

from ndtool.arrays.storage import EXHAUSTED, failure, guard_descriptors
from ndtool.errors import STOPS, Died, NdtoolError, ResourceError, Status

_UNLOADABLE = ("failed to map segment", "Cannot allocate memory")


class Stopped(BaseException):
    """A signal asks the run to end; outputs drop what they have as it passes."""

    def __init__(self, status: Status) -> None:
        self.status = status


def program() -> NoReturn:
    """Run the command line, and end the process: taking Python apart would be a tenth of it."""
    status = main()
    try:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except Exception:
        sys.exit(status)  # as Python would have it
    os._exit(status)


def main() -> int:
    """Run the command line; return its exit status."""
    guard_descriptors()
    for name in ("OMP_STACKSIZE", "GOMP_STACKSIZE"):
        os.environ.pop(name, None)  # libgomp ends the process where it is nonsense, or crashes
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy's, which we never need and pay for
    try:
        _listen()
        status = int(_run(sys.argv[1:]))
        _ignore()  # what was done is done: a signal from now on would only tell lies
        return status
    except Stopped as stopped:
        return int(stopped.status)
    except KeyboardInterrupt:
        return int(Status.INTERRUPTED)
    except Died as died:
        import signal

        signal.signal(died.number, signal.SIG_DFL)
        signal.raise_signal(died.number)
        return int(Status.BUG)  # not reached: no other signal is turned into this


def _run(arguments: list[str]) -> Status:
    """Run one command; the only place that turns exceptions into exit statuses."""
    from ndtool.cli.talk import Talk

    talk = Talk()
    try:
        from ndtool.cli import program

        program.run(arguments, talk)
    except NdtoolError as exc:
        talk.error(exc)
        return exc.status
    except BrokenPipeError:
        return Status.BROKEN_PIPE
    except Exception as exc:
        if error := _lacking(exc):
            talk.error(error)
            return error.status
        import traceback

        talk.bug(traceback.format_exc())
        return Status.BUG
    return Status.DONE


def _lacking(exc: Exception) -> NdtoolError | None:
    """Return what a full system refused, even in the middle of an import; None if it is a bug."""
    if isinstance(exc, OSError) and exc.errno in EXHAUSTED:
        return failure(exc, str(exc.filename or "the system"))
    no_memory = isinstance(exc, ImportError) and any(words in str(exc) for words in _UNLOADABLE)
    if no_memory or isinstance(exc, MemoryError):
        return ResourceError("not enough memory", hint="ulimit -v shows a limit, if there is one")
    return None


def _listen() -> None:
    """Turn the signals that end a run into Stopped, except those that our parent ignores."""
    import signal

    numbers = {getattr(signal, name): status for name, status in STOPS.items()}

    def stop(number: int, _: Any) -> None:
        _ignore()  # a second one must not disturb the cleaning up
        raise Stopped(numbers[number])

    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)


def _ignore() -> None:
    import signal

    for name in STOPS:
        signal.signal(getattr(signal, name), signal.SIG_IGN)


if __name__ == "__main__":
    program()
