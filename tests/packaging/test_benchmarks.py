"""The benchmark's cases, its results on small arrays, and the markers of its tables."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ndtool

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
if not BENCHMARKS.exists():
    pytest.skip("an installed ndtool has no benchmarks", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

import cases  # noqa: E402
import ci  # noqa: E402
import machine  # noqa: E402
import measure  # noqa: E402
import plain_c  # noqa: E402
import problems  # noqa: E402
import report  # noqa: E402
import run  # noqa: E402
import shares  # noqa: E402
import spatter  # noqa: E402

ALL_CASES = [*cases.CASES, *cases.OTHER_CASES, *cases.CI]
SHAPES = {
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


def test_the_fifteen_cases_exist() -> None:
    assert {case.name: (case.data_shape, case.indices_shape) for case in cases.CASES} == SHAPES
    assert {case.dtype for case in cases.CASES} == {"float32"}
    assert {case.index_dtype for case in cases.CASES} == {"int64"}


def test_names_are_unique() -> None:
    for group in ((*cases.CASES, *cases.OTHER_CASES), cases.CI):
        assert len({case.name for case in group}) == len(group)


def test_targets_refer_to_cases() -> None:
    assert {*cases.CONTIGUOUS_ROWS, *cases.LATENCY_BOUND_CASES} <= {
        case.name for case in cases.CASES
    }


@pytest.mark.parametrize("max_size", [3, 40])
@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.name)
def test_results_equal_numpy(case: Any, max_size: int) -> None:
    if case.dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    problem = problems.generate(case.limit_dimensions(max_size))
    result = getattr(ndtool, case.operator)(*problem.arguments, threads=2)
    assert problems.is_identical(result, problems.compute_expected(problem))


def test_wrong_results_are_distinguished_from_rounding() -> None:
    expected = np.linspace(1, 2, 100, dtype=np.float32)
    assert measure._classify_answer(expected.copy(), expected) == "exact"
    assert measure._classify_answer(expected * np.float32(1 + 1e-6), expected) == "rounding"
    assert measure._classify_answer(np.where(expected == 1, 0, expected), expected) == "wrong"


def shrink_case(case: Any) -> Any:
    """Return a case with few index tuples, but with the slices that its loop requires."""
    if not case.has_tuples:
        return replace(case, data_shape=(40, 160), indices_shape=(40, 160))
    batch, first_axis = (3,) * case.batch_dims, case.batch_dims + case.k
    data = batch + (300,) * case.k + case.data_shape[first_axis:]
    count = (
        150 if case.pattern == "distinct" else 300 if len(case.data_shape) > first_axis else 3000
    )
    return replace(case, data_shape=data, indices_shape=(*batch, count, case.k))


@pytest.fixture(scope="session")
def compiler() -> None:
    try:
        plain_c.library()
    except plain_c.NoCompilerError as error:
        pytest.skip(f"no compiler for the limits: {error}")


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("alignment", problems.ALIGNMENTS)
@pytest.mark.parametrize("case", [*cases.CASES, *cases.CI], ids=lambda case: case.name)
def test_every_variant_of_a_limit_is_correct(case: Any, alignment: str, threads: int) -> None:
    offset = problems.ALIGNMENTS[alignment]
    problem = problems.generate(shrink_case(case), offset)
    expected = problems.compute_expected(problem)
    out = problems.copy_aligned(np.zeros_like(expected), offset)
    assert out.ctypes.data % problems.PAGE == problem.data.ctypes.data % problems.PAGE == offset
    limit = plain_c.Limit(problem, out, threads)
    for variant in limit.all_variants():
        limit.variant = variant
        out.view(np.uint8)[...] = 0xA5
        limit()
        assert problems.is_identical(out, expected), variant


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("case", cases.CI, ids=lambda case: case.name)
def test_a_share_is_measured_on_verified_results(case: Any) -> None:
    shares_of_limit = shares.measure(*shares.generate_case(shrink_case(case)), ["aligned"], [2], 1)
    share = shares_of_limit["aligned"]["2"]
    assert share["verified"]
    assert share["share"] == share["limit_ms"] / share["ndtool_ms"] > 0


def test_without_a_compiler_the_ci_benchmark_is_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert ci.run(record=False) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("skipped")
    assert "no-such-compiler" in line


def test_ratios_are_taken_within_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = iter([{"key": (2.0, 90.0)}, {"key": (3.0, 1.0)}])
    monkeypatch.setattr(ci, "_round", lambda name: next(rounds))
    best: ci.Times = {}
    ci._measure("case", best)
    ci._measure("case", best)
    assert ci._ratios(best) == {"key": 0.5}


def test_the_baseline_has_every_case() -> None:
    baseline = json.loads(ci.BASELINE.read_text())
    assert set(baseline) == {case.name for case in cases.CI} | {ci.SMALL}
    for name, ratios in baseline.items():
        keys = ["numpy"] if name == ci.SMALL else ["numpy 1", "numpy 2", "aligned 1", "aligned 2"]
        assert list(ratios) == keys
        assert all(0 < ratio < 20 for ratio in ratios.values())


def test_the_patterns_are_those_of_the_spatter_suite() -> None:
    patterns = [(pattern.application, pattern.kernel) for pattern in spatter.PATTERNS]
    assert {
        kind: patterns.count(kind) for kind in dict.fromkeys(patterns) if "stride" not in kind[0]
    } == {
        ("AMG", "gather"): 2,
        ("LULESH", "scatter"): 4,
        ("LULESH", "gather"): 8,
        ("Nekbone", "gather"): 3,
        ("PENNANT", "gather"): 16,
        ("PENNANT", "scatter"): 1,
    }
    pennant = [pattern.offsets for pattern in spatter.PATTERNS if pattern.application == "PENNANT"]
    assert pennant[3] == (2, 484, 482, 0, 4, 486, 484, 2, 6, 488, 486, 4, 8, 490, 488, 6)
    assert pennant[14] == (2, 0, 0, 0) * 4
    pattern = spatter.Pattern("stride 2", "gather", (0, 2), 4, 3)
    assert pattern.indices(100).tolist() == [0, 2, 4, 6, 8, 10]
    assert pattern.indices(5).tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("index", range(len(spatter.PATTERNS)))
def test_spatter_patterns_give_the_bits_of_numpy(index: int, threads: int) -> None:
    assert spatter.calls(spatter.PATTERNS[index], 160, threads).verify()


@pytest.mark.usefixtures("compiler")
def test_spatter_prints_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spatter, "PATTERNS", spatter.PATTERNS[6:8] + spatter.PATTERNS[-3:])
    lines = spatter.run(320, 2, 1, 1 << 10)
    assert [line.split(" | ")[0] for line in lines[3:]] == [
        "| stride 64", "| stride 1", "| PENNANT, fewer than 65536 elements",
    ]  # fmt: skip
    assert "all results verified" in lines[0]


SHARE = {
    "ndtool_ms": 2.0, "limit_ms": 1.5, "ndtool_best_ms": 1.9, "limit_best_ms": 1.4,
    "share": 0.75, "check_ms": 0.1, "without_check": 0.79, "variant": "plain", "verified": True,
}  # fmt: skip


def results() -> dict[str, Any]:
    """Return the results of one small case against NumPy only."""
    record = measure.measure(cases.CASES[0].limit_dimensions(64), ["numpy"], 3)
    record["limit"] = {alignment: {"1": SHARE, "2": SHARE} for alignment in problems.ALIGNMENTS}
    assert record["verified"]
    assert record["fastest"] == "numpy"
    report_data = {
        "machine": machine.describe(["numpy"]),
        "cases": {"rows256": record},
        "ladder": {"rows256": record},
        "threads": {"rows16": 1.9},
        "small_call": measure.small_call(3),
        "whole_runs": {"tiny": {"reason": "no command"}},
    }
    return {**report_data, "summary": report.summarise(report_data)}


def test_a_run_becomes_tables_between_markers() -> None:
    tables = report.tables(results())
    document = "".join(
        f"{report.begin_marker(name)}before\n{report.end_marker(name)}\n" for name in tables
    )
    filled = report.replace_tables(document, tables)
    assert "before\n" not in filled
    assert report.replace_tables(filled, tables) == filled
    assert "| rows256 |" in filled
    for name in ("shares", "limits", "cases"):
        assert "0.75" in tables[name], name


def test_a_share_below_its_target_fails() -> None:
    targets = {t["target"]: t for t in results()["summary"]["targets"]}
    target = targets["share of the limit, arrays as NumPy allocates them, two threads"]
    assert (target["limit"], target["passed"]) == (0.95, False)
    assert (
        targets["worst share, arrays aligned to a cache line, one thread: rows256"]["limit"] == 0.8
    )


def test_a_run_without_a_compiler_has_no_shares() -> None:
    report_data = results()
    report_data["cases"]["rows256"]["limit"] = {}
    report_data["summary"] = report.summarise(report_data)
    assert {"shares", "limits"}.isdisjoint(report.tables(report_data))


def test_results_are_written_once(tmp_path: Path) -> None:
    report.write(results(), tmp_path, recorded=False)
    assert {path.name for path in tmp_path.iterdir()} - {"results.png"} == {"results.json"}


def test_a_missing_marker_changes_nothing() -> None:
    assert report.replace_tables("text", {"cases": "table"}) == "text"


def test_the_document_has_markers_for_every_table() -> None:
    text = (ROOT / "docs/performance.md").read_text()
    for name in ("machine", "targets", "cases", "shares", "limits", "whole-runs", "ladder"):
        assert text.count(report.begin_marker(name)) == text.count(report.end_marker(name)) == 1


def test_command_line_options_are_parsed() -> None:
    assert not run.parse([]).quick
    assert run.parse(["--only", "rows*", "--only", "batch"]).only == ["rows*", "batch"]
    with pytest.raises(SystemExit):
        run.parse(["--unknown"])
