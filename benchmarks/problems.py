"""The arrays of a case, and its result by NumPy alone: fancy indexing and ufunc.at."""

from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from cases import Case, Shape
from numpy.typing import NDArray
from timing import Call

Array = NDArray[Any]

LINE, PAGE = 64, 4096
# Alignments of arrays, in bytes from a page boundary: large ones of NumPy follow malloc's header,
# those of a mapped .npy file its header.
NUMPY_OFFSET, ALIGNED_OFFSET = 16, 128
ALIGNMENTS = {"numpy": NUMPY_OFFSET, "aligned": ALIGNED_OFFSET}

UFUNCS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


class Problem(NamedTuple):
    """A case with its arrays; updates only for scatters."""

    case: Case
    data: Array
    indices: Array
    updates: Array | None

    @property
    def components(self) -> tuple[Array, ...]:
        """The components of all index tuples, one view each."""
        return tuple(np.moveaxis(self.indices, -1, 0))

    @property
    def positions(self) -> tuple[Any, ...]:
        """The index of data by which NumPy selects the same elements."""
        case = self.case
        if case.has_tuples:
            batches = np.ix_(*map(np.arange, case.indices_shape[:-1]))[: case.batch_dims]
            return (*batches, *self.components)
        positions = list(np.ix_(*map(np.arange, case.indices_shape)))
        positions[case.attribute] = self.indices
        return tuple(positions)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The positional arguments of the operator."""
        case = self.case
        if not case.is_scatter:
            return self.data, self.indices, case.attribute
        if case.has_tuples:
            return self.data, self.indices, self.updates, case.reduction
        return self.data, self.indices, self.updates, case.attribute, case.reduction


def generate(case: Case, alignment: int = NUMPY_OFFSET) -> Problem:
    """Draw the arrays of a case, the same ones in every run, and align them."""
    rng = np.random.default_rng(crc32(case.name.encode()))
    data = _copy_in_layout(_random_values(rng, case.dtype, case.data_shape), case.layout, alignment)
    updates = (
        copy_aligned(_random_values(rng, case.dtype, case.selected_shape), alignment)
        if case.is_scatter
        else None
    )
    return Problem(case, data, copy_aligned(_indices(rng, case), alignment), updates)


def realign(problem: Problem, alignment: int) -> Problem:
    """Return the same problem with its arrays realigned, itself if they are aligned so."""
    if all(a.ctypes.data % PAGE == alignment for a in (problem.data, problem.indices)):
        return problem
    updates = None if problem.updates is None else copy_aligned(problem.updates, alignment)
    return problem._replace(
        data=_copy_in_layout(problem.data, problem.case.layout, alignment),
        indices=copy_aligned(problem.indices, alignment),
        updates=updates,
    )


def copy_aligned(array: Array, alignment: int) -> Array:
    """Return a copy, in row-major order, `alignment` bytes after a page boundary."""
    buffer = np.empty(array.nbytes + PAGE, np.uint8)
    begin = (alignment - buffer.ctypes.data) % PAGE
    copy = buffer[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def compute_expected(problem: Problem) -> Array:
    """Return the result of the sequential loop."""
    if problem.updates is None:
        return problem.data[problem.positions]
    result = problem.data.copy(order="C")
    update(result, problem.positions, problem.updates, problem.case.reduction)
    return result


def update(target: Array, positions: Any, updates: Array, reduction: str) -> None:
    """Update an array in place, as the sequential loop does."""
    if reduction == "none":
        target[positions] = updates
    else:
        UFUNCS[reduction].at(target, positions, updates)


def is_identical(result: Array, expected: Array) -> bool:
    """Whether two arrays are equal in dtype, shape and every bit."""
    return (
        result.dtype == expected.dtype
        and result.shape == expected.shape
        and np.array_equal(_bits(result), _bits(expected))
    )


def is_close(result: Array, expected: Array) -> bool:
    """Whether the results differ by no more than the order of additions explains."""
    return result.shape == expected.shape and np.allclose(result, expected, rtol=1e-4, atol=1e-5)


def gives(call: Call, out: Array, expected: Array) -> bool:
    """Whether a call writes the expected array, over other bytes."""
    out.view(np.uint8)[...] = 0xA5
    call()
    return is_identical(out, expected)


def _bits(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def _random_values(rng: np.random.Generator, name: str, shape: Shape) -> Array:
    dtype = _dtype(name)
    if dtype.kind in "iu":
        return rng.integers(0, 100, shape).astype(dtype)
    if dtype.kind == "c":
        return (rng.random(shape) + 1j * rng.random(shape)).astype(dtype)
    if dtype in (np.float32, np.float64):
        return rng.random(shape, dtype.type)
    return rng.random(shape, np.float32).astype(dtype)


def _copy_in_layout(data: Array, layout: str, alignment: int) -> Array:
    """Return a copy of data in a memory order, with the same values."""
    if layout == "F":
        return copy_aligned(data.T, alignment).T
    if layout == "reversed":
        return copy_aligned(data[::-1], alignment)[::-1]
    return copy_aligned(data, alignment)


def _indices(rng: np.random.Generator, case: Case) -> Array:
    if case.has_tuples:
        sizes = case.data_shape[case.batch_dims : case.batch_dims + case.k]
        components = [
            _random_indices(rng, case.pattern, size, case.indices_shape[:-1]) for size in sizes
        ]
        indices = np.stack(components, axis=-1)
    else:
        indices = _random_indices(
            rng, case.pattern, case.data_shape[case.attribute], case.indices_shape
        )
    return indices.astype(case.index_dtype)


def _random_indices(rng: np.random.Generator, pattern: str, size: int, shape: Shape) -> Array:
    """Draw indices into an axis; sorted and clustered ones along the first axis of `shape`."""
    if pattern == "distinct":
        return rng.permutation(size)[: shape[0]].reshape(shape)
    if pattern == "negative":
        return rng.integers(-size, size, shape)
    if pattern == "one":
        return np.full(shape, size // 2)
    indices = rng.integers(0, size, shape)
    if pattern == "sorted":
        indices.sort(axis=0)
    if pattern == "clustered":
        # groups of adjacent indices, each with a random start
        steps = np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
        indices = (indices[steps[:, ...].ravel() // 64 * 64] + steps % 64) % size
    return indices
