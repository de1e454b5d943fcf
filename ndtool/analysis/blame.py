"""Whether elements of a scatter's output are wrong by whole updates, one lost or one met twice.

That is what threads that race leave behind, and what rounding does not.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis import tuples
from ndtool.analysis.distances import bits, opaque
from ndtool.analysis.reductions import Array, native
from ndtool.analysis.reference import in_order
from ndtool.rules.shapes import ElementsPlan, Plan

Numbers = NDArray[np.int64]

EXAMINED = 1000  # elements that are looked into
_MOST = 1 << 18  # updates of them that are looked at together
_UFUNCS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def blame(
    plan: Plan,
    arrays: dict[str, Array],
    reduction: str,
    wrong: Numbers,
    output: Array,
    expected: Array,
    rule: str = "error",
) -> tuple[int, int, int]:
    """Return how many elements were examined, lack one update, and met one twice.

    wrong: numbers of elements of the output in row-major order, most telling first, of which some
    are examined. expected: what it should be. rule: what became of indices out of bounds.
    """
    if not len(wrong):
        return 0, 0, 0
    wrong, met = _met(plan, arrays, rule, wrong)
    old, found, right = (_taken(one, wrong) for one in (arrays["data"], output, expected))
    lost = doubled = 0
    with np.errstate(all="ignore"):
        for n, updates in enumerate(met):
            one = slice(n, n + 1)
            chain = np.concatenate([old[one], updates])
            without, twice = _candidates(chain, reduction, right[one])
            is_it = _comparer(chain, reduction, found[one], right[one])
            if is_it(without):
                lost += 1
            elif is_it(twice):
                doubled += 1
    return len(wrong), lost, doubled


def _met(
    plan: Plan, arrays: dict[str, Array], rule: str, wrong: Numbers
) -> tuple[Numbers, list[Array]]:
    """Return elements, ascending, and the updates of each, in order.

    They are fewer elements, the first of those given, where updates would be too many.
    """
    width = 1 if isinstance(plan, ElementsPlan) else plan.width
    first_ones = wrong[:EXAMINED]
    wrong = np.sort(first_ones)
    who, what = np.empty(0, np.int64), np.empty(0, np.int64)  # of wrong, and of updates
    for first, block in tuples.blocks(plan, arrays["indices"]):
        kept, named = tuples.settled(plan, block, rule)
        rows = tuples.runs(plan, first, named, kept)
        begin, end = (np.searchsorted(wrong // width, rows, side) for side in ("left", "right"))
        counts = end - begin
        each = np.repeat(np.arange(len(rows)), counts)  # of the tuples that meet any
        nth = np.arange(len(each)) - np.repeat(np.cumsum(counts) - counts, counts)
        elements = begin[each] + nth
        who = np.concatenate([who, elements])
        what = np.concatenate([what, (first + kept[each]) * width + wrong[elements] % width])
        while len(who) > _MOST and len(wrong) > 1:
            first_ones = first_ones[: len(wrong) // 2]
            stays = np.isin(wrong, first_ones)
            what, who = what[stays[who]], (np.cumsum(stays) - 1)[who[stays[who]]]
            wrong = wrong[stays]
    order = np.argsort(who, kind="stable")
    taken = _taken(arrays["updates"], what[order])
    stops = np.searchsorted(who[order], np.arange(len(wrong) + 1))
    return wrong, [taken[a:b] for a, b in pairwise(stops)]


def _taken(array: Array, numbers: Numbers) -> Array:
    """Return elements by their numbers in row-major order."""
    return native(np.asarray(in_order(opaque(array))[numbers]))


def _candidates(chain: Array, reduction: str, expected: Array) -> tuple[Array, Array]:
    """Return what an element would be without each of its updates, and with each one twice."""
    nothing = chain[:0]
    if len(chain) == 1:
        return nothing, nothing
    if reduction == "none":
        return chain[-2:-1], nothing
    ufunc = _UFUNCS[reduction]
    extreme = reduction in ("max", "min")
    wide = chain if extreme else _wide(chain)
    before = ufunc.accumulate(wide, dtype=wide.dtype)[:-1]
    after = ufunc.accumulate(wide[::-1], dtype=wide.dtype)[::-1]
    without = np.concatenate([ufunc(before[:-1], after[2:]), before[-1:]])
    return without, nothing if extreme else ufunc(_wide(expected), wide[1:])


def _comparer(
    chain: Array, reduction: str, found: Array, expected: Array
) -> Callable[[Array], bool]:
    """Return what tells whether one of some numbers is what was found, but for rounding."""
    if reduction not in ("add", "mul") or _wide(chain).dtype.kind not in "fc":
        return lambda some: bool((bits(some) == bits(found)).all(axis=1).any())
    value, right = _wide(found), _wide(expected)
    eps = 2.0**-8 if found.dtype.name == "bfloat16" else float(np.finfo(found.dtype).eps)
    size = np.abs(_wide(chain)).sum() if reduction == "add" else np.abs(right)
    rounding = len(chain) * eps * size
    if not np.abs(value - right) > rounding:
        return lambda some: False
    return lambda some: bool((np.abs(some - value) <= rounding).any())


def _wide(numbers: Array) -> Array:
    """Return numbers in a type in which rounding can be left out of account; integers wrap."""
    kind: Any = {"f": np.float64, "c": np.complex128}.get(numbers.dtype.kind)
    if numbers.dtype.name == "bfloat16":
        kind = np.float64
    return numbers if kind is None else numbers.astype(kind)
