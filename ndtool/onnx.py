"""ndtool's operators for the reference evaluator of the onnx package: exact, parallel, compiled.

>>> from onnx import parser
>>> from onnx.reference import ReferenceEvaluator
>>> model = parser.parse_model('''
... <ir_version: 8, opset_import: ["" : 13]>
... rows (float[3] data, int64[2,1] indices) => (float[2] o) {o = GatherND(data, indices)}
... ''')
>>> evaluator = ReferenceEvaluator(model, new_ops=OPS)
>>> evaluator.run(None, {"data": np.float32([1, 2, 3]), "indices": np.array([[2], [-3]])})
[array([3., 1.], dtype=float32)]
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun

from ndtool.errors import RuleError
from ndtool.inmemory import ops, tensorscatter
from ndtool.rules import specs
from ndtool.rules.operators import OPERATORS

Array = NDArray[Any]
_STRING_KINDS = "OSU"  # dtype kinds that hold ONNX's strings


def _apply_to_strings(compute: Callable[..., Array], data: Array, *updates: Array) -> Array:
    """Compute an operator without arithmetic; strings are replaced by their linear indices."""
    if data.dtype.kind not in _STRING_KINDS:
        return compute(data, *updates)
    strings = np.concatenate([array.reshape(-1) for array in (data, *updates)])
    linear_indices = np.arange(strings.size)
    result_indices = compute(
        linear_indices[: data.size].reshape(data.shape),
        *(linear_indices[data.size :].reshape(array.shape) for array in updates),
    )
    return np.asarray(strings[result_indices.reshape(-1)].reshape(result_indices.shape))


class _Operator(OpRun):
    """An operator in the version of the model's opset; the class has the operator's ONNX name."""

    op_domain = ""
    operator: str  # ndtool's name

    def _run(self, data: Array, *operands: Array, **attributes: Any) -> tuple[Array]:
        keywords = {name: value for name, value in attributes.items() if value is not None}
        keywords["spec"] = self._spec()
        compute = getattr(ops, self.operator)
        indices, updates = operands[0], operands[1:]

        def compute_result(data: Array, *updates: Array) -> Array:
            result: Array = compute(data, indices, *updates, **keywords)
            return result

        if keywords.get("reduction", "none") != "none":
            return (compute_result(data, *updates),)
        return (_apply_to_strings(compute_result, data, *updates),)

    def _spec(self) -> str:
        opsets = self.run_params["opsets"]
        return f"onnx:{opsets.get('', opsets.get('ai.onnx'))}"


class Scatter(_Operator):
    """ScatterElements under its name in operator sets 9 and 10."""

    operator = "scatter_elements"

    def _spec(self) -> str:
        spec = super()._spec()
        if spec not in ("onnx:9", "onnx:10"):
            raise RuleError(f"{spec} has no Scatter: onnx:9 and onnx:10 have it")
        return "onnx:11"


class TensorScatter(_Operator):
    """TensorScatter, whose last input is optional."""

    operator = "tensor_scatter"

    def _run(self, data: Array, *operands: Array, **attributes: Any) -> tuple[Array]:
        update, write_indices = operands[0], operands[1] if len(operands) > 1 else None
        keywords = {name: value for name, value in attributes.items() if value is not None}

        def compute(past: Array, update: Array) -> Array:
            result: Array = tensorscatter.tensor_scatter(
                past, update, write_indices, **keywords, spec=self._spec()
            )
            return result

        return (_apply_to_strings(compute, data, update),)


# The value for `new_ops` of a ReferenceEvaluator.
OPS: tuple[type[OpRun], ...] = (
    *(
        type(operator.title, (_Operator,), {"operator": operator.name, "__doc__": operator.title})
        for operator in OPERATORS.values()
        if specs.rows("onnx", operator.name)
    ),
    Scatter,
    TensorScatter,
)
