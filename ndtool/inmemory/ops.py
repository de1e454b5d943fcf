"""The operators on NumPy arrays."""

from __future__ import annotations

from typing import Any, Never

from numpy.typing import ArrayLike, NDArray

from ndtool.inmemory import calls, tensorscatter
from ndtool.signatures import Operators, bind

Array = NDArray[Any]
__all__ = [
    "gather", "gather_elements", "gather_nd", "scatter", "scatter_elements", "scatter_nd",
    "tensor_scatter",
]  # fmt: skip
_CALLS = calls.COMPILED


def _call(call: calls.Call, data: Any, indices: Any, updates: Any, out: Any) -> Any:
    return _CALLS.call(call, data, indices, updates, out)


_operators: Operators[ArrayLike, ArrayLike, Array, Any, Never] = bind(
    _call,
    __name__,
    {"Data": "ArrayLike", "Indices": "ArrayLike", "Result": "NDArray[Any]", "Out": "NDArray[Any]"},
    "Arrays of other libraries are read where they are, and the result is one of data's library.",
    lowered=tensorscatter.tensor_scatter,
)
gather_nd, scatter_nd = _operators.gather_nd, _operators.scatter_nd
gather_elements, scatter_elements = _operators.gather_elements, _operators.scatter_elements
gather, scatter = _operators.gather, _operators.scatter
tensor_scatter = _operators.tensor_scatter
