"""Diagnosis of a wrong scatter output: elements that lack an update, or have one twice.

Data races cause such differences, rounding does not. A max or min may also come from an
engine that compares NaN or signed zeros by another rule; then no update is lost.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis import tuples
from ndtool.analysis.causes import cause
from ndtool.analysis.oracle.blocks import flat_view
from ndtool.analysis.oracle.distances import bits, records_as_void
from ndtool.analysis.oracle.reductions import REDUCTIONS, Array, native
from ndtool.engine.counting import ReductionOptions
from ndtool.rules.modes import Handling
from ndtool.rules.plans import Plan

Numbers = NDArray[np.int64]

EXAMINED = 1000  # elements to diagnose, at most
_MOST = 1 << 18  # updates of them in memory at a time


class Diagnosis(NamedTuple):
    """Counts of elements: examined, lacking one update, with one twice, compared by other rules.

    cause: the options that give all of them, None if unknown.
    """

    examined: int = 0
    lost: int = 0
    doubled: int = 0
    otherwise: int = 0
    cause: str | None = None


def diagnose(
    plan: Plan,
    arrays: dict[str, Array],
    reduction_options: ReductionOptions,
    wrong: Numbers,
    output: Array,
    expected: Array,
    handling: Handling = Handling(),  # noqa: B008 - a value that never changes
) -> Diagnosis:
    """Diagnose elements of an output that differ from the expected ones.

    wrong: their linear indices, the largest differences first, of which the first EXAMINED are
    examined. output, expected: the wrong and the correct output.
    """
    if not len(wrong):
        return Diagnosis()
    wrong, updates_of = _updates_of_each(plan, arrays, handling, wrong)
    current, actual, correct = (
        _elements_at(array, wrong) for array in (arrays["data"], output, expected)
    )
    lost = doubled = otherwise = 0
    owners = np.repeat(np.arange(len(wrong)), [len(updates) for updates in updates_of])
    find_cause = partial(
        cause, reduction_options, current, owners, np.concatenate(updates_of), actual
    )
    if reduction_options.copies_first_update:
        return Diagnosis(len(wrong), cause=find_cause())
    reduction = reduction_options.reduction
    with np.errstate(all="ignore"):
        for n, updates in enumerate(updates_of):
            element = slice(n, n + 1)
            chain = np.concatenate([current[element], updates])
            if reduction in ("max", "min") and _compared_otherwise(
                chain, reduction, actual[element]
            ):
                otherwise += 1
                continue
            without, twice = _candidates(chain, reduction, correct[element])
            equals_actual = _comparer(chain, reduction, actual[element], correct[element])
            if equals_actual(without):
                lost += 1
            elif equals_actual(twice):
                doubled += 1
    return Diagnosis(len(wrong), lost, doubled, otherwise, None if otherwise else find_cause())


def _updates_of_each(
    plan: Plan, arrays: dict[str, Array], handling: Handling, wrong: Numbers
) -> tuple[Numbers, list[Array]]:
    """Return linear indices, ascending, and the updates of each; fewer if updates are too many."""
    limit = min(len(wrong), EXAMINED)
    examined, chosen = np.sort(wrong[:limit]), np.ones(limit, np.bool_)
    owners, ids = np.empty(0, np.int64), np.empty(0, np.int64)  # elements of examined; updates
    for elements, updates in tuples.element_updates(plan, arrays["indices"], handling, examined):
        owners = np.concatenate([owners, elements[chosen[elements]]])
        ids = np.concatenate([ids, updates[chosen[elements]]])
        while len(owners) > _MOST and limit > 1:
            limit //= 2
            chosen = np.isin(examined, wrong[:limit])
            ids, owners = ids[chosen[owners]], owners[chosen[owners]]
    order = np.argsort(owners, kind="stable")
    all_updates, owners = _elements_at(arrays["updates"], ids[order]), owners[order]
    begin, end = (
        np.searchsorted(owners, np.flatnonzero(chosen), side) for side in ("left", "right")
    )
    return examined[chosen], [all_updates[a:b] for a, b in zip(begin, end, strict=True)]


def _elements_at(array: Array, numbers: Numbers) -> Array:
    """Return elements by their linear indices, in native byte order."""
    return native(np.asarray(flat_view(records_as_void(array))[numbers]))


def _candidates(chain: Array, reduction: str, expected: Array) -> tuple[Array, Array]:
    """Return an element's values without each of its updates, and with each one twice."""
    none = chain[:0]
    if len(chain) == 1:
        return none, none
    if reduction == "none":
        return chain[-2:-1], none
    ufunc = REDUCTIONS[reduction].ufunc
    if reduction == "sub" and chain.dtype.kind != "b":  # a sum of the negated updates
        ufunc, chain = np.add, np.concatenate([chain[:1], -chain[1:]])
    if ufunc is None:
        return none, none
    is_extreme = reduction in ("max", "min")
    wide = chain if is_extreme else _wide(chain)
    before = ufunc.accumulate(wide, dtype=wide.dtype)[:-1]
    after = ufunc.accumulate(wide[::-1], dtype=wide.dtype)[::-1]
    without = np.concatenate([ufunc(before[:-1], after[2:]), before[-1:]])
    return without, none if is_extreme else ufunc(_wide(expected), wide[1:])


def _compared_otherwise(chain: Array, reduction: str, actual: Array) -> bool:
    """Whether an element is the max or min of its updates by other rules for NaN and signed zeros.

    Comparisons with NaN are false, so an engine skips NaN, or loses all updates before the last
    NaN.
    """
    if chain.dtype.kind in "biu":
        return False
    nans, operand_choices = np.isnan(chain), [chain]
    if nans.any():
        if np.isnan(actual).any():
            return True  # a NaN of other bits
        first, last = nans.argmax(), len(chain) - nans[::-1].argmax()
        operand_choices = [chain[~nans], chain[:first], chain[last:]]
    if not (bits(chain) == bits(actual)).all(axis=1).any():
        return False
    ufunc = REDUCTIONS[reduction].ufunc  # for which signed zeros are equal
    assert ufunc is not None, "they are max and min"
    return any(
        len(operands) > 0 and bool((ufunc.reduce(operands) == actual).all())
        for operands in operand_choices
    )


def _comparer(
    chain: Array, reduction: str, actual: Array, expected: Array
) -> Callable[[Array], bool]:
    """Return a function: whether a candidate equals the actual element, up to rounding."""
    if reduction not in ("add", "sub", "mul") or _wide(chain).dtype.kind not in "fc":
        return lambda candidates: bool((bits(candidates) == bits(actual)).all(axis=1).any())
    value, correct = _wide(actual), _wide(expected)
    eps = 2.0**-8 if actual.dtype.name == "bfloat16" else float(np.finfo(actual.dtype).eps)
    size = np.abs(_wide(chain)).sum() if reduction != "mul" else np.abs(correct)
    rounding = len(chain) * eps * size
    if not np.abs(value - correct) > rounding:
        return lambda candidates: False
    return lambda candidates: bool((np.abs(candidates - value) <= rounding).any())


def _wide(numbers: Array) -> Array:
    """Return numbers in a type wide enough to neglect rounding; integers stay, and wrap."""
    kind: Any = {"f": np.float64, "c": np.complex128}.get(numbers.dtype.kind)
    if numbers.dtype.name == "bfloat16":
        kind = np.float64
    return numbers if kind is None else numbers.astype(kind)
