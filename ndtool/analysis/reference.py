"""The operators, slow and obvious: the oracle of the tests and of `verify`.

Each one is the loop that the ONNX text prints, in row-major order, over values that were checked
first. Nothing is shared with the fast side but the errors, so both can only agree by being right.
Arrays may be larger than memory: `new` makes the output where there is room for it, and all else is
done in blocks. `tick` is told the share that is done.

Indices out of bounds are an error, unless `out_of_bounds` has another rule: "clip" takes the end of
the axis that is next to one, "wrap" what it is modulo the axis' size, "fill" gathers `filling`, the
bytes of an element, instead of all that the tuple names, "drop" skips its update.
"""

from collections.abc import Callable, Iterator, Sequence
from math import prod
from operator import index as whole
from typing import Any

import numpy as np

from ndtool.analysis.reductions import REDUCTIONS, Reduction, native
from ndtool.analysis.refusals import Array, check_types, elements_axis, require
from ndtool.errors import BoundsError

Position = tuple[int, ...]
Index = tuple[Any, ...]
Place = Index | None  # None for one that does not exist
Blocks = Iterator[tuple[list[Index], list[Place]]]
New = Callable[[Position, np.dtype[Any]], Array]
Tick = Callable[[float], None]

TUPLES = 1 << 12  # of indices that are looked at together
PIECE = 1 << 20  # bytes that are copied, reduced or compared together


def silent(_: float) -> None:
    """Tell nobody how much is done."""


def gather_nd(
    data: Array,
    indices: Array,
    batch_dims: int = 0,
    *,
    out_of_bounds: str = "error",
    filling: bytes = b"",
    new: New = np.empty,
    tick: Tick = silent,
) -> Array:
    """Return the slices of `data` that the index tuples name, as ONNX GatherND does.

    output[i] = data[i[:b], indices[i], ...] for every i in indices.shape[:-1], b = batch_dims.
    """
    data, indices, b = np.asarray(data), np.asarray(indices), whole(batch_dims)
    check_types(data, indices)
    r, q = data.ndim, indices.ndim
    require(r >= 1 and q >= 1, f"ranks {r} and {q}: both must be at least 1")
    require(0 <= b < min(r, q), f"batch_dims {b}: valid 0..{min(r, q) - 1}")
    require(data.shape[:b] == indices.shape[:b], "the batch axes must be equal")
    k = indices.shape[-1]
    require(1 <= k <= r - b, f"index tuples of {k}: valid 1..{r - b}")

    rule = _Rule(out_of_bounds, data.shape, range(b, b + k))
    rule.check(indices, indices.shape[:-1], part(tick, 0, 0.1))
    output = new(indices.shape[:-1] + data.shape[b + k :], data.dtype)
    source, target, empty = _bytes(data), _bytes(output), _element(data, filling)
    run = prod(data.shape[b + k :]) * data.itemsize
    for positions, places in _nd_blocks(indices, b, run, rule, part(tick, 0.1, 1)):
        for i, place in zip(positions, places, strict=True):
            target[*i, ...] = empty if place is None else source[*place, ...]
    return output


def scatter_nd(
    data: Array,
    indices: Array,
    updates: Array,
    reduction: str = "none",
    *,
    out_of_bounds: str = "error",
    new: New = np.empty,
    tick: Tick = silent,
) -> Array:
    """Return a copy of `data` with slices updated, as ONNX ScatterND does.

    output[indices[i]] = f(output[indices[i]], updates[i]) for every i in indices.shape[:-1].
    """
    data, indices, updates = np.asarray(data), np.asarray(indices), np.asarray(updates)
    check_types(data, indices, updates, reduction)
    r, q = data.ndim, indices.ndim
    require(r >= 1 and q >= 1, f"ranks {r} and {q}: both must be at least 1")
    k = indices.shape[-1]
    require(k <= r, f"index tuples of {k}: valid 0..{r}")
    expected = indices.shape[:-1] + data.shape[k:]
    require(updates.shape == expected, f"updates {updates.shape}: it must be {expected}")
    rule = _Rule(out_of_bounds, data.shape, range(k))
    rule.check(indices, indices.shape[:-1], part(tick, 0, 0.1))
    output = _copied(data, new, part(tick, 0.1, 0.2))
    run = prod(data.shape[k:]) * data.itemsize
    blocks = _nd_blocks(indices, 0, run, rule, part(tick, 0.2, 1))
    return _updated(output, updates, reduction, blocks, k)


def gather_elements(
    data: Array,
    indices: Array,
    axis: int = 0,
    *,
    out_of_bounds: str = "error",
    filling: bytes = b"",
    new: New = np.empty,
    tick: Tick = silent,
) -> Array:
    """Return the elements of `data` that `indices` names along `axis`, as ONNX GatherElements.

    output[i][j][k] = data[i][indices[i][j][k]][k] where axis = 1, and so on.
    """
    data, indices = np.asarray(data), np.asarray(indices)
    check_types(data, indices)
    axis = elements_axis(data, indices, axis)
    rule = _Rule(out_of_bounds, data.shape, (axis,))
    rule.check(indices, indices.shape, part(tick, 0, 0.1))
    output = new(indices.shape, data.dtype)
    source, target, empty = _bytes(data), _bytes(output), _element(data, filling)
    for positions, places in _elements_blocks(
        indices, axis, data.itemsize, rule, part(tick, 0.1, 1)
    ):
        for i, place in zip(positions, places, strict=True):
            target[*i, ...] = empty if place is None else source[*place, ...]
    return output


def gather(
    data: Array,
    indices: Array,
    axis: int = 0,
    *,
    out_of_bounds: str = "error",
    filling: bytes = b"",
    new: New = np.empty,
    tick: Tick = silent,
) -> Array:
    """Return the slices of `data` that `indices` names along `axis`, as ONNX Gather does.

    output[p][i][q] = data[p][indices[i]][q] for p in data.shape[:axis], q in data.shape[axis+1:].
    """
    data, indices, axis = np.asarray(data), np.asarray(indices), whole(axis)
    check_types(data, indices)
    require(data.ndim >= 1, "rank 0: data must have an axis")
    require(-data.ndim <= axis < data.ndim, f"axis {axis}: valid {-data.ndim}..{data.ndim - 1}")
    axis %= data.ndim
    rule = _Rule(out_of_bounds, data.shape, (axis,))
    rule.check(indices, indices.shape, part(tick, 0, 0.1))
    before, after = data.shape[:axis], data.shape[axis + 1 :]
    output = new(before + indices.shape + after, data.dtype)
    source, target, empty = _bytes(data), _bytes(output), _element(data, filling)
    run, count = prod(after) * data.itemsize, prod(before)
    for number, p in enumerate(np.ndindex(before)):
        done = part(tick, 0.1 + 0.9 * number / count, 0.1 + 0.9 * (number + 1) / count)
        for positions, places in _elements_blocks(indices, 0, run, rule, done):
            for i, place in zip(positions, places, strict=True):
                target[(*p, *i, ...)] = empty if place is None else source[(*p, place[0], ...)]
    return output


def scatter_elements(
    data: Array,
    indices: Array,
    updates: Array,
    axis: int = 0,
    reduction: str = "none",
    *,
    out_of_bounds: str = "error",
    new: New = np.empty,
    tick: Tick = silent,
) -> Array:
    """Return a copy of `data` with elements updated along `axis`, as ONNX ScatterElements.

    output[i][indices[i][j]] = f(output[i][indices[i][j]], updates[i][j]) where axis = 1.
    """
    data, indices, updates = np.asarray(data), np.asarray(indices), np.asarray(updates)
    check_types(data, indices, updates, reduction)
    axis = elements_axis(data, indices, axis)
    require(
        updates.shape == indices.shape,
        f"updates {updates.shape}: it must be {indices.shape} as indices are",
    )
    rule = _Rule(out_of_bounds, data.shape, (axis,))
    rule.check(indices, indices.shape, part(tick, 0, 0.1))
    output = _copied(data, new, part(tick, 0.1, 0.2))
    blocks = _elements_blocks(indices, axis, data.itemsize, rule, part(tick, 0.2, 1))
    return _updated(output, updates, reduction, blocks, data.ndim)


def _copied(data: Array, new: New, tick: Tick) -> Array:
    output = new(data.shape, data.dtype)
    source, target = in_order(_bytes(data)), in_order(_bytes(output))
    for piece in pieces(data.size, data.itemsize, tick):
        target[piece] = source[piece]
    return output


def _updated(output: Array, updates: Array, reduction: str, blocks: Blocks, m: int) -> Array:
    """Return `output` with its runs updated; a place names a run by its first m axes."""
    if not updates.size:
        return output  # nothing, however often, is no work
    if reduction != "none":
        _reduce(output, updates, REDUCTIONS[reduction], blocks, m)
        return output
    same = updates.dtype == output.dtype
    target, source = (_bytes(output), _bytes(updates)) if same else (output, updates)
    for positions, places in blocks:
        for i, place in zip(positions, places, strict=True):
            if place is not None:
                target[*place, ...] = source[*i, ...]
    return output


def _reduce(output: Array, updates: Array, reduce: Reduction, blocks: Blocks, m: int) -> None:
    """Apply updates in row-major order, several at once where their places are different ones."""
    lead, width = output.shape[:m], prod(output.shape[m:])
    runs, flat, start = output.reshape(-1, width), in_order(updates), 0
    for _, places in blocks:
        kept = [n for n, place in enumerate(places) if place is not None]
        rows = _row_numbers([places[n] or () for n in kept], lead)
        for columns in pieces(width, output.itemsize):  # all of them, unless the block is one run
            first, shape = start + columns.start, (len(places), columns.stop - columns.start)
            new = native(flat[first : first + prod(shape)].reshape(shape)[kept])
            for some in _without_duplicates(rows):
                at = rows[some], columns
                with np.errstate(all="ignore"):
                    runs[at] = reduce(native(runs[at]), new[some])
        start += len(places) * width


def _row_numbers(places: list[Index], shape: Position) -> Array:
    """Return where places are among all of `shape` in row-major order, counted from the start."""
    numbers = np.zeros(len(places), np.int64)
    for axis, size in enumerate(shape):
        numbers = numbers * size + np.array([place[axis] for place in places], np.int64) % size
    return numbers


def _without_duplicates(rows: Array) -> Iterator[slice]:
    """Yield slices of the rows, one after the other, in which none comes twice."""
    start, seen = 0, set[int]()
    for n, row in enumerate(rows.tolist()):
        if row in seen:
            yield slice(start, n)
            start, seen = n, set()
        seen.add(row)
    yield slice(start, len(rows))


def _bytes(array: Array) -> Array:
    """Return the array as opaque bytes, so that a move copies padding and odd booleans too."""
    return array.view(np.dtype((np.void, array.dtype.itemsize)))


def _element(data: Array, filling: bytes) -> Any:
    """Return an element of data's type, of zeros where nothing is said, as opaque bytes."""
    return np.frombuffer(filling or bytes(data.itemsize), f"V{data.itemsize}")[0]


def _nd_blocks(indices: Array, b: int, run: int, rule: "_Rule", tick: Tick) -> Blocks:
    """Yield positions in indices and their places in data, in row-major order.

    run: bytes at each place; a block has PIECE bytes at most, or one run.
    """
    lead, k = indices.shape[:-1], indices.shape[-1]
    for start, tuples in _tuples(indices, prod(lead), k, run, tick):
        positions = _positions(start, len(tuples), lead)
        named = zip(positions, map(rule.settled, tuples.tolist()), strict=True)
        yield positions, [None if t is None else (*i[:b], *t) for i, t in named]


def _elements_blocks(indices: Array, axis: int, run: int, rule: "_Rule", tick: Tick) -> Blocks:
    """Yield positions in indices and their places in data, in row-major order."""
    shape = indices.shape
    for start, values in _tuples(indices, prod(shape), 1, run, tick):
        positions = _positions(start, len(values), shape)
        named = zip(positions, map(rule.settled, values.tolist()), strict=True)
        yield (
            positions,
            [None if t is None else (*i[:axis], *t, *i[axis + 1 :]) for i, t in named],
        )


def _tuples(
    indices: Array, count: int, k: int, run: int, tick: Tick
) -> Iterator[tuple[int, Array]]:
    """Yield the number of an index tuple, and it and those after it as rows of k."""
    flat, step = in_order(indices), max(1, min(TUPLES, PIECE // max(run, 1)))
    for start in range(0, count, step):
        stop = min(start + step, count)
        yield start, flat[start * k : stop * k].reshape(stop - start, k)
        tick(stop / count)


def _positions(start: int, count: int, shape: Position) -> list[Index]:
    """Return the positions of `count` elements in row-major order."""
    if not shape:
        return [()] * count
    columns = np.unravel_index(np.arange(start, start + count), shape)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def in_order(array: Array) -> Any:
    """Return an array's elements in row-major order: what to take slices of, not a copy."""
    narrow = array.squeeze()  # or `flat` would know no more than 32 axes
    return array.reshape(-1) if array.flags.c_contiguous or narrow.ndim > 32 else narrow.flat


def pieces(count: int, itemsize: int, tick: Tick = silent) -> Iterator[slice]:
    """Yield slices of `count` elements, none of more than PIECE bytes unless one element is."""
    step = max(1, PIECE // itemsize)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
        tick(min(start + step, count) / count)


def part(tick: Tick, begin: float, end: float) -> Tick:
    """Return what tells `tick` about a part of the work, from `begin` to `end` of the whole."""
    return lambda share: tick(begin + share * (end - begin))


class _Rule:
    """What becomes of index tuples out of bounds.

    axes: those of data, of a shape, that a tuple's components are about.
    """

    def __init__(self, name: str, shape: Position, axes: Sequence[int]) -> None:
        self._name, self._shape, self._axes = name, shape, axes
        self._sizes = [shape[axis] for axis in axes]

    def settled(self, index: list[int]) -> Place:
        """Return the place that a tuple names, or None if there is none."""
        pairs = list(zip(index, self._sizes, strict=True))
        if all(-size <= i < size for i, size in pairs):
            return tuple(index)
        if self._name == "clip":
            return tuple(min(max(i + size if i < 0 else i, 0), size - 1) for i, size in pairs)
        if self._name == "wrap":
            return tuple(i % size for i, size in pairs)
        return None

    def check(self, indices: Array, lead: Position, tick: Tick) -> None:
        """Raise BoundsError if an index is out of bounds, and the rule has nothing for it.

        lead: the shape of the positions of index tuples in `indices`.
        """
        if self._name in ("fill", "drop"):
            return
        if self._name in ("clip", "wrap") and 0 not in self._sizes:
            return
        shape, axes = self._shape, self._axes
        total, k = prod(lead), len(axes)
        first, count = None, 0
        for start, tuples in _tuples(indices, total if k else 0, k, 0, tick):
            bad = np.stack(
                [
                    (tuples[:, j] < -shape[axis]) | (tuples[:, j] >= shape[axis])
                    for j, axis in enumerate(axes)
                ],
                axis=1,
            )
            if first is None and bad.any():
                row, component = np.argwhere(bad)[0].tolist()
                first = start + row, component, int(tuples[row, component])
            count += int(bad.any(axis=1).sum())
        if first is not None:
            number, component, value = first
            raise BoundsError(
                position=_positions(number, 1, lead)[0],
                component=None if lead == indices.shape else component,
                axis=axes[component],
                value=value,
                size=shape[axes[component]],
                count=count,
                total=total,
            )
