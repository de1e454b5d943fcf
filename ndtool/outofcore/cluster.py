"""Out-of-core execution on a dask.distributed cluster: the client's side."""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ndtool import __version__
from ndtool.arrays.sink import Sink
from ndtool.arrays.source import Constant, ContiguousSource, Inputs, Source
from ndtool.engine.gathers import ProgressCallback
from ndtool.errors import (
    NdtoolError,
    OutputError,
    ResourceError,
    UsageError,
    argument_name,
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
from ndtool.outofcore.phases import Arrays, Group, ReportCallback, Task, Work
from ndtool.outofcore.segments import SharedStore, SpillFolder
from ndtool.publish.sinks import DrySink, SharedOutput
from ndtool.redaction import register
from ndtool.rules.inference import Inference
from ndtool.rules.reductions import REDUCTIONS
from ndtool.storage import descriptors, locations

if TYPE_CHECKING:
    from ndtool.outofcore.localcluster import Processes

ANSWER_TIMEOUT = 10  # seconds to wait until a scheduler accepts a connection
JOIN_TIMEOUT = 60  # seconds to wait for the first worker
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


class Cluster:
    """A connection to a scheduler. slots: threads of all workers. memory: bytes for each thread.

    processes: the workers that this run started, None if others did.
    """

    def __init__(self, client: Any, limit: int | None, processes: Processes | None) -> None:
        self._client, self.processes = client, processes
        workers = self._identity(-1)["workers"].values()
        self.slots = sum(worker["nthreads"] for worker in workers)
        threads = max((worker["nthreads"] for worker in workers), default=1)
        if limit is None:
            limits = [worker["memory_limit"] for worker in workers if worker["memory_limit"]]
            limit = min(limits, default=memory.available() // max(1, len(workers)))
        self.memory = limit // threads
        self._last_sign = time.monotonic()

    def map(
        self, task_call: worker.Call, phase: str, tasks: Iterable[Task]
    ) -> Iterator[tuple[int, Any]]:
        """Run the tasks of a phase on workers; yield the number and result of each.

        The scheduler repeats the tasks of lost workers, and those that raise an error.
        """
        unfinished = dict[Any, int]()
        try:
            numbers, *lines = map(list, zip(*tasks, strict=True))
            task_bytes = TASK_BYTES + sum(line[0].nbytes for line in lines)
            futures = self._client.map(
                partial(worker.perform, task_call, phase), numbers, *lines,
                key=[f"ndtool-{phase}-{number}-{task_call.token}" for number in numbers],
                pure=False, retries=RETRIES, batch_size=max(2, BATCH_BYTES // task_bytes),
            )  # fmt: skip
            unfinished |= zip(futures, numbers, strict=True)
            completed = library().as_completed(
                futures, loop=self._client.loop, with_results=True, raise_errors=False
            )
            while unfinished:
                if self._wait_for_result(completed):
                    future, outcome = next(completed)
                    yield unfinished.pop(future), _result(phase, future, outcome)
        except _connection_errors():
            unfinished.clear()  # without a scheduler, none can be cancelled
            raise _connection_lost() from None
        finally:
            for future in unfinished:
                future.release()  # which cancels its task, and does not wait

    def _wait_for_result(self, completed: Any) -> bool:
        """Wait CHECK_INTERVAL seconds for a completed task; return whether one is available.

        Raises ResourceError if the cluster has had no worker for SILENCE_TIMEOUT seconds.
        """
        with completed.thread_condition:
            if completed.thread_condition.wait_for(completed.has_ready, CHECK_INTERVAL):
                self._last_sign = time.monotonic()
                return True
        if self.processes is not None:
            self.processes.start_missing()
        if self._identity(0)["n_workers"]:
            self._last_sign = time.monotonic()
        elif time.monotonic() - self._last_sign > SILENCE_TIMEOUT:
            raise ResourceError(
                f"no worker is left, and none has joined in {SILENCE_TIMEOUT} seconds"
            )
        return False

    def _identity(self, workers: int) -> Any:
        """Return the scheduler's identity, including up to `workers` workers; -1 for all."""
        identity, timeout = self._client.scheduler.identity, SILENCE_TIMEOUT
        with suppress(*_connection_errors(), OSError):
            return self._client.sync(identity, n_workers=workers, callback_timeout=timeout)
        raise _connection_lost()

    def run_on_workers(
        self, call: Callable[..., Any], *arguments: Any, seconds: float = SILENCE_TIMEOUT
    ) -> dict[str, Any]:
        """Make a call in each worker process; return the outcomes of those that answer, by name."""
        outcomes = dict[str, Any]()
        with suppress(*_connection_errors(), OSError):
            outcomes = self._client.run(
                call, *arguments, on_error="return", callback_timeout=seconds
            )
        return {
            name: outcome
            for name, outcome in outcomes.items()
            if isinstance(outcome, NdtoolError) or not isinstance(outcome, OSError)
        }


def _result(phase: str, future: Any, outcome: Any) -> Any:
    """Return the result of a task; raise its error."""
    if future.status == "finished":
        return outcome
    if future.status != "error":  # the scheduler has forgotten it
        raise _connection_lost()
    _, error, trace = outcome
    if isinstance(error, library().KilledWorker):
        raise ResourceError(
            f"workers were lost repeatedly in a {phase} task",
            hint=f"a smaller {option('memory')} makes tasks smaller",
        )
    raise error.with_traceback(trace)


def _connection_lost() -> ResourceError:
    return ResourceError("the connection to the scheduler was lost")


def _connection_errors() -> tuple[type[BaseException], ...]:
    """Return the exceptions that the package raises if the connection to the scheduler is lost."""
    from asyncio import CancelledError
    from concurrent import futures

    closed: type[BaseException] = library().comm.CommClosedError
    return closed, CancelledError, futures.CancelledError, TimeoutError, StopIteration


@contextmanager
def connect(
    scheduler: Any, workers: int | None, threads: int, limit: int | None, cleans: bool = True
) -> Iterator[Cluster]:
    """Connect to a cluster, or start one of `workers` processes until the context ends.

    scheduler: an address, the path of a scheduler file, or a client; None to start a cluster.
    cleans: whether to remove what killed runs have left in the folder of temporary files.
    """
    if scheduler is not None and workers is not None:
        raise UsageError(f"{option('scheduler')} and {option('workers')}: expected one of them")
    distributed, processes = library(), None
    with ExitStack() as stack:
        if scheduler is None:
            assert workers is not None, "a scheduler or workers are given"
            from ndtool.outofcore import localcluster

            local_cluster, processes = stack.enter_context(
                localcluster.cluster(workers, threads, JOIN_TIMEOUT, cleans)
            )
            client = stack.enter_context(distributed.Client(local_cluster, set_as_default=False))
        elif isinstance(scheduler, str):
            for name in _LOGGERS:  # the client raises the same errors as exceptions
                silenced = distributed.utils.silence_logging_cmgr(logging.CRITICAL + 1, name)
                stack.enter_context(silenced)
            client = stack.enter_context(_client(distributed, scheduler))
        else:
            client = scheduler
        try:
            client.wait_for_workers(1, timeout=JOIN_TIMEOUT)
        except TimeoutError:
            raise ResourceError(
                f"no worker has joined the cluster in {JOIN_TIMEOUT} seconds"
            ) from None
        yield Cluster(client, limit, processes)


def library() -> Any:
    """Import the distributed package; UsageError if it is missing."""
    try:
        import distributed
    except ImportError:
        raise UsageError(
            "a cluster needs the distributed package", hint="pip install 'ndtool[cluster]'"
        ) from None
    return distributed


def _client(distributed: Any, scheduler: str) -> Any:
    is_file = "://" not in scheduler and (os.path.exists(scheduler) or scheduler.endswith(".json"))
    display_name = printable(
        scheduler if is_file or "://" in scheduler else scheduler.rpartition("@")[2]
    )
    address = _address(scheduler) if is_file else scheduler
    register(address)
    try:
        return distributed.Client(address, timeout=ANSWER_TIMEOUT, set_as_default=False)
    except ValueError as exc:
        error: NdtoolError = UsageError(
            f"{option('scheduler')} {display_name} is not an address: {library_message(exc)}:"
            " expected tcp://host:port, or a scheduler file"
        )
    except Exception as exc:  # the package documents no exception type
        error = ResourceError(
            f"{display_name}: cannot connect to a scheduler: {library_message(exc)}"
        )
    gc.collect()  # closes the failed client now: while another client starts, it would deadlock
    raise error


def _address(file: str) -> str:
    """Return the address in a scheduler file; UsageError if it has none."""
    if not os.path.exists(file):
        raise UsageError(f"{printable(file)}: there is no such scheduler file")
    try:
        with open(file) as lines:
            address = json.loads(lines.read(_MAX_CHARACTERS))["address"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        address = None
    if not isinstance(address, str):
        raise UsageError(
            f"{printable(file)} is not a scheduler file: expected JSON with an address"
        )
    return address


def locate(call: Any) -> tuple[dict[str, str], str]:
    """Return the locations of inputs for workers, by role, and of spilled data.

    The latter is the output's folder by default. UsageError if workers cannot read an input.
    """
    output, reduction, by_role = call.request.output, call.request.attributes.reduction, {}
    if output in (None, "-"):
        raise UsageError("a run on a cluster writes to a file or store: expected -o FILE")
    assert output is not None
    for role, argument in call.request.arguments.items():
        source = getattr(call.sources[role], "origin", call.sources[role])  # of indices from 1
        if isinstance(source, ContiguousSource) and not _is_value(role, argument, source):
            if not source.is_reopenable or not source.is_local or argument.startswith("raw:"):
                raise UsageError(
                    f"{argument_name(argument)}: workers cannot read parts of it:"
                    " expected a Zarr store or a file of another format"
                )
            if source.metadata.order == "F" and len(source.metadata.shape) > 1:
                raise UsageError(f"{argument_name(argument)} is in Fortran order: expected C order")
        is_value = _is_value(role, argument, source)
        by_role[role] = argument if is_value else locators.absolute(argument)
    data, target = map(locators.parse, (by_role["data"], locators.absolute(output)))
    is_in_place = os.path.realpath(data.path) == os.path.realpath(target.path)
    if not REDUCTIONS[reduction].idempotent and is_in_place and data.member == target.member:
        raise UsageError(
            f"{argument_name(output)} is also data: on a cluster, {reduction} cannot update in"
            " place"
        )
    if call.spill is not None:
        return by_role, call.spill
    path = target.path.rstrip("/")
    path = path if locations.is_url(path) else os.path.realpath(path)
    return by_role, locations.parent_folder(path)


def _is_value(role: str, argument: str, source: Source) -> bool:
    """Whether an argument is a literal or a constant rather than a location."""
    is_literal = role == "indices" and argument.lstrip()[:1] == "["
    return is_literal or isinstance(source, Constant)


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


def fingerprints(inputs: dict[str, str], sources: dict[str, Source]) -> dict[str, Any]:
    """Return the fingerprint of each input by role, None if its changes cannot be detected."""
    return {
        role: "value" if _is_value(role, name, sources[role]) else sources[role].fingerprint()
        for role, name in inputs.items()
    }


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
        request, self._call = call.request, call
        self._inputs, self.spill = locate(call)
        assert output is not None, "`locate` requires one"
        self._resumes, self.resumed, self.reason = request.resume, dict[str, int](), ""
        self._cluster = stack.enter_context(
            connect(
                request.scheduler, request.workers, call.threads, request.memory, not self._resumes
            )
        )
        for name, actual in self._cluster.run_on_workers(worker.version).items():
            if actual != __version__:
                raise worker.version_error(f"the worker at {name}", actual, __version__)
        self.partitioning = partition(call, self._cluster, output)
        self._fingerprints = fingerprints(self._inputs, call.sources)
        self._name = run_name(call.inference, self.partitioning, self._inputs, self._fingerprints)
        self._folder: SpillFolder | None = None
        if self._resumes:  # before an output is created, which removes what killed runs have left
            stack.callback(self._suspend)
            self.resumed["split"] = 0
            self._folder, self.reason = self._find_killed_run()

    def _find_killed_run(self) -> tuple[SpillFolder | None, str]:
        """Claim the folder of a killed run with the same name; or return why there is none."""
        for role, fingerprint in self._fingerprints.items():
            if fingerprint is None:
                return None, f"changes of {argument_name(self._inputs[role])} cannot be detected"
        folder = segments.find_folder(self.spill, self._name)
        if folder is not None or not segments.abandoned_folders(self.spill):
            return folder, ""
        return None, (
            "the killed run had another call, other inputs, chunks or tasks, or another version of"
            " ndtool"
        )

    def _suspend(self) -> None:
        """Release the folder for another run, unless it was removed."""
        if self._folder is not None:
            self._folder.suspend()

    def execute(
        self, sink: Sink, progress: ProgressCallback, report: ReportCallback, dry: bool
    ) -> Generator[str]:
        """Execute the run into a sink; yield the name of each phase before it begins.

        report: a callback for the bounds report, if the mode allows indices out of bounds.
        """
        if dry:
            self.resumed.clear()  # no task looks for its segment
        shared_output: SharedOutput | None = sink.share()
        is_remote_dry_run = isinstance(sink, DrySink) and not sink.streamed
        if shared_output is None and not is_remote_dry_run:
            raise UsageError(
                f"{printable(sink.name)}: workers cannot write to it: expected a Zarr store, or a"
                " file in a directory that all of them see"
            )
        if dry and (shared_output is None or locations.is_url(self.spill)):
            self._check_spill_location()  # objects are written later
            yield "split"
            return
        assert shared_output is not None, "validated before"
        folder = self._folder or self._create_folder(not dry and not self._resumes)
        paths = folder.working_folder, shared_output.path
        seconds = REMOTE_CLOSE_TIMEOUT if any(map(locations.is_url, paths)) else CLOSE_TIMEOUT
        inference, partitioning = self._call.inference, self.partitioning
        reopened = self._call.request._replace(
            **self._inputs, output=None, spill=None, threads=1, scheduler=None, workers=None,
            resume=False,
        )  # fmt: skip
        open_call: Any = type(self._call)
        task_call = worker.Call(
            os.urandom(8).hex(), __version__, partial(open_call, reopened), inference, partitioning,
            shared_output, folder.working_folder, self._folder is not None,
        )  # fmt: skip
        close = partial(self._cluster.run_on_workers, worker.close_run, task_call.token)
        processes = self._cluster.processes
        abort = processes.kill if processes else partial(close, seconds=seconds)
        signals.add_cleanup(abort)
        try:
            devices = {os.stat(path).st_dev for path in paths if os.path.exists(path)}
            if len(devices) == 1 and all(map(os.path.exists, paths)):
                sink.fits(partitioning.spilled_total)
            if inference.requires_distinct and not dry:
                execution.check(self._call, partitioning, lambda _: None)
            for outcome in self._cluster.run_on_workers(worker.check_access, task_call).values():
                if isinstance(outcome, Exception):
                    raise outcome
            nothing: Any = None
            arrays, store = Arrays(nothing, nothing, None, None), SharedStore(folder.working_folder)
            work = Work(inference, partitioning, arrays, store)

            def map_cluster(
                phase: str, group: Group, tasks: Iterable[Task]
            ) -> Iterator[tuple[int, Any]]:
                results = self._cluster.map(task_call, phase, tasks)
                for number, (result, was_found) in results:
                    if task_call.resumes and phase != work.last_phase:
                        self.resumed[phase] = self.resumed.get(phase, 0) + was_found
                    yield number, result

            yield from phases.run(work, work.root, map_cluster, progress, report)
            close()
            for role, fingerprint in fingerprints(self._inputs, self._call.sources).items():
                if self._fingerprints[role] != fingerprint:
                    argument = argument_name(self._inputs[role])
                    raise OutputError(f"{argument} changed during the run")
        except BaseException as error:
            abort()
            is_resumable = self._resumes and None not in self._fingerprints.values()
            if is_resumable and not dry and isinstance(error, ResourceError):
                folder.suspend()
                error.hint = error.hint or f"{option('resume', True)} continues this run"
            raise
        finally:
            signals.remove_cleanup(abort)
            if dry:
                self._suspend()
            folder.drop()

    def _create_folder(self, cleans: bool) -> SpillFolder:
        """Create a folder for spilled data; ResourceError if there is too little free space."""
        partitioning = self.partitioning
        folder = segments.create_folder(self.spill, self._name, cleans)
        if not locations.is_url(self.spill):
            nbytes = partitioning.spilled_total
            files = partitioning.blocks + partitioning.gathers * partitioning.partitions
            files += nbytes // segments.FILE_BYTES
            try:
                descriptors.require_space(
                    folder.working_folder, files, nbytes, 0, "temporary files"
                )
            except BaseException:
                folder.drop()
                raise
        return folder

    def _check_spill_location(self) -> None:
        """Raise the errors of creating a folder, as far as possible without creating objects."""
        if not locations.is_url(self.spill):
            self._create_folder(cleans=False).drop()
            return
        from ndtool.storage import objects

        segments.require_shared(self.spill)
        objects.require_writable(self.spill, folder=True)
