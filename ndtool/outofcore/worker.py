"""Out-of-core execution on a cluster: a worker opens arrays, runs tasks, and closes the arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import Lock
from typing import Any, NamedTuple

from ndtool import __version__
from ndtool.arrays.sink import Sink
from ndtool.arrays.source import Inputs
from ndtool.errors import NdtoolError, OutputError, UsageError, argument_name
from ndtool.machine.threads import AdmissionLock
from ndtool.outofcore import execution, phases
from ndtool.outofcore.partitioning import Partitioning
from ndtool.outofcore.phases import Work
from ndtool.outofcore.segments import Segment, SharedStore
from ndtool.publish.sinks import SharedFile, SharedOutput
from ndtool.rules.inference import Inference


class Call(NamedTuple):
    """The call that a run's tasks belong to, which is sent with each task.

    token: the ID of the run. version: the client's version of ndtool. open_inputs: opens the
    inputs. output: the shared output. folder: the location of spilled data. resumes: whether a
    killed run has left segments in it.
    """

    token: str
    version: str
    open_inputs: Callable[[], Inputs]
    inference: Inference
    partitioning: Partitioning
    output: SharedOutput
    folder: str
    resumes: bool


_open_runs: dict[str, _OpenRun | None] = {}  # by token; None for those whose tasks must fail
_lock = Lock()


class _AdmittedSink(Sink):
    """A sink that admits writes until the run is closed."""

    def __init__(self, sink: Any, admission: AdmissionLock) -> None:
        self.name, self.metadata, self.concurrency = sink.name, sink.metadata, sink.concurrency
        self._sink, self._admission = sink, admission

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        with self._admission.admit():
            self._sink.write(start, view, block)


class _OpenRun:
    """The open arrays of a run on a worker. users: the number of running tasks."""

    users = 0

    def __init__(self, call: Call) -> None:
        if call.version != __version__:
            raise version_error("a worker", __version__, call.version)
        with ExitStack() as stack:
            inputs = call.open_inputs()
            for source in inputs.sources.values():
                stack.callback(source.close)
            for role, (name, dtype, shape) in inputs.inference.inputs.items():
                if call.inference.inputs[role][1:] != (dtype, shape):
                    raise OutputError(
                        f"{argument_name(name)} has another type or shape on a worker"
                    )
            sink, admission = _reopen_output(call.output), AdmissionLock(call.output.name)
            stack.callback(sink.close)
            stack.callback(admission.close)  # waits for writes in flight
            self.store = SharedStore(call.folder, admission)
            output = _AdmittedSink(sink, admission)
            writer = execution.writer(output, call.partitioning, call.inference.plan)
            arrays = execution.arrays(inputs, call.partitioning, writer)
            self.work = Work(call.inference, call.partitioning, arrays, self.store)
            self.close = stack.pop_all().close


@contextmanager
def _without_causes() -> Iterator[None]:
    """Remove the causes of errors, which may be of libraries that the client cannot unpickle."""
    try:
        yield
    except NdtoolError as error:
        error.__cause__ = error.__context__ = None
        raise


def check_access(call: Call) -> NdtoolError | None:
    """Return the error if this worker cannot open the arrays or write spilled data, else None."""
    try:
        with _without_causes(), _open_run(call) as open_run:
            open_run.store.write(Segment("writable", (), 0, 0), [memoryview(b"\n")])
    except NdtoolError as error:
        return error
    return None


@_without_causes()
def perform(call: Call, phase: str, *task: Any) -> tuple[Any, bool]:
    """Run a task on this worker; the first task of a run opens its arrays.

    Return its result, and whether a killed run completed it.
    """
    with _open_run(call) as open_run:
        work = open_run.work
        if call.resumes and phase != work.last_phase:
            with suppress(OutputError, ValueError, TypeError):
                return phases.find_result(work, phase, *task), True
        return phases.TASKS[phase](work, work.root, *task), False


@contextmanager
def _open_run(call: Call) -> Iterator[_OpenRun]:
    """Yield the open arrays of a run, which stay open for its next task.

    They are closed when the client asks for it, or, since the client may have been killed, before
    another run opens its arrays.
    """
    with _lock:
        if call.token not in _open_runs:
            for token, other in [*_open_runs.items()]:
                if other is not None and not other.users:
                    other.close()
                    del _open_runs[token]
            _open_runs[call.token] = _OpenRun(call)
        open_run = _open_runs[call.token]
        if open_run is None:
            raise OutputError(f"{argument_name(call.output.name)}: the run has ended")
        open_run.users += 1
    try:
        yield open_run
    finally:
        with _lock:
            open_run.users -= 1


def close_run(token: str) -> None:
    """Close a run on this worker."""
    with _lock:
        open_run = _open_runs.get(token)
        _open_runs[token] = None
    if open_run is not None:
        open_run.close()


def version() -> str:
    """Return the version of ndtool on this worker."""
    return __version__


def version_error(worker_name: str, actual: object, expected: str) -> UsageError:
    """Return the error about a worker that has another version of ndtool, or none."""
    problem = f"has ndtool {actual}" if isinstance(actual, str) else "cannot import ndtool"
    return UsageError(
        f"{worker_name} {problem}: expected version {expected}, as in this process",
        hint=f"pip install 'ndtool[cluster]=={expected}' on all workers",
    )


def _reopen_output(target: SharedOutput) -> Any:
    """Reopen the output that the client created and will publish."""
    if target.metadata.is_chunked:
        from ndtool.formats.zarr.writer import ChunkWriter

        return ChunkWriter.reopen(target)
    return SharedFile(target)
