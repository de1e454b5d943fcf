"""External execution on a cluster: partitions a run for its workers, and drives its phases."""

from __future__ import annotations

import os
from collections.abc import Generator
from functools import partial
from typing import Any

from ndtool import __version__
from ndtool.arrays.constant import Constant
from ndtool.arrays.source import Flat, Source
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
from ndtool.publish.shared import Shared
from ndtool.publish.sinks import DrySink
from ndtool.rules.reductions import REDUCTIONS
from ndtool.runs import plan
from ndtool.runs.calls import OpenCall
from ndtool.runs.executors import Cluster
from ndtool.runs.external import choice, execution, phases, resume, spillfiles, worker
from ndtool.runs.external.partitioning import Partitioning
from ndtool.runs.external.policy import Troubles
from ndtool.runs.external.resume import AbandonedRun
from ndtool.runs.external.spill import SpillFolder
from ndtool.runs.plan import Plan
from ndtool.storage import descriptors, locations

HURRY = 0.7  # seconds that workers may take to close a run that failed
SENT = 10  # the same for writes to a store: a late one would survive the cleanup
WORTH = 3  # tasks of a phase for each thread, if chunks are small enough


def arguments(
    named: dict[str, str], sources: dict[str, Source], output: str | None, reduction: str
) -> dict[str, str]:
    """Return the inputs' locations on workers; UsageError for one that they cannot read."""
    if output in (None, "-"):
        raise UsageError("a run on a cluster writes to a file or store: expected -o FILE")
    names = {}
    for role, argument in named.items():
        source = sources[role]
        literal = argument.lstrip()[:1] == "[" and role == "indices"
        literal = literal or isinstance(source, Constant)
        if isinstance(source, Flat) and not literal:
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
        names[role] = argument if literal else locators.absolute(argument)
    assert output is not None, "validated before"
    if not REDUCTIONS[reduction].idempotent and _same(names["data"], locators.absolute(output)):
        raise UsageError(
            f"{argument_name(output)} is also data: on a cluster, {reduction} cannot update in"
            " place"
        )
    return names


def _same(first: str, second: str) -> bool:
    a, b = locators.parse(first), locators.parse(second)
    return os.path.realpath(a.path) == os.path.realpath(b.path) and a.member == b.member


def folder(spill: str | None, output: str) -> str:
    """Return the directory or URL for spilled data, by default that of the output."""
    if spill is not None:
        return spill
    path = locators.parse(locators.absolute(output)).path.rstrip("/")
    return locations.folder(path if locations.is_url(path) else os.path.realpath(path))


def find_abandoned(
    call: OpenCall, output: Output, location: str, named: dict[str, str]
) -> AbandonedRun:
    """Find a killed run that this one can resume."""
    rows = plan.rows_in(call, output.metadata)
    return AbandonedRun(location, resume.fingerprint_of(call.inference, rows, named, call.sources))


def choose(
    call: OpenCall,
    cluster: Cluster,
    output: Output,
    spill: str,
    abandoned: AbandonedRun | None = None,
) -> Plan:
    """Plan a run: partitions and blocks as memory allows, but several for each thread.

    spill: the location of the spilled data. abandoned: the run to resume, if this cluster can
    execute its partitioning.
    """
    worker.require_one_version(cluster)
    to, rows = output.metadata, plan.rows_in(call, output.metadata)
    tasks = cluster.slots * WORTH
    budget = max(
        1 << 20,
        min(
            cluster.memory,
            8 * call.sources["data"].metadata.nbytes // tasks,
            32 * rows.tuples * (rows.width + 4) // tasks,
        ),
    )

    def partition(budget: int, levels: int) -> Partitioning | None:
        partitioning = plan.partition_chunks(call, to, output.at_once, budget, levels)
        if partitioning is None:
            return None
        return partitioning._replace(in_memory=0, workers=cluster.slots).in_ranges()

    partitioning = choice.chosen(
        partition, budget, cluster.memory, tuning.REQUEST_COST, _task_memory
    )
    partitioning = partitioning or partition(budget, 1)
    if partitioning is not None and abandoned is not None and abandoned.folder is not None:
        killed = abandoned.partitioning(partitioning)
        if _task_memory(killed) <= cluster.memory and execution.suits(call, to, killed):
            partitioning = killed
            abandoned.find_segments(partitioning)
        else:
            abandoned.refuse(
                "the killed run's tasks need more memory, or other chunks of the output"
            )
    if partitioning is not None and _task_memory(partitioning) > cluster.memory:
        raise ResourceError(
            f"a task takes {_task_memory(partitioning)} bytes of memory:"
            f" a worker has {cluster.memory} per thread",
            hint="--memory sets the memory of a worker, --chunks the size of the output's chunks",
        )
    if partitioning is None or not execution.suits(call, to, partitioning):
        raise ResourceError(
            "no common multiple of the chunks of data and of the output fits in memory"
        )
    return plan.planned("cluster", call, partitioning, "a cluster was given", output, spill)


def _task_memory(partitioning: Partitioning) -> int:
    """Return the bytes of memory of a task, with repeated indices."""
    return partitioning.indices + partitioning.task


def run(
    call: OpenCall,
    partitioning: Partitioning,
    locations_of: tuple[str, dict[str, str]],
    cluster: Cluster,
    abandoned: AbandonedRun | None,
    troubles: Troubles,
    sink: Any,
    progress: ProgressCallback,
    report: phases.ReportCallback,
    dry: bool,
) -> Generator[str]:
    """Execute a run on a cluster, into a sink; yield the name of each phase before it begins.

    locations_of: the location of spilled data, and the inputs' locations on workers. report:
    receives the bounds report if the mode allows indices out of bounds. abandoned: the run to
    resume; None also means that this run cannot be resumed if it fails. troubles: counts what the
    run survives.
    """
    location, named = locations_of
    shared: Shared | None = sink.shared() if hasattr(sink, "shared") else None
    objects = isinstance(sink, DrySink) and not sink.streamed
    if shared is None and not objects:
        raise UsageError(
            f"{printable(sink.name)}: workers cannot write to it: expected a Zarr store, or a file"
            " in a directory that all of them see"
        )
    if dry and (shared is None or locations.is_url(location)):
        _check_spill_location(location, partitioning)  # workers cannot check before objects exist
        yield "split"
        return
    assert shared is not None, "validated before"
    resumed = abandoned.folder if abandoned else None
    folder = resumed or _spill(location, partitioning, sweeps=not dry)
    token, inference, is_resumable = os.urandom(8).hex(), call.inference, False
    is_sent = any(map(locations.is_url, (shared.path, folder.inside)))
    seconds = SENT if is_sent else HURRY
    abandon = partial(cluster.abandon, worker.finish, token, seconds=seconds)
    signals.add_cleanup(abandon)
    sent = worker.Call(token, __version__, named, inference, partitioning, shared, folder.inside)
    try:
        if inference.requires_distinct and not dry:
            execution.check(call, partitioning, lambda _: None)
        _raise_any(cluster.everywhere(worker.look, sent), BaseException)
        store = spillfiles.open_store(folder.inside)
        new_fingerprint = partial(
            resume.fingerprint_of, inference, partitioning.rows, named, call.sources
        )
        fingerprint = abandoned.fingerprint if abandoned else new_fingerprint()
        if not dry:
            is_resumable = (
                resume.write_manifest(store, fingerprint, partitioning) and abandoned is not None
            )
        do = partial(worker.perform, sent)
        yield from phases.run(
            inference, partitioning, store, cluster, do, progress, report, abandoned,
            troubles=troubles,
        )  # fmt: skip
        _raise_any(cluster.everywhere(worker.finish, token), NdtoolError)
        if resumed and (change := resume.difference(fingerprint, new_fingerprint())):
            raise OutputError(f"{change} during the run")
    except BaseException as error:
        abandon()
        if is_resumable and isinstance(error, ResourceError):
            folder.leave()
            error.hint = error.hint or "--resume continues this run"
        if resumed and dry:
            folder.leave()
        raise
    finally:
        signals.remove_cleanup(abandon)
        folder.drop()


def _raise_any(outcomes: dict[str, Any], kind: type[BaseException]) -> None:
    """Raise the first outcome of workers that is an error of a kind."""
    for outcome in outcomes.values():
        if isinstance(outcome, kind):
            raise outcome


def _spill(location: str, partitioning: Partitioning, sweeps: bool) -> SpillFolder:
    """Create a folder for spilled data; ResourceError if there is too little space."""
    new = spillfiles.create_folder(location, sweeps)
    if not locations.is_url(location):
        try:
            *spilling, _ = partitioning.tasks.values()  # one file for each task but the last ones
            files = sum(spilling)
            descriptors.require_space(
                new.inside, files, partitioning.spilled_total, 0, "temporary files"
            )
        except BaseException:
            new.drop()
            raise
    return new


def _check_spill_location(location: str, partitioning: Partitioning) -> None:
    """Raise the errors of `_spill`, as far as possible without creating objects."""
    if not locations.is_url(location):
        _spill(location, partitioning, sweeps=False).drop()
        return
    from ndtool.storage import upload

    spillfiles.require_of_many(location)
    upload.require_writable(location, folder=True)
