"""Out-of-core execution on a cluster: a worker opens the arrays of a run and executes its tasks."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakValueDictionary, finalize

from ndtool import __version__
from ndtool.arrays.sink import Sink
from ndtool.errors import NdtoolError, OutputError, UsageError, argument_name
from ndtool.machine.threads import AdmissionLock
from ndtool.outofcore import execution, phases
from ndtool.outofcore.partitioning import Partitioning
from ndtool.outofcore.phases import Group
from ndtool.outofcore.segments import Segment, SharedStore
from ndtool.publish.sinks import SharedFile, SharedOutput
from ndtool.rules.inference import Inference


class Call(NamedTuple):
    """The call that a run's tasks belong to, which is sent with each task.

    token: the ID of the run. version: the client's version of ndtool. open_inputs: opens the
    inputs, an OpenCall. output: the shared output. folder: the location of spilled data. resumes:
    whether a killed run has left segments in it.
    """

    token: str
    version: str
    open_inputs: Callable[[], Any]
    inference: Inference
    partitioning: Partitioning
    output: SharedOutput
    folder: str
    resumes: bool


class _AdmittedSink(Sink):
    """A sink that admits writes until the run is closed."""

    def __init__(self, sink: Any, admission: AdmissionLock) -> None:
        self.name, self.metadata, self.concurrency = sink.name, sink.metadata, sink.concurrency
        self._sink, self._admission = sink, admission

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        with self._admission.admit():
            self._sink.write(start, view, block)


class _OpenRun:
    """The arrays of a run on this worker, which are closed when no task has them any more."""

    def __init__(self, call: Call) -> None:
        if error := version_error(call.version):
            raise error
        with ExitStack() as stack:
            inputs = stack.enter_context(call.open_inputs())
            for role, (name, dtype, shape) in inputs.inference.inputs.items():
                if call.inference.inputs[role][1:] != (dtype, shape):
                    raise OutputError(
                        f"{argument_name(name)} has another type or shape on a worker"
                    )
            sink, self.admission = _reopen_output(call.output), AdmissionLock(call.output.name)
            stack.callback(sink.close)
            output = _AdmittedSink(sink, self.admission)
            store = SharedStore(call.folder, self.admission)
            self.work = execution.open_work(inputs, call.partitioning, store, output)
            finalize(self, stack.pop_all().close)


_open_runs = WeakValueDictionary[str, _OpenRun]()  # by token
_latest: _OpenRun | None = None  # stays open for its next task
_ended = set[str]()  # the tokens of closed runs, whose tasks must fail
_lock = Lock()


def _open_run(call: Call) -> _OpenRun:
    """Return the open arrays of a run, which its first task opens.

    They stay open until the client closes the run, or, since it may have been killed, until another
    run opens its arrays.
    """
    global _latest
    with _lock:
        if call.token in _ended:
            raise OutputError(f"{argument_name(call.output.name)}: the run has ended")
        _latest = _open_runs.get(call.token) or _OpenRun(call)
        _open_runs[call.token] = _latest
        return _latest


def close_run(token: str) -> None:
    """Stop the writes of a run on this worker; its arrays are closed when its tasks have ended."""
    global _latest
    with _lock:
        _ended.add(token)
        if (open_run := _open_runs.get(token)) is _latest:
            _latest = None
    if open_run is not None:
        open_run.admission.close()  # waits for writes in flight


def version_error(expected: str) -> UsageError | None:
    """Return the error if this worker has another version of ndtool, else None."""
    if expected == __version__:
        return None
    return UsageError(
        f"the worker on {socket.gethostname()} has ndtool {__version__}: expected version"
        f" {expected}, as on the client",
        hint=f"pip install 'ndtool[cluster]=={expected}' on all workers",
    )


def check_access(call: Call) -> NdtoolError | None:
    """Return the error if this worker cannot open the arrays or write spilled data, else None."""
    try:
        segment = Segment("writable", (), 0, 0)
        _open_run(call).work.store.write(segment, [memoryview(b"\n")])
    except NdtoolError as error:
        return _without_causes(error)
    return None


def perform(call: Call, phase: str, *task: Any) -> tuple[Any, bool]:
    """Run a task on this worker; return its result, and whether a killed run completed it."""
    try:
        open_run = _open_run(call)
        work, root = open_run.work, Group(open_run.work)
        if call.resumes and phase != work.last_phase:
            with suppress(OutputError, ValueError, TypeError):
                return phases.find_result(root, phase, *task), True
        return phases.TASKS[phase](root, *task), False
    except NdtoolError as error:
        raise _without_causes(error) from None


def _without_causes(error: NdtoolError) -> NdtoolError:
    """Remove the causes of an error, which may be of libraries that the client cannot unpickle."""
    error.__cause__ = error.__context__ = None
    return error


def _reopen_output(target: SharedOutput) -> Any:
    """Reopen the output that the client created and will publish."""
    if target.metadata.is_chunked:
        from ndtool.formats.zarr.writer import ChunkWriter

        return ChunkWriter.reopen(target)
    return SharedFile(target)
