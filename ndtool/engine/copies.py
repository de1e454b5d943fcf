"""Arrays put right for the kernels: row-major, without gaps, of the byte order that is wanted."""

from functools import lru_cache
from math import prod

from ndtool import _kernels
from ndtool._kernels import How
from ndtool.engine import layouts, tuning
from ndtool.engine.bind import Buffer, Operand
from ndtool.engine.layouts import Strides
from ndtool.engine.threads import team
from ndtool.rules.dtypes import Dtype
from ndtool.rules.shapes import Shape


def is_right(shape: Shape, strides: Strides, dtype: Dtype, order: str) -> bool:
    """Whether an array is as `put_right` makes it."""
    turned = dtype.unit > 1 and dtype.order != order
    return not turned and layouts.is_contiguous(shape, strides, dtype.itemsize)


def put_right(
    data: Operand, shape: Shape, dtype: Dtype, order: str, out: Buffer, threads: int
) -> None:
    """Copy an array to row-major order and a byte order ("<" or ">", where that has a meaning)."""
    size = prod(shape) * dtype.itemsize
    if not size:
        return
    layout, scattered = _bound(shape, data.strides, dtype.itemsize)
    if scattered:
        _copy_strips(data, layout, size, out, threads)
    else:
        _pack(data, layout, dtype.itemsize, size, out)
    if dtype.unit > 1 and dtype.order != order:
        swap(out[:size], dtype.unit)


def is_worth_packing(shape: Shape, strides: Strides, nbytes: int, gathered: int) -> bool:
    """Whether rows whose elements stand apart are better put side by side first, all of them."""
    return layouts.is_scattered(shape, strides) and nbytes <= min(tuning.PACKED, 2 * gathered)


@lru_cache(maxsize=1024)
def _bound(shape: Shape, strides: Strides, itemsize: int) -> tuple[_kernels.Layout, bool]:
    """Bind an array's layout, and tell whether it is scattered (see layouts)."""
    sizes, steps = layouts.merge(shape, strides)
    layout = _kernels.Layout(sizes or (1,), steps or (itemsize,), itemsize)
    return layout, layouts.is_scattered(shape, strides)


def _copy_strips(
    data: Operand, layout: _kernels.Layout, size: int, out: Buffer, threads: int
) -> None:
    """Copy so that lines are read and written as a whole."""
    how = How(team(threads, 2 * size))
    step = -(-layout.strips * tuning.PIECE // size)
    for first in range(0, layout.strips, step):
        stop = min(layout.strips, first + step)
        _kernels.copy_strips(layout, data.buffer, data.origin, out, first, stop, how)


def _pack(data: Operand, layout: _kernels.Layout, itemsize: int, size: int, out: Buffer) -> None:
    step = max(1, tuning.PIECE // itemsize)
    for first in range(0, size // itemsize, step):
        n = min(step, size // itemsize - first)
        to = out[first * itemsize : (first + n) * itemsize]
        _kernels.pack(layout, data.buffer, data.origin, to, first, n)


def swap(buffer: Buffer, unit: int) -> None:
    """Reverse the bytes of every unit, in place, in pieces."""
    step = max(1, tuning.PIECE // unit) * unit
    for first in range(0, len(buffer), step):
        _kernels.swap(buffer[first : first + step], unit)
