"""ndtool.dask: the operators on dask arrays, with the bits of the sequential loop."""

import doctest
import importlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from later import later
from strategies import bits_equal

import ndtool

dask, da = later("dask"), later("dask.array")
lazy, phases = later("ndtool.dask"), later("ndtool.outofcore.lazy")


@pytest.fixture(autouse=True)
def synchronous() -> Iterator[None]:
    with dask.config.set(scheduler="sync"):
        yield


# Graphs


def count_chunks(array: Any, counts: Counter[Any], name: str) -> Any:
    """Return a dask array that counts how often each chunk is computed."""

    def count(block: np.ndarray, block_info: Any = None) -> np.ndarray:
        counts[name, block_info[0]["chunk-location"]] += 1
        return block

    return array.map_blocks(count, dtype=array.dtype, meta=np.empty((0,) * array.ndim, array.dtype))


@pytest.mark.parametrize("in_memory", [False, True], ids=["lazy indices", "indices in memory"])
def test_chunks_are_computed_lazily_and_once(in_memory: bool) -> None:
    rng = np.random.default_rng(5)
    data, indices = rng.random((12, 10)), rng.integers(-12, 12, (9, 4, 1))
    updates = rng.random((9, 4, 10))
    counts: Counter[Any] = Counter()
    x = count_chunks(da.from_array(data, (5, 3)), counts, "data")
    i = indices if in_memory else count_chunks(da.from_array(indices, (4, 3, 1)), counts, "indices")
    u = count_chunks(da.from_array(updates, (4, 2, 3)), counts, "updates")
    gathered, scattered = lazy.gather_nd(x, i), lazy.scatter_nd(x, i, u, "add")
    assert not counts
    with dask.config.set(scheduler="threads"):
        gather_result, scatter_result = dask.compute(gathered, scattered)
    assert bits_equal(gather_result, ndtool.gather_nd(data, indices))
    assert bits_equal(scatter_result, ndtool.scatter_nd(data, indices, updates, "add"))
    assert set(counts.values()) == {1}
    assert len(counts) == 3 * 4 + 3 * 2 * 4 + (0 if in_memory else 3 * 2)


def test_only_chunks_that_indices_in_memory_select_from_are_read() -> None:
    counts: Counter[Any] = Counter()
    data = np.arange(1000).reshape(100, 10)
    x = count_chunks(da.from_array(data, (10, 5)), counts, "data")
    result = lazy.gather(x, [3, -1, 5, 99])
    assert bits_equal(result.compute(), data[[3, -1, 5, 99]])
    assert {location for _, location in counts} == {(0, 0), (0, 1), (9, 0), (9, 1)}
    counts.clear()
    lazy.gather_elements(x, da.from_array(np.full((5, 10), 42), (5, 5)), 0).compute()
    # for lazy indices, only the range of the axes other than the indexed one is known
    assert len(counts) == 20
    counts.clear()
    lazy.gather_elements(x, da.from_array(np.full((100, 1), 4), (5, 1)), 1).compute()
    assert len(counts) == 20
    counts.clear()
    assert lazy.gather_elements(x, np.full((5, 10), 42), 0).compute()[0, 0] == 420
    assert {location for _, location in counts} == {(4, 0), (4, 1)}


@pytest.mark.parametrize("n", [1, 4, 5, 30, 100])
def test_the_number_of_tasks_is_linear_in_chunks(n: int) -> None:
    x, i = da.zeros((400, 30), chunks=(4, 15)), da.zeros(300, dtype=int, chunks=300 // n)
    u = da.zeros((300, 30), chunks=(300 // n, 15))
    before = {key for array in (x, i, u) for key in array.__dask_graph__()}
    gathered, scattered = lazy.gather(x, i).__dask_graph__(), lazy.scatter(x, i, u).__dask_graph__()
    # two tasks for each chunk of data, indices and updates or output; one call and one check
    assert len(set(gathered) - before) <= 2 * (200 + n + 2 * n) + 2
    assert len(set(scattered) - before) <= 2 * (200 + n + 2 * n) + 2
    # partitions are passed on in groups: a task depends on about the square root of the chunks
    for graph in (gathered, scattered):
        dependencies = {key: len(keys) for key, keys in graph.get_all_dependencies().items()}
        max_count = max(count for key, count in dependencies.items() if "verdict" not in key[0])
        assert max_count <= (2 * 10 + 3 if n > 1 else 100 + 3)


def test_indices_in_memory_need_no_tasks() -> None:
    x = da.zeros((400, 30), chunks=(4, 15))
    result = lazy.gather(x, np.zeros(300, int))
    tasks = set(result.__dask_graph__()) - set(x.__dask_graph__())
    assert len(tasks) == 2 * (1 + 1) + 2  # chunk 0 and the output; the call and its split


def test_equal_calls_have_equal_names() -> None:
    x = da.arange(20, chunks=3)
    first, second, padded = (lazy.gather(x, [1], pad=pad) for pad in (None, None, 5))
    assert first.name == second.name != padded.name
    assert first.name.startswith("gather-")


def test_results_in_other_chunks_have_other_names() -> None:
    x, indices = da.ones((100, 4), chunks=(10, 4)), np.arange(100)[:, None] % 7
    default = lazy.gather_nd(x, indices)
    with dask.config.set({"array.chunk-size": "256B"}):
        small_chunks = lazy.gather_nd(x, indices)
    assert default.chunks != small_chunks.chunks
    assert (default.sum() + small_chunks.sum()).compute() == 800


def test_result_is_independent_of_the_caller() -> None:
    data, indices = np.arange(6), np.array([1, 2])
    result = lazy.gather(da.from_array(data.copy(), 2), indices)
    indices[:] = 0
    assert result.compute().tolist() == [1, 2]
    scattered = lazy.scatter(da.from_array(data, -1), np.zeros(0, int), np.zeros(0, int)).compute()
    assert not np.shares_memory(scattered, data)


# Errors


def test_first_index_out_of_bounds_of_all_chunks_is_reported() -> None:
    indices = np.zeros((20, 10, 2), int)
    indices[15, 1, 0], indices[3, 9, 1], indices[3, 8, 0] = 7, 9, -8
    x = da.zeros((5, 6), chunks=2)
    lazy_result = lazy.gather_nd(x, da.from_array(indices, (4, 3, 1)))
    for call in (lazy_result.compute, lambda: lazy.gather_nd(x, indices)):
        with dask.config.set(scheduler="threads"), pytest.raises(ndtool.BoundsError) as excinfo:
            call()
        error = excinfo.value
        assert (error.position, error.component, error.value) == ((3, 8), 0, -8)
        assert (error.axis, error.size, error.count, error.total) == (0, 5, 3, 200)
    with pytest.raises(ndtool.BoundsError, match="1180591620717411303424"):
        lazy.gather(x, [0, 2**70])


def test_a_gather_from_an_axis_of_size_0_has_the_fill_value() -> None:
    for options in ({"out_of_bounds": "fill"}, {"pad": 3}, {"out_of_bounds": "fill", "pad": 3}):
        for indices in (np.full(4, 3), da.full(4, 3, chunks=3)):
            result = lazy.gather(da.zeros((0, 2)), indices, fill=7, **options)
            assert bits_equal(result.compute(), np.full((4, 2), 7.0))


def test_updates_without_elements_may_have_other_chunks() -> None:
    """Dask's rechunk does not change an array whose axes all have size 0."""
    data = da.ones((3, 0), chunks=((1, 2), (0, 0)))
    result = lazy.scatter_nd(data, np.array([1]), da.empty(0)).compute()
    assert bits_equal(result, np.ones((3, 0)))
    for scatter, array in ((lazy.scatter_nd, data), (lazy.scatter_elements, data.T)):
        updates, index = da.empty((1, array.shape[1] and 1)), da.full((1, 1), 3)
        with pytest.raises(ndtool.BoundsError, match="1 of 1"):
            scatter(array, index, updates).compute()


def test_duplicates_are_found_across_chunks() -> None:
    x, u = da.zeros(100, chunks=7), da.arange(50, chunks=9).astype(float)
    indices = np.arange(50).reshape(50, 1)
    indices[40] = indices[3] = 30
    lazy_result = lazy.scatter_nd(x, da.from_array(indices, 6), u, duplicates="error")
    for call in (lazy_result.compute, lambda: lazy.scatter_nd(x, indices, u, duplicates="error")):
        with pytest.raises(ndtool.DuplicatesError) as excinfo:
            call()
        assert (excinfo.value.first, excinfo.value.second) == ((3,), (30,))


def raise_in_graph(block: np.ndarray) -> np.ndarray:
    raise ZeroDivisionError("of the graph")


def test_arguments_are_refused_when_the_graph_is_built() -> None:
    x = da.arange(20, chunks=3)
    refused = [
        (lambda: lazy.gather(x[x > 3], [0]), ndtool.RuleError, r"data\.compute_chunk_sizes\(\)"),
        (lambda: lazy.gather(x, x[x > 3]), ndtool.RuleError, "indices has chunks of unknown"),
        (lambda: lazy.gather(x.astype(object), [0]), ndtool.DtypeError, "Python objects"),
        (lambda: lazy.gather(x, x + 0.5), ndtool.DtypeError, "float64"),
        (lambda: lazy.gather(x, x + 0.5, index_base=1), ndtool.DtypeError, "float64"),
        (lambda: lazy.gather_nd(x, da.zeros((3, 2), dtype=int)), ndtool.RuleError, "must be in 1"),
        (lambda: lazy.scatter(x, [1], da.zeros(2, dtype=int)), ndtool.RuleError, "is required"),
        (lambda: lazy.gather("x.npy", [1]), ndtool.UsageError, "is a file name"),
        (lambda: lazy.gather(da.ma.masked_equal(x, 3), [1]), ndtool.DtypeError, "masked"),
        (lambda: lazy.gather(x, [1], threads=1), TypeError, "argument 'threads'"),
        (lambda: lazy.gather(x, [1], duplicates="last"), TypeError, "argument 'duplicates'"),
        (lambda: lazy.gather(x, [1], spec="onnx:1", pad=3), ndtool.NdtoolError, "pad"),
    ]  # fmt: skip
    for call, error_type, message in refused:
        with pytest.raises(error_type, match=message):
            call()


@pytest.mark.parametrize("role", ["data", "indices", "updates"])
def test_chunks_of_another_shape_or_type_are_refused(role: str) -> None:
    arrays_of_zeros = {
        name: da.zeros(12, dtype=int, chunks=3) for name in ("data", "indices", "updates")
    }
    changes_by_error = {
        ZeroDivisionError: raise_in_graph,
        ndtool.RuleError: lambda block: block[:1],
        ndtool.DtypeError: lambda block: np.ma.masked_equal(block, 0),
    }
    changes = [*changes_by_error.items(), (ndtool.RuleError, lambda block: block.astype(float))]
    for error_type, change_block in changes:
        arrays = arrays_of_zeros | {
            role: arrays_of_zeros[role].map_blocks(change_block, dtype=int, meta=np.empty(0, int))
        }
        with pytest.raises(error_type):
            lazy.scatter(*arrays.values()).compute()
    meta = np.empty(0, int)
    swapped = arrays_of_zeros[role].map_blocks(lambda b: b.astype(">i8"), dtype=int, meta=meta)
    result = lazy.scatter(*(arrays_of_zeros | {role: swapped}).values())
    assert result.compute().tolist() == [0] * 12


def test_functions_for_arrays_in_memory_refuse_dask_arrays() -> None:
    x = da.arange(5)
    with pytest.raises(ndtool.DtypeError, match=r"use ndtool\.dask, or pass data\.compute\(\)$"):
        ndtool.gather(x, [1])


def test_chunks_of_more_than_32_bits_of_rows_are_split() -> None:
    x = da.zeros((3 << 33,), dtype=np.uint8, chunks=3 << 32)
    assert lazy.gather(x, da.from_array(np.array([5, -1, 1 << 33]))).dtype == np.uint8
    graph = lazy.gather(x, np.array([5, -1])).__dask_graph__()  # local rows need 64 bits
    splits = [value for value in graph.values() if isinstance(value, phases.Split)]
    (((_, first),), ((_, last),)) = splits[0].segments.values()
    assert (first.tolist(), last.tolist()) == ([5], [(3 << 32) - 1])


def test_dask_is_imported_on_use() -> None:
    script = """
import sys, ndtool
assert "dask" not in sys.modules and "xarray" not in sys.modules
assert ndtool.dask.gather and "dask" in sys.modules
from ndtool import *
assert "ndtool.xarray" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.slow("graphs run in other processes")
def test_graphs_run_in_other_processes() -> None:
    data, indices = np.arange(300.0).reshape(30, 10), np.arange(-30, 30).reshape(20, 3)
    x = da.from_array(data, (7, 4))
    for index_array in (indices, da.from_array(indices, (6, 2))):
        result = lazy.scatter(
            lazy.gather(x, index_array).reshape(60, 10), index_array, lazy.gather(x, index_array)
        )
        with dask.config.set(scheduler="processes", num_workers=2):
            actual = result.compute()
        gathered = data[indices]
        assert bits_equal(actual, ndtool.scatter(gathered.reshape(60, 10), indices, gathered))
    result = lazy.gather(x, da.from_array(np.array([30])))
    with pytest.raises(ndtool.BoundsError, match="1 of 1"):
        result.compute(scheduler="processes", num_workers=1)


def test_docstring_examples_run() -> None:
    assert doctest.testmod(importlib.import_module("ndtool.dask")).failed == 0
