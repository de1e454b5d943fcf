"""The compiled path of calls on arrays: the general path's bits, errors and refusals."""

import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Array, Case, bits_equal, many, raw_bytes, sample, void_view
from ways import calls_with_attributes

import ndtool
from ndtool._kernels import Calls
from ndtool.engine import scatters, tuning
from ndtool.errors import NdtoolError
from ndtool.inmemory import calls, ops
from ndtool.machine import threads as team

pytestmark = pytest.mark.usefixtures("fast_small_calls")

DATA = np.arange(12, dtype=np.float32).reshape(3, 4)
ROWS = np.array([[2], [0]])
UPDATES = np.full((2, 4), 7, np.float32)
INDEX_TYPES = ("i1", "u2", ">i4", "i8")
AXIS_INDICES = np.array([[0, -1, 2, 1]])
CALLS: dict[str, Callable[..., Array]] = {
    "gather_nd": lambda **options: ndtool.gather_nd(DATA, ROWS, **options),
    "gather": lambda **options: ndtool.gather(DATA, ROWS[:, 0], **options),
    "gather_elements": lambda **options: ndtool.gather_elements(DATA, AXIS_INDICES, 0, **options),
    "gather_elements axis 1": lambda **options: ndtool.gather_elements(
        DATA[:1].copy(), AXIS_INDICES, 1, **options
    ),
    "scatter_nd": lambda **options: ndtool.scatter_nd(DATA, ROWS, UPDATES, "add", **options),
    "scatter_elements": lambda **options: ndtool.scatter_elements(
        DATA, AXIS_INDICES, UPDATES[:1], 0, "max", **options
    ),
}


class BothPaths:
    """Calls by the fast path, compared with the general path alone."""

    def __init__(self) -> None:
        self.general = 0  # calls that reached the general path

    def otherwise(self, *call: Any) -> Array:
        self.general += 1
        return calls.execute(*call)

    def are_short(self, call: Callable[[], object]) -> bool:
        """Whether a call is executed without the general path."""
        before = self.general
        call()
        return self.general == before


def compiled_calls(make: Any, otherwise: Any) -> Calls:
    limit = team.limit_threads
    return Calls(
        np.ndarray, calls.ARRAY_API, make, limit, scatters.needs_algorithm, otherwise, vars(tuning)
    )


@pytest.fixture
def both_paths(monkeypatch: pytest.MonkeyPatch) -> BothPaths:
    paths = BothPaths()
    compiled = compiled_calls(calls.make_typed_call, paths.otherwise)
    for name in ops.__all__:
        monkeypatch.setitem(getattr(ops, name).__globals__, "_backend", compiled.call)
    return paths


def outcome(call: Callable[[], Array], *inputs: Array | None) -> tuple[Any, ...]:
    """Return the result or error of a call, and the bytes of arrays after it."""
    try:
        result = call()
        report = result.dtype, result.shape, raw_bytes(result)
    except NdtoolError as error:
        report = type(error), str(error), vars(error).keys()
    return report, [raw_bytes(array) for array in inputs if array is not None]


def possible_outputs(data: Array, indices: Array, made: Array) -> Iterator[Array | None]:
    """Yield values of `out`, most of which are invalid for the inputs."""
    yield None
    yield np.zeros(made.shape, made.dtype)  # zeros_like does not zero padding
    yield np.zeros(made.shape, made.dtype, "F")
    yield np.zeros((*made.shape, 2), made.dtype)[..., 1]
    yield np.zeros(made.shape, made.dtype)[(slice(None, None, -1),) * made.ndim]
    yield np.zeros((*made.shape, 1), made.dtype)
    yield np.zeros(made.shape, "V5")
    yield (
        np.frombuffer(bytes(made.nbytes), f"V{made.itemsize}").view(made.dtype).reshape(made.shape)
        if made.nbytes
        else None
    )
    yield data.view()


@many
@given(case=calls_with_attributes(), which=st.integers(0, 9), threads=st.sampled_from((None, 1, 3)))
def test_the_outcome_equals_the_general_path(case: Case, which: int, threads: int | None) -> None:
    options = dict(case.arguments, threads=threads)
    results = []
    for small in (tuning.COMPILED_CALL, tuning.COMPILED_CALL, 0):  # bound, cached, and not bound
        arrays = [*case.arrays]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tuning, "COMPILED_CALL", small)
            operator = partial(getattr(ndtool, case.operator), **options)
            try:
                result = operator(*arrays)
            except NdtoolError:
                result = np.zeros_like(arrays[0])
            if which:
                arrays[0] = void_view(arrays[0]).copy("K").view(arrays[0].dtype)
            out = (
                arrays[0]
                if which == 9
                else [*possible_outputs(*arrays[:2], result), None, None][which]
            )
            results.append(outcome(partial(operator, *arrays, out=out), out, *arrays))
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize(("name", "width"), [("scatter_nd", 1), ("scatter_elements", 4)])
def test_fortran_order_is_updated_where_it_is(both_paths: BothPaths, name: str, width: int) -> None:
    updated, call = np.asfortranarray(np.tile(DATA, (100, 1))), getattr(ndtool, name)
    indices = ROWS.repeat(width, 1)  # a copy of data would cost more than these updates
    assert both_paths.are_short(
        lambda: call(updated, indices, UPDATES, reduction="add", out=updated)
    )
    assert updated[:4, 1].tolist() == [8, 5, 16, 1]


@pytest.mark.parametrize("name", CALLS)
def test_a_plain_call_takes_the_fast_path(both_paths: BothPaths, name: str) -> None:
    call = CALLS[name]
    expected = call(threads=2)
    assert both_paths.are_short(call)
    out = np.empty_like(expected)
    assert call(out=out) is out
    assert bits_equal(out, expected)
    assert both_paths.are_short(lambda: call(out=out))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "COMPILED_CALL", 0)
        assert both_paths.are_short(call) == name.startswith("gather")
        assert bits_equal(call(), expected)


def layouts_of(array: Array) -> dict[str, Array]:
    """Return arrays of other layouts, unaligned ones included, with the same elements."""
    wide = np.zeros((*array.shape, 2), array.dtype)
    wide[..., 0] = array
    unaligned = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    unaligned[...] = array
    backwards = (slice(None, None, -1),) * array.ndim
    return {
        "row-major": array.copy(), "Fortran": array.copy("F"), "stepped": wide[..., 0],
        "reversed": array[backwards].copy()[backwards], "unaligned": unaligned,
        "swapped": array.astype(array.dtype.newbyteorder()),
    }  # fmt: skip


@pytest.mark.parametrize("layout", layouts_of(DATA))
@pytest.mark.parametrize("role", ["data", "indices", "updates"])
def test_arrays_of_any_layout_take_the_compiled_path(
    both_paths: BothPaths, layout: str, role: str
) -> None:
    arrays = {"data": DATA.copy(), "indices": ROWS.copy(), "updates": UPDATES.copy()}
    reductions: tuple[Any, ...] = ("none", "add", "mean")
    expected = [ndtool.scatter_nd(**arrays, reduction=reduction) for reduction in reductions]
    gathered = ndtool.gather_nd(DATA, ROWS)
    arrays[role] = layouts_of(arrays[role])[layout]
    data, indices = arrays["data"], arrays["indices"]
    both_paths.general = 0
    for reduction, values in zip(reductions, expected, strict=True):
        outputs = [None, *(out for out in layouts_of(data).values() if out.dtype == data.dtype)]
        for out in outputs:
            result = ndtool.scatter_nd(**arrays, reduction=reduction, out=out)
            assert result.astype(values.dtype).tobytes() == values.tobytes()
    result = ndtool.gather_nd(data, indices)
    assert result.astype(gathered.dtype).tobytes() == gathered.tobytes()
    ndtool.scatter_nd(**arrays, reduction="mean", out=data)
    assert data.astype(DATA.dtype).tobytes() == expected[2].tobytes()
    assert both_paths.general == 0


def test_calls_with_other_shapes_are_not_planned_again(both_paths: BothPaths) -> None:
    made = []
    compiled = compiled_calls(
        lambda *types: made.append(types) or calls.make_typed_call(*types), both_paths.otherwise
    )
    arguments = "gather", None, "ndtool", 0, None, "none", "error", None, None, True
    for size in range(1, 300):
        data = np.arange(size * 3).reshape(size, 3)
        index = np.arange(size) // 2
        assert bits_equal(compiled.call(data, index, None, None, *arguments), data[index])
    assert len(made) == 1


def test_an_invalid_call_after_an_equal_valid_one_is_refused(both_paths: BothPaths) -> None:
    table, index = np.arange(24).reshape(2, 3, 4), np.zeros((2, 1), int)
    for _ in range(2):
        valid = ndtool.gather(table, index, 1, batch_dims=1, negatives=True)
        for options in ({"batch_dims": True}, {"batch_dims": 1, "negatives": 1}):
            arguments: Any = options
            with pytest.raises(NdtoolError):
                ndtool.gather(table, index, 1, **arguments)
        assert both_paths.are_short(lambda: ndtool.gather(table, index, 1, batch_dims=1))
        assert valid.tolist() == table[:, :1].tolist()


def test_a_small_update_of_a_large_array_takes_the_fast_path(both_paths: BothPaths) -> None:
    data = np.zeros((1 << 20, 4), np.float32)
    options: list[Any] = [
        {},
        {"reduction": "mean"},
        {"duplicates": "error"},
        {"duplicates": "first"},
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "COMPILED_CALL", 1 << 12)
        for given in options:
            assert both_paths.are_short(
                lambda given=given: ndtool.scatter_nd(data, ROWS, UPDATES, out=data, **given)
            )
        assert not both_paths.are_short(lambda: ndtool.scatter_nd(data, ROWS, UPDATES))
    assert bits_equal(data[:3], np.float32([[7] * 4, [0] * 4, [7] * 4]))


def test_arguments_that_are_equal_but_of_other_types_are_looked_at(both_paths: BothPaths) -> None:
    assert bits_equal(ndtool.gather(DATA, ROWS, 1), DATA[:, ROWS])
    for axis in (True, 1.0, np.True_):
        with pytest.raises(NdtoolError, match="must be an integer"):
            ndtool.gather(DATA, ROWS, axis)
    far = ROWS + 9
    filled = [
        ndtool.gather_nd(DATA, far, out_of_bounds="fill", fill=fill) for fill in (0, -0.0, None, 0)
    ]
    assert [np.signbit(gathered).all() for gathered in filled] == [False, True, False, False]
    with pytest.raises(NdtoolError, match="fill is 'False'"):
        ndtool.gather_nd(DATA, far, out_of_bounds="fill", fill=False)


def test_types_with_equal_names_are_distinguished(both_paths: BothPaths) -> None:
    marked = np.dtype(np.float32, metadata={"unit": "m"})
    for dtype in (np.dtype(np.float32), marked, np.dtype(np.float32)):
        result = ndtool.gather_nd(DATA.view(dtype), ROWS)
        assert result.dtype.metadata == dtype.metadata
    for dtype in ("l", "q", "l"):
        assert ndtool.gather_nd(DATA.astype(dtype), ROWS).dtype.char == dtype


def test_more_kinds_of_calls_than_the_cache_holds(both_paths: BothPaths) -> None:
    for size in range(1, 2100):
        data = np.arange(size, dtype=np.int16)
        last = ndtool.gather(data, np.array([-1]))
        assert bits_equal(last, data[-1:])
    assert both_paths.general == 0


@given(
    st.permutations(range(3)),
    st.tuples(*[st.sampled_from([1, 2, -1])] * 3),
    st.sampled_from(["none", "add", "max", "mean"]),
    st.sampled_from(["<f4", ">f4"]),
    st.integers(0, 2**32),
)
def test_data_of_any_strides_are_gathered_and_updated_as_in_row_major_order(
    axes: list[int], steps: tuple[int, ...], reduction: str, dtype: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shape, axis = rng.integers(1, [1, 3, 40][seed % 3] + 1, 3), int(rng.integers(3))
    indices = rng.integers(-shape[axis], shape[axis], rng.integers(1, 60))
    updates = rng.random((*shape[:axis], indices.size, *shape[axis + 1 :]), "f4").astype(dtype)
    base = np.full([shape[a] * abs(steps[a]) for a in axes], 7, dtype)
    inside = tuple(slice(None, None, steps[a]) for a in axes)
    data = base[inside].transpose(np.argsort(axes))
    data[...] = rng.random(shape)
    some = partial(ndtool.gather, indices=indices // 2 * 3, axis=axis, out_of_bounds="fill")
    taken = [some(data), some(data, out=updates.T.copy().T), some(data.copy("C"))]
    assert all(bits_equal(result, taken[2]) for result in taken)
    if indices[0] // 2 * 3 >= shape[axis]:
        assert not taken[2].take(0, axis).any()
    expected = base.copy()
    result = ndtool.scatter(data.copy("C"), indices, updates, axis, reduction)
    expected[inside] = result.transpose(axes)
    assert bits_equal(ndtool.scatter(data, indices, updates, axis, reduction), result)
    ndtool.scatter(data, indices, updates, axis, reduction, out=data)
    assert bits_equal(base, expected)


@pytest.mark.parametrize(
    ("layout", "reduction"),
    [("F", "none"), ("stepped", "add"), ("transposed", "max"), ("F", "mean"), ("stepped", "mean")],
)
def test_few_updates_in_place_of_strided_slices_copy_no_data(layout: str, reduction: str) -> None:
    calls: list[tuple[str, Any, dict[str, Any]]] = [
        ("scatter_nd", [[3], [-1], [3]], {}),
        ("scatter_nd", [3, 1], {}),
        ("scatter_nd", [[3, 1], [0, -2], [3, 1]], {}),
        ("scatter_nd", np.ones((1 << 5, 2, 1), np.int32), {"batch_dims": 1}),
        ("scatter", [5, 2, -5], {"axis": 0}),
        ("scatter", [[5, 2], [8, 1]], {"axis": 1, "out_of_bounds": "drop"}),
        ("scatter", np.tile([3, 1, 3], (1 << 5, 1)), {"axis": 2, "batch_dims": 1}),
    ]
    rng = np.random.default_rng(6)
    for name, listed, options in calls:
        base = rng.integers(0, 99, (1 << 5, 8, 1 << 5, 128), np.int16)
        data = base.transpose(2, 1, 0, 3)
        if layout == "F":
            data = np.asfortranarray(base)
        elif layout == "stepped":
            data = np.repeat(base, 2, axis=3)[..., ::2]
        indices = np.asarray(listed)
        expected = np.ascontiguousarray(data)
        gathered = getattr(ndtool, name.replace("scatter", "gather"))(
            data, indices, **{**options, "out_of_bounds": "clip"}
        )
        updates = rng.integers(0, 99, gathered.shape, np.int16)
        run = partial(getattr(ndtool, name), reduction=reduction, **options)
        before = data.copy()
        run(expected, indices, updates, out=expected)
        assert run(data, indices, updates).tobytes() == expected.tobytes()
        assert np.array_equal(data, before)
        tracemalloc.start()
        try:
            run(data, indices, updates, out=data)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert data.tobytes() == expected.tobytes()
        if updates.size * 128 <= data.nbytes:
            assert peak < data.nbytes // 2, (name, options)


@pytest.mark.parametrize(("dtype", "step"), sample(3, INDEX_TYPES, (1, -1, 3)))
def test_indices_that_count_from_1_are_normalized_in_compiled_code(
    dtype: str, step: int, both_paths: BothPaths
) -> None:
    data = np.arange(90.0).reshape(30, 3)
    index = np.random.default_rng(1).integers(1, 31, 3000).astype(dtype)[::step]
    given = index.copy()
    assert both_paths.are_short(lambda: ndtool.gather(data, index, index_base=1))
    assert bits_equal(ndtool.gather(data, index, index_base=1), data[index.astype("i8") - 1])
    for value in (0, 31, -1 if dtype != "u2" else 2**16 - 1):
        index[-1] = value
        with pytest.raises(ndtool.BoundsError) as error:
            ndtool.gather(data, index, index_base=1)
        assert (error.value.position, error.value.value) == ((len(index) - 1,), value)
    assert bits_equal(index[:-1], given[:-1])


@pytest.mark.parametrize(
    ("dtype", "mode", "pad"),
    sample(3, INDEX_TYPES, ("error", "clip", "wrap", "fill", "drop"), (None, 0, -7, 3)),
)
def test_indices_that_count_from_1_have_modes_and_padding_in_compiled_code(
    dtype: str, mode: str, pad: int | None, both_paths: BothPaths
) -> None:
    data = np.arange(90.0).reshape(30, 3)
    index = np.random.default_rng(1).integers(1, 31, 600).astype(dtype)
    if mode != "error":
        index[::7] = np.array([0, 31, 99, 127, -1 if dtype != "u2" else 200])[np.arange(86) % 5]
    index[5::40] = pad if pad is not None and (pad >= 0 or dtype != "u2") else 1
    updates = np.random.default_rng(2).standard_normal((600, 3))
    options = {"index_base": 1, "pad": pad, "out_of_bounds": mode}

    def run() -> Array:
        if mode == "drop":
            return ndtool.scatter(data, index, updates, 0, "add", **options)
        return ndtool.gather(
            data, index, fill=-1.0 if mode == "fill" or pad is not None else None, **options
        )

    assert both_paths.are_short(run)
    zero_based = index.astype("i8") - 1
    padded = np.zeros(600, bool) if pad is None else index == pad
    skipped = padded | ((zero_based < 0) | (zero_based > 29) if mode in ("fill", "drop") else False)
    rows = zero_based % 30 if mode == "wrap" else zero_based.clip(0, 29)
    if mode == "drop":
        expected = data.copy()
        np.add.at(expected, rows[~skipped], updates[~skipped])
    else:
        expected = np.where(skipped[:, None], -1.0, data[rows])
    assert bits_equal(run(), expected)


@pytest.mark.parametrize("value", [-(2**63), -(2**63) + 1, 2**63 - 1])
def test_an_extreme_index_that_counts_from_1_is_out_of_bounds(value: int) -> None:
    index = np.array([1, value])
    data = np.arange(4.0)
    with pytest.raises(ndtool.BoundsError, match=str(value)):
        ndtool.gather(data, index, index_base=1)
    clipped = ndtool.gather(data, index, index_base=1, out_of_bounds="clip")
    assert clipped.tolist() == [0.0, 3.0 if value > 0 else 0.0]


@pytest.mark.parametrize(
    ("dtype", "run", "shape", "in_place"),
    sample(3, INDEX_TYPES, (1, 3, 8), ((5, 8), (5, 2, 8, 3), (70, 8, 40)), (False, True)),
)
def test_circular_runs_that_wrap_are_written_in_compiled_code(
    dtype: str, run: int, shape: tuple[int, ...], in_place: bool, both_paths: BothPaths
) -> None:
    rng = np.random.default_rng(1)
    axis = shape.index(8)
    past = rng.standard_normal(shape).astype("f4")
    update = rng.standard_normal((*shape[:axis], run, *shape[axis + 1 :])).astype("f4")
    first = rng.integers(0 if dtype == "u2" else -20, 30, shape[0]).astype(dtype)
    first[0] = 7
    expected = np.moveaxis(past, axis, 1).copy()
    for row, begin, values in zip(
        expected, first.tolist(), np.moveaxis(update, axis, 1), strict=True
    ):
        for step, value in enumerate(values):
            row[(begin + step) % 8] = value
    result = past.copy()
    out = result if in_place else None

    def write() -> Array:
        return ndtool.tensor_scatter(result, update, first, axis, "circular", out=out)

    assert both_paths.are_short(write)
    assert bits_equal(write(), np.ascontiguousarray(np.moveaxis(expected, 1, axis)))


def test_an_output_that_overlaps_circular_write_indices_is_refused() -> None:
    memory = np.zeros(16, np.int64)
    past, first = memory[:8].reshape(2, 4), memory[6:8]
    with pytest.raises(ndtool.RuleError, match="overlaps"):
        ndtool.tensor_scatter(past, np.ones((2, 2), np.int64), first, 1, "circular", out=past)


@pytest.mark.parametrize(
    ("count", "dtype", "reduction", "threads"),
    sample(3, (1, 7, 128, 300), ("u1", "i8"), ("none", "add", "max"), (1, 2)),
)
def test_batches_that_share_tuples_have_the_bits_of_the_loop(
    count: int, dtype: str, reduction: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team, "MIN_WORK", 1)
    rng = np.random.default_rng(count)
    data = rng.standard_normal((70, 40)).astype("f4")
    index = rng.integers(0, 40, count).astype(dtype)
    updates = rng.standard_normal((70, count)).astype("f4")
    expected = data.copy()
    for i, column in enumerate(index):
        combine = {"add": np.add, "max": np.maximum}.get(reduction, lambda old, new: new)
        expected[:, column] = combine(expected[:, column], updates[:, i])
    assert bits_equal(ndtool.scatter(data, index, updates, 1, reduction, threads=threads), expected)
    assert bits_equal(ndtool.gather(data, index, 1, threads=threads), data[:, index])
    index[-1] = 40
    with pytest.raises(ndtool.BoundsError):
        ndtool.scatter(data, index, updates, 1, reduction, threads=threads)


@pytest.mark.parametrize("mode", ["error", "clip", "wrap"])
@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "<i4", ">i4", "u4", "i8", "u8"])
@pytest.mark.parametrize("axis", [0, 1])
def test_indices_of_every_type_are_read_as_they_are(dtype: str, mode: str, axis: int) -> None:
    """Of data in which the type's largest value is valid, or the largest before it is not."""
    rng, index_type = np.random.default_rng(1), np.dtype(dtype)
    for size in (100, 128, 200, 256, 300, 40_000):
        low, high = (-size, size) if mode == "error" else (-3 * size, 3 * size)
        low = max(low, np.iinfo(index_type).min)
        high = min(high, np.iinfo(index_type).max + 1)
        index = rng.integers(low, high, (300, 3)).astype(index_type)
        index[:2] = [[low] * 3, [high - 1] * 3]
        index = np.ascontiguousarray(index if axis == 0 else index.T)
        wide = index.astype(object)  # exact, also of uint64
        if mode == "clip":
            wide = np.clip(np.where(wide < 0, wide + size, wide), 0, size - 1)
        wide = (wide % size).astype(np.int64)
        for itemsize in (1, 2, 4, 8, 16, 3):
            data = rng.integers(0, 256, (size, 3, itemsize), np.uint8).view(f"V{itemsize}")[..., 0]
            data = data if axis == 0 else np.ascontiguousarray(data.T)
            found = ndtool.gather_elements(data, index, axis, out_of_bounds=mode)
            assert bits_equal(found, np.take_along_axis(data, wide, axis))
            found = ndtool.gather(data, index, axis, out_of_bounds=mode)
            assert bits_equal(found, np.take(data, wide, axis))


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2"])
@pytest.mark.parametrize("layout", ["C", "F", "reversed"])
def test_tuples_are_validated_before_the_output_changes(dtype: str, layout: str) -> None:
    rng = np.random.default_rng(2)
    data = np.asarray(rng.integers(0, 1000, (120, 7, 5, 2)), order="F" if layout == "F" else "C")
    data = data[::-1, :, ::-1] if layout == "reversed" else data
    for k in (1, 2, 3, 4):
        sizes = np.array(data.shape[:k])
        low = 0 if dtype.startswith("u") else -sizes
        index = rng.integers(low, sizes, (2000, k)).astype(dtype)
        out = np.full((2000, *data.shape[k:]), -1)
        assert bits_equal(
            ndtool.gather_nd(data, index, out=out),
            data[tuple(index[:, j].astype("i8") for j in range(k))],
        )
        out[...] = -1
        index[1999, k - 1] = sizes[-1]
        with pytest.raises(ndtool.BoundsError):
            ndtool.gather_nd(data, index, out=out)
        assert (out == -1).all()
