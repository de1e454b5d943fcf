"""What a worker of a cluster does: tasks of runs whose arrays it opens once, and lets go of."""

from __future__ import annotations

from collections import OrderedDict, deque
from contextlib import ExitStack
from threading import Condition, Lock
from typing import Any, NamedTuple

from ndtool import __version__
from ndtool.arrays import names
from ndtool.arrays.shared import Shared, SharedFile
from ndtool.arrays.source import Source
from ndtool.arrays.streams import Streams
from ndtool.errors import NdtoolError, OutputError, UsageError, called
from ndtool.rules.inference import Inference
from ndtool.runs import spilling, sweep, tasks
from ndtool.runs.cut import Cut
from ndtool.runs.direct import unchecked
from ndtool.runs.tasks import Work

KEPT = 4  # runs whose arrays are kept open while none of their tasks is at work


class Call(NamedTuple):
    """All that a task needs to know besides its number; it travels with each of them.

    token: of the run. arguments: the inputs, by roles. output: where it is written. folder: what
    tasks keep.
    """

    token: str
    version: str
    arguments: dict[str, str]
    inference: Inference
    cut: Cut
    output: Shared
    folder: str


_open: OrderedDict[str, _Opened] = OrderedDict()  # by token
_ended: deque[str] = deque(maxlen=1000)  # tokens of runs whose tasks must do nothing any more
_turn = Lock()


class _Gate:
    """Lets writes through until it is closed: a folder must not be made again by a late one."""

    def __init__(self, sink: Any) -> None:
        self.facts, self.at_once = sink.facts, sink.at_once
        self._sink = sink
        self._inside, self._closed = 0, False
        self._changed = Condition()

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        """Write as the sink does; OutputError where the run has ended."""
        with self._changed:
            if self._closed:
                raise _ended_already(self._sink.name)
            self._inside += 1
        try:
            self._sink.write(start, view, block)
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Let nothing through any more, and wait for what is on its way."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._inside)
        self._sink.close()


class _Opened:
    """What a worker has open of a run. users: how many tasks are at work with it."""

    users = 0

    def __init__(self, call: Call) -> None:
        if call.version != __version__:
            raise mismatch("a worker", __version__, call.version)
        with ExitStack() as stack:
            self.sources: dict[str, Source] = {}
            for role, argument in call.arguments.items():
                literals = role == "indices"
                source = names.open_source(argument, Streams(), literals=literals)
                stack.callback(source.close)
                self.sources[role] = source
                _, dtype, shape = call.inference.inputs[role]
                if source.facts.shape != shape or source.facts.dtype.itemsize != dtype.itemsize:
                    raise OutputError(f"{called(argument)} is another array on a worker")
            output = _Gate(_output(call.output))
            stack.callback(output.close)
            keep = spilling.keep(call.folder)
            stack.callback(keep.close)
            operands = unchecked(call.inference, self.sources, 1)
            sink: Any = output
            writer = sweep.writer(sink, call.cut, call.inference.plan)
            arrays = sweep.arrays(operands, call.cut, writer)
            self.work = Work(call.inference, call.cut, arrays, keep)
            self.close = stack.pop_all().close


def _ended_already(name: str) -> OutputError:
    return OutputError(f"{called(name)}: the run has ended")


def perform(call: Call, phase: str, number: int) -> Any:
    """Do a task, on a worker; what it needs is opened once."""
    with _turn:
        if call.token in _ended:
            raise _ended_already(call.output.name)
        if call.token not in _open:
            _open[call.token] = _Opened(call)
        _open.move_to_end(call.token)
        opened = _open[call.token]
        opened.users += 1
        idle = [token for token, one in _open.items() if not one.users]
        for token in idle[: max(0, len(_open) - KEPT)]:
            _open.pop(token).close()
    try:
        return tasks.PHASES[phase](opened.work, number)
    finally:
        with _turn:
            opened.users -= 1


def finish(token: str) -> NdtoolError | None:
    """Let go of a run, on a worker; return what happened to its inputs since they were opened."""
    with _turn:
        opened = _open.pop(token, None)
        _ended.append(token)
    if opened is None:
        return None
    try:
        for source in opened.sources.values():
            source.recheck()
    except NdtoolError as error:
        return error
    finally:
        opened.close()
    return None


def version() -> str:
    """Return the version of ndtool, on a worker."""
    return __version__


def mismatch(who: str, found: object, wanted: str) -> UsageError:
    """Return the error about a worker that has another version of ndtool, or none."""
    what = f"has ndtool {found}" if isinstance(found, str) else "has no ndtool"
    return UsageError(
        f"{who} {what}: expected {wanted}, as here",
        hint=f"pip install 'ndtool[cluster]=={wanted}' on all workers",
    )


def _output(place: Shared) -> Any:
    """Return what writes to an output that the client made, and will publish."""
    if place.facts.in_chunks:
        from ndtool.arrays.zarrwriter import Chunks

        return Chunks.again(place)
    return SharedFile(place)
