"""What must never get slower: ratios of one run, held against those on record."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import machine
import peers
from cases import CI, Case
from measure import Measured, small_call
from timing import LARGE, Memcpy, alternate, seconds

BASELINE = Path(__file__).with_name("ci_baseline.json")
SHARE = 0.8  # of its record that a kernel must keep
ROUNDS = 4  # of REPEATS calls each; the best counts
REPEATS = 5
PASSES = 5  # over what is still slow, a while apart: a busy machine is not always busy

Ratios = dict[str, float]  # NumPy's time / ours on one thread; memcpy's / ours on two


def run(record: bool) -> int:
    """Measure the small cases; return 1 if one is slow, or write the record."""
    here = machine.processor(machine.describe(["numpy"]))
    records: dict[str, dict[str, Ratios]] = json.loads(BASELINE.read_text())
    if record:
        return _record(records, here)
    if here not in records:  # ratios of another processor say nothing about this one
        print(f"no record for {here}: measured, held against nothing")
    baseline = records.get(here, {case.name: {} for case in CI})
    best: dict[str, Ratios] = {name: {} for name in baseline}
    slow = list(baseline)
    for again in range(PASSES):
        time.sleep(2 * again)
        slow = [name for name in slow if not _holds(name, baseline[name], best[name])]
        if not slow:
            break
    print("slower than on record: " + ", ".join(slow) if slow else "nothing got slower")
    return 1 if slow else 0


def _record(records: dict[str, dict[str, Ratios]], here: str) -> int:
    recorded = {}
    for name in [case.name for case in CI] + ["small call"]:
        rounds = [_ratios(name) for _ in range(2 * ROUNDS)]
        recorded[name] = {key: round(median(r[key] for r in rounds), 3) for key in rounds[0]}
        print(f"{name:28} {_written(recorded[name])}", flush=True)
    BASELINE.write_text(json.dumps(records | {here: recorded}, indent=1) + "\n")
    return 0


def _holds(name: str, recorded: Ratios, best: Ratios) -> bool:
    """Whether the best ratios so far, which this makes better, keep their share of the record."""
    held = False
    for _ in range(ROUNDS):
        for key, ratio in _ratios(name).items():
            best[key] = max(best.get(key, 0.0), ratio)
        held = all(best[key] >= SHARE * recorded[key] for key in recorded)
        if held:
            break
    verdict = "ok" if held else "SLOW"
    print(f"{verdict:4} {name:28} {_written(best)}; on record {_written(recorded)}", flush=True)
    return held


def _ratios(name: str) -> Ratios:
    if name == "small call":
        return {"numpy": 1 / small_call(REPEATS)["times_numpy"]}
    return _case_ratios(next(case for case in CI if case.name == name))


def _case_ratios(case: Case) -> Ratios:
    mine = Measured(case)
    if not mine.verified:
        raise SystemExit(f"{case.name}: the answer is wrong")
    ways = peers.numpy_ways(mine.problem).values()
    fastest = min(ways, key=lambda way: min(seconds(way) for _ in range(2)))
    beside_numpy = alternate(mine.on_one_thread, fastest, REPEATS)
    ratios = {"numpy": beside_numpy.their_best / beside_numpy.our_best}
    if mine.out.nbytes >= LARGE:
        with ThreadPoolExecutor(1) as pool:
            beside_memcpy = alternate(mine, Memcpy(mine.out.nbytes, pool), REPEATS)
        ratios["memcpy"] = beside_memcpy.their_best / beside_memcpy.our_best
    return ratios


def _written(ratios: Ratios) -> str:
    return ", ".join(f"{ratio:.2f} of {key}" for key, ratio in ratios.items())
