"""The entry point of `ndtool` and `python -m ndtool`: signals and exit statuses.

Until `program` installs its signal handlers, Python's own apply; so little is imported before.
"""

import os
import sys

TYPE_CHECKING = False  # recognised by type checkers
if TYPE_CHECKING:
    from typing import NoReturn

    from ndtool.errors import NdtoolError, Status

_UNLOADABLE = ("failed to map segment", "Cannot allocate memory")


def program() -> "NoReturn":
    """Run the command line, then exit without Python's finalization, a tenth of a small run."""
    status = main()
    import atexit

    try:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except Exception:
        sys.exit(status)  # finalize as Python does
    os._exit(status)


def main() -> int:
    """Run the command line; return its exit status."""
    _listen()
    from ndtool.storage.descriptors import guard_descriptors

    guard_descriptors()
    for name in ("OMP_STACKSIZE", "GOMP_STACKSIZE"):
        os.environ.pop(name, None)  # an invalid value makes libgomp exit or crash
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy would start threads that ndtool never uses
    try:
        status = int(_run(sys.argv[1:]))
        _ignore()  # the output is published: a late signal must not report failure
        return status
    except KeyboardInterrupt:  # raised by a library: signals raise none here
        return 130


def _run(arguments: list[str]) -> "Status":
    """Run one command; the only function that turns exceptions into exit statuses."""
    from ndtool.cli.reporter import Reporter
    from ndtool.errors import NdtoolError, Status

    reporter = Reporter()
    try:
        from ndtool.cli import program

        program.run(arguments, reporter)
    except NdtoolError as exc:
        reporter.error(exc)
        return exc.status
    except BrokenPipeError:
        return Status.BROKEN_PIPE
    except Exception as exc:
        if error := _lacking(exc):
            reporter.error(error)
            return error.status
        import traceback

        reporter.bug(traceback.format_exc())
        return Status.BUG
    return Status.DONE


def _lacking(exc: Exception) -> "NdtoolError | None":
    """Return the error of an exhausted system, also amid an import; None if it is a bug."""
    from ndtool.errors import ResourceError
    from ndtool.storage.descriptors import EXHAUSTED, failure

    if isinstance(exc, OSError) and exc.errno in EXHAUSTED:
        return failure(exc, str(exc.filename or "the system"))
    no_memory = isinstance(exc, ImportError) and any(words in str(exc) for words in _UNLOADABLE)
    if no_memory or isinstance(exc, MemoryError) or _interrupted_import(exc):
        return ResourceError("not enough memory", hint="ulimit -v shows a limit, if there is one")
    return None


def _interrupted_import(exc: Exception) -> bool:
    """Return whether an import ended without a reason, as CPython's do if memory is short."""
    if not isinstance(exc, SystemError):
        return False
    import traceback

    frames = traceback.extract_tb(exc.__traceback__)
    return any(frame.filename.startswith("<frozen importlib") for frame in frames)


def _listen() -> None:
    """Exit on SIGINT, SIGTERM and SIGHUP, unless the parent process ignores the signal.

    Handlers do not raise, because some extension modules drop exceptions during import. Outputs
    that need cleanup install other handlers (signals.py).
    """
    import signal

    def stop(number: int, _: object) -> None:
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)


def _ignore() -> None:
    import signal

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    program()
