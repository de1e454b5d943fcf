"""External execution on a cluster: partitions a run for the workers, and runs its phases."""

from __future__ import annotations

import os
from collections.abc import Generator
from functools import partial
from typing import Any

from ndtool import __version__
from ndtool.arrays.constant import Constant
from ndtool.arrays.source import ContiguousSource, Source
from ndtool.engine import tuning
from ndtool.engine.gathers import ProgressCallback
from ndtool.errors import (
    NdtoolError,
    OutputError,
    ResourceError,
    UsageError,
    argument_name,
    printable,
)
from ndtool.formats import locators
from ndtool.formats.outputs import Output
from ndtool.machine import signals
from ndtool.publish.shared import SharedOutput
from ndtool.publish.sinks import DrySink
from ndtool.rules.reductions import REDUCTIONS
from ndtool.runs import plan
from ndtool.runs.calls import OpenCall
from ndtool.runs.executors import Cluster
from ndtool.runs.external import choice, execution, phases, resume, spillfiles, worker
from ndtool.runs.external.partitioning import Partitioning
from ndtool.runs.external.policy import RetryLog
from ndtool.runs.external.resume import AbandonedRun
from ndtool.runs.external.spill import SpillFolder
from ndtool.runs.plan import Plan
from ndtool.storage import descriptors, locations

CLOSE_TIMEOUT = 0.7  # seconds that workers may take to close a failed run
REMOTE_CLOSE_TIMEOUT = 10  # seconds; objects written after the cleanup would remain
TASKS_PER_SLOT = 3  # minimum tasks of a phase for each thread, if chunks are small enough


def worker_locations(
    inputs: dict[str, str], sources: dict[str, Source], output: str | None, reduction: str
) -> dict[str, str]:
    """Return the locations of inputs for workers, by role; UsageError if they cannot read one."""
    if output in (None, "-"):
        raise UsageError("a run on a cluster writes to a file or store: expected -o FILE")
    locations_by_role = {}
    for role, argument in inputs.items():
        source = sources[role]
        is_literal = argument.lstrip()[:1] == "[" and role == "indices"
        is_literal = is_literal or isinstance(source, Constant)
        if isinstance(source, ContiguousSource) and not is_literal:
            if (
                not source.is_reopenable
                or source.local_range is None
                or argument.startswith("raw:")
            ):
                raise UsageError(
                    f"{argument_name(argument)}: workers cannot read parts of it:"
                    " expected a Zarr store or a file of another format"
                )
            if source.metadata.order == "F" and len(source.metadata.shape) > 1:
                raise UsageError(f"{argument_name(argument)} is in Fortran order: expected C order")
        locations_by_role[role] = argument if is_literal else locators.absolute(argument)
    assert output is not None, "validated before"
    if not REDUCTIONS[reduction].idempotent and _is_same_array(
        locations_by_role["data"], locators.absolute(output)
    ):
        raise UsageError(
            f"{argument_name(output)} is also data: on a cluster, {reduction} cannot update in"
            " place"
        )
    return locations_by_role


def _is_same_array(first: str, second: str) -> bool:
    a, b = locators.parse(first), locators.parse(second)
    return os.path.realpath(a.path) == os.path.realpath(b.path) and a.member == b.member


def spill_location(spill: str | None, output: str) -> str:
    """Return the directory or URL for spilled data; by default, the output's."""
    if spill is not None:
        return spill
    path = locators.parse(locators.absolute(output)).path.rstrip("/")
    return locations.parent_folder(path if locations.is_url(path) else os.path.realpath(path))


def find_abandoned(
    call: OpenCall, output: Output, location: str, input_locations: dict[str, str]
) -> AbandonedRun:
    """Find a killed run that this run can resume."""
    rows = plan.rows_in(call, output.metadata)
    return AbandonedRun(
        location, resume.fingerprint_of(call.inference, rows, input_locations, call.sources)
    )


def choose(
    call: OpenCall,
    cluster: Cluster,
    output: Output,
    spill: str,
    abandoned: AbandonedRun | None = None,
) -> Plan:
    """Plan a run: partitions and blocks as large as memory allows, but several for each thread.

    spill: the location of spilled data. abandoned: the run to resume, if this cluster has the
    memory for its partitioning.
    """
    worker.require_one_version(cluster)
    target, rows = output.metadata, plan.rows_in(call, output.metadata)
    tasks = cluster.slots * TASKS_PER_SLOT
    budget = max(
        1 << 20,
        min(
            cluster.memory,
            8 * call.sources["data"].metadata.nbytes // tasks,
            32 * rows.tuples * (rows.width + 4) // tasks,
        ),
    )

    def partition(budget: int, levels: int) -> Partitioning | None:
        partitioning = plan.partition_chunks(call, target, output.concurrency, budget, levels)
        if partitioning is None:
            return None
        return partitioning._replace(in_memory=0, workers=cluster.slots).with_ranges()

    partitioning = choice.choose(
        partition, budget, cluster.memory, tuning.REQUEST_COST, _task_memory
    )
    partitioning = partitioning or partition(budget, 1)
    if partitioning is not None and abandoned is not None and abandoned.folder is not None:
        previous = abandoned.partitioning(partitioning)
        if _task_memory(previous) <= cluster.memory and execution.writes_complete_chunks(
            call, target, previous
        ):
            partitioning = previous
            abandoned.find_segments(partitioning)
        else:
            abandoned.reject(
                "the killed run's tasks need more memory, or other chunks of the output"
            )
    if partitioning is not None and _task_memory(partitioning) > cluster.memory:
        raise ResourceError(
            f"a task takes {_task_memory(partitioning)} bytes of memory:"
            f" a worker has {cluster.memory} per thread",
            hint="--memory sets the memory of a worker, --chunks the size of the output's chunks",
        )
    if partitioning is None or not execution.writes_complete_chunks(call, target, partitioning):
        raise ResourceError(
            "no common multiple of the chunks of data and of the output fits in memory"
        )
    return plan.external_plan(
        "cluster", call, partitioning, "--scheduler or --workers was given", output, spill
    )


def _task_memory(partitioning: Partitioning) -> int:
    """Return the bytes of memory of a task, including indices that batches share."""
    return partitioning.index_bytes + partitioning.task_memory


def run(
    call: OpenCall,
    partitioning: Partitioning,
    run_locations: tuple[str, dict[str, str]],
    cluster: Cluster,
    abandoned: AbandonedRun | None,
    retry_log: RetryLog,
    sink: Any,
    progress: ProgressCallback,
    report: phases.ReportCallback,
    dry: bool,
) -> Generator[str]:
    """Execute a run on a cluster, into a sink; yield the name of each phase before it begins.

    run_locations: the location of spilled data, and the inputs' locations on workers. report: a
    callback for the bounds report, if the mode allows indices out of bounds. abandoned: the run to
    resume; if None, this run cannot be resumed, either. retry_log: counts restarted and delayed
    tasks.
    """
    location, input_locations = run_locations
    shared_output: SharedOutput | None = sink.share() if hasattr(sink, "share") else None
    is_remote_dry_run = isinstance(sink, DrySink) and not sink.streamed
    if shared_output is None and not is_remote_dry_run:
        raise UsageError(
            f"{printable(sink.name)}: workers cannot write to it: expected a Zarr store, or a file"
            " in a directory that all of them see"
        )
    if dry and (shared_output is None or locations.is_url(location)):
        _check_spill_location(location, partitioning)  # workers cannot check before objects exist
        yield "split"
        return
    assert shared_output is not None, "validated before"
    resumed = abandoned.folder if abandoned else None
    spill_folder = resumed or _create_spill_folder(location, partitioning, sweeps=not dry)
    token, inference, is_resumable = os.urandom(8).hex(), call.inference, False
    is_remote = any(map(locations.is_url, (shared_output.path, spill_folder.working_folder)))
    seconds = REMOTE_CLOSE_TIMEOUT if is_remote else CLOSE_TIMEOUT
    abort = partial(cluster.abort, worker.close_run, token, seconds=seconds)
    signals.add_cleanup(abort)
    worker_call = worker.Call(
        token,
        __version__,
        input_locations,
        inference,
        partitioning,
        shared_output,
        spill_folder.working_folder,
    )
    try:
        if inference.requires_distinct and not dry:
            execution.check(call, partitioning, lambda _: None)
        _raise_first(cluster.run_on_workers(worker.check_access, worker_call), BaseException)
        store = spillfiles.open_store(spill_folder.working_folder)
        new_fingerprint = partial(
            resume.fingerprint_of, inference, partitioning.rows, input_locations, call.sources
        )
        fingerprint = abandoned.fingerprint if abandoned else new_fingerprint()
        if not dry:
            is_resumable = (
                resume.write_manifest(store, fingerprint, partitioning) and abandoned is not None
            )
        run_task = partial(worker.perform, worker_call)
        yield from phases.run(
            inference, partitioning, store, cluster, run_task, progress, report, abandoned,
            retry_log=retry_log,
        )  # fmt: skip
        _raise_first(cluster.run_on_workers(worker.close_run, token), NdtoolError)
        if resumed and (difference := resume.difference(fingerprint, new_fingerprint())):
            raise OutputError(f"{difference} during the run")
    except BaseException as error:
        abort()
        if is_resumable and isinstance(error, ResourceError):
            spill_folder.suspend()
            error.hint = error.hint or "--resume continues this run"
        if resumed and dry:
            spill_folder.suspend()
        raise
    finally:
        signals.remove_cleanup(abort)
        spill_folder.drop()


def _raise_first(outcomes: dict[str, Any], kind: type[BaseException]) -> None:
    """Raise the first outcome of workers that is an exception of type `kind`."""
    for outcome in outcomes.values():
        if isinstance(outcome, kind):
            raise outcome


def _create_spill_folder(location: str, partitioning: Partitioning, sweeps: bool) -> SpillFolder:
    """Create a folder for spilled data; ResourceError if there is too little free space."""
    spill_location = spillfiles.create_folder(location, sweeps)
    if not locations.is_url(location):
        try:
            *spilling, _ = (
                partitioning.tasks.values()
            )  # each task writes a file, except in the last phase
            files = sum(spilling)
            descriptors.require_space(
                spill_location.working_folder,
                files,
                partitioning.spilled_total,
                0,
                "temporary files",
            )
        except BaseException:
            spill_location.drop()
            raise
    return spill_location


def _check_spill_location(location: str, partitioning: Partitioning) -> None:
    """Raise the errors of creating a spill folder, as far as possible without creating objects."""
    if not locations.is_url(location):
        _create_spill_folder(location, partitioning, sweeps=False).drop()
        return
    from ndtool.storage import objects

    spillfiles.require_shared(location)
    objects.require_writable(location, folder=True)
