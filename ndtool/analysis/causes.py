"""Causes of a wrong scatter output: another reduction, other current values, another duplicate.

An engine may lack a reduction or define it differently. If another combination of updates gives all
examined elements, it is the cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis.oracle.distances import bits
from ndtool.analysis.running import RunningValues
from ndtool.engine.counting import ReductionOptions
from ndtool.rules.dtypes import from_numpy
from ndtool.rules.reductions import REDUCTIONS

Array = NDArray[Any]
_ROUNDING = 4.0  # roundings of each update


def cause(
    reduction_options: ReductionOptions,
    current: Array,
    owners: NDArray[np.int64],
    updates: Array,
    actual: Array,
) -> str | None:
    """Return the options that give the actual elements, None if no combination does.

    current, actual: elements before and after the updates, in native byte order. owners: the number
    of the element of each update, in order. A single element is not enough.
    """
    if len(current) < 2 or _produces(reduction_options, current, owners, updates, actual):
        return None  # or equal up to rounding
    for candidate in _alternatives(reduction_options, current.dtype):
        if _produces(candidate, current, owners, updates, actual):
            return _options(reduction_options, candidate)
    return None


def _alternatives(
    reduction_options: ReductionOptions, dtype: np.dtype[Any]
) -> Iterator[ReductionOptions]:
    """Yield other combinations of updates, the closest first."""
    row, kind = REDUCTIONS[reduction_options.reduction], from_numpy(dtype)
    if reduction_options.reduction == "none":
        yield reduction_options._replace(
            duplicates="last" if reduction_options.duplicates == "first" else "first"
        )
    elif not row.requires_self:
        yield reduction_options._replace(include_self=not reduction_options.include_self)
    for name, candidate in REDUCTIONS.items():
        if name != reduction_options.reduction and candidate.takes(kind):
            yield ReductionOptions(name, reduction_options.include_self or candidate.requires_self)
            if not candidate.requires_self and name != "none":
                yield ReductionOptions(name, not reduction_options.include_self)


def _produces(
    reduction_options: ReductionOptions,
    current: Array,
    owners: NDArray[np.int64],
    updates: Array,
    actual: Array,
) -> bool:
    """Whether a combination of updates gives the actual elements, up to rounding."""
    duplicates = "first" if reduction_options.duplicates == "first" else "last"  # not "error"
    running = RunningValues(current.copy(), reduction_options._replace(duplicates=duplicates))
    running.apply(owners, updates)
    result = running.values()
    same = (bits(result) == bits(actual)).all(axis=1)
    if result.dtype.kind not in "fc" or reduction_options.reduction in ("none", "max", "min"):
        return bool(same.all())
    with np.errstate(all="ignore"):
        sizes = np.abs(current).astype(np.float64)
        np.add.at(sizes, owners, np.abs(updates).astype(np.float64))
        limit = _ROUNDING * np.finfo(result.dtype).eps * sizes
        limit *= np.maximum(np.bincount(owners, minlength=len(current)), 1)
        close = np.abs(result - actual) <= limit
    return bool((same | close).all())


def _options(reduction_options: ReductionOptions, other: ReductionOptions) -> str:
    """Return the options that differ, as on the command line."""
    options = []
    if other.reduction != reduction_options.reduction:
        options.append(f"--reduction {other.reduction}")
    if other.include_self != reduction_options.include_self and other.reduction != "none":
        options.append(
            "--no-include-self" if reduction_options.include_self else "without --no-include-self"
        )
    if other.reduction == "none" and other.duplicates != reduction_options.duplicates:
        options.append(f"--duplicates {other.duplicates}")
    only_old = options == ["without --no-include-self"]
    return " ".join(["a run", *options] if only_old else options)
