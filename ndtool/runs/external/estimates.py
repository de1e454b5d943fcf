"""The time and the money that an external run takes, from its costs, a machine and prices."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ndtool.arrays.constant import Constant
from ndtool.arrays.source import ArrayMetadata
from ndtool.formats import locators
from ndtool.runs.external.choice import read_again
from ndtool.runs.external.costs import Costs, Run, Stored
from ndtool.runs.external.units import positions_of
from ndtool.runs.machines import DISK, STORE, Machine
from ndtool.runs.prices import Estimate, Prices
from ndtool.storage import locations

if TYPE_CHECKING:
    from ndtool.formats.outputs import Output
    from ndtool.runs.calls import OpenCall
    from ndtool.runs.external.partitioning import Partitioning

WORKERS = (1, 10, 100, 1000)


def run_of(
    call: OpenCall, partitioning: Partitioning, output: Output | None, spill: str | None
) -> Run:
    """Return what the costs of an external run follow from.

    spill: the location of a cluster's spilled data, None for a run in one process.
    """
    kind = "memory"
    if spill is not None:
        kind = "objects" if locations.is_url(spill) else "folder"
    positions = {
        "indices": call.inference.plan.positions,
        "updates": positions_of(call.inference.plan),
    }
    inputs = {
        role: Stored(
            source.metadata,
            _is_remote(call, role),
            positions.get(role, ()),
            isinstance(source, Constant),
        )
        for role, source in call.sources.items()
    }
    metadata: dict[str, ArrayMetadata] = {role: stored.metadata for role, stored in inputs.items()}
    reread = read_again(call.inference, metadata, partitioning)
    to = call.metadata if output is None else output.metadata
    to_url = output is not None and locations.is_url(locators.parse(output.name).path)
    spills = max(1, len(call.spills)) if kind == "memory" else 1
    return Run(partitioning, kind, inputs, reread, Stored(to, to_url), spills)


def _is_remote(call: OpenCall, role: str) -> bool:
    argument = call.request.arguments.get(role)
    if role in call.from_caller or argument is None:
        return False
    return locations.is_url(locators.parse(argument).path)


def estimates(run: Run, phases: list[Costs], prices: Prices) -> list[Estimate]:
    """Return the time and the money of a run for a few numbers of workers."""
    machine, results = STORE if run.is_remote else DISK, list[Estimate]()
    bought = dollars(phases, prices) if run.is_remote else 0.0
    for workers in WORKERS:
        took = run_seconds(run, phases, machine, workers)
        money = bought + workers * took / 3600 * prices.machine_hour
        results.append(Estimate(workers, *(float(f"{figure:.4g}") for figure in (took, money))))
    return results


def run_seconds(run: Run, phases: list[Costs], machine: Machine, workers: int) -> float:
    """Return how long a run takes; without a cluster, a worker executes several tasks at once.

    One of them waits for the disk.
    """
    concurrency = 1 if run.is_shared else max(1, run.partitioning.workers - 1)
    return sum(seconds(phase, machine, workers, concurrency) for phase in phases)


def seconds(phase: Costs, machine: Machine, workers: int, concurrency: int = 1) -> float:
    """Return how long the tasks of a phase take `workers` workers.

    concurrency: the number of tasks that a worker executes concurrently.
    """
    tasks, nbytes = max(1, phase.tasks), phase.read + phase.written
    gets, puts = paid(phase.requests)
    calls = max(phase.steps, phase.requests.total() / tasks / machine.concurrency)
    transferred = (phase.read + phase.written * machine.writing) / machine.bandwidth
    computed = nbytes / machine.moved + phase.tuples / machine.sorted
    task_seconds = machine.latency * calls + (transferred + computed) / tasks
    limits = (
        phase.tasks * machine.scheduled,
        transferred / workers,
        nbytes / machine.every if machine.every else 0.0,
        gets / machine.gets if machine.gets else 0.0,
        puts / machine.puts if machine.puts else 0.0,
    )
    return max(-(-phase.tasks // (workers * concurrency)) * task_seconds, *limits)


def dollars(phases: list[Costs], prices: Prices) -> float:
    """Return the price of requests and of bytes, without machines."""
    total = sum((phase.requests for phase in phases), Counter[str]())
    gets, puts = paid(total)
    nbytes = sum(phase.read + phase.written for phase in phases)
    return gets / 1000 * prices.get + puts / 1000 * prices.put + nbytes / 1e9 * prices.gb


def paid(requests: Counter[str]) -> tuple[int, int]:
    """Return the requests that are paid as reads, and as writes; to delete is free."""
    return requests["get"] + requests["head"], requests["put"] + requests["list"]
