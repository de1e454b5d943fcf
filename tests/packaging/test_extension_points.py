"""Extensions are rows of tables: an example operator and an example index type.

A reduction or an out-of-bounds mode would also need kernel loops: see docs/architecture.md. An
example format is in toy_format.py.
"""

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import save
from strategies import bits_equal

import ndtool
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

SCATTER_ROWS = Operator(
    "scatter_rows", "ScatterRows", ("data", "indices", "updates"), ("reduction",),
    "Copy DATA, update rows by their indices.",
    Example(("int8[4,3]", "int64[2]", "int8[2,3]"), {"reduction": "max"}, "0,0"),
)  # fmt: skip


def updates_of(data: Shape, indices: Shape, _: Attributes) -> Shape:
    return indices + data[1:]


def infer(sizes: dict[str, Shape], _: Attributes) -> tuple[Trace, NdPlan]:
    tracer, (data, indices, updates) = shapes.Tracer(SCATTER_ROWS.name), sizes.values()
    shapes._require_rank(tracer, "data", data)
    expected = updates_of(data, indices, _)
    shapes._require_shape(tracer, "updates", updates, "indices.shape + data.shape[1:]", expected)
    count = int(np.prod(indices))
    plan = NdPlan(SCATTER_ROWS.name, data, indices, data, (), count, data[:1], data[1:], True)
    return tracer.trace(), plan


def reference_scatter_rows(
    data: Any, indices: Any, updates: Any, reduction: str = "none", **options: Any
) -> Any:
    return reference.scatter_nd(data, np.asarray(indices)[..., None], updates, reduction, **options)


def scatter_rows(data: Any, indices: Any, updates: Any, reduction: str, mode: str) -> Any:
    return ops._CALLS.call(call_of(reduction, mode), data, indices, updates, None)


def call_of(reduction: str, mode: str) -> tuple[Any, ...]:
    """Return the call that a function with the operator's signature makes."""
    attributes = Attributes(reduction=reduction, out_of_bounds=mode)
    return SCATTER_ROWS.name, None, "ndtool", *attributes


@pytest.fixture
def scatter_rows_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the operator in the four modules that a new operator changes."""
    monkeypatch.setitem(operators.OPERATORS, SCATTER_ROWS.name, SCATTER_ROWS)
    monkeypatch.setitem(shapes._RULES, SCATTER_ROWS.name, infer)
    monkeypatch.setitem(shapes._UPDATES_SHAPES, SCATTER_ROWS.name, updates_of)
    monkeypatch.setattr(reference, SCATTER_ROWS.name, reference_scatter_rows, raising=False)
    monkeypatch.setattr(ops, SCATTER_ROWS.name, scatter_rows, raising=False)
    monkeypatch.setattr(
        files, SCATTER_ROWS.name, files.scatter_nd, raising=False
    )  # this function needs no change


@pytest.mark.usefixtures("scatter_rows_operator")
@pytest.mark.parametrize("reduction", ["none", "add", "max"])
@pytest.mark.parametrize("mode", ["error", "wrap", "drop"])
def test_an_operator_is_rows_of_five_modules(workdir: Path, reduction: str, mode: str) -> None:
    rng = np.random.default_rng(3)
    data, updates = rng.random((300, 70), np.float32), rng.random((40, 50, 70), np.float32)
    bound = 300 if mode == "error" else 900
    indices = rng.integers(-bound, bound, (40, 50))
    expected = reference_scatter_rows(data, indices, updates, reduction, out_of_bounds=mode)
    assert bits_equal(scatter_rows(data, indices, updates, reduction, mode), expected)
    save(data=data, idx=indices, upd=updates)
    files_by_role = {"data": "data.npy", "indices": "idx.npy", "updates": "upd.npy"}
    for memory in (None, 1 << 20):
        options = {"memory": memory, "progress": False}
        files._run(call_of(reduction, mode), *files_by_role.values(), "out.npy", options)
        assert bits_equal(np.load("out.npy"), expected)
    options_of_verify = {"reduction": reduction, "out_of_bounds": mode}
    name: Any = SCATTER_ROWS.name
    compared = ndtool.verify(name, *files_by_role.values(), "out.npy", **options_of_verify)
    assert compared.comparison is not None
    assert compared.comparison.different == 0


@pytest.mark.usefixtures("scatter_rows_operator")
def test_commands_and_functions_support_an_added_operator(workdir: Path) -> None:
    assert {"scatter-rows"} <= program.program().commands.keys()  # type: ignore[attr-defined]
    inferred = ndtool.infer(SCATTER_ROWS.name, "float32[N,3]", "int64[M]", "float32[M,3]")
    assert inferred.output.shape[0] == "N"
    with pytest.raises(RuleError, match=r"indices.shape \+ data.shape\[1:\] = \[2,3\] is required"):
        ndtool.infer(SCATTER_ROWS.name, "int8[4,3]", "int64[2]", "int8[3]")
    save(data=np.zeros((4, 3)), idx=np.array([1, 1, -1]))
    with stats.open_call(Request(SCATTER_ROWS.name, "data.npy", "idx.npy")) as call:
        assert stats.stats(call).tuples == 3
    with pytest.raises(RuleError, match="onnx has no scatter_rows"):
        specs.resolve("onnx:18", SCATTER_ROWS.name)


def test_an_index_type_is_rows_of_two_modules(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A type whose layout the kernels support; others also need a branch of `widen`."""
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
    monkeypatch.setattr(refusals, "INDEX_KINDS", "iuV")
    calls.bind_call.cache_clear()
    specs.resolve.cache_clear()
    for call in examples:
        assert bits_equal(call(), reference.gather_nd(data, indices))
    calls.bind_call.cache_clear()
    specs.resolve.cache_clear()


def test_an_operator_without_engines_is_refused_by_against(
    workdir: Path, scatter_rows_operator: None
) -> None:
    from ndtool.analysis import engines

    save(data=np.zeros((4, 3)), idx=np.array([1]), upd=np.ones((1, 3)))
    request = Request(SCATTER_ROWS.name, "data.npy", "idx.npy", "upd.npy")
    with pytest.raises(UsageError, match="no standard has scatter-rows"):
        engines.verify(request, ("numpy",), engines.EngineSettings(), lambda *_: None)


def test_attributes_travel_as_one_value() -> None:
    """Below the front doors, no function takes an attribute beside `Attributes` or a plan."""
    package = Path(operators.__file__).parent.parent
    names = {*Attributes._fields} - {"axis", "mode", "fill", "batch_dims", "reduction"}
    for folder in ("engine", "runs", "chunkwise", "arrays"):
        for path in (package / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef):
                    arguments = (*node.args.args, *node.args.kwonlyargs)
                    taken = names & {argument.arg for argument in arguments}
                    assert not taken, f"{path.name}: {node.name} takes {taken}"
