"""Regression test of performance: shares of the limit, compared with a recorded baseline.

Both are measured in the same run on the same arrays, so the baseline applies to every machine.
"""

import json
import time
from pathlib import Path

import plain_c
import problems
from cases import CI
from measure import small_call

BASELINE = Path(__file__).with_name("ci_baseline.json")
MIN_FRACTION = 0.8  # fraction of its baseline that a kernel must reach
ROUNDS = 4  # of REPEATS calls each
REPEATS = 5
PASSES = 5  # rounds for slow cases, at intervals: the machine may be busy for a while
SMALL = "small call"

# Shares of the limit, by alignment and number of threads; or that of NumPy's indexing / ndtool's.
Ratios = dict[str, float]
# The best times of all rounds: a disturbance of one side must not improve a ratio.
Times = dict[str, tuple[float, float]]


def run(record: bool) -> int:
    """Measure the small cases; return 1 if one is slow, or write the baseline."""
    try:
        plain_c.library()
    except plain_c.NoCompilerError as error:
        print(f"skipped, the limits cannot be built here: {error}")
        return 0
    if record:
        return _record()
    baseline: dict[str, Ratios] = json.loads(BASELINE.read_text())
    best: dict[str, Times] = {name: {} for name in baseline}
    slow = list(baseline)
    for attempt in range(PASSES):
        time.sleep(2 * attempt)
        slow = [name for name in slow if not _reaches_baseline(name, baseline[name], best[name])]
        if not slow:
            break
    print("slower than on record: " + ", ".join(slow) if slow else "nothing got slower")
    return 1 if slow else 0


def _record() -> int:
    baseline: dict[str, Ratios] = {}
    for name in [case.name for case in CI] + [SMALL]:
        best: Times = {}
        for _ in range(ROUNDS):
            _measure(name, best)
        baseline[name] = {key: round(ratio, 3) for key, ratio in _ratios(best).items()}
        print(f"{name:28} {_format_ratios(baseline[name])}", flush=True)
    BASELINE.write_text(json.dumps(baseline, indent=1) + "\n")
    return 0


def _reaches_baseline(name: str, baseline: Ratios, best: Times) -> bool:
    """Whether the best times so far, which this updates, reach the baseline's required fraction."""
    passed = False
    for _ in range(ROUNDS):
        _measure(name, best)
        ratios = _ratios(best)
        passed = all(ratios[key] >= MIN_FRACTION * baseline[key] for key in baseline)
        if passed:
            break
    verdict = "ok" if passed else "SLOW"
    print(
        f"{verdict:4} {name:28} {_format_ratios(ratios)}; on record {_format_ratios(baseline)}",
        flush=True,
    )
    return passed


def _measure(name: str, best: Times) -> None:
    """Update the best times with one more round."""
    for key, (ndtool_ms, limit_ms) in _round(name).items():
        best_ndtool, best_limit = best.get(key, (ndtool_ms, limit_ms))
        best[key] = min(ndtool_ms, best_ndtool), min(limit_ms, best_limit)


def _round(name: str) -> Times:
    if name == SMALL:
        small = small_call(REPEATS)
        return {"numpy": (small["ndtool_us"], small["numpy_us"])}
    case = next(case for case in CI if case.name == name)
    times = {}
    records = plain_c.measure(problems.generate(case), ["numpy", "aligned"], [1, 2], REPEATS)
    for alignment, by_threads in records.items():
        for threads, r in by_threads.items():
            if not r["verified"]:
                raise SystemExit(f"{name}: an answer is wrong")
            times[f"{alignment} {threads}"] = r["best"]
    return times


def _ratios(best: Times) -> Ratios:
    return {key: limit_ms / ndtool_ms for key, (ndtool_ms, limit_ms) in best.items()}


def _format_ratios(ratios: Ratios) -> str:
    return ", ".join(f"{ratio:.2f} ({key})" for key, ratio in ratios.items())
