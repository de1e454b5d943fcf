"""Causes of a wrong scatter output: another reduction, other current values, another duplicate.

An engine may lack a reduction or define it differently. If another combination of updates gives all
examined elements, it is the cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis.oracle.distance_counts import bits
from ndtool.analysis.running import RunningValues
from ndtool.engine.counting import Combining
from ndtool.rules.dtypes import from_numpy
from ndtool.rules.reductions import REDUCTIONS

Array = NDArray[Any]
_ROUNDING = 4.0  # roundings of each update


def cause(
    combining: Combining, current: Array, owners: NDArray[np.int64], updates: Array, actual: Array
) -> str | None:
    """Return the options that give the actual elements, None if no combination does.

    current, actual: elements before and after the updates, in native byte order. owners: the number
    of the element of each update, in order. A single element is not enough.
    """
    if len(current) < 2 or _produces(combining, current, owners, updates, actual):
        return None  # or equal up to rounding
    for candidate in _alternatives(combining, current.dtype):
        if _produces(candidate, current, owners, updates, actual):
            return _options(combining, candidate)
    return None


def _alternatives(combining: Combining, dtype: np.dtype[Any]) -> Iterator[Combining]:
    """Yield other combinations of updates, the closest first."""
    row, kind = REDUCTIONS[combining.reduction], from_numpy(dtype)
    if combining.reduction == "none":
        yield combining._replace(duplicates="last" if combining.duplicates == "first" else "first")
    elif not row.requires_self:
        yield combining._replace(include_self=not combining.include_self)
    for name, candidate in REDUCTIONS.items():
        if name != combining.reduction and candidate.takes(kind):
            yield Combining(name, combining.include_self or candidate.requires_self)
            if not candidate.requires_self and name != "none":
                yield Combining(name, not combining.include_self)


def _produces(
    combining: Combining, current: Array, owners: NDArray[np.int64], updates: Array, actual: Array
) -> bool:
    """Whether a combination of updates gives the actual elements, up to rounding."""
    duplicates = "first" if combining.duplicates == "first" else "last"  # not "error"
    running = RunningValues(current.copy(), combining._replace(duplicates=duplicates))
    running.apply(owners, updates)
    result = running.values()
    same = (bits(result) == bits(actual)).all(axis=1)
    if result.dtype.kind not in "fc" or combining.reduction in ("none", "max", "min"):
        return bool(same.all())
    with np.errstate(all="ignore"):
        sizes = np.abs(current).astype(np.float64)
        np.add.at(sizes, owners, np.abs(updates).astype(np.float64))
        limit = _ROUNDING * np.finfo(result.dtype).eps * sizes
        limit *= np.maximum(np.bincount(owners, minlength=len(current)), 1)
        close = np.abs(result - actual) <= limit
    return bool((same | close).all())


def _options(combining: Combining, other: Combining) -> str:
    """Return the options that differ, as on the command line."""
    options = []
    if other.reduction != combining.reduction:
        options.append(f"--reduction {other.reduction}")
    if other.include_self != combining.include_self and other.reduction != "none":
        options.append(
            "--no-include-self" if combining.include_self else "without --no-include-self"
        )
    if other.reduction == "none" and other.duplicates != combining.duplicates:
        options.append(f"--duplicates {other.duplicates}")
    only_old = options == ["without --no-include-self"]
    return " ".join(["a run", *options] if only_old else options)
