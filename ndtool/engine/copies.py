"""Normalization: copies of arrays in C order and a given byte order, for the kernels."""

from collections.abc import Callable, Iterator
from itertools import product
from math import prod
from typing import NamedTuple

from ndtool import _kernels
from ndtool._kernels import LINE, KernelOptions
from ndtool.engine import layouts, tuning
from ndtool.engine.bind import Buffer, Operand
from ndtool.engine.gathers import ProgressCallback, ignore_progress
from ndtool.engine.layouts import Strides
from ndtool.machine.threads import BufferPool, limit_threads, run_all
from ndtool.rules.dtypes import Dtype
from ndtool.rules.plans import Shape

WriteAt = Callable[[int, memoryview], object]  # write(start, bytes)


def normalize(
    data: Operand,
    shape: Shape,
    dtype: Dtype,
    order: str,
    out: Buffer,
    threads: int,
    progress: ProgressCallback = ignore_progress,
) -> None:
    """Copy an array to `out` in row-major order and byte order `order`, "<" or ">"."""
    size = prod(shape) * dtype.itemsize
    if not size:
        return
    sizes, strides = layouts.merge_axes(shape, data.strides)
    piece = dtype.itemsize
    if strides and strides[-1] == piece and sizes[-1] * piece <= tuning.WORK_ITEM:
        sizes, strides, piece = sizes[:-1], strides[:-1], sizes[-1] * piece
    layout = _kernels.Layout(sizes or (1,), strides or (piece,), piece)
    options = KernelOptions(limit_threads(threads, 2 * size), size >= tuning.NON_TEMPORAL)
    step = max(1, layout.pieces * tuning.WORK_ITEM // size)
    for first in range(0, layout.pieces, step):
        stop = min(layout.pieces, first + step)
        _kernels.copy_pieces(layout, data.buffer, data.origin, out, first, stop, options)
        progress(stop / layout.pieces)
    if dtype.swap_size > 1 and dtype.order != order:
        swap_bytes(out[:size], dtype.swap_size)


class Box(NamedTuple):
    """A box of an array: successive rows, or the same contiguous elements of each.

    source_offset: the byte offset of its first element in the source. offset: in the output.
    pitch: row stride of the output, in bytes. shape: (rows, ...). strides: of the source, in bytes.
    """

    source_offset: int
    offset: int
    pitch: int
    shape: Shape
    strides: Strides


def write_normalized(
    data: Operand, shape: Shape, dtype: Dtype, order: str, write: WriteAt, threads: int
) -> None:
    """Normalize an array in boxes of about NORMALIZED_BOX bytes, each written when complete."""
    itemsize = dtype.itemsize
    size = prod(shape) * itemsize
    if not size:
        return
    sizes, strides = layouts.merge_axes(shape, data.strides)

    def normalize_box(box: Box) -> None:
        buffer = buffers.acquire()
        target = buffer[: prod(box.shape) * itemsize]
        source = Operand(data.buffer, data.origin + box.source_offset, box.strides)
        normalize(source, box.shape, dtype, order, target, 1)
        width = len(target) // box.shape[0]
        if width == box.pitch:
            write(box.offset, target)
        else:
            for row in range(box.shape[0]):
                write(box.offset + row * box.pitch, target[row * width : (row + 1) * width])
        buffers.release(buffer)

    buffers = BufferPool(min(size, max(tuning.NORMALIZED_BOX, itemsize)))
    sizes, strides = sizes or (1,), strides or (itemsize,)
    boxes = divide_into_boxes(sizes, strides, itemsize, tuning.NORMALIZED_BOX)
    run_all(normalize_box, boxes, limit_threads(threads, 2 * size))


def divide_into_boxes(sizes: Shape, strides: Strides, itemsize: int, limit: int) -> Iterator[Box]:
    """Divide an array into boxes of about `limit` bytes, of complete rows if these are shorter.

    Otherwise a box has part of each row, and enough rows to read full cache lines if the array is
    in Fortran order.
    """
    max_elements = max(1, limit // itemsize)
    out_strides = layouts.contiguous_strides(sizes, itemsize)
    pitch = out_strides[0]
    box_rows = min(sizes[0], max(limit // pitch, min(LINE, max_elements)))
    axis, inner = len(sizes) - 1, 1  # the divided axis, elements of the axes after it
    while axis > 1 and sizes[axis] * inner * box_rows <= max_elements:
        inner *= sizes[axis]
        axis -= 1
    if not axis:
        for first in range(0, sizes[0], box_rows):
            rows = min(box_rows, sizes[0] - first)
            yield Box(first * strides[0], first * pitch, pitch, (rows,), strides)
        return
    box_columns = max(1, max_elements // (box_rows * inner))
    row_starts, column_starts = range(0, sizes[0], box_rows), range(0, sizes[axis], box_columns)
    for start in product(row_starts, *map(range, sizes[1:axis]), column_starts):
        rows = min(box_rows, sizes[0] - start[0])
        columns = min(box_columns, sizes[axis] - start[-1])
        yield Box(
            sum(map(int.__mul__, start, strides)),
            sum(map(int.__mul__, start, out_strides)),
            pitch,
            (rows, columns, *sizes[axis + 1 :]),
            (strides[0], *strides[axis:]),
        )


def swap_bytes(buffer: Buffer, unit_bytes: int) -> None:
    """Reverse the bytes of every unit of `unit_bytes` bytes of a buffer, in place."""
    step = max(1, tuning.WORK_ITEM // unit_bytes) * unit_bytes
    for first in range(0, len(buffer), step):
        _kernels.swap(buffer[first : first + step], unit_bytes)
