"""The program, as `ndtool` and `python -m ndtool`: every way in which a run can end."""

import sys
from typing import Any

from ndtool.errors import STOPS, NdtoolError, ResourceError, Status
from ndtool.storage import guard_descriptors


class Stopped(BaseException):
    """A signal asks the run to end; outputs drop what they have as it passes."""

    def __init__(self, status: Status) -> None:
        self.status = status


def main() -> int:
    """Run the command line; return its exit status."""
    guard_descriptors()
    try:
        _listen()
        status = int(_run(sys.argv[1:]))
        _ignore()  # what was done is done: a signal from now on would only tell lies
        return status
    except Stopped as stopped:
        return int(stopped.status)
    except KeyboardInterrupt:
        return int(Status.INTERRUPTED)


def _run(arguments: list[str]) -> Status:
    """Run one command; the only place that turns exceptions into exit statuses."""
    from ndtool.report import Talk

    talk = Talk()
    try:
        from ndtool import cli

        cli.run(arguments, talk)
    except NdtoolError as exc:
        talk.error(exc)
        return exc.status
    except BrokenPipeError:
        return Status.BROKEN_PIPE
    except MemoryError:
        error = ResourceError("not enough memory", hint="ulimit -v shows a limit, if there is one")
        talk.error(error)
        return error.status
    except Exception:
        import traceback

        talk.bug(traceback.format_exc())
        return Status.BUG
    return Status.DONE


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
    sys.exit(main())
