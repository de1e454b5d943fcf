"""Normalization: copies of arrays in C order and a given byte order, for the kernels."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

from ndtool import _kernels
from ndtool._kernels import LINE, KernelOptions
from ndtool.engine import layouts, tuning
from ndtool.engine.bind import Buffer, Operand
from ndtool.engine.gathers import ProgressCallback, ignore_progress
from ndtool.engine.layouts import Strides
from ndtool.machine.pool import BufferPool, run_all
from ndtool.machine.threads import limit_threads
from ndtool.rules.dtypes import Dtype
from ndtool.rules.plans import Shape

WriteAt = Callable[[int, memoryview], object]  # write(start, bytes)


def is_normalized(shape: Shape, strides: Strides, dtype: Dtype, order: str) -> bool:
    """Whether an array is C-contiguous and in a byte order, so that `normalize` is not needed."""
    turned = dtype.unit > 1 and dtype.order != order
    return not turned and layouts.is_contiguous(shape, strides, dtype.itemsize)


def normalize(
    data: Operand,
    shape: Shape,
    dtype: Dtype,
    order: str,
    out: Buffer,
    threads: int,
    progress: ProgressCallback = ignore_progress,
) -> None:
    """Normalize an array into `out`: row-major order, and byte order "<" or ">" if it has one."""
    size = prod(shape) * dtype.itemsize
    if not size:
        return
    layout, scattered = _bound(shape, data.strides, dtype.itemsize)
    if scattered:
        _copy_strips(data, layout, size, out, threads, progress)
    else:
        _pack(data, layout, dtype.itemsize, size, out)
    if dtype.unit > 1 and dtype.order != order:
        swap_bytes(out[:size], dtype.unit)


class Box(NamedTuple):
    """A box of an array: the same contiguous elements of successive rows.

    data: the offset of its first element in the source. offset: the offset in row-major order.
    pitch: bytes from row to row in row-major order. shape: its first axis counts the rows.
    """

    data: int
    offset: int
    pitch: int
    shape: Shape
    strides: Strides


def write_normalized(
    data: Operand, shape: Shape, dtype: Dtype, order: str, write: WriteAt, threads: int
) -> None:
    """Normalize an array in boxes; several threads write each box when it is complete."""
    item = dtype.itemsize
    size = prod(shape) * item
    if not size:
        return
    sizes, steps = layouts.merge_axes(shape, data.strides)

    def move(box: Box) -> None:
        buffer = buffers.acquire()
        to = buffer[: prod(box.shape) * item]
        source = Operand(data.buffer, data.origin + box.data, box.strides)
        normalize(source, box.shape, dtype, order, to, 1)
        width = len(to) // box.shape[0]
        if width == box.pitch:
            write(box.offset, to)
        else:
            for row in range(box.shape[0]):
                write(box.offset + row * box.pitch, to[row * width : (row + 1) * width])
        buffers.release(buffer)

    buffers = BufferPool(min(size, max(tuning.NORMALIZED_BOX, item)))
    divided = divide_into_boxes(sizes or (1,), steps or (item,), item, tuning.NORMALIZED_BOX)
    run_all(move, divided, limit_threads(threads, 2 * size))


def divide_into_boxes(sizes: Shape, steps: Strides, itemsize: int, limit: int) -> Iterator[Box]:
    """Divide an array into boxes of about `limit` bytes: as many complete rows as fit.

    Longer rows are divided, and a box has enough of them to fill cache lines in Fortran order.
    """
    most, strides_out = max(1, limit // itemsize), layouts.contiguous_strides(sizes, itemsize)
    pitch = strides_out[0]
    tall = min(sizes[0], max(limit // pitch, min(LINE, most)))
    axis, inner = len(sizes) - 1, 1  # the axis that is divided, elements after it
    while axis > 1 and sizes[axis] * inner * tall <= most:
        inner *= sizes[axis]
        axis -= 1
    if not axis:
        for first in range(0, sizes[0], tall):
            rows = min(tall, sizes[0] - first)
            yield Box(first * steps[0], first * pitch, pitch, (rows,), steps)
        return
    wide = max(1, most // (tall * inner))
    starts = range(0, sizes[0], tall), *map(range, sizes[1:axis]), range(0, sizes[axis], wide)
    for at in product(*starts):
        yield Box(
            sum(map(int.__mul__, at, steps)),
            sum(map(int.__mul__, at, strides_out)),
            pitch,
            (min(tall, sizes[0] - at[0]), min(wide, sizes[axis] - at[-1]), *sizes[axis + 1 :]),
            (steps[0], *steps[axis:]),
        )


def is_worth_packing(shape: Shape, strides: Strides, nbytes: int, gathered: int) -> bool:
    """Whether packing strided data before a gather is faster than gathering strided slices."""
    return layouts.is_scattered(shape, strides) and nbytes <= min(tuning.MAX_PACKED, 2 * gathered)


@lru_cache(maxsize=1024)
def _bound(shape: Shape, strides: Strides, itemsize: int) -> tuple[_kernels.Layout, bool]:
    """Return an array's bound layout, and whether it is scattered (`layouts.is_scattered`)."""
    sizes, steps = layouts.merge_axes(shape, strides)
    layout = _kernels.Layout(sizes or (1,), steps or (itemsize,), itemsize)
    return layout, layouts.is_scattered(shape, strides)


def _copy_strips(
    data: Operand,
    layout: _kernels.Layout,
    size: int,
    out: Buffer,
    threads: int,
    progress: ProgressCallback,
) -> None:
    """Copy in strips, so that complete cache lines are read and written."""
    options = KernelOptions(limit_threads(threads, 2 * size))
    step = -(-layout.strips * tuning.WORK_ITEM // size)
    for first in range(0, layout.strips, step):
        stop = min(layout.strips, first + step)
        _kernels.copy_strips(layout, data.buffer, data.origin, out, first, stop, options)
        progress(stop / layout.strips)


def _pack(data: Operand, layout: _kernels.Layout, itemsize: int, size: int, out: Buffer) -> None:
    step = max(1, tuning.WORK_ITEM // itemsize)
    for first in range(0, size // itemsize, step):
        n = min(step, size // itemsize - first)
        to = out[first * itemsize : (first + n) * itemsize]
        _kernels.pack(layout, data.buffer, data.origin, to, first, n)


def swap_bytes(buffer: Buffer, unit: int) -> None:
    """Swap the bytes of every unit of a buffer, in place."""
    step = max(1, tuning.WORK_ITEM // unit) * unit
    for first in range(0, len(buffer), step):
        _kernels.swap(buffer[first : first + step], unit)
