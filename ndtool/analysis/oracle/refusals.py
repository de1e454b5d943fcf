"""The reference's checks of types and shapes."""

from operator import index as as_integer
from typing import Any

import numpy as np

from ndtool.analysis.oracle.blocks import Options
from ndtool.analysis.oracle.reductions import REDUCTIONS, Array
from ndtool.errors import DtypeError, RuleError, UsageError


def check_types(data: Array, indices: Array, updates: Array | None, options: Options) -> None:
    """Raise DtypeError or UsageError for types that an operator or reduction does not accept."""
    if data.dtype.hasobject or not data.dtype.itemsize:
        raise DtypeError(f"data {data.dtype}: elements must have a fixed size above 0")
    if indices.dtype.kind not in "iu":
        raise DtypeError(f"indices {indices.dtype}: they must be integers")
    if updates is not None and not _same_type(data.dtype, updates.dtype):
        raise DtypeError(f"updates {updates.dtype}: they must be {data.dtype} as data is")
    reduction, duplicates = options.reduction, options.duplicates
    if duplicates not in ("last", "first", "error"):
        raise UsageError(f"duplicates {duplicates!r}: valid last, first, error")
    if reduction == "none":
        return
    if reduction not in REDUCTIONS:
        raise UsageError(f"reduction {reduction!r}: valid none, {', '.join(REDUCTIONS)}")
    names = REDUCTIONS[reduction].types
    if data.dtype.name not in names:
        raise DtypeError(f"data {data.dtype} has no {reduction}: valid {', '.join(names)}")
    require(
        options.include_self or not REDUCTIONS[reduction].needs_current,
        f"{reduction} needs the current values",
    )
    require(duplicates != "first", "duplicates first: valid for reduction none only")


def _same_type(data: np.dtype[Any], updates: np.dtype[Any]) -> bool:
    """Whether two types are equal up to byte order; for records including it."""
    if data.names is None and updates.names is None:
        return data.newbyteorder("=") == updates.newbyteorder("=")
    return data == updates


def elements_axis(data: Array, indices: Array, axis: int) -> int:
    """Check ranks and sizes of GatherElements or ScatterElements; return the non-negative axis."""
    axis, r = as_integer(axis), data.ndim
    require(r >= 1 and indices.ndim == r, f"ranks {r} and {indices.ndim}: equal, at least 1")
    require(-r <= axis < r, f"axis {axis}: valid {-r}..{r - 1}")
    axis %= r
    for d, (size, limit) in enumerate(zip(indices.shape, data.shape, strict=True)):
        require(d == axis or size <= limit, f"indices axis {d} has size {size}: at most {limit}")
    return axis


def require(condition: bool, rule: str) -> None:
    """Raise RuleError with a rule if its condition is false."""
    if not condition:
        raise RuleError(rule)
