"""The size checks of the kernels' entry points, which precede any access.

Only a bug in ndtool could violate them: each call is valid but for one argument.
"""

import mmap
from typing import Any

import numpy as np
import pytest

from ndtool import _kernels
from ndtool.rules import dtypes, shapes
from ndtool.rules.reductions import REDUCTIONS


def buffer(nbytes: int) -> np.ndarray:
    return np.zeros(nbytes, np.uint8)


def addressing(
    size: int = 4, stride: int = 8, per_batch: int = 2, batches: int = 1, pitch: int = 32
) -> _kernels.Addressing:
    return _kernels.Addressing((size,), (stride,), per_batch, (batches,), (pitch,), True)


def grid() -> _kernels.Grid:
    """Return [2,3] indices into data of [4,3] elements of 8 bytes, along axis 0."""
    return _kernels.Grid((4, 3), (2, 3), (24, 8), 0, 8, True, 1 << 20)


GROUP_BYTES = _kernels.GROUP * (4 + 8)  # bytes of a sorted group, with updates of 8 bytes
THREAD_SCRATCH = _kernels.GROUP * 8  # bytes for a thread that sorts a group


def indices(
    nbytes: int = 16,
    value: int = 0,
    unsigned: bool = False,
    mode: str = "error",
    fill_bytes: Any = None,
) -> _kernels.Indices:
    stored = np.full(nbytes // 8 + 1, value, "u8" if unsigned else "i8").view(np.uint8)
    return _kernels.Indices(stored[:nbytes], 8, unsigned, False, mode, fill_bytes)


def work_item(
    first: int = 0, tuples: int = 2, column: int = 0, width: int = 8
) -> _kernels.WorkItem:
    return _kernels.WorkItem(first, tuples, column, width)


def update_spec(nbytes: int = 16, pitch: int = 8) -> _kernels.UpdateSpec:
    return _kernels.UpdateSpec(buffer(nbytes), pitch, "none", "float64")


def counted_spec(
    counts: int = 32, pitch: int = 8, itemsize: int = 8, nbytes: int = 16, table: int = 0
) -> _kernels.UpdateSpec:
    """Return updates whose slices are counted, in a table for `table` tuples if not 0."""
    slots = (buffer(64), table, 1) if table else ()
    counter = _kernels.UpdateCounts(buffer(counts), itemsize, *slots)
    return _kernels.UpdateSpec(buffer(nbytes), pitch, "add", "float64", "included", counter)


def window_spec(pitch: int = 8, nbytes: int = 16) -> _kernels.UpdateSpec:
    counter = _kernels.UpdateCounts(None, 8)
    neutral = buffer(_kernels.BLOCK * pitch)
    return _kernels.UpdateSpec(
        buffer(nbytes), pitch, "mean", "float64", "neutral", counter, neutral
    )


def fill_spec(pitch: int = 8, nbytes: int = 16) -> _kernels.UpdateSpec:
    neutral = buffer(_kernels.BLOCK * pitch)
    return _kernels.UpdateSpec(buffer(nbytes), pitch, "add", "float64", "fill", None, neutral)


HALF_SLICES = _kernels.WorkItem(0, 2, 0, 4)


def kernel_options(scratch_bytes: int = 0) -> _kernels.KernelOptions:
    return _kernels.KernelOptions(1, False, buffer(scratch_bytes) if scratch_bytes else None)


def partitions(
    scratch_bytes: int = GROUP_BYTES + THREAD_SCRATCH, end_count: int = 3, rows: int = 4
) -> _kernels.RadixPartitions:
    return _kernels.RadixPartitions(
        rows, 8, 1, buffer(scratch_bytes), np.zeros(end_count, np.uint32)
    )


def sorted_partitions(count: int = 2) -> _kernels.RadixPartitions:
    result = partitions()
    _kernels.partition(
        addressing(stride=1, pitch=4), indices(), 0, count, update_spec(), result, kernel_options()
    )
    return result


CALLS: dict[str, dict[str, Any]] = {
    "check": {"a": addressing(), "indices": indices(), "first": 0, "count": 2, "threads": 1},
    "locate_out_of_bounds": {"a": addressing(), "indices": indices(), "first": 0, "count": 2},
    "gather": {
        "a": addressing(), "data": buffer(32), "origin": 0, "indices": indices(), "item": work_item(),
        "out": buffer(16), "options": kernel_options(),
    },
    "scatter": {
        "a": addressing(), "indices": indices(), "item": work_item(), "spec": update_spec(),
        "out": buffer(32), "by_batches": True, "options": kernel_options(),
    },
    "scatter_batches": {
        "a": addressing(), "indices": indices(), "first": 0, "count": 2, "spec": update_spec(),
        "data": buffer(32), "out": buffer(32), "options": kernel_options(32),
    },
    "partition": {
        "a": addressing(stride=1, pitch=4), "indices": indices(), "first": 0, "count": 2,
        "spec": update_spec(), "partitions": partitions(), "options": kernel_options(),
    },
    "apply_partitions": {
        "partitions": sorted_partitions(), "spec": update_spec(), "data": buffer(32), "out": buffer(32),
        "first": 0, "stop": 2, "options": kernel_options(16),
    },
    "gather_strided": {
        "a": addressing(stride=32, pitch=128), "layout": _kernels.Layout((2,), (16,), 8),
        "data": buffer(120), "origin": 0, "indices": indices(), "item": work_item(width=16),
        "out": buffer(32), "options": kernel_options(),
    },
    "copy_pieces": {
        "layout": _kernels.Layout((2, 2), (8, 64), 8), "data": buffer(80), "origin": 0,
        "out": buffer(32), "first": 0, "stop": 1, "options": kernel_options(),
    },
    "gather_tiles": {
        "g": grid(), "data": buffer(96), "origin": 0, "indices": indices(48), "unit": 0, "stop": 1,
        "out": buffer(48), "options": kernel_options(96),
    },
    "scatter_tiles": {
        "g": grid(), "indices": indices(48), "spec": update_spec(48), "data": buffer(96),
        "out": buffer(96), "unit": 0, "stop": 1, "options": kernel_options(96),
    },
    "will_need": {
        "a": addressing(), "data": buffer(32), "origin": 0, "indices": indices(), "item": work_item(),
    },
    "copy": {"data": buffer(32), "out": buffer(32), "options": kernel_options()},
    "swap": {"buffer": buffer(36), "unit": 12},
}  # fmt: skip

DATA = "the data buffer is shorter than its shape"
SEPARATE = "windows have no separate first pass"
TILES = "packed tiles, and only they, have their own counts"
INDEX = "the indices buffer is shorter than its shape"
OUT = "the output buffer is shorter than its shape"
UPDATES = "the updates buffer is shorter than its shape"
UNIT = "a buffer of the indices' shape is shorter than it"
WINDOW = "there is no window"
COMPLETE = "complete slices are counted or filled"
SCRATCH = "the scratch buffer is too short"
BATCHES = "a work item has complete batches"
UNITS = "the buffer is no multiple of the unit"
ROWS = "more rows than the partitions hold"
SHORT_UPDATE = "an update is shorter than a slice"
OTHER_SHAPE = "the updates have another width, or the partitions are out of range"
SHORT_FILL = "the fill value is shorter than a slice"
OUTSIDE_SLICE = "a work item is within its slices"

INVALID_CALLS = [
    ("check", {"indices": indices(15)}, INDEX),
    ("check", {"first": 1}, INDEX),
    ("locate_out_of_bounds", {"indices": indices(15)}, INDEX),
    ("locate_out_of_bounds", {"first": 1}, INDEX),
    ("gather", {"data": buffer(31)}, DATA),
    ("gather", {"origin": -1}, DATA),
    ("gather", {"origin": 1}, DATA),
    ("gather", {"item": work_item(width=9)}, DATA),
    ("gather", {"item": work_item(column=1)}, DATA),
    ("gather", {"item": work_item(first=1)}, INDEX),
    ("gather", {"indices": indices(15)}, INDEX),
    ("gather", {"out": buffer(15)}, OUT),
    ("gather", {"indices": indices(mode="fill", fill_bytes=buffer(7))}, SHORT_FILL),
    ("gather", {"indices": indices(mode="drop")}, SHORT_FILL),
    ("scatter", {"out": buffer(31)}, DATA),
    ("scatter", {"indices": indices(15)}, INDEX),
    ("scatter", {"spec": update_spec(15)}, UPDATES),
    ("scatter", {"spec": update_spec(16, 7)}, SHORT_UPDATE),
    ("scatter", {"item": work_item(first=1, tuples=1)}, BATCHES),
    ("scatter", {"item": work_item(tuples=1)}, BATCHES),
    ("scatter_batches", {"out": buffer(31)}, DATA),
    ("scatter_batches", {"indices": indices(15)}, INDEX),
    ("scatter_batches", {"spec": update_spec(15)}, UPDATES),
    ("scatter_batches", {"data": buffer(31)}, DATA),
    ("scatter_batches", {"options": kernel_options(31)}, SCRATCH),
    ("scatter_batches", {"options": kernel_options()}, SCRATCH),
    ("scatter_batches", {"first": 1, "count": 1}, BATCHES),
    ("scatter_batches", {"count": 1}, BATCHES),
    ("partition", {"indices": indices(15)}, INDEX),
    ("partition", {"partitions": partitions(GROUP_BYTES + THREAD_SCRATCH - 1)}, SCRATCH),
    ("partition", {"partitions": partitions(end_count=2)}, SCRATCH),
    ("partition", {"partitions": partitions(rows=3)}, ROWS),
    ("partition", {"a": addressing(stride=-1, pitch=4)}, ROWS),
    ("partition", {"spec": update_spec(15)}, UPDATES),
    ("partition", {"spec": update_spec(18, 9)}, SHORT_UPDATE),
    ("scatter", {"spec": counted_spec(31)}, "the counts are fewer than the slices"),
    ("scatter", {"item": HALF_SLICES, "spec": counted_spec()}, COMPLETE),
    ("scatter", {"item": HALF_SLICES, "spec": fill_spec()}, COMPLETE),
    ("scatter", {"spec": counted_spec(table=1)}, "there are more updates than tuples in the table"),
    ("scatter", {"spec": window_spec()}, WINDOW),
    ("scatter_tiles", {"spec": fill_spec(4, 48), "options": kernel_options()}, SHORT_UPDATE),
    ("scatter_batches", {"spec": fill_spec(), "options": kernel_options(128)}, SEPARATE),
    ("scatter_batches", {"spec": window_spec(), "options": kernel_options(127)}, SCRATCH),
    ("apply_partitions", {"spec": fill_spec(), "options": kernel_options(128)}, SEPARATE),
    ("apply_partitions", {"spec": window_spec(), "options": kernel_options(127)}, SCRATCH),
    ("scatter_tiles", {"spec": window_spec(nbytes=48), "options": kernel_options(255)}, SCRATCH),
    ("scatter_tiles", {"spec": window_spec(nbytes=48), "options": kernel_options()}, WINDOW),
    ("scatter_tiles", {"spec": counted_spec(96, 8, 8, 48)}, TILES),
    ("scatter_tiles", {"spec": fill_spec(nbytes=48)}, SEPARATE),
    ("apply_partitions", {"out": buffer(31)}, OUT),
    ("apply_partitions", {"data": buffer(31)}, OUT),
    ("apply_partitions", {"options": kernel_options(15)}, SCRATCH),
    ("apply_partitions", {"options": kernel_options()}, SCRATCH),
    ("apply_partitions", {"spec": update_spec(15)}, UPDATES),
    ("apply_partitions", {"spec": update_spec(14, 7)}, OTHER_SHAPE),
    ("apply_partitions", {"stop": 3}, OTHER_SHAPE),
    ("apply_partitions", {"first": -1}, OTHER_SHAPE),
    ("gather_strided", {"data": buffer(119)}, DATA),
    ("gather_strided", {"indices": indices(15)}, INDEX),
    ("gather_strided", {"out": buffer(31)}, OUT),
    ("gather_strided", {"item": work_item(width=12)}, OUTSIDE_SLICE),
    ("gather_strided", {"item": work_item(column=4)}, OUTSIDE_SLICE),
    ("gather_strided", {"item": work_item(column=16)}, OUTSIDE_SLICE),
    ("gather_strided", {"indices": indices(mode="fill", fill_bytes=buffer(7))}, SHORT_FILL),
    ("copy_pieces", {"first": -1}, OUT),
    ("copy_pieces", {"data": buffer(79)}, DATA),
    ("copy_pieces", {"origin": -1}, DATA),
    ("copy_pieces", {"out": buffer(31)}, OUT),
    ("copy_pieces", {"stop": 2}, OUT),
    ("gather_tiles", {"data": buffer(95)}, DATA),
    ("gather_tiles", {"origin": -1}, DATA),
    ("gather_tiles", {"indices": indices(40)}, INDEX),
    ("gather_tiles", {"stop": 2}, INDEX),
    ("gather_tiles", {"unit": -1}, INDEX),
    ("gather_tiles", {"out": buffer(40)}, UNIT),
    ("gather_tiles", {"options": kernel_options(95)}, SCRATCH),
    ("gather_tiles", {"indices": indices(48, mode="drop")}, SHORT_FILL),
    ("scatter_tiles", {"out": buffer(95)}, DATA),
    ("scatter_tiles", {"data": buffer(95)}, DATA),
    ("scatter_tiles", {"indices": indices(40)}, INDEX),
    ("scatter_tiles", {"spec": update_spec(40)}, UNIT),
    ("scatter_tiles", {"options": kernel_options(95)}, SCRATCH),
    ("will_need", {"data": buffer(31)}, DATA),
    ("will_need", {"indices": indices(15)}, INDEX),
    ("copy", {"out": buffer(31)}, OUT),
    ("swap", {"buffer": buffer(35)}, UNITS),
    ("swap", {"unit": 0}, UNITS),
    ("swap", {"unit": -12}, UNITS),
]


@pytest.mark.parametrize("kernel", CALLS)
def test_the_largest_valid_sizes(kernel: str) -> None:
    expected = {
        "locate_out_of_bounds": (-1, -1, 0),
        "apply_partitions": None,
        "copy_pieces": None,
        "will_need": 1,
        "copy": None,
        "swap": None,
    }
    assert getattr(_kernels, kernel)(**CALLS[kernel]) == expected.get(kernel, 0)


@pytest.mark.parametrize(("kernel", "changes", "reason"), INVALID_CALLS)
def test_inconsistent_arguments_are_refused(
    kernel: str, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=f"^{reason}$"):
        getattr(_kernels, kernel)(**CALLS[kernel] | changes)


@pytest.mark.parametrize("kernel", [name for name, call in CALLS.items() if "indices" in call])
@pytest.mark.parametrize(("value", "unsigned"), [(4, False), (2**64 - 1, True)])
def test_an_index_out_of_bounds_is_reported(kernel: str, value: int, unsigned: bool) -> None:
    invalid = {"indices": indices(48, value, unsigned)}
    expected = {"locate_out_of_bounds": (0, 0, 2), "will_need": 0}
    assert getattr(_kernels, kernel)(**CALLS[kernel] | invalid) == expected.get(kernel, 1)


@pytest.mark.parametrize("code", ["i1", "<i2", ">i2", "<u4", ">i4", "<i8", ">i8", "<u8", ">u8"])
def test_an_index_is_reported_as_stored(code: str) -> None:
    dtype = np.dtype(code)
    limits = np.iinfo(dtype)
    stored = np.array([limits.min, 3, limits.max], dtype)
    kernel_indices = _kernels.Indices(
        stored.view(np.uint8), dtype.itemsize, dtype.kind == "u", not dtype.isnative
    )
    assert kernel_indices.itemsize == dtype.itemsize
    assert [kernel_indices.value(i) for i in range(3)] == stored.tolist()


def test_the_byte_range_of_a_work_item() -> None:
    item = work_item(3, 2, 8, 4)
    assert (item.first, item.tuples, item.column, item.width) == (3, 2, 8, 4)
    assert item.byte_range(4) == slice(20, 28)
    assert partitions(rows=5).byte_range(1, 3) == slice(16, 40)


@pytest.mark.parametrize(
    ("rows", "width", "calls"),
    [
        ([0, 2, 4, 6], 1, 4),  # every other page
        ([0, 1, 2, 3], 1, 1),
        ([0, 0, 0, 0], 1, 1),
        ([3, 2, 1, 0], 1, 4),
        ([0, 7, 8, 20], 4096, 3),
        ([0, 32], 131072, 2),  # a call prefetches at most 128 KiB
        ([0, 64], 131073, 4),
    ],
)
def test_adjacent_pages_are_prefetched_together(rows: list[int], width: int, calls: int) -> None:
    size = 4096
    data = np.frombuffer(mmap.mmap(-1, 128 * size), np.uint8)
    index = _kernels.Indices(np.array(rows).view(np.uint8), 8, False, False)
    page_addressing = _kernels.Addressing((65,), (size,), len(rows), (), (), True)
    item = work_item(tuples=len(rows), width=width)
    assert _kernels.will_need(page_addressing, data, 0, index, item) == calls


@pytest.mark.parametrize(
    ("construct", "reason"),
    [
        (lambda: _kernels.Addressing((1,) * 65, (1,) * 65, 1, (), (), True), "more axes than"),
        (lambda: _kernels.Addressing((), (), 1, (1,) * 65, (1,) * 65, True), "more axes than"),
        (lambda: _kernels.Layout((), (), 1), "a layout has 1 to 64 axes"),
        (lambda: _kernels.Layout((1,) * 65, (1,) * 65, 1), "a layout has 1 to 64 axes"),
        (lambda: _kernels.Grid(*[(2,) * 65] * 3, 0, 8, True, 1), "more axes than an array"),
        (lambda: _kernels.Grid((4, 3), (2, 3), (24, 8), 1, 8, True, 1), "the indexed axis is not"),
        (lambda: _kernels.Indices(buffer(9), 3, False, False), "an index has 1, 2, 4 or 8 bytes"),
        (lambda: work_item(first=-1), OUTSIDE_SLICE),
        (lambda: work_item(tuples=-1), OUTSIDE_SLICE),
        (lambda: work_item(column=-1), OUTSIDE_SLICE),
        (lambda: work_item(width=-1), OUTSIDE_SLICE),
        (lambda: _kernels.KernelOptions(0), "at least one thread is required"),
        *(
            (
                lambda a=arguments: _kernels.RadixPartitions(*a, buffer(1), np.zeros(1, "u4")),
                "rows are numbered",
            )
            for arguments in ((1, 8, 33), (1, 8, -1), (0, 8, 1), (1, 0, 1))
        ),
    ],
)
def test_invalid_kernel_arguments_are_refused(construct: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason}"):
        construct()


def test_kernels_and_rules_agree() -> None:
    """Every type and reduction in the rules has a kernel, and so has every rank."""
    for name in dtypes.ARITHMETIC:
        for reduction in REDUCTIONS:
            _kernels.UpdateSpec(buffer(8), 8, reduction, name)
    with pytest.raises(KeyError):
        _kernels.UpdateSpec(buffer(8), 8, "add", "U3")
    assert shapes.MAX_RANK <= _kernels.MAX_RANK


def test_what_replaces_current_values_is_complete() -> None:
    block, neutral_elements = _kernels.BLOCK, "the neutral elements are shorter than a block"
    for current, pitch, neutral, reason in (
        ("replaced", 8, None, "the first update of a slice is the one whose count is 0"),
        ("neutral", 8, None, neutral_elements),
        ("neutral", 8, buffer(8 * block - 1), neutral_elements),
        ("fill", 72, buffer(72 * block), neutral_elements),
    ):
        with pytest.raises(ValueError, match=reason):
            _kernels.UpdateSpec(buffer(144), pitch, "add", "float64", current, None, neutral)


def test_a_count_has_4_or_8_bytes() -> None:
    for itemsize in (1, 2):
        with pytest.raises(ValueError, match="a count has 4 or 8 bytes"):
            _kernels.UpdateCounts(buffer(8), itemsize)
    for counts, reason in ((None, "there is no window"), (buffer(31), "the counts are fewer")):
        counter = _kernels.UpdateCounts(counts, 8)
        with pytest.raises(ValueError, match=reason):
            _kernels.divide_means(counter, buffer(32), 8, "float64", True, kernel_options())


def test_a_table_of_rows_has_more_slots_than_tuples() -> None:
    table = np.zeros(65, np.uint8)
    for slots, tuples, factor in ((buffer(56), 3, 1), (buffer(64), 8, 1), (buffer(64), 3, 2)):
        counts = _kernels.UpdateCounts(buffer(64), 8, slots, tuples, factor)
        with pytest.raises(ValueError, match="a power of two of slots, more than tuples"):
            _kernels.divide_means(counts, buffer(640), 8, "float64", True, kernel_options())
    offset = 1 - table.ctypes.data % 2  # an odd address
    counts = _kernels.UpdateCounts(buffer(64), 8, table[offset : offset + 64], 3, 1)
    with pytest.raises(ValueError, match="the slots of a table are aligned"):
        _kernels.divide_means(counts, buffer(640), 8, "float64", True, kernel_options())
    counts = _kernels.UpdateCounts(buffer(63), 8, buffer(64), 3, 1)
    with pytest.raises(ValueError, match="the counts are fewer than the slices"):
        _kernels.divide_means(counts, buffer(640), 8, "float64", True, kernel_options())


def test_each_strip_is_copied_once() -> None:
    data = np.arange(1, 2801, dtype="i4").reshape(40, 70, order="F")
    layout = _kernels.Layout(data.shape, data.strides, 4)
    bits = data.T.reshape(-1).view("u1")
    assert layout.pieces > 2
    result = np.zeros(data.shape, "i4")
    for strip in range(layout.pieces):
        out = np.zeros(data.shape, "i4")
        _kernels.copy_pieces(
            layout, bits, 0, out.reshape(-1).view("u1"), strip, strip + 1, kernel_options()
        )
        assert 0 < np.count_nonzero(out) < out.size
        result += out  # the sum is wrong if a strip is copied twice
    assert np.array_equal(result, data)
