"""Estimates of the time and price of an external run, from its cost model, machines and prices."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ndtool.arrays.constant import Constant
from ndtool.arrays.source import ArrayMetadata
from ndtool.formats import locators
from ndtool.runs.external.choice import reread_bytes
from ndtool.runs.external.costs import CostModel, Costs, StoredArray
from ndtool.runs.external.units import tuple_shape
from ndtool.runs.machines import DISK, STORE, Machine
from ndtool.runs.prices import Estimate, Prices
from ndtool.storage import locations

if TYPE_CHECKING:
    from ndtool.formats.outputs import Output
    from ndtool.runs.calls import OpenCall
    from ndtool.runs.external.partitioning import Partitioning

WORKER_COUNTS = (1, 10, 100, 1000)


def cost_model_for(
    call: OpenCall, partitioning: Partitioning, output: Output | None, spill: str | None
) -> CostModel:
    """Return the cost model of an external run.

    spill: the location of a cluster's spilled data, None for a run in one process.
    """
    kind = "memory"
    if spill is not None:
        kind = "objects" if locations.is_url(spill) else "folder"
    positions = {
        "indices": call.inference.plan.positions,
        "updates": tuple_shape(call.inference.plan),
    }
    inputs = {
        role: StoredArray(
            source.metadata,
            _is_remote(call, role),
            positions.get(role, ()),
            isinstance(source, Constant),
        )
        for role, source in call.sources.items()
    }
    metadata: dict[str, ArrayMetadata] = {role: stored.metadata for role, stored in inputs.items()}
    reread = reread_bytes(call.inference, metadata, partitioning)
    target = call.metadata if output is None else output.metadata
    writes_to_url = output is not None and locations.is_url(locators.parse(output.name).path)
    directories = max(1, len(call.spill_directories)) if kind == "memory" else 1
    return CostModel(
        partitioning, kind, inputs, reread, StoredArray(target, writes_to_url), directories
    )


def _is_remote(call: OpenCall, role: str) -> bool:
    argument = call.request.arguments.get(role)
    if role in call.from_caller or argument is None:
        return False
    return locations.is_url(locators.parse(argument).path)


def estimates(run: CostModel, phases: list[Costs], prices: Prices) -> list[Estimate]:
    """Return the time and price of a run for each number of workers in WORKERS."""
    machine, results = STORE if run.is_remote else DISK, list[Estimate]()
    requests_price = dollars(phases, prices) if run.is_remote else 0.0
    for workers in WORKER_COUNTS:
        duration = run_seconds(run, phases, machine, workers)
        price = requests_price + workers * duration / 3600 * prices.machine_hour
        results.append(Estimate(workers, *(float(f"{figure:.4g}") for figure in (duration, price))))
    return results


def run_seconds(run: CostModel, phases: list[Costs], machine: Machine, workers: int) -> float:
    """Return the seconds that a run takes.

    Without a cluster, one worker executes tasks on several threads, one of which waits for the
    disk.
    """
    concurrency = 1 if run.has_shared_spill else max(1, run.partitioning.workers - 1)
    return sum(seconds(phase, machine, workers, concurrency) for phase in phases)


def seconds(phase: Costs, machine: Machine, workers: int, concurrency: int = 1) -> float:
    """Return the seconds that the tasks of a phase take with `workers` workers.

    concurrency: the number of tasks that a worker executes concurrently.
    """
    tasks, nbytes = max(1, phase.tasks), phase.read + phase.written
    gets, puts = billed_requests(phase.requests)
    rounds = max(phase.steps, phase.requests.total() / tasks / machine.concurrency)
    transferred = (phase.read + phase.written * machine.write_factor) / machine.bandwidth
    computed = nbytes / machine.copy_rate + phase.tuples / machine.sort_rate
    task_seconds = machine.latency * rounds + (transferred + computed) / tasks
    limits = (
        phase.tasks * machine.scheduler_seconds,
        transferred / workers,
        nbytes / machine.total_bandwidth if machine.total_bandwidth else 0.0,
        gets / machine.get_rate if machine.get_rate else 0.0,
        puts / machine.put_rate if machine.put_rate else 0.0,
    )
    return max(-(-phase.tasks // (workers * concurrency)) * task_seconds, *limits)


def dollars(phases: list[Costs], prices: Prices) -> float:
    """Return the price of requests and of bytes in dollars, without machines."""
    total = sum((phase.requests for phase in phases), Counter[str]())
    gets, puts = billed_requests(total)
    nbytes = sum(phase.read + phase.written for phase in phases)
    return gets / 1000 * prices.get + puts / 1000 * prices.put + nbytes / 1e9 * prices.gb


def billed_requests(requests: Counter[str]) -> tuple[int, int]:
    """Return the numbers of requests that are billed as reads and as writes; deletes are free."""
    return requests["get"] + requests["head"], requests["put"] + requests["list"]
