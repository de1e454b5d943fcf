"""Diagnosis of a wrong scatter output: elements that lack an update, or have one twice.

Data races cause such differences, rounding does not. A max or min may also differ because an
engine compares NaN or signed zeros by another rule; such elements are not counted.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis import tuples
from ndtool.analysis.oracle.blocks import flat_view
from ndtool.analysis.oracle.distances import bits
from ndtool.analysis.oracle.reductions import REDUCTIONS, Array, native
from ndtool.inmemory.buffers import as_void
from ndtool.rules.plans import Plan
from ndtool.rules.reductions import REDUCTIONS as ROWS

Int64Array = NDArray[np.int64]

MAX_EXAMINED = 1000  # elements to diagnose
_MAX_UPDATES = 1 << 18  # updates of these elements in memory


def diagnose(
    plan: Plan, arrays: dict[str, Array], wrong_indices: Int64Array, output: Array, expected: Array
) -> tuple[int, int, int]:
    """Return the counts of examined elements, of those that lack an update, or have one twice.

    wrong_indices: their linear indices, by descending difference; the first MAX_EXAMINED are
    examined. output, expected: the wrong and the correct output.
    """
    if not len(wrong_indices):
        return 0, 0, 0
    wrong_indices, updates_by_element = _group_updates(plan, arrays, wrong_indices)
    reduction, lost, doubled = plan.attributes.reduction, 0, 0
    if plan.attributes.copies_first_update:
        return len(wrong_indices), 0, 0
    current, actual, correct = (
        _elements_at(array, wrong_indices) for array in (arrays["data"], output, expected)
    )
    with np.errstate(all="ignore"):
        for n, updates in enumerate(updates_by_element):
            element = slice(n, n + 1)
            operands = np.concatenate([current[element], updates])
            if ROWS[reduction].kind == "extreme" and (
                (operands != operands).any() or actual[element] == correct[element]
            ):
                continue
            omitting, repeating = _candidates(operands, reduction, correct[element])
            equals_actual = _equality_test(operands, reduction, actual[element], correct[element])
            if equals_actual(omitting):
                lost += 1
            elif equals_actual(repeating):
                doubled += 1
    return len(wrong_indices), lost, doubled


def _group_updates(
    plan: Plan, arrays: dict[str, Array], wrong_indices: Int64Array
) -> tuple[Int64Array, list[Array]]:
    """Return linear indices of elements, ascending, and the updates of each element.

    There are fewer elements than MAX_EXAMINED if their updates are too many.
    """
    limit = min(len(wrong_indices), MAX_EXAMINED)
    examined, is_included = np.sort(wrong_indices[:limit]), np.ones(limit, np.bool_)
    # For each update, the position of its element in `examined`, and its own linear index.
    targets, update_indices = np.empty(0, np.int64), np.empty(0, np.int64)
    blocks = tuples.blocks(plan, arrays["indices"])
    for elements, updates in tuples.links(plan, blocks, examined):
        targets = np.concatenate([targets, elements[is_included[elements]]])
        update_indices = np.concatenate([update_indices, updates[is_included[elements]]])
        while len(targets) > _MAX_UPDATES and limit > 1:
            limit //= 2
            is_included = np.isin(examined, wrong_indices[:limit])
            update_indices, targets = (
                update_indices[is_included[targets]],
                targets[is_included[targets]],
            )
    order = np.argsort(targets, kind="stable")
    all_updates, targets = _elements_at(arrays["updates"], update_indices[order]), targets[order]
    starts, stops = (
        np.searchsorted(targets, np.flatnonzero(is_included), side) for side in ("left", "right")
    )
    return examined[is_included], [all_updates[a:b] for a, b in zip(starts, stops, strict=True)]


def _elements_at(array: Array, indices: Int64Array) -> Array:
    """Return elements by their linear indices, in native byte order."""
    return native(np.asarray(flat_view(as_void(array))[indices]))


def _candidates(operands: Array, reduction: str, expected: Array) -> tuple[Array, Array]:
    """Return the values of an element if one update is omitted, and if one is applied twice.

    operands: the current value and the updates, in order.
    """
    no_values = operands[:0]
    if len(operands) == 1:
        return no_values, no_values
    if reduction == "none":
        return operands[-2:-1], no_values
    ufunc = REDUCTIONS[reduction].ufunc
    if (
        ROWS[reduction].kind == "difference" and operands.dtype.kind != "b"
    ):  # a sum of negated updates
        ufunc, operands = np.add, np.concatenate([operands[:1], -operands[1:]])
    if ufunc is None:
        return no_values, no_values
    is_extreme = ROWS[reduction].kind == "extreme"
    widened = operands if is_extreme else _widen(operands)
    prefixes = ufunc.accumulate(widened, dtype=widened.dtype)[:-1]
    suffixes = ufunc.accumulate(widened[::-1], dtype=widened.dtype)[::-1]
    omitting = np.concatenate([ufunc(prefixes[:-1], suffixes[2:]), prefixes[-1:]])
    return omitting, no_values if is_extreme else ufunc(_widen(expected), widened[1:])


def _equality_test(
    operands: Array, reduction: str, actual: Array, expected: Array
) -> Callable[[Array], bool]:
    """Return a function that tests whether a candidate equals the actual element up to rounding."""
    kind = ROWS[reduction].kind
    is_rounded = kind in ("sum", "difference", "product")
    if not is_rounded or _widen(operands).dtype.kind not in "fc":
        return lambda candidates: bool((bits(candidates) == bits(actual)).all(axis=1).any())
    value, correct = _widen(actual), _widen(expected)
    eps = 2.0**-8 if actual.dtype.name == "bfloat16" else float(np.finfo(actual.dtype).eps)
    magnitude = np.abs(_widen(operands)).sum() if kind != "product" else np.abs(correct)
    rounding = len(operands) * eps * magnitude
    if not np.abs(value - correct) > rounding:
        return lambda candidates: False
    return lambda candidates: bool((np.abs(candidates - value) <= rounding).any())


def _widen(values: Array) -> Array:
    """Convert floats to double precision, to neglect rounding; integers keep their type."""
    wide_dtype: Any = {"f": np.float64, "c": np.complex128}.get(values.dtype.kind)
    if values.dtype.name == "bfloat16":
        wide_dtype = np.float64
    return values if wide_dtype is None else values.astype(wide_dtype)
