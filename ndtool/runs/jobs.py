"""The operators from argument to argument: open, infer, check, choose a way, publish."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from ndtool.arrays import names, places, sink
from ndtool.arrays.source import Facts, Source
from ndtool.arrays.streams import Streams
from ndtool.arrays.targets import Storing
from ndtool.engine import threads, tuning
from ndtool.engine.gathers import Tick, silent
from ndtool.errors import BoundsError, NdtoolError, OutputError, UsageError, called
from ndtool.rules import dtypes, inference
from ndtool.rules.inference import Given
from ndtool.rules.operators import OPERATORS, Attributes
from ndtool.runs import direct
from ndtool.runs.direct import Operands

if TYPE_CHECKING:
    from ndtool.runs.cluster import Cluster
    from ndtool.runs.cut import Cut
    from ndtool.runs.plan import Plan
    from ndtool.runs.resuming import Left


class Request(NamedTuple):
    """One run as a user asks for it; sources and output are arguments such as `a.npz:x` or `-`.

    dtype: what elements stored as void are. output: None where none is wanted. only: whether the
    archive it goes to loses its other members. memory: bytes that it may take, pages of files
    included, None for what there is. spill: the directory of its temporary files, of a cluster's
    perhaps a URL, None for TMPDIR. scheduler: the address of a cluster's, a file that tells it, or
    a client; workers: how many to start, None for none. resume: whether a cluster takes up what a
    run that was killed left. chunks, shards, codec: see Storing.
    """

    operator: str
    data: str
    indices: str
    updates: str | None = None
    output: str | None = None
    attributes: Attributes = Attributes()
    spec: str = "ndtool"
    dtype: str | None = None
    threads: int | None = None
    clobber: bool = True
    sync: bool = False
    only: bool = False
    memory: int | None = None
    spill: str | None = None
    scheduler: Any = None
    workers: int | None = None
    resume: bool = False
    chunks: tuple[int, ...] | None = None
    shards: tuple[int, ...] | None = None
    codec: str | None = None

    @property
    def on_cluster(self) -> bool:
        """Whether others are to do the work."""
        return self.scheduler is not None or self.workers is not None

    @property
    def arguments(self) -> dict[str, str]:
        """The inputs by the standards' names."""
        return {role: getattr(self, role) for role in OPERATORS[self.operator].inputs}


class Job:
    """A run whose inputs are open and fit together; a context manager that lets go of them.

    given: inputs that are open already, by the standards' names; the others are those that the
    request names. sources: all of them. inference: what follows from their types and shapes.
    started: when, by time.perf_counter. planned: how it is done, once that is known. phase: what
    of it is being done. outside: what is known of indices out of bounds that are no error. left:
    what is taken up of another run, where that was asked for.
    """

    def __init__(self, request: Request, given: dict[str, Source] | None = None) -> None:
        self.request = request
        self.started = time.perf_counter()
        self.threads = threads.resolve(request.threads)
        self.sources: dict[str, Source] = {}
        self.planned: Plan | None = None
        self.phase = ""
        self.outside: BoundsError | None = None
        self.left: Left | None = None
        self._spill = _spill(request)
        self._stack = ExitStack()
        self._cluster: Cluster | None = None
        try:
            self._open(given or {})
            self.inference = inference.infer(
                request.operator,
                {
                    role: Given(one.name, one.facts.dtype, one.facts.shape)
                    for role, one in self.sources.items()
                },
                request.attributes,
                request.spec,
                request.dtype,
            )
        except BaseException:
            self.close()
            raise

    def _open(self, given: dict[str, Source]) -> None:
        streams = Streams(directory=self._spill)
        for role, argument in self.request.arguments.items():
            source = given.get(role) or names.open_source(
                argument, streams, literals=role == "indices"
            )
            self.sources[role] = source
            if self.request.output == "-" and source.is_open_as(1):
                raise OutputError(f"standard output is {called(argument)}, which is an input")

    @property
    def warnings(self) -> list[str]:
        """What is odd about the inputs and the output without being wrong."""
        odd = [source.warning for source in self.sources.values() if source.warning]
        return odd + self._forgotten() + self.changed

    @property
    def resumed(self) -> dict[str, int]:
        """How many tasks of each phase were taken up."""
        return self.left.taken if self.left else {}

    @property
    def changed(self) -> list[str]:
        """Say what became of indices out of bounds, and why what is there is not taken up."""
        return self._settled() + self._unfit()

    def _unfit(self) -> list[str]:
        if self.left is None or not self.left.reason:
            return []
        return [f"nothing is taken up of the run before: {self.left.reason}"]

    def _settled(self) -> list[str]:
        if self.outside is None:
            return []
        attributes = self.inference.attributes
        done = {"clip": "clipped", "wrap": "wrapped", "drop": "dropped"}.get(
            attributes.out_of_bounds, f"filled with {attributes.fill or 0}"
        )
        first = ", ".join(self.outside.places)
        return [f"{self.outside.counted} are out of bounds, and {done}; the first: {first}"]

    def _forgotten(self) -> list[str]:
        """Say if the output's format lacks an element type that data's format has."""
        output, dtype = self.request.output, self.inference.dtype
        if output is None or self.sources["data"].facts.dtype.name not in dtypes.EXTENDED:
            return []
        try:
            stored = names.stored(output, dtype, self.storing)
        except NdtoolError:
            return []  # to be told when the output is made
        if stored.name == dtype.name:
            return []
        where = "standard output" if output == "-" else called(output)
        return [f"{where}: {dtype.name} is stored as {stored.name}: --dtype {dtype.name} reads it"]

    def check(self) -> Operands:
        """Return the inputs as the kernels take them; BoundsError if an index is out of bounds.

        Where they are too large to be put together, the run checks, or counts, them before it has
        an output.
        """
        operands = direct.unchecked(self.inference, self.sources, self.threads, self._spill)
        if self.request.on_cluster and self.inference.nbytes:
            self._plan_on_cluster(operands)
            return operands
        if self._may_be_large and self._plan_unchecked(operands):
            return operands
        with self._named():
            operands = direct.checked(operands)
        if operands.outside is not None:
            self._note(operands.outside)
        return operands

    def _note(self, outside: BoundsError) -> None:
        """Keep what is known of indices out of bounds that are no error."""
        inference.point_out(outside, self.inference.inputs)
        self.outside = outside

    @property
    def _may_be_large(self) -> bool:
        """Whether it is worth looking if memory holds what there is."""
        moved = sum(one.facts.nbytes for one in self.sources.values()) + self.inference.nbytes
        least = tuning.COUNTED_ON if self.request.memory is None else self.request.memory
        return self.request.output is not None and moved > least // 2

    def _plan_unchecked(self, operands: Operands) -> bool:
        """Choose a way if that can be; whether it is a sweep, which checks indices as it goes."""
        from ndtool.runs import plan

        assert self.request.output is not None, "nothing is large where there is no output"
        to = names.planned(self.request.output, self.facts, self.storing)
        strict = self.request.attributes.out_of_bounds == "error"  # else they are counted first
        if not plan.in_chunks(operands, to) and not (strict and operands.is_right("indices")):
            return False
        self.planned = plan.choose(operands, self.request.memory, to)
        return self.planned.cut is not None

    def _plan_on_cluster(self, operands: Operands) -> None:
        """Connect to a cluster, and cut the run for it."""
        from ndtool.runs import cluster

        request = self.request
        self._seen = cluster.arguments(
            request.arguments, self.sources, request.output, request.attributes.reduction
        )
        assert request.output is not None, "a run without an output was refused"
        self._within = cluster.folder(self._spill, request.output)
        to = names.planned(request.output, self.facts, self.storing)
        if request.resume:  # before a cluster is started, which removes what it finds beside itself
            self.left = cluster.take_up(operands, to, self._within, self._seen)
            self._stack.callback(self.left.close)
        self._cluster = self._stack.enter_context(
            cluster.connect(request.scheduler, request.workers, self.threads, request.memory)
        )
        self.planned = cluster.choose(operands, self._cluster, to, self.left)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Have errors about indices name the files."""
        try:
            yield
        except BoundsError as error:
            inference.point_out(error, self.inference.inputs)
            raise

    def rehearse(self, operands: Operands) -> None:
        """Choose a way to run, and check what only the run would."""
        cut = self.plan(operands).cut
        if cut is not None and not operands.indices:
            from ndtool.runs import sweep

            with self._named():
                sweep.check(operands, cut, self._note)

    def run(
        self, operands: Operands, tick: Tick = silent, beside: Sequence[sink.Sink] = ()
    ) -> tuple[str, ...] | None:
        """Compute the output and publish it, whole; return the members that stay in its file.

        beside: what is complete, and published together with it.
        """
        request = self.request
        assert request.output is not None, "there is nowhere to write to"
        output: sink.Sink = names.create(
            request.output, self.facts,
            clobber=request.clobber, sync=request.sync, only=request.only, storing=self.storing,
        )  # fmt: skip
        self.fill(output, operands, tick, beside)
        return output.kept

    @property
    def facts(self) -> Facts:
        """What is known of the output."""
        shape = self.inference.plan.output
        return Facts(self.inference.dtype, shape, "C", shape, {})

    def fill(
        self,
        output: sink.Sink,
        operands: Operands,
        tick: Tick = silent,
        beside: Sequence[sink.Sink] = (),
    ) -> None:
        """Compute the output into a sink, and publish that, whole."""
        try:
            if self.inference.nbytes:
                self._compute(output, operands, tick)
            self.recheck()
            sink.commit(output, *beside)
        finally:
            output.abort()

    def _compute(self, output: sink.Sink, operands: Operands, tick: Tick) -> None:
        cut = self.plan(operands).cut
        if cut is not None:
            with self._named():
                for phase in self._phases(operands, output, cut, tick):
                    self.phase = phase
        elif "updates" in self.sources:
            direct.scatter(operands, output, tick)
        else:
            direct.gather(operands, output, tick)

    def _phases(
        self, operands: Operands, output: sink.Sink, cut: "Cut", tick: Tick
    ) -> Iterator[str]:
        if self._cluster is None:
            from ndtool.runs import sweep

            return sweep.run(operands, output, cut, tick, self._note)
        from ndtool.runs import cluster

        where = self._within, self._seen
        return cluster.run(operands, output, cut, where, self._cluster, tick, self._note, self.left)

    def plan(self, operands: Operands) -> "Plan":
        """Choose a way to run, once."""
        if self.planned is None:
            from ndtool.runs import plan

            self.planned = plan.choose(operands, self.request.memory, self.facts)
        return self.planned

    @property
    def moved(self) -> int:
        """How many bytes are gone through in all while the output is made."""
        planned = self.planned
        if planned is None or planned.cut is None:
            return self.inference.nbytes
        return planned.read + planned.written + 2 * planned.spilled

    def check_output(self) -> tuple[str, ...] | None:
        """Raise what `run` would about the output, as far as that shows without writing."""
        if self.request.output is None:
            return None
        return names.check(
            self.request.output,
            self.inference.dtype,
            clobber=self.request.clobber,
            only=self.request.only,
            storing=self.storing,
        )

    @property
    def storing(self) -> Storing:
        """How the chunks of an output are."""
        request, facts = self.request, self.sources["data"].facts
        as_void = facts.dtype.name not in dtypes.EXTENDED  # it came so, whatever --dtype calls it
        return Storing(request.chunks, request.shards, request.codec, facts.notes, as_void)

    def recheck(self) -> None:
        """Raise OutputError if an input changed since it was opened."""
        for source in self.sources.values():
            source.recheck()

    def close(self) -> None:
        """Let go of the inputs, and of a cluster."""
        self._stack.close()
        for source in self.sources.values():
            source.close()

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _spill(request: Request) -> str | None:
    """Return where temporary files go; UsageError for what only a cluster can."""
    if request.resume and not request.on_cluster:
        raise UsageError(
            "--resume: only a cluster takes up runs: expected --scheduler or --workers"
        )
    where = None if request.spill is None else places.local_path(request.spill)
    if where is not None and places.is_url(where) and not request.on_cluster:
        raise UsageError(
            f"--spill {called(where)}: only a cluster keeps files at a URL: expected a directory"
        )
    return where
