"""Out-of-core execution on a dask.distributed cluster: the client's side."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import hashlib
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from ndtool import __version__
from ndtool.arrays.sink import Sink
from ndtool.arrays.source import ContiguousSource, Inputs
from ndtool.engine.gathers import ProgressCallback
from ndtool.errors import (
    NdtoolError,
    OutputError,
    ResourceError,
    UsageError,
    argument_name,
    import_extra,
    library_message,
    option,
    printable,
    redact_urls,
)
from ndtool.formats import locators
from ndtool.formats.outputs import Output
from ndtool.machine import memory, signals
from ndtool.outofcore import execution, phases, segments, worker
from ndtool.outofcore.partitioning import Partitioning, rows_of
from ndtool.outofcore.phases import Group, ReportCallback, Task, Work
from ndtool.outofcore.segments import SharedStore, SpillFolder
from ndtool.publish.sinks import DrySink, SharedOutput
from ndtool.redaction import register
from ndtool.rules.inference import Inference
from ndtool.rules.reductions import REDUCTIONS
from ndtool.storage import descriptors, locations

ANSWER_TIMEOUT = 10  # seconds to wait until a scheduler accepts a connection
SILENCE_TIMEOUT = 60  # seconds without a worker, or without an answer, after which a run fails
CHECK_INTERVAL = 1  # seconds between checks for workers
BATCH_BYTES = 8 << 20  # of tasks that are submitted together: dask warns of 10 MB
TASK_BYTES = 512  # of a task without its offsets
RETRIES = 2  # of a task whose worker raises an error
CLOSE_TIMEOUT = 0.7  # seconds that workers may take to close a failed run
REMOTE_CLOSE_TIMEOUT = 10  # seconds; objects written after the cleanup would remain
TASKS_PER_SLOT = 3  # minimum tasks of a phase for each thread, if chunks are small enough
_MAX_CHARACTERS = 1 << 20  # of a scheduler file
_LOGGERS = "distributed", "distributed.client"  # the package's loggers that have handlers
# What the package raises if a scheduler is lost or does not answer.
_LOST = OSError, asyncio.CancelledError, concurrent.futures.CancelledError
_LOST_MESSAGE = "the connection to the scheduler was lost"


class Cluster:
    """The workers of a scheduler, or those that a run starts, until the stack is closed.

    call: an OpenCall. slots: threads of all workers. memory: bytes for each thread. processes: the
    workers that this run started, None if others did.
    """

    def __init__(self, call: Any, stack: ExitStack) -> None:
        request, limit = call.request, call.request.memory
        scheduler, workers = request.scheduler, request.workers
        if scheduler is not None and workers is not None:
            raise UsageError(f"{option('scheduler')} and {option('workers')}: expected one of them")
        distributed, self._client, self.processes = library(), scheduler, None
        if workers is not None or isinstance(scheduler, str):
            for name in _LOGGERS:  # the client raises the same errors as exceptions
                silenced = distributed.utils.silence_logging_cmgr(logging.CRITICAL + 1, name)
                stack.enter_context(silenced)
        if workers is not None:
            from ndtool.outofcore import localcluster

            started = localcluster.start(workers, call.threads, cleans=not request.resume)
            self._client, self.processes = stack.enter_context(started)
        elif isinstance(scheduler, str):
            self._client = stack.enter_context(_connect(scheduler))
        joined = self._wait_for_workers(workers or 1)
        self.slots = sum(worker["nthreads"] for worker in joined)
        if limit is None:
            limits = [worker["memory_limit"] for worker in joined if worker["memory_limit"]]
            limit = min(limits, default=memory.available() // len(joined))
        self.memory = limit // max(worker["nthreads"] for worker in joined)

    def _wait_for_workers(self, count: int) -> list[Any]:
        """Wait until `count` workers have joined; return the scheduler's description of each."""
        deadline = time.monotonic() + SILENCE_TIMEOUT
        while len(joined := self._identity(-1)["workers"]) < count:
            if self.processes is not None and self.processes.start_missing():
                raise ResourceError("the workers could not be started")
            if time.monotonic() > deadline:
                raise ResourceError(f"no worker has joined in {SILENCE_TIMEOUT} seconds")
            time.sleep(0.1)
        return [*joined.values()]

    def _identity(self, workers: int) -> Any:
        """Return the scheduler's identity, including up to `workers` workers; -1 for all."""
        identity, timeout = self._client.scheduler.identity, SILENCE_TIMEOUT
        try:
            return self._client.sync(identity, n_workers=workers, callback_timeout=timeout)
        except _LOST:
            raise ResourceError(_LOST_MESSAGE) from None

    def map(
        self, call: worker.Call, phase: str, tasks: Iterable[Task]
    ) -> Iterator[tuple[int, tuple[Any, bool]]]:
        """Run the tasks of a phase on workers; yield the number and the outcome of each.

        The scheduler repeats the tasks of lost workers, and those that raise an error. Raises
        ResourceError if the cluster has no worker for SILENCE_TIMEOUT seconds.
        """
        numbers, *lines = [*map(list, zip(*tasks, strict=True))] or [[]]  # a phase without tasks
        task_bytes = TASK_BYTES + sum(line[0].nbytes for line in lines)
        futures = self._client.map(
            partial(worker.perform, call, phase), numbers, *lines,
            key=[f"ndtool-{phase}-{number}-{call.token}" for number in numbers],
            pure=False, retries=RETRIES, batch_size=max(2, BATCH_BYTES // task_bytes),
        )  # fmt: skip
        unfinished = dict(zip(futures, numbers, strict=True))
        completed = library().as_completed(
            futures, loop=self._client.loop, with_results=True, raise_errors=False
        )
        changed, last_sign = completed.thread_condition, time.monotonic()
        try:
            while unfinished:
                with changed:
                    is_ready = changed.wait_for(completed.has_ready, CHECK_INTERVAL)
                if is_ready:
                    future, outcome = next(completed)
                    yield unfinished.pop(future), _result(phase, future, outcome)
                elif self.processes is not None:
                    self.processes.start_missing()
                if is_ready or self._identity(0)["n_workers"]:
                    last_sign = time.monotonic()
                elif time.monotonic() - last_sign > SILENCE_TIMEOUT:
                    raise ResourceError(
                        f"no worker is left, and none has joined in {SILENCE_TIMEOUT} seconds"
                    )
        finally:
            for future in unfinished:
                future.release()  # which cancels its task, and does not wait

    def run_on_workers(
        self, call: Callable[..., Any], *arguments: Any, seconds: float = SILENCE_TIMEOUT
    ) -> None:
        """Make a call in each worker process that answers; raise the first error it returns."""
        outcomes = dict[str, Any]()
        with suppress(*_LOST):
            outcomes = self._client.run(
                call, *arguments, on_error="return", callback_timeout=seconds
            )
        for name, outcome in outcomes.items():
            if isinstance(outcome, NdtoolError):
                raise outcome
            if isinstance(outcome, Exception) and not isinstance(outcome, OSError):  # not lost
                error = f"the worker at {name} cannot run ndtool: {library_message(outcome)}"
                raise UsageError(error, hint=f"pip install 'ndtool[cluster]=={__version__}' there")


def _result(phase: str, future: Any, outcome: Any) -> Any:
    """Return the result of a task; raise its error."""
    if future.status == "finished":
        return outcome
    if future.status != "error":  # the scheduler has forgotten it
        raise ResourceError(_LOST_MESSAGE)
    _, error, trace = outcome
    if isinstance(error, library().KilledWorker):
        raise ResourceError(
            f"workers were lost repeatedly in a {phase} task",
            hint=f"a smaller {option('memory')} makes tasks smaller",
        )
    raise error.with_traceback(trace)


library = partial(import_extra, "distributed", "a cluster", "cluster")


def _connect(scheduler: str) -> Any:
    """Return a client of the scheduler at an address, or that a scheduler file has."""
    name = address = scheduler
    if "://" not in scheduler:
        if os.path.exists(scheduler) or scheduler.endswith(".json"):
            address = _address(scheduler)
        else:
            name = scheduler.rpartition("@")[2]
    register(address)
    try:
        return library().Client(address, timeout=ANSWER_TIMEOUT, set_as_default=False)
    except ValueError as exc:
        error: NdtoolError = UsageError(
            f"{option('scheduler')} {printable(name)} is not an address: {library_message(exc)}:"
            " expected tcp://host:port, or a scheduler file"
        )
    except Exception as exc:  # the package documents no exception type
        error = ResourceError(
            f"{printable(name)}: cannot connect to a scheduler: {library_message(exc)}"
        )
    gc.collect()  # closes the failed client now: while another client starts, it would deadlock
    raise error


def _address(file: str) -> str:
    """Return the address in a scheduler file; UsageError if it has none."""
    try:
        with open(file) as lines:
            return json.loads(lines.read(_MAX_CHARACTERS))["address"].strip()  # type: ignore[no-any-return]
    except FileNotFoundError:
        raise UsageError(f"{printable(file)}: there is no such scheduler file") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UsageError(
            f"{printable(file)} is not a scheduler file: expected JSON with an address"
        ) from None


def locate(call: Any) -> tuple[dict[str, str], str]:
    """Return the locations of inputs for workers, by role, and of spilled data.

    The latter is the output's folder by default. UsageError if workers cannot read an input.
    """
    request, by_role = call.request, dict[str, str]()
    if request.output in (None, "-"):
        raise UsageError("a run on a cluster writes to a file or store: expected -o FILE")
    for role, argument in request.arguments.items():
        source = call.stored_indices if role == "indices" else call.sources[role]
        is_raw = argument.startswith("raw:")
        if locators.is_declared(argument, role == "indices") and not is_raw:
            by_role[role] = argument
            continue
        by_role[role] = locators.absolute(argument)
        if isinstance(source, ContiguousSource):
            if not source.is_reopenable or not source.is_local or is_raw:
                raise UsageError(
                    f"{argument_name(argument)}: workers cannot read parts of it:"
                    " expected a Zarr store or a file of another format"
                )
            if source.metadata.order == "F" and len(source.metadata.shape) > 1:
                raise UsageError(f"{argument_name(argument)} is in Fortran order: expected C order")
    data, target = map(locators.parse, (by_role["data"], locators.absolute(request.output)))
    is_in_place = os.path.realpath(data.path) == os.path.realpath(target.path)
    reduction = request.attributes.reduction
    if not REDUCTIONS[reduction].idempotent and is_in_place and data.member == target.member:
        raise UsageError(
            f"{argument_name(request.output)} is also data: on a cluster, {reduction} cannot update"
            " in place"
        )
    if call.spill is not None:
        return by_role, call.spill
    path = target.path.rstrip("/")
    path = path if locations.is_url(path) else os.path.realpath(path)
    return by_role, locations.parent_folder(path)


def partition(call: Inputs, cluster: Cluster, output: Output) -> Partitioning:
    """Partition a run: tasks as large as memory allows, but several for each thread.

    The number of tasks is rounded to a power of two, so that a cluster of about the same size can
    resume the run.
    """
    rows = rows_of(
        call.inference, call.sources, output.metadata, cluster.slots, output.concurrency, True
    )
    tasks = 1 << (cluster.slots * TASKS_PER_SLOT - 1).bit_length()
    data_bytes = call.sources["data"].metadata.nbytes
    task_bytes = 8 * data_bytes // tasks, 32 * rows.tuples * (rows.width + 4) // tasks
    budget = max(1 << 20, min(cluster.memory, *task_bytes))
    chosen = rows.choose(budget, cluster.memory)
    if chosen.limited_memory > cluster.memory:
        raise ResourceError(
            f"a task takes more memory than the {cluster.memory} bytes of a worker's thread",
            hint=f"{option('memory')} sets the memory of a worker, {option('chunks')} the size of"
            " the output's chunks",
        )
    return chosen


def run_name(
    inference: Inference, partitioning: Partitioning, inputs: dict[str, str], prints: dict[str, Any]
) -> str:
    """Return the name of a run: a hash of all that determines its segments.

    inputs: the locations of inputs. prints: their fingerprints.
    """
    types = [(info.dtype, info.shape) for info in inference.inputs.values()]
    call = inference.operator, inference.spec, inference.attributes, types
    shape = partitioning.block_tuples, partitioning.shapes
    names = {role: redact_urls(name) for role, name in inputs.items()}
    content = repr((__version__, call, shape, names, sorted(prints.items())))
    return hashlib.sha256(content.encode()).hexdigest()[:24]


class ClusterRun:
    """A run on a cluster, to which it is connected until the stack is closed.

    call: an OpenCall, see runs.calls, which is above this package.
    spill: the location of spilled data. resumed: how many tasks of each phase were not repeated,
    since the segments of a killed run were found; {} without --resume. reason: why none was, "" if
    some were or if there is no killed run.
    """

    def __init__(self, call: Any, output: Output | None, stack: ExitStack) -> None:
        self._call, (self._inputs, self.spill) = call, locate(call)
        assert output is not None, "`locate` requires one"
        self._resumes, self.resumed, self.reason = call.request.resume, Counter[str](), ""
        self._cluster = Cluster(call, stack)
        self._cluster.run_on_workers(worker.version_error, __version__)
        self.partitioning = partition(call, self._cluster, output)
        self._prints = {role: source.fingerprint() for role, source in call.sources.items()}
        self._name = run_name(call.inference, self.partitioning, self._inputs, self._prints)
        # Before an output is created, which removes what killed runs have left.
        self._folder = self._find_killed_run() if self._resumes else None
        if self._folder is not None:
            stack.callback(self._folder.suspend)  # for another run, unless it was removed

    def _find_killed_run(self) -> SpillFolder | None:
        """Claim the folder of a killed run with the same name; set the reason if there is none."""
        for role, fingerprint in self._prints.items():
            if fingerprint is None:
                self.reason = f"changes of {argument_name(self._inputs[role])} cannot be detected"
                return None
        folder = segments.find_folder(self.spill, self._name)
        if folder is None and segments.abandoned_folders(self.spill):
            self.reason = (
                "the killed run had another call, other inputs, chunks or tasks, or another version"
                " of ndtool"
            )
        return folder

    def execute(
        self, sink: Sink, progress: ProgressCallback, report: ReportCallback, dry: bool
    ) -> Generator[str]:
        """Execute the run into a sink; yield the name of each phase before it begins.

        report: a callback for the bounds report, if the mode allows indices out of bounds.
        """
        output: SharedOutput | None = sink.share()
        is_remote_dry_run = isinstance(sink, DrySink) and not sink.streamed
        if output is None and not (is_remote_dry_run and locations.is_shared(sink.name)):
            raise UsageError(
                f"{printable(sink.name)}: workers cannot write to it: expected a Zarr store, or a"
                " file in a directory that all of them see"
            )
        folder = self._folder or self._create_folder(dry)
        if folder is None or output is None:  # a dry run, which writes no objects
            if folder is not None and folder is not self._folder:
                folder.drop()
            yield "split"
            return
        call, inference = self._call, self._call.inference
        reopened = call.request._replace(
            **self._inputs, output=None, spill=None, threads=1, scheduler=None, workers=None,
            resume=False,
        )  # fmt: skip
        open_call: Any = type(call)
        task_call = worker.Call(
            os.urandom(8).hex(), __version__, partial(open_call, reopened), inference,
            self.partitioning, output, folder.working_folder, self._folder is not None,
        )  # fmt: skip
        is_local = not any(map(locations.is_url, (folder.working_folder, output.path)))
        close = partial(self._cluster.run_on_workers, worker.close_run, task_call.token)
        seconds = CLOSE_TIMEOUT if is_local else REMOTE_CLOSE_TIMEOUT
        processes = self._cluster.processes
        abort = processes.kill if processes else partial(close, seconds=seconds)
        signals.add_cleanup(abort)  # called before the folder is removed
        try:
            if is_local and os.stat(folder.working_folder).st_dev == os.stat(output.path).st_dev:
                sink.fits(self.partitioning.spilled)
            if inference.requires_distinct and not dry:
                execution.check(call, self.partitioning, lambda _: None)
            self._cluster.run_on_workers(worker.check_access, task_call)
            work = Work(inference, self.partitioning, SharedStore(folder.working_folder), {})

            def map_cluster(
                phase: str, _: Group, tasks: Iterable[Task]
            ) -> Iterator[tuple[int, Any]]:
                for number, (result, was_found) in self._cluster.map(task_call, phase, tasks):
                    if self._resumes and phase != work.last_phase:
                        self.resumed[phase] += was_found
                    yield number, result

            yield from phases.run(Group(work), map_cluster, progress, report)
            close()
            for role, source in call.sources.items():
                if source.fingerprint() != self._prints[role]:
                    raise OutputError(f"{argument_name(self._inputs[role])} changed during the run")
        except BaseException as error:
            with suppress(NdtoolError):  # of workers, which would replace this one
                abort()
            is_resumable = self._resumes and None not in self._prints.values()
            if is_resumable and not dry and isinstance(error, ResourceError):
                folder.suspend()
                error.hint = error.hint or f"{option('resume', True)} continues this run"
            raise
        finally:
            signals.remove_cleanup(abort)
            if not dry or folder is not self._folder:
                folder.drop()

    def _create_folder(self, dry: bool) -> SpillFolder | None:
        """Create the folder for spilled data; None in a dry run at a URL, which writes no objects.

        Raises ResourceError if there is too little free space.
        """
        if not locations.is_url(self.spill):
            partitioning, nbytes = self.partitioning, self.partitioning.spilled
            files = partitioning.blocks + partitioning.rows.gathers * partitioning.partitions
            files += nbytes // segments.FILE_BYTES
            descriptors.require_space(self.spill, files, nbytes, 0, "temporary files")
        elif dry:
            from ndtool.storage import objects

            segments.require_shared(self.spill)
            objects.require_writable(self.spill, folder=True)
            return None
        return segments.create_folder(self.spill, self._name, not dry and not self._resumes)
