"""What the reference refuses: types and shapes that do not go together."""

from operator import index as whole
from typing import Any

import numpy as np

from ndtool.analysis.reductions import REDUCTIONS
from ndtool.errors import DtypeError, RuleError, UsageError

Array = np.ndarray[Any, Any]

_ORDERED = (
    ["bool", "float16", "bfloat16", "float32", "float64"]
    + [f"int{bits}" for bits in (8, 16, 32, 64)]
    + [f"uint{bits}" for bits in (8, 16, 32, 64)]
)
_UNORDERED = ["complex64", "complex128"]


def check_types(
    data: Array, indices: Array, updates: Array | None = None, reduction: str = "none"
) -> None:
    """Raise DtypeError or UsageError for types that do not go together."""
    if data.dtype.hasobject or not data.dtype.itemsize:
        raise DtypeError(f"data {data.dtype}: elements must have a fixed size above 0")
    if indices.dtype.kind not in "iu":
        raise DtypeError(f"indices {indices.dtype}: they must be integers")
    if updates is not None and not _same_type(data.dtype, updates.dtype):
        raise DtypeError(f"updates {updates.dtype}: they must be {data.dtype} as data is")
    if reduction != "none" and reduction not in REDUCTIONS:
        raise UsageError(f"reduction {reduction!r}: valid none, {', '.join(REDUCTIONS)}")
    ordered = reduction in ("max", "min")
    names = _ORDERED if ordered else _ORDERED + _UNORDERED
    if reduction != "none" and data.dtype.name not in names:
        raise DtypeError(f"data {data.dtype} has no {reduction}: valid {', '.join(names)}")


def _same_type(data: np.dtype[Any], updates: np.dtype[Any]) -> bool:
    """Whether two types are one but for the byte order; a record's fields may not differ in it."""
    if data.names is None and updates.names is None:
        return data.newbyteorder("=") == updates.newbyteorder("=")
    return data == updates


def elements_axis(data: Array, indices: Array, axis: int) -> int:
    """Check ranks and sizes of an elements operator; return its axis from the front."""
    axis, r = whole(axis), data.ndim
    require(r >= 1 and indices.ndim == r, f"ranks {r} and {indices.ndim}: equal, at least 1")
    require(-r <= axis < r, f"axis {axis}: valid {-r}..{r - 1}")
    axis %= r
    for d, (size, limit) in enumerate(zip(indices.shape, data.shape, strict=True)):
        require(d == axis or size <= limit, f"indices axis {d} has size {size}: at most {limit}")
    return axis


def require(holds: bool, rule: str) -> None:
    """Raise RuleError for a rule that does not hold."""
    if not holds:
        raise RuleError(rule)
