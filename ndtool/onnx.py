"""ndtool's operators for the reference evaluator of the onnx package: exact, parallel, compiled.

>>> import numpy as np
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

from typing import Any

from numpy.typing import NDArray
from onnx.reference.op_run import OpRun

from ndtool.inmemory import onnxnodes
from ndtool.rules import specs
from ndtool.rules.operators import ALL_OPERATORS


class _Operator(OpRun):
    """An operator in the version of the model's opset; the class has the operator's ONNX name."""

    op_domain = ""
    operator: str  # ndtool's name

    def _run(self, *inputs: Any, **attributes: Any) -> tuple[NDArray[Any]]:
        opsets = self.run_params["opsets"]
        spec = f"onnx:{opsets.get('', opsets.get('ai.onnx'))}"
        title = type(self).__name__
        return (onnxnodes.compute(self.operator, title, spec, inputs, attributes),)


# ndtool's operators by their ONNX names; Scatter is ScatterElements in operator sets 9 and 10.
_NAMES = {
    operator.title: operator.name
    for operator in ALL_OPERATORS.values()
    if specs.rows("onnx", operator.name)
} | {"Scatter": "scatter_elements"}

# The value for `new_ops` of a ReferenceEvaluator.
OPS: tuple[type[OpRun], ...] = tuple(
    type(title, (_Operator,), {"operator": name, "__doc__": title})
    for title, name in _NAMES.items()
)
