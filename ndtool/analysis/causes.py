"""Causes of a wrong scatter output: another reduction, include_self or duplicates.

An engine may lack a reduction or define it differently. If other options give all examined
elements, they are the cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis.oracle.distances import bits
from ndtool.analysis.running import RunningValues
from ndtool.rules.dtypes import from_numpy
from ndtool.rules.operators import Attributes
from ndtool.rules.reductions import REDUCTIONS

Array = NDArray[Any]
_ROUNDINGS = 4.0  # assumed for each update, at most


def cause(
    attributes: Attributes,
    current: Array,
    targets: NDArray[np.int64],
    updates: Array,
    actual: Array,
) -> str | None:
    """Return the options that give the actual elements, None if no options do.

    current, actual: elements before and after the updates, in native byte order. targets: the index
    of the element of each update, in order. A single element is not enough.
    """
    if len(current) < 2 or _produces(attributes, current, targets, updates, actual):
        return None  # or there is no difference but rounding
    for candidate in _alternatives(attributes, current.dtype):
        if _produces(candidate, current, targets, updates, actual):
            return _options(attributes, candidate)
    return None


def _alternatives(attributes: Attributes, dtype: np.dtype[Any]) -> Iterator[Attributes]:
    """Yield other options, the most similar first."""
    reduction, element_type = REDUCTIONS[attributes.reduction], from_numpy(dtype)
    if attributes.reduction == "none":
        yield attributes._replace(
            duplicates="last" if attributes.duplicates == "first" else "first"
        )
    elif not reduction.requires_self:
        yield attributes._replace(include_self=not attributes.include_self)
    for name, candidate in REDUCTIONS.items():
        if name != attributes.reduction and candidate.supports(element_type):
            include_self = attributes.include_self or candidate.requires_self
            yield Attributes(reduction=name, include_self=include_self)
            if not candidate.requires_self and name != "none":
                yield Attributes(reduction=name, include_self=not attributes.include_self)


def _produces(
    attributes: Attributes,
    current: Array,
    targets: NDArray[np.int64],
    updates: Array,
    actual: Array,
) -> bool:
    """Whether updates with these options give the actual elements, up to rounding."""
    duplicates = "first" if attributes.duplicates == "first" else "last"  # not "error"
    running = RunningValues(current.copy(), attributes._replace(duplicates=duplicates))
    running.apply(targets, updates)
    result = running.values()
    is_equal = (bits(result) == bits(actual)).all(axis=1)
    if result.dtype.kind not in "fc" or attributes.reduction in ("none", "max", "min"):
        return bool(is_equal.all())
    with np.errstate(all="ignore"):
        magnitudes = np.abs(current).astype(np.float64)
        np.add.at(magnitudes, targets, np.abs(updates).astype(np.float64))
        limit = _ROUNDINGS * np.finfo(result.dtype).eps * magnitudes
        limit *= np.maximum(np.bincount(targets, minlength=len(current)), 1)
        is_close = np.abs(result - actual) <= limit
    return bool((is_equal | is_close).all())


def _options(attributes: Attributes, alternative: Attributes) -> str:
    """Return the options that differ, as arguments of the command line."""
    options = []
    if alternative.reduction != attributes.reduction:
        options.append(f"--reduction {alternative.reduction}")
    if alternative.include_self != attributes.include_self and alternative.reduction != "none":
        options.append(
            "--no-include-self" if attributes.include_self else "without --no-include-self"
        )
    if alternative.reduction == "none" and alternative.duplicates != attributes.duplicates:
        options.append(f"--duplicates {alternative.duplicates}")
    only_removes_option = options == ["without --no-include-self"]
    return " ".join(["a run", *options] if only_removes_option else options)
