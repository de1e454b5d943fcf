"""The official ONNX node tests of the operators."""

from typing import Any

import numpy as np
import pytest
from nodetests import CASES, OPERATORS, onnx

import ndtool
from ndtool.analysis.oracle import reference


def test_all_node_tests_of_the_operators_are_collected() -> None:
    expected_names = {
        *(f"test_gathernd_example_{n}" for n in ("int32", "float32", "int32_batch_dim1")),
        *(f"test_scatternd{n}" for n in ("", "_add", "_multiply", "_max", "_min")),
        *(f"test_gather_elements_{n}" for n in ("0", "1", "negative_indices")),
        *(f"test_scatter_elements_with_{n}" for n in (
            "axis", "negative_indices", "duplicate_indices", "reduction_max", "reduction_min",
        )),
        "test_scatter_elements_without_axis",
        *(f"test_gather_{n}" for n in ("0", "1", "2d_indices", "negative_indices")),
        *(f"test_tensorscatter{n}" for n in ("", "_circular", "_3d")),
    }  # fmt: skip
    assert expected_names <= {case.name for case in CASES}


@pytest.mark.parametrize("module", [ndtool, reference], ids=["ndtool", "reference"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_node_tests(case: Any, module: Any) -> None:
    node = case.model.graph.node[0]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    attributes = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
    if module is ndtool:
        attributes["spec"] = f"onnx:{case.model.opset_import[0].version}"
    for inputs, (expected,) in case.data_sets:
        before = [array.tobytes() for array in inputs]
        actual = getattr(module, OPERATORS[node.op_type])(*inputs, **attributes)
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        assert np.array_equal(actual, expected)
        assert [array.tobytes() for array in inputs] == before
