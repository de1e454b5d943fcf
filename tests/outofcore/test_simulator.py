"""The simulated cluster: its clock, its faults, and runs whose bits and requests are real."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import save
from strategies import bits_equal

from ndtool.analysis.oracle import reference
from ndtool.arrays import memory
from ndtool.errors import BoundsError
from ndtool.rules.operators import Attributes
from ndtool.runs.calls import OpenCall
from ndtool.runs.executors import Cluster, Task
from ndtool.runs.executors.simulator import Faults, Meter, Simulator, Step
from ndtool.runs.external import policy, simulation
from ndtool.runs.external.partitioning import Partitioning, partitioning_for
from ndtool.runs.external.rows import rows_of
from ndtool.runs.machines import STORE, Machine
from ndtool.runs.request import Request

PLAIN = Machine(0.5, 4, 100.0)


def refuse(outside: BoundsError) -> None:
    raise outside


def simulate_run(
    count: int, steps: list[Step], slots: int, machine: Machine = PLAIN, **options: Any
) -> Simulator:
    """Run tasks of equal steps; return the simulator."""
    meter = Meter()
    simulator = Simulator(slots, machine, meter, **options)

    def run_task(phase: str, number: int) -> int:
        for step in steps:
            meter.add(step)
        return number

    results: list[int] = []
    tasks = (Task(run_task, "sweep", number) for number in range(count))
    policy.complete(simulator, tasks, lambda number, end: results.append(end))
    assert sorted(results) == list(range(count))
    return simulator


@pytest.mark.parametrize(
    ("step", "machine", "seconds"),
    [
        (Step("get", gets=1), PLAIN, 0.5),
        (Step("get", gets=8), PLAIN, 1.0),
        (Step("get", gets=1, nbytes=200), PLAIN, 2.5),
        (Step("computing", seconds=3.0), PLAIN, 3.0),
        (Step("get", gets=4), PLAIN._replace(get_rate=2.0), 2.0),
        (Step("put", puts=4), PLAIN._replace(put_rate=2.0), 2.0),
        (Step("get", gets=4, nbytes=100), PLAIN._replace(total_bandwidth=10.0), 10.0),
        (Step("put", puts=1), PLAIN._replace(scheduler_seconds=1.0), 1.5),
    ],
)
def test_a_task_takes_as_long_as_its_steps(step: Step, machine: Machine, seconds: float) -> None:
    assert simulate_run(1, [step], 1, machine).now() == seconds


def test_workers_share_the_limits_of_the_store() -> None:
    step = Step("get", gets=4)
    assert simulate_run(12, [step], 1).now() == 6.0
    assert simulate_run(12, [step], 3).now() == 2.0
    assert simulate_run(12, [step], 5).now() == 1.5  # three rounds
    assert simulate_run(12, [step], 12).now() == 0.5
    limited = simulate_run(12, [step], 12, PLAIN._replace(get_rate=4.0))
    assert (limited.now(), limited.spent["requests to read"]) == (12.0, 78.0 - 12 * 0.5)
    slow = simulate_run(12, [step], 12, PLAIN._replace(scheduler_seconds=1.0))
    assert (slow.now(), slow.spent["scheduler"]) == (12.5, 78.0)


def test_steps_of_one_kind_are_in_flight_together() -> None:
    meter = Meter()
    for kind in ("line a 0", "get", "get", "get", "put"):
        meter.add(Step(kind, gets=1, nbytes=3))
    assert [(step.kind, step.gets, step.nbytes) for step in meter.pop_steps()] == [
        ("line a 0", 1, 3), ("get", 3, 9), ("put", 1, 3),
    ]  # fmt: skip
    assert meter.pop_steps() == []
    assert meter.totals == {"get": 5, "put": 0, "bytes": 15}


def test_faults_take_time_and_lose_nothing() -> None:
    steps = [Step("get", gets=4)]
    faults = Faults(lost=0.1, late=0.1, throttled=0.05)
    first, second = (simulate_run(200, steps, 4, faults=faults, seed=7).now() for _ in range(2))
    assert first == second > simulate_run(200, steps, 4).now()
    assert simulate_run(200, steps, 4, faults=faults, seed=8).now() != first


def test_a_late_task_runs_again_elsewhere_and_is_not_waited_for() -> None:
    steps, faults = [Step("computing", seconds=10.0)], Faults(late=0.05, slowdown=100.0)
    meter, retry_log, results = Meter(), policy.RetryLog(), list[int]()
    simulator = Simulator(8, PLAIN, meter, faults, seed=3, interval=1.0)

    def run_task(phase: str, number: int) -> int:
        meter.add(steps[0])
        return number

    tasks = (Task(run_task, "sweep", number) for number in range(100))
    policy.complete(simulator, tasks, lambda number, end: results.append(end), retry_log=retry_log)
    assert (sorted(results), len(retry_log.warnings())) == (list(range(100)), 1)
    alone = simulate_run(100, steps, 8, faults=faults, seed=3).now()
    assert 130.0 <= simulator.now() < alone / 2


def test_time_passes_while_nothing_completes() -> None:
    simulator = Simulator(1, PLAIN, Meter(), interval=1.0)
    simulator.submit(Task(lambda *_: simulator.meter.add(Step("a", seconds=3.5)), "split", 0))
    timeline = [(completed is None, simulator.now()) for completed in simulator.completed()]
    assert timeline == [(True, 1.0), (True, 2.0), (True, 3.0), (False, 3.5)]
    simulator.wait(2.0)
    assert simulator.now() == 5.5


def test_it_has_the_contract_of_clusters() -> None:
    assert isinstance(Simulator(1, PLAIN, Meter()), Cluster)


@pytest.fixture
def inputs(workdir: Path) -> Path:
    rng = np.random.default_rng(5)
    save(data=rng.random((256, 256), np.float32), idx=rng.integers(0, 256, (20_000, 2)))
    save(upd=rng.random(20_000, np.float32))
    return workdir


def run(simulator: Simulator, operator: str, levels: int, **given: Any) -> tuple[Any, Partitioning]:
    """Run a call on a simulator; return the result and the partitioning."""
    names = ["data.npy", "idx.npy", *(["upd.npy"] if operator == "scatter_nd" else [])]
    with OpenCall(Request(operator, *names, attributes=Attributes(**given))) as call:
        gathers = not call.inference.scatters
        partitioning = partitioning_for(rows_of(call.inference), gathers, 60_000, 2, levels=levels)
        out = np.zeros(call.inference.plan.output, np.float32)
        sink = memory.BufferSink(out.reshape(-1).view(np.uint8).data, call.metadata)
        simulation.run(call, partitioning, sink, simulator, simulator.meter, STORE, refuse)
    return out, partitioning


@pytest.mark.usefixtures("inputs")
@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("faults", [Faults(), Faults(lost=0.05, late=0.1, throttled=0.01)])
def test_a_simulated_run_has_the_bits_of_the_reference(levels: int, faults: Faults) -> None:
    data, idx, upd = (np.load(f"{name}.npy") for name in ("data", "idx", "upd"))
    simulators = [Simulator(4, STORE, Meter(), faults) for _ in range(2)]
    gathered, partitioning = run(simulators[0], "gather_nd", levels)
    assert (partitioning.levels, bits_equal(gathered, reference.gather_nd(data, idx))) == (
        levels,
        True,
    )
    scattered, _ = run(simulators[1], "scatter_nd", levels, reduction="add")
    assert bits_equal(scattered, reference.scatter_nd(data, idx, upd, reduction="add"))
    assert all(
        simulator.now() > 0.1 and simulator.meter.totals["get"] > 100 for simulator in simulators
    )


@pytest.mark.usefixtures("inputs")
def test_a_simulated_run_reports_indices_out_of_bounds() -> None:
    idx = np.load("idx.npy")
    idx[9999, 1] = 256
    save(idx=idx)
    with pytest.raises(BoundsError):
        run(Simulator(4, STORE, Meter()), "gather_nd", 1)
