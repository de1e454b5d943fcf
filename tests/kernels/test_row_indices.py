"""Row indices, and the check of all indices before `out=` changes."""

import numpy as np
import pytest

from ndtool import BoundsError, gather_elements, gather_nd, scatter_nd
from ndtool.engine import tuning

RNG = np.random.default_rng(61)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("non_temporal", [1, 1 << 40])
@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8", "c16"])
@pytest.mark.parametrize("shape", [(7, 3000), (1, 70_000), (300, 520)])
def test_short_rows_are_gathered_by_row_indices(
    shape: tuple[int, int],
    dtype: str,
    non_temporal: int,
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that fit in the cache or not."""
    monkeypatch.setattr(tuning, "NON_TEMPORAL", non_temporal)
    count, length = shape
    data = RNG.integers(0, 2, (count, length, np.dtype(dtype).itemsize), np.uint8).view(dtype)[
        ..., 0
    ]
    indices = RNG.integers(-length, length, (count, 2 * length + 77))
    buffer = np.zeros(indices.size + 1, dtype)
    out = buffer[1:].reshape(indices.shape)  # begins within a cache line
    gather_elements(data, indices, 1, out=out, threads=threads)
    assert out.tobytes() == np.take_along_axis(data, indices, 1).tobytes()
    assert buffer[0] == 0


@pytest.mark.parametrize("row", [0, 511, 512, 1700, 2999])
@pytest.mark.parametrize("value", [400, -401, 2**40, -(2**63)])
def test_an_index_out_of_bounds_leaves_out_unchanged(row: int, value: int) -> None:
    data = RNG.random((300, 400), np.float32)
    indices = RNG.integers((-300, -400), data.shape, (3000, 2))
    indices[row, 1] = value
    updates = RNG.random(3000, np.float32)
    for call, shape in (
        (lambda out: gather_nd(data, indices, out=out), updates.shape),
        (lambda out: scatter_nd(data, indices, updates, "add", out=out), data.shape),
    ):
        out = np.full(shape, 7, np.float32)
        with pytest.raises(BoundsError) as excinfo:
            call(out)
        assert (excinfo.value.position, excinfo.value.component) == ((row,), 1)
        assert (excinfo.value.value, excinfo.value.size) == (value, 400)
        assert (out == 7).all()


def test_an_index_out_of_bounds_leaves_out_unchanged_in_large_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuning, "MAX_PARTITIONS", 4)
    monkeypatch.setattr(tuning, "MAX_PARTITION", 1 << 18)
    size, count = 1 << 25, 1 << 15
    data, out = np.zeros(size, np.uint8), np.full(size, 7, np.uint8)
    indices = np.random.default_rng(0).integers(0, size, (count, 1))
    updates = np.ones(count, np.uint8)
    scatter_nd(data, indices, updates, out=out)
    assert out[indices[0, 0]] == 1
    out[:] = 7
    indices[-1] = size
    for threads in (1, 2):
        with pytest.raises(BoundsError, match="1 of 32768"):
            scatter_nd(data, indices, updates, out=out, threads=threads)
        assert (out == 7).all()
