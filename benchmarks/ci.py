"""What must never get slower: ratios of one run, held against those on record."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import machine
import peers
from cases import CI, Case
from measure import Measured, small_call
from timing import Memcpy, alternate, seconds

BASELINE = Path(__file__).with_name("ci_baseline.json")
SHARE = 0.8  # of its record that a kernel must keep
ROUNDS = 5
REPEATS = 5

Ratios = dict[str, float]  # peer's time / ours, of numpy and memcpy


def run(record: bool) -> int:
    """Measure the small cases; return 1 if one is slow, or write the record."""
    if record:
        return _record()
    baseline: dict[str, Ratios] = json.loads(BASELINE.read_text())["cases"]
    failed = [name for name, recorded in baseline.items() if not _holds(name, recorded)]
    print("slower than on record: " + ", ".join(failed) if failed else "nothing got slower")
    return 1 if failed else 0


def _record() -> int:
    recorded = {}
    for name in [case.name for case in CI] + ["small call"]:
        rounds = [_ratios(name) for _ in range(ROUNDS)]
        recorded[name] = {key: round(median(r[key] for r in rounds), 3) for key in rounds[0]}
        print(f"{name:28} {_written(recorded[name])}", flush=True)
    described = machine.written(machine.describe(["numpy"]))
    BASELINE.write_text(json.dumps({"machine": described, "cases": recorded}, indent=1) + "\n")
    return 0


def _holds(name: str, recorded: Ratios) -> bool:
    """Whether in one of the rounds the kernel keeps its ratio to numpy or to memcpy.

    A slower kernel loses against both; noise rarely hits both, in every round.
    """
    best: Ratios = dict.fromkeys(recorded, 0.0)
    for _ in range(ROUNDS):
        ratios = _ratios(name)
        best = {key: max(best[key], ratios[key]) for key in recorded}
        if any(best[key] >= SHARE * recorded[key] for key in recorded):
            break
    held = any(best[key] >= SHARE * recorded[key] for key in recorded)
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
    with ThreadPoolExecutor(1) as pool:
        memcpy = Memcpy(mine.out.nbytes, pool)
        memcpy()
        pairs = {"numpy": fastest, "memcpy": memcpy}
        taken = {key: alternate(mine, call, REPEATS) for key, call in pairs.items()}
    return {key: pair.their_best / pair.our_best for key, pair in taken.items()}


def _written(ratios: Ratios) -> str:
    return ", ".join(f"{ratio:.2f} of {key}" for key, ratio in ratios.items())
