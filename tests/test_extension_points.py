"""The files that an extension changes: a toy operator and a toy index type, as rows of the tables.

A toy reduction and a toy mode would also need loops of the kernels: see docs/architecture.md. Toys
of a format and an executor are in toy_format.py and toy_executor.py.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import save
from strategies import bits_equal

from ndtool import files
from ndtool.analysis import stats
from ndtool.analysis.oracle import reference, refusals
from ndtool.cli import program
from ndtool.errors import RuleError, UsageError
from ndtool.inmemory import calls, ops
from ndtool.rules import dtypes, operators, shapes, specs
from ndtool.rules.operators import Attributes, Example, Operator
from ndtool.rules.plans import NdPlan, Shape
from ndtool.rules.trace import Trace
from ndtool.runs.request import Request

ROWS = Operator(
    "scatter_rows", "ScatterRows", ("data", "indices", "updates"), ("reduction",),
    "Copy DATA, update rows by their numbers.",
    Example(("int8[4,3]", "int64[2]", "int8[2,3]"), {"reduction": "max"}, "0,0"),
)  # fmt: skip


def updates_of(data: Shape, indices: Shape, _: Attributes) -> Shape:
    return indices + data[1:]


def infer(sizes: dict[str, Shape], _: Attributes) -> tuple[Trace, NdPlan]:
    t, (data, indices, updates) = shapes.Tracer(ROWS.name), sizes.values()
    shapes._rank(t, "data", data)
    wanted = updates_of(data, indices, _)
    shapes._same(t, "updates", updates, "indices.shape + data.shape[1:]", wanted)
    count = int(np.prod(indices))
    plan = NdPlan(ROWS.name, data, indices, data, (), count, data[:1], data[1:], True)
    return t.trace(), plan


def slowly(data: Any, indices: Any, updates: Any, reduction: str = "none", **options: Any) -> Any:
    return reference.scatter_nd(data, np.asarray(indices)[..., None], updates, reduction, **options)


def scatter_rows(data: Any, indices: Any, updates: Any, reduction: str, mode: str) -> Any:
    call = ROWS.name, None, "ndtool", 0, None, reduction, mode
    return ops._CALLS.call(call, data, indices, updates, None)


@pytest.fixture
def with_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the operator by the five modules that a new one changes."""
    monkeypatch.setitem(operators.OPERATORS, ROWS.name, ROWS)
    monkeypatch.setattr(specs, "TABLE", (*specs.TABLE, specs._own(ROWS)))  # derived from its row
    monkeypatch.setitem(shapes._RULES, ROWS.name, infer)
    monkeypatch.setitem(shapes._UPDATES, ROWS.name, updates_of)
    monkeypatch.setattr(reference, ROWS.name, slowly, raising=False)
    monkeypatch.setattr(ops, ROWS.name, scatter_rows, raising=False)
    monkeypatch.setattr(files, ROWS.name, files.scatter_nd, raising=False)  # which is unchanged


@pytest.mark.usefixtures("with_rows")
@pytest.mark.parametrize("reduction", ["none", "add", "max"])
@pytest.mark.parametrize("mode", ["error", "wrap", "drop"])
def test_an_operator_is_rows_of_five_modules(workdir: Path, reduction: str, mode: str) -> None:
    rng = np.random.default_rng(3)
    data, updates = rng.random((300, 70), np.float32), rng.random((40, 50, 70), np.float32)
    reach = 300 if mode == "error" else 900
    indices = rng.integers(-reach, reach, (40, 50))
    expected = slowly(data, indices, updates, reduction, out_of_bounds=mode)
    assert bits_equal(scatter_rows(data, indices, updates, reduction, mode), expected)
    save(data=data, idx=indices, upd=updates)
    named = {"data": "data.npy", "indices": "idx.npy", "updates": "upd.npy"}
    attributes = {"reduction": reduction}
    for memory in (None, 1 << 20):
        options: Any = {"out_of_bounds": mode, "memory": memory}
        files._run(ROWS.name, dict(named), attributes, "out.npy", options)
        assert bits_equal(np.load("out.npy"), expected)
    given = {"reduction": reduction, "out_of_bounds": mode}
    assert files.verify(ROWS.name, *named.values(), "out.npy", **given).different == 0


@pytest.mark.usefixtures("with_rows")
def test_questions_know_an_operator_by_its_rows(workdir: Path) -> None:
    assert {"scatter-rows"} <= program.program().commands.keys()  # type: ignore[attr-defined]
    inferred = files.infer(ROWS.name, "float32[N,3]", "int64[M]", "float32[M,3]")
    assert str(inferred.plan.output[0]) == "N"
    with pytest.raises(RuleError, match=r"indices.shape \+ data.shape\[1:\] = \[2,3\] is required"):
        files.infer(ROWS.name, "int8[4,3]", "int64[2]", "int8[3]")
    save(data=np.zeros((4, 3)), idx=np.array([1, 1, -1]))
    with stats.open_call(Request(ROWS.name, "data.npy", "idx.npy")) as call:
        assert stats.stats(call).tuples == 3
    with pytest.raises(RuleError, match="onnx has no scatter_rows"):
        specs.resolve("onnx:18", ROWS.name)


def test_a_type_of_indices_is_rows_of_two_modules(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A type with a layout that the kernels have; another one also needs a branch of `widen`."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(3)
    data, indices = rng.random((16, 9)), rng.integers(0, 9, (5000, 2)).astype(ml_dtypes.uint4)
    indices.tofile("idx.bin")
    save(data=data)
    examples = (
        lambda: ops.gather_nd(data, indices),
        lambda: files.gather_nd("data.npy", "raw:uint4[5000,2]:idx.bin").array,
    )
    for call in examples:
        with pytest.raises(TypeError, match="indices has dtype uint4: expected an integer dtype"):
            call()
    types = (*dtypes.INTEGERS, "uint4")
    monkeypatch.setattr(dtypes, "INTEGERS", types)
    monkeypatch.setattr(specs, "INTEGERS", types)
    own = [row._replace(indices=types) if row.standard == "ndtool" else row for row in specs.TABLE]
    monkeypatch.setattr(specs, "TABLE", tuple(own))
    monkeypatch.setattr(refusals, "KINDS", "iuV")
    calls.bind_call.cache_clear()
    specs.resolve.cache_clear()
    for call in examples:
        assert bits_equal(call(), reference.gather_nd(data, indices))
    calls.bind_call.cache_clear()
    specs.resolve.cache_clear()


def test_an_operator_that_no_other_engine_has(workdir: Path, with_rows: None) -> None:
    from ndtool.analysis import engines

    save(data=np.zeros((4, 3)), idx=np.array([1]), upd=np.ones((1, 3)))
    request = Request(ROWS.name, "data.npy", "idx.npy", "upd.npy")
    with pytest.raises(UsageError, match="no standard has scatter-rows"):
        engines.verify(request, ("numpy",), engines.EngineSettings(), lambda *_: None)
