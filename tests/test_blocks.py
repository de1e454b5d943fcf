"""Walks over index tuples, block by block: right and refused wherever a block ends.

Of data that no core's cache holds, a walk knows the next block beside the one it copies.
"""

from functools import partial
from itertools import product

import numpy as np
import pytest

from ndtool import BoundsError, gather_nd, scatter_nd

SIZES = {"near": 5000, "far": 1 << 20}  # bytes of data, which a core's cache holds or not
COUNTS = [edge + step for edge in (128, 256, 512, 1024) for step in (-1, 0, 1)]


@pytest.mark.parametrize("where", SIZES)
@pytest.mark.parametrize("width", [1, 2, 3, 4, 8, 16, 24, 64, 65, 300])
def test_as_many_tuples_as_a_block_has_and_one_more(width: int, where: str) -> None:
    rng = np.random.default_rng(51)
    rows = SIZES[where] // width
    data = rng.integers(0, 256, (rows, width), np.uint8)
    for count in COUNTS:
        indices = rng.integers(-rows, rows, (count, 1))
        assert (gather_nd(data, indices, threads=1) == data[indices[:, 0]]).all(), count
        updates = rng.integers(0, 256, (count, width), np.uint8)
        expected = data.copy()
        for place, update in zip(indices[:, 0], updates, strict=True):
            expected[place] = update
        assert (scatter_nd(data, indices, updates, threads=1) == expected).all(), count
        expected = data.copy()
        np.add.at(expected, indices[:, 0], updates)
        assert (scatter_nd(data, indices, updates, "add", threads=1) == expected).all(), count


@pytest.mark.parametrize("where", SIZES)
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_a_bad_index_anywhere_in_a_block(k: int, where: str) -> None:
    rng = np.random.default_rng(52)
    side = round((SIZES[where] / 4) ** (1 / k))
    data = rng.random((side,) * k, np.float32)
    indices = rng.integers(-side, side, (600, k))
    picked = data[tuple(indices.T)]
    assert (gather_nd(data, indices) == picked).all()
    for place, value in product((0, 127, 128, 255, 256, 511, 512, 599), (side, -side - 1)):
        wrong = indices.copy()
        wrong[place, place % k] = value
        out = np.zeros(600, np.float32)
        for call in (
            partial(gather_nd, data, wrong),
            partial(gather_nd, data, wrong, out=out),
            partial(scatter_nd, data, wrong, picked),
            partial(scatter_nd, data, wrong, picked, "max"),
        ):
            with pytest.raises(BoundsError) as caught:
                call()
            assert (caught.value.position, caught.value.component) == ((place,), place % k)
        assert not out.any()
