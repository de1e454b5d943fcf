"""The size checks of the kernels' entry points, which precede any access.

Only a bug in ndtool could violate them: each call is valid but for one argument.
"""

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
    spec = _kernels.UpdateSpec(buffer(nbytes), pitch, "mean", "float64")
    return spec.passes(counter)[0]


def window_spec(pitch: int = 8, nbytes: int = 16) -> _kernels.UpdateSpec:
    return _kernels.UpdateSpec(
        buffer(nbytes), pitch, "mean", "float64", bytes(8), 8, current="neutral"
    )


def fill_spec(pitch: int = 8, nbytes: int = 16) -> _kernels.UpdateSpec:
    return _kernels.UpdateSpec(buffer(nbytes), pitch, "add", "float64", bytes(8), current="fill")


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
    "interleave": {"planes": buffer(36), "out": buffer(36), "count": 4},
}  # fmt: skip

DATA = "the data buffer is shorter than its shape"
SEPARATE = "windows have no separate first pass"
TILES = "packed tiles, and only they, have their own counts"
INDEX = "the indices buffer is shorter than its shape"
OUT = "the output buffer is shorter than its shape"
PLANES = "the buffers are no multiple of the planes"
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
    ("gather", {"item": work_item(width=9)}, DATA),
    ("gather", {"item": work_item(first=1)}, INDEX),
    ("gather", {"indices": indices(15)}, INDEX),
    ("gather", {"out": buffer(15)}, OUT),
    ("gather", {"indices": indices(mode="fill", fill_bytes=buffer(7))}, SHORT_FILL),
    ("scatter", {"out": buffer(31)}, DATA),
    ("scatter", {"indices": indices(15)}, INDEX),
    ("scatter", {"spec": update_spec(15)}, UPDATES),
    ("scatter", {"spec": update_spec(16, 7)}, SHORT_UPDATE),
    ("scatter", {"item": work_item(first=1, tuples=1)}, BATCHES),
    ("scatter_batches", {"out": buffer(31)}, DATA),
    ("scatter_batches", {"indices": indices(15)}, INDEX),
    ("scatter_batches", {"spec": update_spec(15)}, UPDATES),
    ("scatter_batches", {"data": buffer(31)}, DATA),
    ("scatter_batches", {"options": kernel_options(31)}, SCRATCH),
    ("scatter_batches", {"first": 1, "count": 1}, BATCHES),
    ("partition", {"indices": indices(15)}, INDEX),
    ("partition", {"partitions": partitions(GROUP_BYTES + THREAD_SCRATCH - 1)}, SCRATCH),
    ("partition", {"partitions": partitions(end_count=2)}, SCRATCH),
    ("partition", {"partitions": partitions(rows=3)}, ROWS),
    ("partition", {"a": addressing(stride=-1, pitch=4)}, ROWS),
    ("partition", {"spec": update_spec(15)}, UPDATES),
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
    ("scatter_tiles", {"spec": counted_spec(96, 8, 8, 48)}, TILES),
    ("scatter_tiles", {"spec": fill_spec(nbytes=48)}, SEPARATE),
    ("apply_partitions", {"out": buffer(31)}, OUT),
    ("apply_partitions", {"data": buffer(31)}, OUT),
    ("apply_partitions", {"options": kernel_options(15)}, SCRATCH),
    ("apply_partitions", {"spec": update_spec(15)}, UPDATES),
    ("apply_partitions", {"stop": 3}, OTHER_SHAPE),
    ("gather_strided", {"data": buffer(119)}, DATA),
    ("gather_strided", {"item": work_item(width=12)}, OUTSIDE_SLICE),
    ("gather_strided", {"item": work_item(column=4)}, OUTSIDE_SLICE),
    ("copy_pieces", {"data": buffer(79)}, DATA),
    ("copy_pieces", {"out": buffer(31)}, OUT),
    ("copy_pieces", {"stop": 2}, OUT),
    ("gather_tiles", {"data": buffer(95)}, DATA),
    ("gather_tiles", {"indices": indices(40)}, INDEX),
    ("gather_tiles", {"stop": 2}, INDEX),
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
    ("interleave", {"planes": buffer(35), "out": buffer(35)}, PLANES),
    ("interleave", {"out": buffer(35)}, PLANES),
    ("interleave", {"count": 0}, PLANES),
]


def call(kernel: str, **changes: Any) -> Any:
    return getattr(_kernels, kernel.removesuffix("_strided"))(**CALLS[kernel] | changes)


@pytest.mark.parametrize("kernel", CALLS)
def test_the_largest_valid_sizes(kernel: str) -> None:
    expected = {
        "locate_out_of_bounds": (-1, -1, 0),
        "apply_partitions": None,
        "copy_pieces": None,
        "will_need": 1,
        "copy": None,
        "swap": None,
        "interleave": None,
    }
    assert call(kernel) == expected.get(kernel, 0)


@pytest.mark.parametrize(("kernel", "changes", "reason"), INVALID_CALLS)
def test_inconsistent_arguments_are_refused(
    kernel: str, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=f"^{reason}$"):
        call(kernel, **changes)


@pytest.mark.parametrize("kernel", [name for name, call in CALLS.items() if "indices" in call])
@pytest.mark.parametrize(("value", "unsigned"), [(4, False), (2**64 - 1, True)])
def test_an_index_out_of_bounds_is_reported(kernel: str, value: int, unsigned: bool) -> None:
    invalid = {"indices": indices(48, value, unsigned)}
    expected = {"locate_out_of_bounds": (0, 0, 2), "will_need": 0}
    assert call(kernel, **invalid) == expected.get(kernel, 1)


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


def test_each_strip_is_copied_once() -> None:
    data = np.arange(1, 180001, dtype="i4").reshape(300, 600, order="F")  # two bands, two tiles
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
