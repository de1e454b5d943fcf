"""Operators with plain indices and with tuples: hints from one to another, and other libraries."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool as command
from command import save
from later import later
from strategies import bits_equal

import ndtool

torch = later("torch")
RNG = np.random.default_rng(7)


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        ("scatter-nd data.npy ids.npy rows.npy", "ndtool scatter data.npy ids.npy rows.npy"),
        (
            "scatter-nd data.npy ids.npy columns.npy --reduction add",
            "ndtool scatter data.npy ids.npy columns.npy --axis 1 --reduction add",
        ),
        ("scatter data.npy tuples.npy rows.npy", "ndtool scatter-nd data.npy tuples.npy rows.npy"),
        (
            "scatter data.npy element_indices.npy element_updates.npy",
            "ndtool scatter-elements data.npy element_indices.npy element_updates.npy",
        ),
        (
            "scatter-nd data.npy element_indices.npy element_updates.npy",
            "ndtool scatter-elements data.npy element_indices.npy element_updates.npy",
        ),
        ("scatter-elements data.npy ids.npy rows.npy", "ndtool scatter data.npy ids.npy rows.npy"),
        ("gather-nd data.npy element_indices.npy", "ndtool gather data.npy element_indices.npy"),
        ("gather-nd data.npy ids.npy", "ndtool gather data.npy ids.npy"),
        (  # scatter-nd has no --axis
            "scatter data.npy tuples.npy rows.npy --axis 1",
            "ndtool scatter-nd data.npy tuples.npy rows.npy",
        ),
    ],
)
def test_a_hint_at_another_operator_that_the_shapes_fit(
    workdir: Path, call: str, hint: str
) -> None:
    save(data=np.zeros((5, 4)), ids=np.array([1, 2, 3]), tuples=np.array([[1], [2], [3]]))
    save(rows=np.zeros((3, 4)), columns=np.zeros((5, 3)))
    save(element_indices=np.zeros((2, 3), int), element_updates=np.zeros((2, 3)))
    result = command(*call.split(), "-o", "out.npy")
    assert result.status == 4
    assert result.err.rstrip().endswith(hint)
    assert command(*hint.split()[1:], "-o", "out.npy").status == 0


TORCH: dict[str, Any] = {
    "none": lambda d, a, i, u: d.index_copy(a, i, u),
    "add": lambda d, a, i, u: d.index_add(a, i, u),
    "mul": lambda d, a, i, u: d.index_reduce(a, i, u, "prod"),
    "max": lambda d, a, i, u: d.index_reduce(a, i, u, "amax"),
    "min": lambda d, a, i, u: d.index_reduce(a, i, u, "amin"),
}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("reduction", TORCH)
def test_scatter_is_what_torch_gives(reduction: str) -> None:
    for number in range(50):
        shape = tuple(RNG.integers(1, 9, RNG.integers(1, 4)).tolist())
        axis, count = int(RNG.integers(0, len(shape))), int(RNG.integers(0, 20))
        if reduction == "none":  # torch does not define the result of duplicates
            count = min(count, shape[axis])
        indices = RNG.permutation(max(shape[axis], count))[:count] % shape[axis]
        data = RNG.integers(-50, 50, shape)
        updates = RNG.integers(-50, 50, (*shape[:axis], count, *shape[axis + 1 :]))
        result = ndtool.scatter(data, indices, updates, axis, reduction, threads=1 + number % 2)
        tensors = (torch.from_numpy(a) for a in (data, indices, updates))
        d, i, u = tensors
        assert bits_equal(result, TORCH[reduction](d, axis, i, u).numpy())


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("name", ["sum", "prod", "amax", "amin", "mean"])
@pytest.mark.parametrize("dtype", ["int32", "float64"])
def test_scatter_elements_is_what_scatter_reduce_gives(
    dtype: str, name: Any, include_self: bool
) -> None:
    for _ in range(50):
        shape = tuple(RNG.integers(1, 9, RNG.integers(1, 4)).tolist())
        axis = int(RNG.integers(0, len(shape)))
        lengths = [int(RNG.integers(1, n + 1)) for n in shape]
        lengths[axis] = int(RNG.integers(0, 20))
        indices = RNG.integers(0, shape[axis], lengths)
        data, updates = (RNG.integers(-9, 9, size).astype(dtype) for size in (shape, lengths))
        result = ndtool.scatter_elements(
            data, indices, updates, axis, name, include_self=include_self
        )
        d, i, u = (torch.from_numpy(a) for a in (data, indices, updates))
        expected = torch.scatter_reduce(d, axis, i, u, name, include_self=include_self)
        assert bits_equal(result, expected.numpy())
