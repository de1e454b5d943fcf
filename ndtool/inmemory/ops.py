"""The operators on NumPy arrays."""

from __future__ import annotations

from typing import Any, Never

from numpy.typing import ArrayLike, NDArray

from ndtool.inmemory import calls
from ndtool.signatures import Operators, bind

Array = NDArray[Any]
__all__ = [
    "gather", "gather_elements", "gather_nd", "scatter", "scatter_elements", "scatter_nd",
    "tensor_scatter",
]  # fmt: skip
_operators: Operators[ArrayLike, ArrayLike, Array, Any, Never] = bind(
    calls.COMPILED.call,
    __name__,
    {"Data": "ArrayLike", "Indices": "ArrayLike", "Result": "NDArray[Any]", "Out": "NDArray[Any]"},
    "Arrays of other libraries are read where they are, and the result is one of data's library.",
)
gather_nd, scatter_nd = _operators.gather_nd, _operators.scatter_nd
gather_elements, scatter_elements = _operators.gather_elements, _operators.scatter_elements
gather, scatter = _operators.gather, _operators.scatter
tensor_scatter = _operators.tensor_scatter
