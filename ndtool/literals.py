"""The words that Python arguments take, so that an editor completes them."""

from typing import Literal

Reduction = Literal[
    "none", "add", "sub", "mul", "div", "max", "min", "mean",
    "update", "assign", "sum", "subtract", "prod", "multiply", "divide", "amax", "maximum", "amin",
    "minimum",
]  # fmt: skip
Duplicates = Literal["last", "first", "error"]
GatherMode = Literal["error", "clip", "wrap", "fill"]
ScatterMode = Literal["error", "clip", "wrap", "drop"]
Mode = Literal["error", "clip", "wrap", "fill", "drop"]
WriteMode = Literal["linear", "circular"]
OperatorName = Literal[
    "gather_nd", "scatter_nd", "gather_elements", "scatter_elements", "gather", "scatter",
    "tensor_scatter",
]  # fmt: skip
