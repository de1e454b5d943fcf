"""The benchmark's cases and peers on small arrays, and the tables of its document."""

import json
import sys
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
import measure  # noqa: E402
import peers  # noqa: E402
import problems  # noqa: E402
import report  # noqa: E402

ALL_CASES = [*cases.CASES, *cases.OTHER_CASES, *cases.CI]


def test_names_are_unique_and_targets_refer_to_cases() -> None:
    for group in ((*cases.CASES, *cases.OTHER_CASES), cases.CI):
        assert len({case.name for case in group}) == len(group)
    names = {case.name for case in cases.CASES}
    assert len(names) == 15
    assert {*cases.CONTIGUOUS_ROWS, *cases.LATENCY_BOUND_CASES} <= names


@pytest.mark.parametrize("max_size", [3, 40])
@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.name)
def test_results_equal_numpy(case: Any, max_size: int) -> None:
    if case.dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    problem = problems.generate(case.limit_dimensions(max_size))
    result = getattr(ndtool, case.operator)(*problem.arguments, threads=2)
    assert problems.is_identical(result, problems.compute_expected(problem))


@pytest.mark.parametrize("name", ["numpy", "torch", "onnxruntime", "polars"])
def test_every_method_of_a_peer_gives_the_result(name: str) -> None:
    if name != "numpy":
        pytest.importorskip(name)
    for case in (*cases.CASES, *(cases.OTHER_CASES if name == "numpy" else ())):
        if name == "onnxruntime" and case.operator == "scatter_nd" and case.reduction != "none":
            continue  # loses updates of two threads
        problem = problems.generate(case.limit_dimensions(40))
        expected = problems.compute_expected(problem)
        try:
            methods = peers.PEERS[name](problem)
        except peers.NotOfferedError:
            continue
        for method, call in methods.items():
            answer = measure.classify_answer(peers.as_array(call()), expected)
            assert answer in ("exact", "rounding"), (case.name, method)


def test_wrong_results_are_distinguished_from_rounding() -> None:
    expected = np.linspace(1, 2, 100, dtype=np.float32)
    assert measure.classify_answer(expected.copy(), expected) == "exact"
    assert measure.classify_answer(expected * np.float32(1 + 1e-6), expected) == "rounding"
    assert measure.classify_answer(np.where(expected == 1, 0, expected), expected) == "wrong"


def test_the_baseline_has_every_case() -> None:
    baseline = json.loads(ci.BASELINE.read_text())
    assert set(baseline) == {case.name for case in cases.CI} | {ci.SMALL}
    for name, ratios in baseline.items():
        keys = ["numpy"] if name == ci.SMALL else ["numpy 1", "numpy 2", "aligned 1", "aligned 2"]
        assert list(ratios) == keys
        assert all(0 < ratio < 20 for ratio in ratios.values())


def test_the_document_has_the_tables_of_the_results() -> None:
    results = json.loads((BENCHMARKS / "results.json").read_text())
    tables, text = report.tables(results), report.DOCUMENT.read_text()
    assert set(tables) == {
        "machine",
        "targets",
        "cases",
        "shares",
        "limits",
        "whole-runs",
        "ladder",
    }
    assert report.to_json(results) == (BENCHMARKS / "results.json").read_text()
    assert report.replace_tables(text, tables) == text
    for name in tables:
        assert text.count(f"<!-- bench:{name} -->\n") == 1
        changed = report.replace_tables(text, {name: "another table"})
        assert changed.count("another table") == 1
