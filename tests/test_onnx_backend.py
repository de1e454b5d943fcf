"""The official ONNX node tests of the four operators, as the onnx package generates them."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ndtool
from ndtool.analysis.oracle import reference

onnx = pytest.importorskip("onnx")

OPERATORS = {
    "GatherND": "gather_nd",
    "ScatterND": "scatter_nd",
    "GatherElements": "gather_elements",
    "ScatterElements": "scatter_elements",
    "Gather": "gather",
}


def node_tests() -> Iterator[Any]:
    """Yield every generated node test whose one node is one of the operators."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other operators' cases overflow on purpose
        collected = collect_testcases(None)
    for case in collected:
        nodes = case.model.graph.node if case.model else ()
        if len(nodes) == 1 and nodes[0].op_type in OPERATORS and nodes[0].domain == "":
            yield case


CASES = list(node_tests())


def test_every_known_case_was_collected() -> None:
    known = {
        *(f"test_gathernd_example_{n}" for n in ("int32", "float32", "int32_batch_dim1")),
        *(f"test_scatternd{n}" for n in ("", "_add", "_multiply", "_max", "_min")),
        *(f"test_gather_elements_{n}" for n in ("0", "1", "negative_indices")),
        *(f"test_scatter_elements_with_{n}" for n in (
            "axis", "negative_indices", "duplicate_indices", "reduction_max", "reduction_min",
        )),
        "test_scatter_elements_without_axis",
        *(f"test_gather_{n}" for n in ("0", "1", "2d_indices", "negative_indices")),
    }  # fmt: skip
    assert known <= {case.name for case in CASES}


@pytest.mark.parametrize("module", [ndtool, reference], ids=["ndtool", "reference"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_node(case: Any, module: Any) -> None:
    node = case.model.graph.node[0]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if "reduction" in attributes:
        attributes["reduction"] = attributes["reduction"].decode()
    if module is ndtool:
        attributes["spec"] = f"onnx:{case.model.opset_import[0].version}"
    for inputs, (expected,) in case.data_sets:
        before = [array.tobytes() for array in inputs]
        actual = getattr(module, OPERATORS[node.op_type])(*inputs, **attributes)
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        assert np.array_equal(actual, expected)
        assert [array.tobytes() for array in inputs] == before
