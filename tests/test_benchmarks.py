"""The benchmark's table of cases, its answers on small arrays, and the places of its tables."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ndtool

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"
if not BENCHMARKS.exists():
    pytest.skip("an installed ndtool has no benchmarks", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

import cases  # noqa: E402
import ci  # noqa: E402
import machine  # noqa: E402
import measure  # noqa: E402
import problems  # noqa: E402
import report  # noqa: E402
import run  # noqa: E402

EVERY = [*cases.CASES, *cases.LADDER, *cases.CI]
NAMED = {
    "rows256": ((2**20, 64), (2**20, 1)),
    "rows4k": ((2**16, 1024), (2**16, 1)),
    "rows16": ((2**22, 4), (2**22, 1)),
    "scalars": ((4096, 4096), (2**23, 2)),
    "scalars1d": ((2**24,), (2**23, 1)),
    "batch": ((64, 8192, 128), (64, 4096, 1)),
    "gather-elements-axis0": ((4096, 4096), (4096, 4096)),
    "gather-elements-axis1": ((4096, 4096), (4096, 4096)),
    "scatter-none-rows": ((2**20, 64), (2**19, 1)),
    "scatter-add-rows": ((2**20, 64), (2**19, 1)),
    "scatter-add-scalars": ((4096, 4096), (2**23, 2)),
    "scatter-max-scalars": ((4096, 4096), (2**23, 2)),
    "scatter-add-histogram": ((1024,), (2**23, 1)),
    "scatter-elements-add-axis0": ((4096, 4096), (4096, 4096)),
    "scatter-elements-add-axis1": ((4096, 4096), (4096, 4096)),
}


def test_the_fifteen_cases_are_all_there() -> None:
    assert {case.name: (case.data, case.indices) for case in cases.CASES} == NAMED
    assert {case.dtype for case in cases.CASES} == {"float32"}
    assert {case.index_dtype for case in cases.CASES} == {"int64"}


def test_names_are_unique() -> None:
    for group in ((*cases.CASES, *cases.LADDER), cases.CI):
        assert len({case.name for case in group}) == len(group)


def test_what_targets_name_is_a_case() -> None:
    assert {*cases.CONTIGUOUS_ROWS, *cases.LATENCY} <= {case.name for case in cases.CASES}


@pytest.mark.parametrize("most", [3, 40])
@pytest.mark.parametrize("case", EVERY, ids=lambda case: case.name)
def test_answers_are_those_of_numpy(case: Any, most: int) -> None:
    if case.dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    problem = problems.make(case.shrunk(most))
    answer = getattr(ndtool, case.operator)(*problem.arguments, threads=2)
    assert problems.same(answer, problems.expected(problem))


def test_a_wrong_answer_is_told_from_rounding() -> None:
    wanted = np.linspace(1, 2, 100, dtype=np.float32)
    assert measure._judged(wanted.copy(), wanted) == "exact"
    assert measure._judged(wanted * np.float32(1 + 1e-6), wanted) == "rounding"
    assert measure._judged(np.where(wanted == 1, 0, wanted), wanted) == "wrong"


def test_the_baseline_has_every_case() -> None:
    for recorded in json.loads(ci.BASELINE.read_text()).values():
        assert set(recorded) == {case.name for case in cases.CI} | {"small call"}


def results() -> dict[str, Any]:
    """Return results of one shrunken case, beside NumPy only."""
    record = measure.measure(cases.CASES[0].shrunk(64), ["numpy"], 3)
    assert record["verified"]
    assert record["fastest"] == "numpy"
    made = {
        "machine": machine.describe(["numpy"]),
        "cases": {"rows256": record},
        "ladder": {"rows256": record},
        "threads": {"rows16": 1.9},
        "small_call": measure.small_call(3),
        "whole_runs": {"tiny": {"reason": "no command"}},
    }
    return {**made, "summary": report.summarise(made)}


def test_a_run_becomes_tables_between_markers() -> None:
    made = report.tables(results())
    document = "".join(f"{report.begin(name)}before\n{report.end(name)}\n" for name in made)
    filled = report.fill(document, made)
    assert "before\n" not in filled
    assert report.fill(filled, made) == filled
    assert "| rows256 |" in filled


def test_results_are_written_once(tmp_path: Path) -> None:
    report.write(results(), tmp_path, recorded=False)
    assert {path.name for path in tmp_path.iterdir()} - {"results.png"} == {"results.json"}


def test_a_missing_marker_changes_nothing() -> None:
    assert report.fill("text", {"cases": "table"}) == "text"


def test_the_document_has_a_place_for_every_table() -> None:
    text = (ROOT / "docs/performance.md").read_text()
    for name in ("machine", "targets", "cases", "whole-runs", "ladder"):
        assert text.count(report.begin(name)) == text.count(report.end(name)) == 1


def test_a_partial_run_is_not_the_record() -> None:
    assert not run.parse([]).quick
    assert run.parse(["--only", "rows*", "--only", "batch"]).only == ["rows*", "batch"]
    with pytest.raises(SystemExit):
        run.parse(["--unknown"])
