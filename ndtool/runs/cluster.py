"""A sweep whose tasks are done by a dask.distributed cluster: futures of pure functions, no graph.

A task travels as a few names and numbers: workers open the arrays themselves, see the folder of
what tasks keep, and write to the output, which gets its name here when all of it is there.
"""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import resource_tracker
from threading import Thread
from typing import Any

from ndtool import __version__, endings
from ndtool.arrays import names, places
from ndtool.arrays.newfolder import NewFolder
from ndtool.arrays.shared import Shared
from ndtool.arrays.source import Facts, Flat, Source
from ndtool.engine import memory
from ndtool.engine.gathers import Tick
from ndtool.errors import NdtoolError, ResourceError, UsageError, called, printable
from ndtool.runs import plan, spilling, sweep, worker
from ndtool.runs.cut import Cut
from ndtool.runs.direct import Operands
from ndtool.runs.plan import Plan
from ndtool.runs.sweep import Take

ANSWER, COME = 10, 60  # seconds that a scheduler may take to answer, its first worker to come
HURRY = 1  # seconds that workers may take to let go of a run that failed
AHEAD = 4096  # tasks that wait with the scheduler: it need not know all
WORTH = 3  # tasks of a phase for each thread, where chunks are small enough


class Cluster:
    """A connection to a scheduler. slots: threads of all workers. memory: bytes for each."""

    def __init__(self, client: Any, limit: int | None, local: int | None) -> None:
        self._client = client
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        self.slots = sum(one["nthreads"] for one in workers)
        threads = max(one["nthreads"] for one in workers)
        if limit is None:
            limits = [one["memory_limit"] for one in workers if one["memory_limit"]]
            limit = min(limits, default=memory.available() // (local or len(workers)))
        self.memory = limit // threads

    def each(self, call: worker.Call, phase: str, count: int, take: Take) -> None:
        """Have the tasks of a phase done; those of workers that are lost are done again."""
        distributed = library()
        work, numbers = partial(worker.perform, call, phase), iter(range(count))
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
                future, end = next(done)
                take(running.pop(future), end)
                send(AHEAD)
        except distributed.KilledWorker:
            raise ResourceError(
                f"workers were lost in a task of {phase}, again and again",
                hint="less --memory makes tasks smaller",
            ) from None
        except _lost():
            raise ResourceError("the connection to the scheduler is lost") from None
        finally:
            if running:
                self._client.cancel(list(running), force=True, reason="the run ended")

    def finish(self, token: str) -> None:
        """Have all workers let go of a run; raise OutputError if an input changed meanwhile."""
        for error in self._client.run(worker.finish, token, on_error="return").values():
            if isinstance(error, NdtoolError):
                raise error

    def abandon(self, token: str) -> None:
        """Have all workers let go of a run that failed, if they can be reached at once."""
        run = partial(self._client.run, worker.finish, token, on_error="ignore")
        asking = Thread(target=run, daemon=True)
        asking.start()
        asking.join(HURRY)


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
    distributed = library()
    with ExitStack() as stack:
        if scheduler is None:
            assert workers is not None, "there is a scheduler, or there are workers"
            client = _started(distributed, workers, threads, stack)
        elif isinstance(scheduler, str):
            endings.unwind()
            client = stack.enter_context(_client(distributed, scheduler))
        else:
            client = scheduler
        try:
            client.wait_for_workers(1, timeout=COME)
        except TimeoutError:
            raise ResourceError(f"no worker has come in {COME} seconds") from None
        _require_one_version(client)
        yield Cluster(client, limit, workers)


def _started(distributed: Any, workers: int, threads: int, stack: ExitStack) -> Any:
    """Start a cluster of processes on this machine; they end with the stack."""
    import dask

    scratch = NewFolder(os.path.join(tempfile.gettempdir(), "workers"), False, False, False)
    stack.callback(scratch.drop)
    # A worker that was lost some time ago may be lost again just now, and is not given up for that.
    patient = {"distributed.deploy.lost-worker-timeout": "1 day"}
    stack.enter_context(dask.config.set({"temporary-directory": scratch.inside, **patient}))
    started = stack.enter_context(
        distributed.LocalCluster(
            n_workers=0, threads_per_worker=max(1, threads // workers), host="127.0.0.1",
            memory_limit=0, local_directory=scratch.inside, silence_logs=logging.CRITICAL + 1,
            scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
        )
    )  # fmt: skip
    # Processes inherit what the thread that starts them does not hear: Ctrl-C is for us alone.
    resource_tracker.ensure_running()  # which would have that thread hear again
    started.loop.add_callback(signal.pthread_sigmask, signal.SIG_BLOCK, {signal.SIGINT})
    started.scale(workers)  # now that whatever ends the run ends them, too
    client = stack.enter_context(distributed.Client(started, set_as_default=False))
    client.wait_for_workers(workers, timeout=COME)
    return client


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


def choose(operands: Operands, cluster: Cluster, to: Facts) -> Plan:
    """Plan a run: parts and blocks as memory allows, but several for each thread."""
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
    taken = cut and cut.part + cut.scratch + cut.chunk
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


def run(
    operands: Operands,
    sink: Any,
    cut: Cut,
    where: tuple[str | None, dict[str, str]],
    cluster: Cluster,
    tick: Tick,
) -> Iterator[str]:
    """Do a run on a cluster, into a sink; yield the name of each phase before it begins.

    where: where to keep what tasks keep, None for beside the output, and the inputs by the
    names that workers know.
    """
    place: Shared | None = sink.shared() if hasattr(sink, "shared") else None
    if place is None:
        raise UsageError(
            f"{printable(sink.name)}: workers cannot write to it: expected a Zarr store, or a file"
            " in a directory that all of them see"
        )
    spill, named = where
    folder = spilling.place(spill or places.folder(place.path))
    token, inference = os.urandom(8).hex(), operands.inference
    call = worker.Call(token, __version__, named, inference, cut, place, folder.inside)
    try:
        each = partial(cluster.each, call)
        yield from sweep.phases(inference, cut, spilling.keep(folder.inside), each, tick)
        cluster.finish(token)
    except BaseException:
        cluster.abandon(token)
        raise
    finally:
        folder.drop()
