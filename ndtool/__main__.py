"""The entry point of `ndtool` and `python -m ndtool`: signals and exit statuses.

Until `main` installs signal handlers, Python's own raise KeyboardInterrupt, so few modules are
imported before.
"""

import gc
import os
import sys

TYPE_CHECKING = False  # recognised by type checkers
if TYPE_CHECKING:
    from typing import NoReturn

    from ndtool.errors import NdtoolError, Status

# Runs of any size leave 1,000 objects of garbage. With Python's threshold of 700 objects, a tenth
# of a small run's time is the search for it; with 100,000, a tenth of the parsing of JSON lists.
_GARBAGE_THRESHOLD = 500_000
# Python has frames in blocks of 16 KiB, each mapped at the call that needs it and unmapped at its
# return: a loop of imports that calls across a boundary does so 1,700 times. A frame of this many
# values makes one block that has room for all.
_STACK_SIZE = 1 << 14
# They only add docstrings to NumPy, in a sixth of the time of its import.
_DOCSTRING_MODULES = ("numpy._core._add_newdocs", "numpy._core._add_newdocs_scalars")


def program() -> "NoReturn":
    """Run the command line, then exit without Python's finalization, which delays small runs."""
    for name in _DOCSTRING_MODULES:
        sys.modules.setdefault(name, type(sys)(name))
    status = main()
    import atexit

    try:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except Exception:
        sys.exit(status)  # with Python's finalization, which reports the exception
    os._exit(status)


def main() -> int:
    """Run the command line; return its exit status."""
    gc.set_threshold(_GARBAGE_THRESHOLD)
    try:
        _install_signal_handlers()
        from ndtool.storage.descriptors import guard_descriptors

        guard_descriptors()
        for name in ("OMP_STACKSIZE", "GOMP_STACKSIZE"):
            os.environ.pop(name, None)  # an invalid value makes libgomp exit or crash
        os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy would start threads that ndtool never uses
        status = int(_run(sys.argv[1:]))
        _ignore_signals()  # the output is published: a signal must not change the exit status
        return status
    except KeyboardInterrupt:  # before the handlers are installed, or from a library
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
        reporter.report_error(exc)
        return exc.status
    except BrokenPipeError:
        return Status.BROKEN_PIPE
    except Exception as exc:
        if error := _resource_error(exc):
            reporter.report_error(error)
            return error.status
        import traceback

        reporter.report_bug(traceback.format_exc())
        return Status.BUG
    return Status.DONE


_run.__code__ = _run.__code__.replace(co_stacksize=_STACK_SIZE)


def _resource_error(exc: Exception) -> "NdtoolError | None":
    """Return a ResourceError for lack of memory or descriptors, even in an import; else None."""
    from ndtool.errors import ResourceError, lacks_memory
    from ndtool.storage.descriptors import EXHAUSTION_ERRNOS, failure

    if isinstance(exc, OSError) and exc.errno in EXHAUSTION_ERRNOS:
        return failure(exc, str(exc.filename or "the system"))
    if lacks_memory(exc) or _is_failed_import(exc):
        return ResourceError("not enough memory", hint="ulimit -v shows a limit, if there is one")
    return None


def _is_failed_import(exc: Exception) -> bool:
    """Return whether an import raised SystemError, as CPython's does when memory is exhausted."""
    if not isinstance(exc, SystemError):
        return False
    import traceback

    frames = traceback.extract_tb(exc.__traceback__)
    return any(frame.filename.startswith("<frozen importlib") for frame in frames)


def _install_signal_handlers() -> None:
    """Exit on SIGINT, SIGTERM and SIGHUP, unless the parent process ignores the signal.

    Handlers do not raise, because some extension modules drop exceptions during import. Runs with
    temporary files install handlers that remove them (machine/signals.py).
    """
    import signal

    def exit_with_signal(signum: int, _: object) -> None:
        os._exit(128 + signum)

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, exit_with_signal)


def _ignore_signals() -> None:
    """Ignore SIGINT, SIGTERM and SIGHUP."""
    import signal

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)


if __name__ == "__main__":
    program()
