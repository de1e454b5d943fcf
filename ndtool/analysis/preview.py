"""The few elements of an output that a person is shown, computed without the others.

Gathers read the elements that are shown. Scatters go through all index tuples, in blocks, and
apply those that meet a shown element, in their order; so the bits are those of the whole run.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool import ops
from ndtool.analysis import tuples, values
from ndtool.analysis.values import EDGE
from ndtool.engine import layouts
from ndtool.rules.inference import Inference
from ndtool.rules.shapes import ElementsPlan, NdPlan, Shape, described
from ndtool.runs.direct import Operands
from ndtool.runs.within import within

Array = NDArray[Any]

_SHOWN = 1000  # elements of a preview
_WHOLE = 100  # elements of an array that is shown without gaps
_BLOCK = 1 << 18  # index tuples looked at at once


class Window(NamedTuple):
    """Which elements of an array are shown: those at every combination of positions.

    positions: of every axis. corner: how many leading axes only show their first position. gaps:
    whether a long axis shows its ends only, and one position between them that stands for the rest.
    """

    positions: tuple[tuple[int, ...], ...]
    corner: int
    gaps: bool

    @property
    def shape(self) -> Shape:
        """How many positions of each axis are shown."""
        return tuple(map(len, self.positions))


def text(operands: Operands) -> str:
    """Return what a person is shown of the output of a run, with its type and shape."""
    inference = operands.inference
    title = described(inference.dtype, inference.plan.output)
    if inference.dtype.itemsize > values.WIDEST:
        return f"{title}\nelements of {inference.dtype.itemsize} bytes are not shown\n"
    arrays = {"indices": values.as_array(operands.indices, *inference.inputs["indices"][1:])}
    for role in inference.inputs.keys() - {"indices"}:
        fortran, buffer = operands.is_fortran(role), operands.stretch(role).buffer
        arrays[role] = values.as_array(buffer, *inference.inputs[role][1:], fortran)
    seen = window(inference.plan.output)
    return written(title, elements(inference, arrays, seen), seen)


def written(title: str, shown: Array, seen: Window) -> str:
    """Return the elements that a window shows, under a title that says which they are."""
    corner = "[" + "0, " * seen.corner + "...] of " if seen.corner else ""
    return corner + title + "\n" + values.lines(shown[(0,) * seen.corner + (...,)], seen.gaps)


def window(shape: Shape) -> Window:
    """Return what is shown of an array of any shape."""
    if 0 in shape:
        return Window(((),) * len(shape), 0, False)
    corner, count = len(shape), 1
    for axis in range(len(shape) - 1, -1, -1):
        count *= min(shape[axis], 2 * EDGE + 1)
        if count > _SHOWN:
            break
        corner = axis
    rest = shape[corner:]
    gaps = bool(np.prod(rest, dtype=object) > _WHOLE)
    shown = [_ends(size) if gaps else tuple(range(size)) for size in rest]
    return Window(((0,),) * corner + tuple(shown), corner, gaps)


def _ends(size: int) -> tuple[int, ...]:
    if size <= 2 * EDGE:
        return tuple(range(size))
    return (*range(EDGE + 1), *range(size - EDGE, size))


def elements(inference: Inference, arrays: dict[str, Array], seen: Window) -> Array:
    """Return what is shown of the output; arrays: the inputs, indices checked."""
    plan, dtype = inference.plan, arrays["data"].dtype
    if not all(seen.shape):
        return np.empty(seen.shape, dtype)
    opaque = np.dtype((np.void, dtype.itemsize))  # or NumPy would make all true bools the same
    data = arrays["data"].view(opaque)
    rule = inference.attributes.out_of_bounds
    if "updates" not in arrays:
        found, filled = _gathered(plan, data, arrays["indices"], seen, rule)
        if filled.any():
            found[filled] = np.frombuffer(inference.filling, opaque)[0]
        return found.view(dtype)
    result = pick(data, _open(seen.positions), seen.shape).view(dtype)
    right = arrays["updates"].dtype
    arrays = {**arrays, "updates": arrays["updates"].view(opaque)}
    if isinstance(plan, NdPlan):
        met = _meet_nd(plan, arrays, seen, rule)
    else:
        met = _meet_elements(plan, arrays, seen, rule)
    reduction = inference.attributes.reduction
    for places, updates in met:
        flat = ops.scatter_nd(result.reshape(-1), places[:, None], updates.view(right), reduction)
        result = flat.reshape(result.shape)
    return result


def _gathered(
    plan: NdPlan | ElementsPlan, data: Array, indices: Array, seen: Window, rule: str
) -> tuple[Array, Array]:
    """Read what the shown positions of the output name; return it, and where they name nothing."""
    if not data.size:  # nothing is there to name
        return np.empty(seen.shape, data.dtype), np.ones(seen.shape, np.bool_)
    at = _open(seen.positions)
    if isinstance(plan, ElementsPlan):
        along, gone = _named(pick(indices, at, seen.shape), plan.data[plan.axis], rule)
        return pick(data, (*at[: plan.axis], along, *at[plan.axis + 1 :]), seen.shape), gone
    b = len(plan.batch)
    if plan.repeated:
        q = b + len(plan.indices)
        along = pick(indices, _open(seen.positions[b:q]), seen.shape[b:q])
        along = along.reshape((1,) * b + along.shape + (1,) * len(plan.run))
        along, gone = _named(along, plan.sizes[0], rule)
        found = pick(data, (*at[:b], along, *at[q:]), seen.shape)
        return found, np.broadcast_to(gone, seen.shape)
    q = len(plan.indices)
    lead = seen.shape[: q - 1]
    # Every component has the axes of the output: those of a run are still to come.
    wide = (*lead, *(1,) * len(plan.run))
    here = _open(seen.positions[: q - 1])
    components = [
        _named(pick(indices[..., j], here, lead).reshape(wide), size, rule)
        for j, size in enumerate(plan.sizes)
    ]
    places = (along for along, _ in components)
    found = pick(data, (*at[:b], *places, *at[q - 1 :]), seen.shape)
    gone = reduce(np.logical_or, (gone for _, gone in components))
    return found, np.broadcast_to(gone, seen.shape)


def _named(indices: Array, size: int, rule: str) -> tuple[Array, Array]:
    """Return indices within bounds, and where they are not, whatever the rule for that."""
    front = within(indices, size, rule)
    return front.clip(0, size - 1), front >= size


def _meet_nd(
    plan: NdPlan, arrays: dict[str, Array], seen: Window, rule: str
) -> Iterator[tuple[Array, Array]]:
    """Yield flat places in the window and the updates that go there, in row-major order."""
    indices, k = arrays["indices"].reshape(plan.tuples, plan.k), plan.k
    rows = _flat(_open(seen.positions[:k]), plan.sizes).reshape(-1)
    run = _open(((0,), *seen.positions[k:]))[1:]
    width = int(np.prod(seen.shape[k:]))
    step = max(1, _BLOCK // width)
    for first in range(0, plan.tuples, step):
        raw = indices[first : min(first + step, plan.tuples)]
        kept, block = tuples.settled(plan, raw, rule)
        place, some = _found(rows, np.broadcast_to(_flat(block.T, plan.sizes), len(block)))
        meets = kept[some]
        if not len(place):
            continue
        where = np.unravel_index(first + meets, plan.indices[:-1]) if plan.indices[:-1] else ()
        at = tuple(t.reshape(-1, *(1,) * len(run)) for t in where)
        updates = pick(arrays["updates"], (*at, *run), (len(place), *seen.shape[k:]))
        yield (place[:, None] * width + np.arange(width)).reshape(-1), updates.reshape(-1)


def _meet_elements(
    plan: ElementsPlan, arrays: dict[str, Array], seen: Window, rule: str
) -> Iterator[tuple[Array, Array]]:
    """Yield flat places in the window and the updates that go there, in order along the axis."""
    a, size = plan.axis, plan.data[plan.axis]
    off = [
        [p for p in shown if p < n] for shown, n in zip(seen.positions, plan.indices, strict=True)
    ]
    lines = int(np.prod([len(p) for d, p in enumerate(off) if d != a]))
    step = max(1, _BLOCK // max(1, lines))
    for first in range(0, plan.indices[a], step):
        off[a] = list(range(first, min(first + step, plan.indices[a])))
        at = _open(off)
        shown = tuple(map(len, off))
        values = within(pick(arrays["indices"], at, shown), size, rule)
        place, meets = _found(np.array(seen.positions[a]), values.reshape(-1))
        if len(place):
            ordinals = list(np.unravel_index(meets, values.shape))
            ordinals[a] = place
            updates = pick(arrays["updates"], at, shown).reshape(-1)[meets]
            yield _flat(ordinals, seen.shape), updates


def _flat(components: Sequence[Array] | Array, sizes: Shape) -> Array:
    """Return places in row-major order; NumPy's own function stops at 63 axes."""
    steps = layouts.contiguous(sizes, 1)
    return np.asarray(sum(at * step for at, step in zip(components, steps, strict=True)))


def _found(shown: Array, values: Array) -> tuple[Array, Array]:
    """Return where among `shown`, which ascend, values are, and which of them are there."""
    place = np.searchsorted(shown, values)
    place[place == len(shown)] = 0
    (meets,) = np.nonzero(shown[place] == values)
    return place[meets], meets


def pick(array: Array, at: tuple[Array, ...], shape: Shape) -> Array:
    """Return the elements that index arrays name, one for each axis, as an array of a shape.

    Axes of one element name nothing, and NumPy takes no more than 63 index arrays.
    """
    long = [d for d, size in enumerate(array.shape) if size != 1]
    slim = array.reshape([array.shape[d] for d in long])
    picked = np.asarray(slim[tuple(at[d] for d in long)])
    return np.array(np.broadcast_to(picked, shape))


def _open(positions: Sequence[Sequence[int]]) -> tuple[Array, ...]:
    """Return index arrays that together name every combination of positions."""
    return np.ix_(*(np.array(along, np.int64) for along in positions))
