"""The slow reference of TensorScatter: the loop of the ONNX text, element by element."""

from collections.abc import Callable
from operator import index as as_integer
from typing import Any

import numpy as np

from ndtool.analysis.oracle.reductions import Array
from ndtool.analysis.oracle.refusals import require
from ndtool.analysis.oracle.updating import as_bytes
from ndtool.errors import BoundsError


def tensor_scatter(
    past: Array,
    update: Array,
    write_indices: Array | None = None,
    axis: int = -2,
    mode: str = "linear",
    *,
    allocate: Callable[[tuple[int, ...], Any], Array] = np.empty,
) -> Array:
    """Return a copy of `past` with `update` written along `axis`, as ONNX TensorScatter does.

    output[p][w[p[0]] + i] = update[p][i] for p in past.shape[:axis], i < update.shape[axis],
    w = write_indices. The mode circular takes the position along the axis modulo the axis size.
    """
    past, update, r = np.asarray(past), np.asarray(update), np.ndim(past)
    require(mode in ("linear", "circular"), f"mode {mode}: valid linear, circular")
    require(past.dtype == update.dtype, f"update of {update.dtype}: it must be {past.dtype}")
    require(r >= 2, f"rank {r}: it must be at least 2")
    require(-r <= as_integer(axis) < r and axis % r != 0, f"axis {axis}: valid 1..{r - 1}")
    axis %= r
    size, length = past.shape[axis], update.shape[axis : axis + 1]
    expected = past.shape[:axis] + length + past.shape[axis + 1 :]
    require(update.shape == expected, f"update {update.shape}: it must be {expected}")
    require(length[0] <= size, f"{length[0]} elements along the axis: valid 0..{size}")
    starts = [0] * past.shape[0] if write_indices is None else np.asarray(write_indices).tolist()
    require(len(starts) == past.shape[0], "one index for each batch")
    last = size - length[0]
    bad = [n for n, start in enumerate(starts) if not 0 <= start <= last]
    if mode == "linear" and bad:
        raise BoundsError(
            position=(bad[0],), axis=axis, value=starts[bad[0]], size=size, count=len(bad),
            total=len(starts), lowest=0, length=length[0],
        )  # fmt: skip
    output = allocate(past.shape, past.dtype)
    output_bytes, update_bytes = as_bytes(output), as_bytes(update)
    output_bytes[...] = as_bytes(past)
    for prefix in np.ndindex(past.shape[:axis]):
        for i in range(length[0]):
            position = starts[prefix[0]] + i
            destination = position % size if mode == "circular" else position
            output_bytes[*prefix, destination, ...] = update_bytes[*prefix, i, ...]
    return output
