"""The worker's side of a cluster: opens the arrays of a run once, runs tasks, closes them."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import Any, NamedTuple

from ndtool import __version__
from ndtool.arrays.source import Source
from ndtool.errors import NdtoolError, OutputError, UsageError, argument_name
from ndtool.formats import locators
from ndtool.formats.streams import Streams
from ndtool.publish.admission import AdmissionLock
from ndtool.publish.shared import SharedFile, SharedOutput
from ndtool.rules.inference import Inference
from ndtool.runs.calls import Inputs
from ndtool.runs.executors import Cluster
from ndtool.runs.external import execution, spillfiles
from ndtool.runs.external.partitioning import Partitioning
from ndtool.runs.external.tasks import do
from ndtool.runs.external.work import Work

IDLE_RUNS = 4  # idle runs whose arrays stay open


class Call(NamedTuple):
    """The parameters of a task except its number; the executor sends them with each task.

    token: the ID of the run. arguments: the locations of inputs, by role. output: the shared
    output. folder: the location of spilled data.
    """

    token: str
    version: str
    arguments: dict[str, str]
    inference: Inference
    partitioning: Partitioning
    output: SharedOutput
    folder: str


_open: OrderedDict[str, _Opened] = OrderedDict()  # by token
_ended: deque[str] = deque(maxlen=1000)  # tokens of runs whose tasks must fail
_turn = Lock()


class _Gated:
    """A sink that can be closed against further writes."""

    def __init__(self, sink: Any) -> None:
        self.metadata, self.concurrency = sink.metadata, sink.concurrency
        self._sink, self._gate = sink, AdmissionLock(sink.name)

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        """Write as the sink does; OutputError if the run has ended."""
        with self._gate.admit():
            self._sink.write(start, view, block)

    def close(self) -> None:
        """Refuse further writes, and wait for those in flight."""
        self._gate.close()
        self._sink.close()


class _Opened:
    """The open arrays of a run on a worker. users: the number of running tasks."""

    users = 0

    def __init__(self, call: Call) -> None:
        if call.version != __version__:
            raise mismatch("a worker", __version__, call.version)
        with ExitStack() as stack:
            self.sources: dict[str, Source] = {}
            for role, argument in call.arguments.items():
                dtype = call.inference.inputs["data"].dtype
                source = locators.open_role(role, argument, Streams(), dtype)
                stack.callback(source.close)
                self.sources[role] = source
                _, dtype, shape = call.inference.inputs[role]
                if (
                    source.metadata.shape != shape
                    or source.metadata.dtype.itemsize != dtype.itemsize
                ):
                    raise OutputError(
                        f"{argument_name(argument)} has another type or shape on a worker"
                    )
            output = _Gated(_output(call.output))
            stack.callback(output.close)
            spills = spillfiles.open_store(call.folder)
            stack.callback(spills.close)
            inputs = Inputs(call.inference, self.sources)
            sink: Any = output
            writer = execution.writer(sink, call.partitioning, call.inference.plan)
            arrays = execution.arrays(inputs, call.partitioning, writer)
            self.work = Work(call.inference, call.partitioning, arrays, spills)
            self.close = stack.pop_all().close


def _ended_already(name: str) -> OutputError:
    return OutputError(f"{argument_name(name)}: the run has ended")


@contextmanager
def _alone() -> Iterator[None]:
    """Remove the causes of our errors: the client may not be able to unpickle a library's."""
    try:
        yield
    except NdtoolError as error:
        error.__cause__ = error.__context__ = None
        raise


def look(call: Call) -> NdtoolError | None:
    """Return the error if this worker cannot open the arrays or write spilled data, else None."""
    try:
        with _alone(), _at_work(call):
            spillfiles.open_store(call.folder).require_writable()
    except NdtoolError as error:
        return error
    return None


@_alone()
def perform(call: Call, phase: str, number: int) -> Any:
    """Run a task on this worker; the first one of a run opens its arrays."""
    with _at_work(call) as opened:
        return do(opened.work, phase, number)


@contextmanager
def _at_work(call: Call) -> Iterator[_Opened]:
    """Yield the open arrays of a run, and keep them open for the time of the context."""
    with _turn:
        if call.token in _ended:
            raise _ended_already(call.output.name)
        if call.token not in _open:
            _open[call.token] = _Opened(call)
        _open.move_to_end(call.token)
        opened = _open[call.token]
        opened.users += 1
        idle = [token for token, opened in _open.items() if not opened.users]
        for token in idle[: max(0, len(_open) - IDLE_RUNS)]:
            _open.pop(token).close()
    try:
        yield opened
    finally:
        with _turn:
            opened.users -= 1


def finish(token: str) -> NdtoolError | None:
    """Close a run on this worker; return the error if one of its inputs has changed, else None."""
    with _turn:
        opened = _open.pop(token, None)
        _ended.append(token)
    if opened is None:
        return None
    try:
        with _alone():
            for source in opened.sources.values():
                source.recheck()
    except NdtoolError as error:
        return error
    finally:
        opened.close()
    return None


def version() -> str:
    """Return the version of ndtool on this worker."""
    return __version__


def require_one_version(cluster: Cluster) -> None:
    """Raise UsageError if a worker has another version of ndtool, or none."""
    for name, actual in cluster.everywhere(version).items():
        if actual != __version__:
            raise mismatch(f"the worker at {name}", actual, __version__)


def mismatch(worker_name: str, actual: object, expected: str) -> UsageError:
    """Return the error about a worker that has another version of ndtool, or none."""
    what = f"has ndtool {actual}" if isinstance(actual, str) else "has no ndtool"
    return UsageError(
        f"{worker_name} {what}: expected {expected}, as here",
        hint=f"pip install 'ndtool[cluster]=={expected}' on all workers",
    )


def _output(target: SharedOutput) -> Any:
    """Reopen the output that the client created and will publish."""
    if target.metadata.is_chunked:
        from ndtool.formats.zarr.writer import Chunks

        return Chunks.reopen(target)
    return SharedFile(target)
