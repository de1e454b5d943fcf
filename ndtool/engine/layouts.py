"""Memory layouts: functions on shapes and strides in bytes, without NumPy."""

from functools import lru_cache

from ndtool._kernels import LINE
from ndtool.rules.dtypes import Dtype
from ndtool.rules.plans import Shape

Strides = tuple[int, ...]


def contiguous_strides(shape: Shape, itemsize: int, fortran: bool = False) -> Strides:
    """Return the strides of a contiguous array, in C or in Fortran order.

    >>> contiguous_strides((2, 3), 4)
    (12, 4)
    """
    strides, step = [], itemsize
    for size in shape if fortran else reversed(shape):
        strides.append(step)
        step *= size
    return tuple(strides) if fortran else tuple(reversed(strides))


def is_contiguous(shape: Shape, strides: Strides, itemsize: int) -> bool:
    """Whether an array is C-contiguous."""
    step = itemsize
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def is_normalized(shape: Shape, strides: Strides, dtype: Dtype, order: str) -> bool:
    """Whether an array is C-contiguous and in byte order `order`, as `normalize` returns it."""
    is_swapped = dtype.swap_size > 1 and dtype.order != order
    return not is_swapped and is_contiguous(shape, strides, dtype.itemsize)


def merge_axes(shape: Shape, strides: Strides) -> tuple[Shape, Strides]:
    """Merge adjacent axes that one stride describes; drop axes of size 1.

    >>> merge_axes((2, 3, 4), (48, 16, 4))
    ((24,), (4,))
    """
    merged_shape: list[int] = []
    merged_strides: list[int] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if merged_strides and merged_strides[-1] == size * stride:
            merged_shape[-1] *= size
            merged_strides[-1] = stride
        else:
            merged_shape.append(size)
            merged_strides.append(stride)
    return tuple(merged_shape), tuple(merged_strides)


@lru_cache(maxsize=1024)
def is_scattered(shape: Shape, strides: Strides) -> bool:
    """Whether successive elements in row-major order are on different cache lines.

    >>> is_scattered((100, 3), (4, 400))
    True
    """
    _, merged_strides = merge_axes(shape, strides)
    return len(merged_strides) > 1 and abs(merged_strides[-1]) >= LINE


def unravel_index(index: int, shape: Shape) -> tuple[int, ...]:
    """Return the coordinates of the element at flat index `index`, in row-major order."""
    coordinates = []
    for size in reversed(shape):
        index, coordinate = divmod(index, size)
        coordinates.append(coordinate)
    return tuple(reversed(coordinates))
