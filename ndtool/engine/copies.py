"""Arrays put right for the kernels: row-major, without gaps, of the byte order that is wanted."""

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
    if layouts.is_scattered(shape, data.strides):
        _copy_strips(data, shape, dtype.itemsize, out, threads)
    else:
        _pack(data, shape, dtype.itemsize, out)
    if dtype.unit > 1 and dtype.order != order:
        swap(out[:size], dtype.unit)


def is_worth_packing(shape: Shape, strides: Strides, nbytes: int, gathered: int) -> bool:
    """Whether rows whose elements stand apart are better put side by side first, all of them."""
    return layouts.is_scattered(shape, strides) and nbytes <= min(tuning.PACKED, 2 * gathered)


def _copy_strips(data: Operand, shape: Shape, itemsize: int, out: Buffer, threads: int) -> None:
    """Copy an array that is scattered (see layouts): lines are read and written as a whole."""
    layout = _kernels.Layout(*layouts.merge(shape, data.strides), itemsize)
    size = prod(shape) * itemsize
    how = How(team(threads, 2 * size))
    step = -(-layout.strips * tuning.PIECE // size)
    for first in range(0, layout.strips, step):
        stop = min(layout.strips, first + step)
        _kernels.copy_strips(layout, data.buffer, data.origin, out, first, stop, how)


def _pack(data: Operand, shape: Shape, itemsize: int, out: Buffer) -> None:
    merged, steps = layouts.merge(shape, data.strides)
    layout = _kernels.Layout(merged or (1,), steps or (itemsize,), itemsize)
    count = prod(shape)
    step = max(1, tuning.PIECE // itemsize)
    for first in range(0, count, step):
        n = min(step, count - first)
        to = out[first * itemsize : (first + n) * itemsize]
        _kernels.pack(layout, data.buffer, data.origin, to, first, n)


def swap(buffer: Buffer, unit: int) -> None:
    """Reverse the bytes of every unit, in place, in pieces."""
    step = max(1, tuning.PIECE // unit) * unit
    for first in range(0, len(buffer), step):
        _kernels.swap(buffer[first : first + step], unit)
