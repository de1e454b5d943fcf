"""ndtool.onnx.OPS: the onnx package's evaluator with ndtool's kernels."""

import doctest
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from later import later
from strategies import Case, bits_equal, call, cases_of, many

from ndtool.analysis.oracle import reference
from ndtool.rules.operators import OPERATORS

onnx = later("onnx")
helper = later("onnx.helper")
ReferenceEvaluator = pytest.importorskip("onnx.reference").ReferenceEvaluator

from nodetests import CASES  # noqa: E402 - which needs onnx

import ndtool.onnx  # noqa: E402
from ndtool.onnx import OPS  # noqa: E402


def make_model(operator: str, version: int, arrays: Any, title: str = "", **attributes: Any) -> Any:
    """Return a model of one node for arrays."""
    names = OPERATORS[operator].inputs
    types = [
        helper.np_dtype_to_tensor_dtype(a.dtype) if a.dtype.kind not in "OU" else 8 for a in arrays
    ]
    inputs = [
        helper.make_tensor_value_info(name, kind, array.shape)
        for name, kind, array in zip(names, types, arrays, strict=True)
    ]
    node = helper.make_node(title or OPERATORS[operator].title, names, ["o"], **attributes)
    output = helper.make_tensor_value_info("o", types[0], None)
    graph = helper.make_graph([node], "g", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=8)


def run_model(operator: str, version: int, arrays: Any, **attributes: Any) -> Any:
    model = make_model(operator, version, arrays, **attributes)
    feeds = dict(zip(OPERATORS[operator].inputs, arrays, strict=True))
    return ReferenceEvaluator(model, new_ops=OPS).run(None, feeds)[0]


def test_the_example_of_the_module() -> None:
    assert doctest.testmod(ndtool.onnx).failed == 0


def test_the_list_of_operators() -> None:
    assert {(op.op_domain, op.__name__) for op in OPS} == {
        *(("", operator.title) for operator in OPERATORS.values() if operator.name != "scatter"),
        ("", "Scatter"),
        ("", "TensorScatter"),
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_node_tests_of_onnx(case: Any) -> None:
    evaluator = ReferenceEvaluator(case.model, new_ops=OPS)
    assert type(evaluator.rt_nodes_[0]) in OPS
    names = [value_info.name for value_info in case.model.graph.input]
    for inputs, (expected,) in case.data_sets:
        (actual,) = evaluator.run(None, dict(zip(names, inputs, strict=True)))
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        assert np.array_equal(actual, expected)


ALL_CASES = st.one_of(
    cases_of("gather_nd"),
    cases_of("gather"),
    cases_of("gather_elements"),
    cases_of("scatter_nd"),
    cases_of("scatter_elements"),
)


@many
@given(case=ALL_CASES, version=st.integers(18, 23))
def test_random_nodes(case: Case, version: int) -> None:
    data, indices, *updates = (a.astype(a.dtype.newbyteorder("=")) for a in case.arrays)
    if data.dtype.kind not in "biufc" or data.dtype.char in "gG":  # ONNX has no such type
        values = np.arange(data.size + sum(array.size for array in updates), dtype="f4")
        data = values[: data.size].reshape(data.shape)
        updates = [values[data.size :].reshape(array.shape) for array in updates]
    assume(case.operator == "gather_nd" or not case.arguments.get("batch_dims"))
    assume(case.arguments.get("reduction", "none") not in ("sub", "div", "mean"))
    assume(case.arguments.get("include_self", True) and "duplicates" not in case.arguments)
    arrays = (data, indices.astype("i8"), *updates)
    assume((arrays[1] == indices).all())  # the indices fit in int64
    actual = run_model(case.operator, version, arrays, **case.arguments)
    assert bits_equal(np.asarray(actual), call(reference, case._replace(arrays=arrays)))


@pytest.mark.parametrize("strings", [object, "U3"], ids=str)
def test_strings(strings: Any) -> None:
    data = np.array([["a", "bb", ""], ["d", "é", "f"]], strings)
    assert run_model("gather_nd", 13, (data, np.array([[1, -2], [0, 0]]))).tolist() == ["é", "a"]
    assert run_model("gather_nd", 13, (data, np.array([1, 1]))).tolist() == "é"
    updates = np.array([["x", "y", "z"]], object)
    scattered = run_model("scatter_nd", 18, (data, np.array([[-1]]), updates))
    assert scattered.tolist() == [["a", "bb", ""], ["x", "y", "z"]]
    with pytest.raises(TypeError):
        run_model("scatter_nd", 18, (data, np.array([[-1]]), updates), reduction="max")


@pytest.mark.parametrize(
    ("operator", "version", "attributes", "message"),
    [
        ("gather", 10, {}, "indices out of bounds"),
        ("gather_nd", 11, {"batch_dims": 1}, "onnx:11 .* does not accept batch_dims: onnx:12"),
        ("scatter_nd", 13, {"reduction": "add"}, "onnx:16 is the first"),
        ("scatter_elements", 17, {"reduction": "max"}, "onnx:18 is the first"),
    ],
)
def test_versions_refuse_what_they_do_not_have(
    operator: str, version: int, attributes: Any, message: str
) -> None:
    data, indices = np.ones((2, 2), "f4"), np.array([[-1], [0]])
    updates = np.ones((2, 2) if operator == "scatter_nd" else (2, 1), "f4")
    arrays = (data, indices, updates)[: len(OPERATORS[operator].inputs)]
    with pytest.raises((ValueError, IndexError), match=message):
        run_model(operator, version, arrays, **attributes)


@pytest.mark.parametrize("version", [9, 10])
@pytest.mark.parametrize("attributes", [{}, {"axis": -1}])
def test_scatter_is_scatter_elements_in_onnx_9_and_10(version: int, attributes: Any) -> None:
    arrays = np.zeros((3, 3), "f4"), np.array([[1, 0, -1]]), np.array([[1, 2, 3]], "f4")
    actual = run_model("scatter_elements", version, arrays, title="Scatter", **attributes)
    assert bits_equal(actual, reference.scatter_elements(*arrays, **attributes))


@pytest.mark.parametrize("version", [8, 11])
def test_other_versions_have_no_scatter(version: int) -> None:
    arrays = np.zeros(3, "f4"), np.array([0]), np.ones(1, "f4")
    with pytest.raises(ValueError, match=f"onnx:{version} has no Scatter: onnx:9 and onnx:10"):
        run_model("scatter_elements", version, arrays, title="Scatter")
