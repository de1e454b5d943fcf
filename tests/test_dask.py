"""ndtool.dask: the operators on dask arrays, with the bits of the sequential loop."""

import doctest
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from strategies import EXAMPLES, Case, cases, raw, same, scatter_elements_cases, scatter_nd_cases

import ndtool
from ndtool.analysis.oracle import reference

da = pytest.importorskip("dask.array", exc_type=ImportError)
import dask  # noqa: E402

import ndtool.dask as lazy  # noqa: E402
from ndtool.chunkwise import datachunks, splits  # noqa: E402

PACKED = np.dtype([("a", "i1"), ("b", "i8")])
many = settings(
    max_examples=max(1, EXAMPLES // 3),  # each takes 20 ms
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with dask.config.set(scheduler="sync"):
        yield


@st.composite
def chunks_of(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Draw the chunks of an array: regular, or of any sizes, 0 included."""
    return tuple(draw(_sizes(size)) for size in shape)


@st.composite
def _sizes(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    step = draw(st.integers(1, 4))
    if size and draw(st.booleans()):
        return tuple(min(step, size - at) for at in range(0, size, step))
    ends = sorted(draw(st.lists(st.integers(0, size), max_size=3)))
    return tuple(b - a for a, b in zip([0, *ends], [*ends, size], strict=True))


@st.composite
def chunked(draw: st.DrawFn, case: Case) -> list[Any]:
    """Draw the inputs of a case as dask arrays, or as they are."""
    arrays: list[Any] = []
    for array in case.arrays:
        chunks = draw(chunks_of(array.shape))
        note(f"{array.dtype.str} {array.shape} chunks {chunks}")
        arrays.append(da.from_array(array, chunks) if draw(st.integers(0, 3)) else array)
    return arrays


@many
@given(st.data())
def test_any_call_has_the_bits_of_the_reference(data: st.DataObject) -> None:
    check(data, data.draw(cases))


@many
@given(st.data())
def test_updates_meet_in_row_major_order_of_all_indices(data: st.DataObject) -> None:
    check(data, data.draw(st.one_of(scatter_nd_cases(), scatter_elements_cases())))


def check(data: st.DataObject, case: Case) -> None:
    note(f"{case.operator} {case.arguments}")
    arrays = data.draw(chunked(case))
    before = [raw(array) for array in case.arrays]
    result = getattr(lazy, case.operator)(*arrays, **case.arguments)
    expected = getattr(reference, case.operator)(*case.arrays, **case.arguments)
    assert isinstance(result, da.Array)
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    most = data.draw(st.sampled_from((1, 1 << 20)))
    with mock.patch.object(datachunks, "BATCH", most), mock.patch.object(splits, "BATCH", most):
        blocks = dask.compute(*result.to_delayed().flat)
    assert [block.shape for block in blocks] == list(product(*result.chunks))
    actual = np.asarray(result.compute())
    if expected.dtype.names and expected.dtype.isalignedstruct:  # dask copies no padding
        actual, expected = (one.astype(PACKED) for one in (actual, expected))
    assert same(actual, expected)
    assert [raw(array) for array in case.arrays] == before


@st.composite
def wild(draw: st.DrawFn) -> Case:
    """Draw a call with indices out of bounds, pads and duplicates, and any rules for them."""
    case = draw(cases)
    data, indices, *rest = case.arrays
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    limits = np.iinfo(indices.dtype)
    odd = [
        v for v in (*range(-9, 9), 2**63, limits.min, limits.max) if limits.min <= v <= limits.max
    ]
    some = rng.random(indices.shape) < draw(st.sampled_from((0, 0.1, 0.5)))
    indices = np.where(some, rng.choice(np.array(odd, indices.dtype), indices.shape), indices)
    modes = ("error", "clip", "wrap", "drop" if rest else "fill")
    rules: dict[str, Any] = {"out_of_bounds": draw(st.sampled_from(modes))}
    if draw(st.booleans()):
        rules["pad"] = draw(st.integers(-3, 3))
    if draw(st.booleans()):
        rules["negatives"] = False
    if (
        not rest
        and ("pad" in rules or rules["out_of_bounds"] == "fill")
        and data.dtype.kind in "if"
    ):
        rules["fill"] = draw(st.sampled_from((None, 7)))
    if rest and case.arguments["reduction"] == "none":
        rules["duplicates"] = draw(st.sampled_from(("last", "first", "error")))
    return Case(case.operator, (data, indices, *rest), {**case.arguments, **rules})


def outcome(call: Callable[[], Any]) -> Any:
    """Return the result of a call, or what its error says."""
    try:
        result = np.asarray(call())
    except ndtool.NdtoolError as error:
        return {name: value for name, value in error.fields().items() if name != "places"}
    return result.astype(PACKED) if result.dtype.isalignedstruct else result


@many
@given(st.data())
def test_indices_out_of_bounds_pads_and_duplicates_as_in_memory(data: st.DataObject) -> None:
    case = data.draw(wild())
    note(f"{case.operator} {case.arguments}")
    arrays = data.draw(chunked(case))
    expected = outcome(lambda: getattr(ndtool, case.operator)(*case.arrays, **case.arguments))
    most = data.draw(st.sampled_from((1, 1 << 20)))
    with mock.patch.object(datachunks, "BATCH", most), mock.patch.object(splits, "BATCH", most):
        actual = outcome(lambda: getattr(lazy, case.operator)(*arrays, **case.arguments).compute())
    if isinstance(expected, dict):
        assert actual == expected
    else:
        assert same(actual, expected)


# Graphs


def counted(array: Any, seen: Counter[Any], name: str) -> Any:
    """Return a dask array that counts how often each chunk is computed."""

    def count(block: np.ndarray, block_info: Any = None) -> np.ndarray:
        seen[name, block_info[0]["chunk-location"]] += 1
        return block

    return array.map_blocks(count, dtype=array.dtype, meta=np.empty((0,) * array.ndim, array.dtype))


@pytest.mark.parametrize("now", [False, True], ids=["lazy indices", "indices in memory"])
def test_nothing_is_computed_at_once_or_twice(now: bool) -> None:
    rng = np.random.default_rng(5)
    data, indices = rng.random((12, 10)), rng.integers(-12, 12, (9, 4, 1))
    updates = rng.random((9, 4, 10))
    seen: Counter[Any] = Counter()
    x = counted(da.from_array(data, (5, 3)), seen, "data")
    i = indices if now else counted(da.from_array(indices, (4, 3, 1)), seen, "indices")
    u = counted(da.from_array(updates, (4, 2, 3)), seen, "updates")
    gathered, scattered = lazy.gather_nd(x, i), lazy.scatter_nd(x, i, u, "add")
    assert not seen
    with dask.config.set(scheduler="threads"):
        one, other = dask.compute(gathered, scattered)
    assert same(one, ndtool.gather_nd(data, indices))
    assert same(other, ndtool.scatter_nd(data, indices, updates, "add"))
    assert set(seen.values()) == {1}
    assert len(seen) == 3 * 4 + 3 * 2 * 4 + (0 if now else 3 * 2)


def test_only_chunks_that_indices_in_memory_select_from_are_read() -> None:
    seen: Counter[Any] = Counter()
    data = np.arange(1000).reshape(100, 10)
    x = counted(da.from_array(data, (10, 5)), seen, "data")
    result = lazy.gather(x, [3, -1, 5, 99])
    assert same(result.compute(), data[[3, -1, 5, 99]])
    assert {at for _, at in seen} == {(0, 0), (0, 1), (9, 0), (9, 1)}
    seen.clear()
    lazy.gather_elements(x, da.from_array(np.full((5, 10), 42), (5, 5)), 0).compute()
    assert len(seen) == 20  # of lazy indices only the axis off which there is no index is known
    seen.clear()
    lazy.gather_elements(x, da.from_array(np.full((100, 1), 4), (5, 1)), 1).compute()
    assert len(seen) == 20
    seen.clear()
    assert lazy.gather_elements(x, np.full((5, 10), 42), 0).compute()[0, 0] == 420
    assert {at for _, at in seen} == {(4, 0), (4, 1)}


@pytest.mark.parametrize("n", [1, 4, 5, 30, 100])
def test_tasks_are_in_the_order_of_chunks(n: int) -> None:
    x, i = da.zeros((400, 30), chunks=(4, 15)), da.zeros(300, dtype=int, chunks=300 // n)
    u = da.zeros((300, 30), chunks=(300 // n, 15))
    before = {key for array in (x, i, u) for key in array.__dask_graph__()}
    gathered, scattered = lazy.gather(x, i).__dask_graph__(), lazy.scatter(x, i, u).__dask_graph__()
    # of data, indices and updates or output: twice, and the call and its verdict
    assert len(set(gathered) - before) <= 2 * (200 + n + 2 * n) + 2
    assert len(set(scattered) - before) <= 2 * (200 + n + 2 * n) + 2
    # parts are handed on in groups: a task depends on about the square root of the chunks
    for graph in (gathered, scattered):
        of = {key: len(some) for key, some in graph.get_all_dependencies().items()}
        most = max(count for key, count in of.items() if "verdict" not in key[0])
        assert most <= (2 * 10 + 3 if n > 1 else 100 + 3)


def test_indices_in_memory_need_no_tasks() -> None:
    x = da.zeros((400, 30), chunks=(4, 15))
    result = lazy.gather(x, np.zeros(300, int))
    tasks = set(result.__dask_graph__()) - set(x.__dask_graph__())
    assert len(tasks) == 2 * (1 + 1) + 3  # chunk 0, output; and what they share
    one = lazy.gather(da.zeros(400, chunks=4), np.zeros(300, int))
    assert sum(str(key[0]).startswith("gather") for key in one.__dask_graph__()) == 2


def nbytes(value: Any) -> int:
    """Return the bytes of the arrays in the result of a task."""
    if isinstance(value, splits.Split):
        return value.order.nbytes + value.local.nbytes
    if isinstance(value, dict):
        value = list(value.values())
    return (
        sum(map(nbytes, value)) if isinstance(value, list | tuple) else getattr(value, "nbytes", 0)
    )


def test_no_task_depends_on_much_more_than_a_chunk() -> None:
    n, step = 64, 256
    i = da.from_array(np.random.default_rng(0).integers(0, n * step, n * step), step)
    x, u = (da.ones((n * step, 2), chunks=(step, 2)) for _ in range(2))
    sizes: dict[Any, int] = {}

    def posttask(key: Any, value: Any, *_: Any) -> None:
        sizes[key] = nbytes(value)

    for result in (lazy.gather(x, i), lazy.scatter(x, i, u, 0, "add")):
        with dask.callbacks.Callback(posttask=posttask):
            result.compute(optimize_graph=False)
        for key, of in result.__dask_graph__().get_all_dependencies().items():
            if "verdict" not in key[0]:
                # of chunks of 4 KiB and their tuples: the square root of 64, not 64
                assert sum(sizes.get(one, 0) for one in of) < 15 * (4096 + 8 * step), key


def test_names_are_those_of_the_call() -> None:
    x = da.arange(20, chunks=3)
    one, again, other = (lazy.gather(x, [1], pad=pad) for pad in (None, None, 5))
    assert one.name == again.name != other.name
    assert one.name.startswith("gather-")


def test_results_in_other_chunks_have_other_names() -> None:
    x, indices = da.ones((100, 4), chunks=(10, 4)), np.arange(100)[:, None] % 7
    one = lazy.gather_nd(x, indices)
    with dask.config.set({"array.chunk-size": "256B"}):
        other = lazy.gather_nd(x, indices)
    assert one.chunks != other.chunks
    assert (one.sum() + other.sum()).compute() == 800


def test_result_is_independent_of_the_caller() -> None:
    data, indices = np.arange(6), np.array([1, 2])
    result = lazy.gather(da.from_array(data.copy(), 2), indices)
    indices[:] = 0
    assert result.compute().tolist() == [1, 2]
    scattered = lazy.scatter(da.from_array(data, -1), np.zeros(0, int), np.zeros(0, int)).compute()
    assert not np.shares_memory(scattered, data)


def test_output_of_indices_in_memory_has_chunks_of_the_size_of_data() -> None:
    x = da.zeros((100, 1 << 16), chunks=(10, 1 << 16))  # chunks of 5 MiB
    result = lazy.gather(x, np.zeros((7, 33), int))
    assert result.chunks == ((1,) * 7, (10, 10, 10, 3), (1 << 16,))


# Errors


def test_first_index_out_of_bounds_of_all_chunks_is_reported() -> None:
    indices = np.zeros((20, 10, 2), int)
    indices[15, 1, 0], indices[3, 9, 1], indices[3, 8, 0] = 7, 9, -8
    x = da.zeros((5, 6), chunks=2)
    for taken in (indices, da.from_array(indices, (4, 3, 1))):
        result = lazy.gather_nd(x, taken)
        with dask.config.set(scheduler="threads"), pytest.raises(ndtool.BoundsError) as caught:
            result.compute()
        error = caught.value
        assert (error.position, error.component, error.value) == ((3, 8), 0, -8)
        assert (error.axis, error.size, error.count, error.total) == (0, 5, 3, 200)
    with pytest.raises(ndtool.BoundsError, match="1180591620717411303424"):
        lazy.gather(x, [0, 2**70]).compute()


def test_index_out_of_bounds_of_an_empty_output() -> None:
    x = da.zeros((5, 0), chunks=2)
    with pytest.raises(ndtool.BoundsError):
        lazy.gather(x, da.from_array(np.array([5]))).compute()


def test_index_into_an_axis_of_size_0_is_out_of_bounds_though_tuples_must_differ() -> None:
    data, indices = da.zeros((0, 3)), da.ones((2, 1), dtype=int)
    result = lazy.scatter_nd(data, indices, np.zeros((2, 3)), duplicates="error")
    with pytest.raises(ndtool.errors.BoundsError, match="2 of 2 index tuples"):
        result.compute()


def test_updates_without_elements_in_other_chunks() -> None:
    """Dask's rechunk returns an array whose axes all have size 0 as it is."""
    data = da.ones((3, 0), chunks=((1, 2), (0, 0)))
    result = lazy.scatter_nd(data, np.array([1]), da.empty(0))
    assert same(result.compute(), np.ones((3, 0)))


def test_duplicates_are_found_across_chunks() -> None:
    x, u = da.zeros(100, chunks=7), da.arange(50, chunks=9).astype(float)
    indices = np.arange(50).reshape(50, 1)
    indices[40] = indices[3] = 30
    for taken in (indices, da.from_array(indices, 6)):
        result = lazy.scatter_nd(x, taken, u, duplicates="error")
        with pytest.raises(ndtool.DuplicatesError) as caught:
            result.compute()
        assert (caught.value.first, caught.value.second) == ((3,), (30,))


def boom(block: np.ndarray) -> np.ndarray:
    raise ZeroDivisionError("of the graph")


def test_arguments_are_refused_when_the_graph_is_built() -> None:
    x = da.arange(20, chunks=3)
    refused = [
        (lambda: lazy.gather(x[x > 3], [0]), ndtool.RuleError, r"data\.compute_chunk_sizes\(\)"),
        (lambda: lazy.gather(x, x[x > 3]), ndtool.RuleError, "indices has chunks of unknown"),
        (lambda: lazy.gather(x.astype(object), [0]), ndtool.DtypeError, "Python objects"),
        (lambda: lazy.gather(x, x + 0.5), ndtool.DtypeError, "float64"),
        (lambda: lazy.gather_nd(x, da.zeros((3, 2), dtype=int)), ndtool.RuleError, "must be in 1"),
        (lambda: lazy.scatter(x, [1], da.zeros(2, dtype=int)), ndtool.RuleError, "is required"),
        (lambda: lazy.gather("x.npy", [1]), ndtool.UsageError, "is a file name"),
        (lambda: lazy.gather(da.ma.masked_equal(x, 3), [1]), ndtool.DtypeError, "masked"),
        (lambda: lazy.gather(x, [1], threads=1), TypeError, "argument 'threads'"),
        (lambda: lazy.gather(x, [1], duplicates="last"), TypeError, "argument 'duplicates'"),
        (lambda: lazy.gather(x, [1], spec="onnx:1", pad=3), ndtool.NdtoolError, "pad"),
    ]  # fmt: skip
    for call, kind, words in refused:
        with pytest.raises(kind, match=words):
            call()


@pytest.mark.parametrize("role", ["data", "indices", "updates"])
def test_chunks_that_are_not_as_declared(role: str) -> None:
    good = {name: da.zeros(12, dtype=int, chunks=3) for name in ("data", "indices", "updates")}
    bad = {
        ZeroDivisionError: boom,
        ndtool.RuleError: lambda block: block[:1],
        ndtool.DtypeError: lambda block: np.ma.masked_equal(block, 0),
    }
    wrong = [*bad.items(), (ndtool.RuleError, lambda block: block.astype(float))]
    for kind, change in wrong:
        arrays = good | {role: good[role].map_blocks(change, dtype=int, meta=np.empty(0, int))}
        with pytest.raises(kind):
            lazy.scatter(*arrays.values()).compute()
    swapped = good[role].map_blocks(lambda b: b.astype(">i8"), dtype=int, meta=np.empty(0, int))
    assert lazy.scatter(*(good | {role: swapped}).values()).compute().tolist() == [0] * 12


def test_arrays_in_memory_are_referred_here() -> None:
    x = da.arange(5)
    with pytest.raises(ndtool.DtypeError, match=r"use ndtool\.dask, or pass data\.compute\(\)$"):
        ndtool.gather(x, [1])


def test_more_rows_than_32_bits() -> None:
    x = da.zeros((3 << 33,), dtype=np.uint8, chunks=3 << 32)
    assert lazy.gather(x, da.from_array(np.array([5, -1, 1 << 33]))).dtype == np.uint8
    call = splits.split  # local rows need 64 bits: without the chunks, which would be loaded
    with mock.patch.object(splits, "split", lambda c, *a: call(c, *a)):
        graph = lazy.gather(x, np.array([5, -1])).__dask_graph__()
    locals_ = [one.local.tolist() for task in graph.values() for one in splits_in(task)]
    assert [(3 << 32) - 1] in locals_


def splits_in(task: Any) -> list[splits.Split]:
    args = getattr(task, "args", task if isinstance(task, tuple) else ())
    found = [one for one in args if isinstance(one, splits.Split)]
    return found + [
        one for some in args if isinstance(some, list) for one in splits_in(tuple(some))
    ]


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
def test_other_processes() -> None:
    data, indices = np.arange(300.0).reshape(30, 10), np.arange(-30, 30).reshape(20, 3)
    x = da.from_array(data, (7, 4))
    for taken in (indices, da.from_array(indices, (6, 2))):
        result = lazy.scatter(lazy.gather(x, taken).reshape(60, 10), taken, lazy.gather(x, taken))
        with dask.config.set(scheduler="processes", num_workers=2):
            actual = result.compute()
        gathered = data[indices]
        assert same(actual, ndtool.scatter(gathered.reshape(60, 10), indices, gathered))
    result = lazy.gather(x, da.from_array(np.array([30])))
    with pytest.raises(ndtool.BoundsError, match="1 of 1"):
        result.compute(scheduler="processes", num_workers=1)


def test_examples() -> None:
    assert doctest.testmod(sys.modules["ndtool.dask"]).failed == 0
