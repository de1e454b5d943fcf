"""A sweep whose tasks are done by a dask.distributed cluster: futures of pure functions, no graph.

A task travels as a few names and numbers: workers open the arrays themselves, see the folder of
what tasks keep, and write to the output, which gets its name here when all of it is there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from threading import Thread
from typing import Any

from ndtool import __version__, endings
from ndtool.arrays import names, places
from ndtool.arrays.shared import Shared
from ndtool.arrays.source import Facts, Flat, Source
from ndtool.engine import memory
from ndtool.engine.gathers import Tick
from ndtool.errors import NdtoolError, OutputError, ResourceError, UsageError, called, printable
from ndtool.runs import plan, resuming, spilling, sweep, worker
from ndtool.runs.cut import Cut
from ndtool.runs.direct import Operands
from ndtool.runs.plan import Plan
from ndtool.runs.resuming import Left
from ndtool.runs.sweep import Take

ANSWER, COME = 10, 60  # seconds that a scheduler may take to answer, its first worker to come
BACK = 60  # that a run waits for one to come back when all are gone; it asks so often
OFTEN = 1
HURRY = 0.7  # seconds that workers may take to let go of a run that failed
SENT = 10  # the same where they write to a store: what comes after it was cleared would stay
AHEAD = 4096  # tasks that wait with the scheduler: it need not know all
WORTH = 3  # tasks of a phase for each thread, where chunks are small enough
_LOGS = "distributed", "distributed.client"  # which have handlers of their own


class Cluster:
    """A connection to a scheduler. slots: threads of all workers. memory: bytes for each.

    local: how many workers are this run's own, and what kills them.
    """

    def __init__(
        self, client: Any, limit: int | None, local: int | None, kill: Callable[[], None] | None
    ) -> None:
        self._client, self._kill = client, kill
        workers = self._identity(-1)["workers"].values()
        self.slots = sum(one["nthreads"] for one in workers)
        threads = max(one["nthreads"] for one in workers)
        if limit is None:
            limits = [one["memory_limit"] for one in workers if one["memory_limit"]]
            limit = min(limits, default=memory.available() // (local or len(workers)))
        self.memory = limit // threads

    def each(self, call: worker.Call, phase: str, tasks: Sequence[int], take: Take) -> None:
        """Have tasks of a phase done; those of workers that are lost are done again."""
        distributed = library()
        work, numbers = partial(worker.perform, call, phase), iter(tasks)
        running: dict[Any, int] = {}
        done = distributed.as_completed(loop=self._client.loop, with_results=True)

        def send(most: int) -> None:
            for number in numbers:
                key = f"ndtool-{phase}-{call.token}-{number}"
                future = self._client.submit(work, number, key=key, pure=False)
                running[future] = number
                done.add(future)
                if len(running) >= most:
                    return

        try:
            send(AHEAD)
            while running:
                self._wait(done)
                future, end = next(done)
                if isinstance(end, BaseException):  # nobody knows what became of the task
                    raise end
                take(running.pop(future), end)
                send(AHEAD)
        except distributed.KilledWorker:
            raise ResourceError(
                f"workers were lost in a task of {phase}, again and again",
                hint="less --memory makes tasks smaller",
            ) from None
        except _lost():
            running.clear()  # there is nobody to cancel them
            raise _lonely() from None
        finally:
            if running:
                self._client.cancel(list(running), force=True, reason="the run ended")

    def _wait(self, done: Any) -> None:
        """Wait until a task has come to an end; ResourceError where nobody is there to do any."""
        alone = 0.0
        while True:
            with done.thread_condition:
                if done.thread_condition.wait_for(done.has_ready, OFTEN):
                    return
            alone = 0.0 if self._identity(0)["n_workers"] else alone + OFTEN
            if alone > BACK:
                raise ResourceError(f"all workers are gone, and none has come in {BACK} seconds")

    def _identity(self, workers: int) -> Any:
        """Return what the scheduler tells of itself, and of so many workers; -1 for all."""
        identity = self._client.scheduler.identity
        return self._asked(self._client.sync, identity, n_workers=workers)

    def _asked(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Have the scheduler, or all workers, answer."""
        lost: tuple[type[BaseException], ...] = (*_lost(), OSError)
        try:
            return call(*arguments, **options)
        except lost:
            raise _lonely() from None

    def finish(self, token: str) -> None:
        """Have all workers let go of a run; raise OutputError if an input changed meanwhile."""
        ended = self._asked(self._client.run, worker.finish, token, on_error="return")
        for error in ended.values():
            if isinstance(error, NdtoolError):
                raise error

    def abandon(self, token: str, seconds: float) -> None:
        """Have all workers let go of a run that failed, if they can in so many seconds."""
        if self._kill is not None:
            self._kill()
            return

        def ask() -> None:
            with suppress(*_lost(), OSError):
                self._client.run(worker.finish, token, on_error="ignore")

        asking = Thread(target=ask, daemon=True)
        asking.start()
        asking.join(seconds)


def _lonely() -> ResourceError:
    return ResourceError("the connection to the scheduler is lost")


def _lost() -> tuple[type[BaseException], ...]:
    """Return what the package raises where a scheduler is gone."""
    from asyncio import CancelledError
    from concurrent import futures

    closed: type[BaseException] = library().comm.CommClosedError
    return closed, CancelledError, futures.CancelledError, TimeoutError, StopIteration


@contextmanager
def connect(
    scheduler: Any, workers: int | None, threads: int, limit: int | None
) -> Iterator[Cluster]:
    """Connect to a cluster, or start one of `workers` processes; it ends with the context.

    scheduler: an address, the name of a scheduler file, or a client; None to start one.
    """
    if scheduler is not None and workers is not None:
        raise UsageError("--scheduler and --workers: expected one of them")
    distributed, kill = library(), None
    with ExitStack() as stack:
        if scheduler is None:
            assert workers is not None, "there is a scheduler, or there are workers"
            from ndtool.runs import local

            own, kill = stack.enter_context(local.cluster(workers, threads))
            client = stack.enter_context(distributed.Client(own, set_as_default=False))
            client.wait_for_workers(workers, timeout=COME)
        elif isinstance(scheduler, str):
            endings.unwind()
            for name in _LOGS:  # what matters of them is told as an error
                silent = distributed.utils.silence_logging_cmgr(logging.CRITICAL + 1, name)
                stack.enter_context(silent)
            client = stack.enter_context(_client(distributed, scheduler))
        else:
            client = scheduler
        try:
            client.wait_for_workers(1, timeout=COME)
        except TimeoutError:
            raise ResourceError(f"no worker has come in {COME} seconds") from None
        _require_one_version(client)
        yield Cluster(client, limit, workers, kill)


def library() -> Any:
    """Return the package; UsageError where it is missing."""
    try:
        import distributed
    except ImportError:
        raise UsageError(
            "a cluster needs the distributed package", hint="pip install 'ndtool[cluster]'"
        ) from None
    return distributed


def _client(distributed: Any, scheduler: str) -> Any:
    is_file = "://" not in scheduler and (os.path.exists(scheduler) or scheduler.endswith(".json"))
    where = {"scheduler_file": scheduler} if is_file else {"address": scheduler}
    if is_file and not os.path.exists(scheduler):
        raise UsageError(f"{printable(scheduler)}: there is no such scheduler file")
    try:
        return distributed.Client(**where, timeout=ANSWER, set_as_default=False)
    except Exception as exc:  # whatever the package makes of an address, or of a file
        reason = " ".join(str(exc).split())
        raise ResourceError(f"{printable(scheduler)}: no scheduler answers: {reason}") from None


def _require_one_version(client: Any) -> None:
    for address, found in client.run(worker.version, on_error="return").items():
        if found != __version__:
            raise worker.mismatch(f"the worker at {address}", found, __version__)


def arguments(
    named: dict[str, str], sources: dict[str, Source], output: str | None, reduction: str
) -> dict[str, str]:
    """Return the inputs by names that workers know them by; UsageError for what cannot be."""
    if output in (None, "-"):
        raise UsageError("a cluster writes to files and stores: expected -o FILE")
    found = {}
    for role, argument in named.items():
        source, literal = sources[role], argument.lstrip()[:1] == "[" and role == "indices"
        if isinstance(source, Flat) and not literal:
            if not source.is_place or source.there is None or argument.startswith("raw:"):
                raise UsageError(
                    f"{called(argument)}: workers cannot read it in parts:"
                    " expected a Zarr store or a file of another format"
                )
            if source.facts.order == "F" and len(source.facts.shape) > 1:
                raise UsageError(f"{called(argument)} is in Fortran order: expected C order")
        found[role] = argument if literal else names.absolute(argument)
    assert output is not None, "it was refused"
    if reduction in ("add", "mul") and _same(found["data"], names.absolute(output)):
        raise UsageError(
            f"{called(output)} is data: on a cluster, {reduction} is not done in place"
        )
    return found


def _same(one: str, other: str) -> bool:
    a, b = names.parse(one), names.parse(other)
    return os.path.realpath(a.path) == os.path.realpath(b.path) and a.member == b.member


def folder(spill: str | None, output: str) -> str:
    """Return where a run keeps what tasks keep: beside the output, if nowhere else."""
    if spill is not None:
        return spill
    path = names.parse(names.absolute(output)).path.rstrip("/")
    return places.folder(path if places.is_url(path) else os.path.realpath(path))


def take_up(operands: Operands, to: Facts, within: str, named: dict[str, str]) -> Left:
    """Return what is there of a run that was killed, and fits this one."""
    rows = plan.rows_in(operands, to)
    return Left(within, resuming.made_of(operands.inference, rows, named, operands.sources))


def choose(operands: Operands, cluster: Cluster, to: Facts, left: Left | None = None) -> Plan:
    """Plan a run: parts and blocks as memory allows, but several for each thread.

    left: what may be taken up, if it was cut so that it can be done here.
    """
    rows = plan.rows_in(operands, to)
    each = cluster.slots * WORTH
    budget = max(
        1 << 20,
        min(
            cluster.memory,
            8 * operands.sources["data"].facts.nbytes // each,
            32 * rows.tuples * (rows.width + 4) // each,
        ),
    )
    cut = plan.cut_chunks(operands, to, budget)
    if cut is not None and left is not None and left.place is not None:
        was = left.cut(cut)
        if _taken(was) <= cluster.memory and sweep.suits(operands, to, was):
            cut = was
            left.look(cut)
        else:
            left.refuse("its tasks need more memory, or other chunks of the output")
    taken = cut and _taken(cut)
    if cut is None or not taken or taken > cluster.memory:
        raise ResourceError(
            f"a task takes {taken} bytes: a thread of a worker has {cluster.memory}",
            hint="--memory is what a worker may take; --chunks makes those of the output smaller",
        )
    if not sweep.suits(operands, to, cut):
        raise ResourceError("chunks of data and of the output have no common multiple that fits")
    return plan.planned(
        "cluster", operands, cut._replace(held=0, workers=cluster.slots), "asked for"
    )


def _taken(cut: Cut) -> int:
    """Return the bytes that a task takes."""
    return cut.part + cut.scratch + cut.chunk


def run(
    operands: Operands,
    sink: Any,
    cut: Cut,
    where: tuple[str, dict[str, str]],
    cluster: Cluster,
    tick: Tick,
    note: sweep.Note,
    left: Left | None,
) -> Iterator[str]:
    """Do a run on a cluster, into a sink; yield the name of each phase before it begins.

    where: where to keep what tasks keep, and the inputs by the names that workers know. note: for
    indices out of bounds that are no error. left: what is taken up; None where a run that ends
    early leaves nothing to be taken up, either.
    """
    place: Shared | None = sink.shared() if hasattr(sink, "shared") else None
    if place is None:
        raise UsageError(
            f"{printable(sink.name)}: workers cannot write to it: expected a Zarr store, or a file"
            " in a directory that all of them see"
        )
    within, named = where
    folder = (left and left.place) or spilling.place(within)
    token, inference, may_wait = os.urandom(8).hex(), operands.inference, False
    call = worker.Call(token, __version__, named, inference, cut, place, folder.inside)
    try:
        each = partial(cluster.each, call)
        kept = spilling.keep(folder.inside)
        made = partial(resuming.made_of, inference, cut.rows, named, operands.sources)
        begun = left.made if left else made()
        may_wait = resuming.describe(kept, begun, cut) and left is not None
        yield from sweep.phases(inference, cut, kept, each, tick, note, left)
        cluster.finish(token)
        if left and left.place and (change := resuming.other(begun, made())):
            raise OutputError(f"{change}: it changed during the run")
    except BaseException as error:
        is_sent = any(map(places.is_url, (place.path, folder.inside)))
        cluster.abandon(token, SENT if is_sent else HURRY)
        if may_wait and isinstance(error, ResourceError):
            folder.leave()
            error.hint = error.hint or "--resume takes up what is done"
        raise
    finally:
        folder.drop()
