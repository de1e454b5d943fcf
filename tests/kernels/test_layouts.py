"""Strides compared with NumPy's."""

import numpy as np
import pytest
from strategies import Array

from ndtool.engine import layouts

BASE = np.arange(2 * 3 * 4 * 5, dtype="i4").reshape(2, 3, 4, 5)
ARRAYS = {
    "complete": BASE, "slice": BASE[:, 1:], "every other": BASE[..., ::2], "reversed": BASE[::-1],
    "last two": BASE[:, :, 2:], "one axis": BASE[0, 0, 0], "two of a column": BASE[:, 0, 0, 0],
    "scalar": BASE[1, 2, 3, 4], "axes of size 1": BASE[:1, :, :1], "new axes": BASE[:, None, :, :, None],
    "transposed": BASE.T, "two axes transposed": BASE.transpose(0, 1, 3, 2), "repeated": np.broadcast_to(BASE[0], (2, 3, 4, 5)),
}  # fmt: skip


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_layouts(array: Array) -> None:
    shape, strides = array.shape, array.strides
    assert layouts.is_contiguous(shape, strides, 4) == array.flags.c_contiguous
    for order in "CF":
        assert (
            layouts.contiguous_strides(shape, 4, order == "F")
            == np.empty(shape, "i4", order).strides
        )
    sizes, steps = layouts.merge_axes(shape, strides)
    assert 1 not in sizes
    assert len(sizes) <= sum(size > 1 for size in shape)
    merged_view = np.lib.stride_tricks.as_strided(array, sizes, steps)
    assert merged_view.ravel().tolist() == array.ravel().tolist()
    for linear_index in range(array.size):
        assert layouts.unravel_index(linear_index, shape) == np.unravel_index(linear_index, shape)


def test_axes_with_contiguous_strides_merge() -> None:
    assert layouts.merge_axes((2, 3, 4), (48, 16, 4)) == ((24,), (4,))
    assert layouts.merge_axes((2, 1, 3), (12, 99, 4)) == ((6,), (4,))
    assert layouts.merge_axes((2, 3, 4), (96, 16, 4)) == ((2, 12), (96, 4))
    assert layouts.merge_axes((1, 1), (7, 7)) == ((), ())
