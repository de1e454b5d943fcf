"""The kernels' doors: a buffer that a call would leave is refused, before a byte is touched.

Only a bug in ndtool can come there: every call is right but for one argument.
"""

import mmap
from typing import Any

import numpy as np
import pytest

from ndtool import _kernels


def room(nbytes: int) -> np.ndarray:
    return np.zeros(nbytes, np.uint8)


def addressing(
    size: int = 4, stride: int = 8, per_batch: int = 2, batches: int = 1, pitch: int = 32
) -> _kernels.Addressing:
    return _kernels.Addressing((size,), (stride,), per_batch, (batches,), (pitch,), True)


def grid(tile: int = 3, axes: int = 0) -> _kernels.Grid:
    """Return [2,3] indices into data of [4,3] elements of 8 bytes, along axis 0."""
    return _kernels.Grid(*[(1,) * axes] * 3, (2, 3, 4, 24), (3, 8, tile), 8, True)


REGION = 32768 * (4 + 8)  # of a sorted group, with updates of 8 bytes
INDICES = {"indices": room(16), "kind": 8}
PLACE = {"first": 0, "count": 2}
ONE = {"threads": 1}
RUN = {"column": 0, "width": 8}
MOVE = {"code": 0, "op": 0}
CALLS: dict[str, dict[str, Any]] = {
    "check": {"a": addressing(), **INDICES, "count": 2, **ONE},
    "find": {"a": addressing(), **INDICES, "count": 2},
    "gather": {
        "a": addressing(), "data": room(32), "origin": 0, **INDICES, "out": room(16), **PLACE,
        **RUN, **ONE, "streamed": False,
    },
    "scatter": {
        "a": addressing(), "out": room(32), **INDICES, "updates": room(16), **PLACE, **RUN,
        "pitch": 8, **MOVE, **ONE, "by_batches": True, "streamed": False,
    },
    "scatter_lines": {
        "a": addressing(), "data": room(32), "line": 32, "out": room(32), **INDICES,
        "updates": room(16), **PLACE, "width": 8, **MOVE, "windows": room(32), **ONE,
        "streamed": False,
    },
    "partition": {
        "rows": addressing(stride=1, pitch=4), **INDICES, "updates": room(16), "width": 8, **PLACE,
        "shift": 1, "scratch": room(2 * REGION + 32768 * 8), "ends": np.zeros((1, 2), np.uint32),
        **ONE, "streamed": False,
    },
    "apply_parts": {
        "data": room(32), "updates": room(16), "out": room(32), "scratch": room(REGION),
        "ends": np.zeros((1, 2), np.uint32), "shift": 1, "width": 8, "rows": 4, "part": 0,
        "stop": 2, **MOVE, "windows": room(16), **ONE, "streamed": False,
    },
    "gather_strided": {
        "a": addressing(stride=32, pitch=128), "run": _kernels.Layout((2,), (16,), 8),
        "data": room(120), "origin": 0, **INDICES, "out": room(32), **PLACE, "element": 0,
        "elements": 2, **ONE,
    },
    "pack": {
        "layout": _kernels.Layout((4,), (8,), 8), "data": room(32), "origin": 0, "out": room(32),
        "first": 0, "count": 4,
    },
    "copy_strips": {
        "layout": _kernels.Layout((2, 2), (8, 64), 8), "data": room(80), "origin": 0,
        "out": room(32), "strip": 0, "stop": 1, **ONE,
    },
    "gather_units": {
        "g": grid(), "data": room(96), "origin": 0, "indices": room(48), "kind": 8,
        "out": room(48), "unit": 0, "stop": 1, "scratch": room(96), **ONE,
        "streamed": False,
    },
    "scatter_units": {
        "g": grid(), "data": room(96), "out": room(96), "indices": room(48), "kind": 8,
        "updates": room(48), "unit": 0, "stop": 1, **MOVE, "scratch": room(96), **ONE,
        "streamed": False,
    },
    "will_need": {
        "a": addressing(), "data": room(32), "origin": 0, **INDICES, **PLACE, **RUN,
    },
    "copy": {"data": room(32), "out": room(32), **ONE, "streamed": False},
    "swap": {"buffer": room(36), "unit": 12},
}  # fmt: skip

DATA = "the data buffer is shorter than its shape"
INDEX = "the indices buffer is shorter than its shape"
OUT = "the output buffer is shorter than its shape"
UPDATES = "the updates buffer is shorter than its shape"
UNIT = "a buffer of the indices' shape is shorter than it"
SCRATCH = "the scratch buffer is too short"
WINDOWS = "the window buffer is too short"
BATCHES = "batches are shared out whole"
UNITS = "the buffer is not one of whole units"
ROWS = "the rows are more than the parts hold"

WRONG = [
    ("check", {"indices": room(15)}, INDEX),
    ("find", {"indices": room(15)}, INDEX),
    ("gather", {"data": room(31)}, DATA),
    ("gather", {"origin": -1}, DATA),
    ("gather", {"origin": 1}, DATA),
    ("gather", {"width": 9}, DATA),
    ("gather", {"indices": room(15)}, INDEX),
    ("gather", {"out": room(15)}, OUT),
    ("scatter", {"out": room(31)}, DATA),
    ("scatter", {"indices": room(15)}, INDEX),
    ("scatter", {"updates": room(15)}, UPDATES),
    ("scatter", {"first": 1}, BATCHES),
    ("scatter", {"count": 1}, BATCHES),
    ("scatter_lines", {"out": room(31)}, DATA),
    ("scatter_lines", {"indices": room(15)}, INDEX),
    ("scatter_lines", {"updates": room(15)}, UPDATES),
    ("scatter_lines", {"data": room(31)}, DATA),
    ("scatter_lines", {"line": 24}, DATA),
    ("scatter_lines", {"windows": room(31)}, WINDOWS),
    ("scatter_lines", {"first": 1}, BATCHES),
    ("scatter_lines", {"count": 1}, BATCHES),
    ("partition", {"indices": room(15)}, INDEX),
    ("partition", {"scratch": room(2 * REGION + 32768 * 8 - 1)}, SCRATCH),
    ("partition", {"ends": np.zeros((0, 2), np.uint32)}, SCRATCH),
    ("partition", {"shift": 0}, ROWS),
    ("partition", {"shift": 33}, ROWS),
    ("partition", {"rows": addressing(stride=-1, pitch=4)}, ROWS),
    ("partition", {"updates": room(15)}, UPDATES),
    ("apply_parts", {"out": room(31)}, OUT),
    ("apply_parts", {"data": room(31)}, OUT),
    ("apply_parts", {"windows": room(15)}, WINDOWS),
    ("apply_parts", {"scratch": room(REGION - 1)}, SCRATCH),
    ("gather_strided", {"data": room(119)}, DATA),
    ("gather_strided", {"indices": room(15)}, INDEX),
    ("gather_strided", {"out": room(31)}, OUT),
    ("pack", {"data": room(31)}, DATA),
    ("pack", {"origin": -1}, DATA),
    ("pack", {"out": room(31)}, OUT),
    ("copy_strips", {"data": room(79)}, DATA),
    ("copy_strips", {"origin": -1}, DATA),
    ("copy_strips", {"out": room(31)}, OUT),
    ("copy_strips", {"stop": 2}, OUT),
    ("gather_units", {"data": room(95)}, DATA),
    ("gather_units", {"origin": -1}, DATA),
    ("gather_units", {"indices": room(40)}, INDEX),
    ("gather_units", {"stop": 2}, INDEX),
    ("gather_units", {"out": room(40)}, UNIT),
    ("gather_units", {"scratch": room(95)}, SCRATCH),
    ("scatter_units", {"out": room(95)}, DATA),
    ("scatter_units", {"data": room(95)}, DATA),
    ("scatter_units", {"indices": room(40)}, INDEX),
    ("scatter_units", {"updates": room(40)}, UNIT),
    ("scatter_units", {"scratch": room(95)}, SCRATCH),
    ("will_need", {"data": room(31)}, DATA),
    ("will_need", {"indices": room(15)}, INDEX),
    ("copy", {"out": room(31)}, OUT),
    ("swap", {"buffer": room(35)}, UNITS),
    ("swap", {"unit": 0}, UNITS),
    ("swap", {"unit": -12}, UNITS),
]


@pytest.mark.parametrize("kernel", CALLS)
def test_what_just_fits_is_let_in(kernel: str) -> None:
    expected = {
        "find": (-1, -1, 0),
        "apply_parts": None,
        "pack": None,
        "copy_strips": None,
        "will_need": 1,
        "copy": None,
        "swap": None,
    }
    assert getattr(_kernels, kernel)(**CALLS[kernel]) == expected.get(kernel, 0)


@pytest.mark.parametrize(("kernel", "change", "reason"), WRONG)
def test_what_does_not_fit_is_refused(kernel: str, change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason}$"):
        getattr(_kernels, kernel)(**CALLS[kernel] | change)


@pytest.mark.parametrize("kernel", [name for name, call in CALLS.items() if "kind" in call])
@pytest.mark.parametrize(("bad", "kind"), [(np.int64(4), 8), (np.uint64(2**64 - 1), 8 | 16)])
def test_a_bad_index_is_told(kernel: str, bad: np.generic, kind: int) -> None:
    wrong = {"indices": np.full(6, bad).view(np.uint8), "kind": kind}
    expected = {"find": (0, 0, 2), "will_need": 0}
    assert getattr(_kernels, kernel)(**CALLS[kernel] | wrong) == expected.get(kernel, 1)


@pytest.mark.parametrize(
    ("rows", "width", "calls"),
    [
        ([0, 2, 4, 6], 1, 4),  # every other page
        ([0, 1, 2, 3], 1, 1),
        ([0, 0, 0, 0], 1, 1),
        ([3, 2, 1, 0], 1, 4),
        ([0, 7, 8, 20], 4096, 3),
        ([0, 32], 131072, 2),  # as much as one call asks for
        ([0, 64], 131073, 4),
    ],
)
def test_the_system_is_asked_for_what_lies_together_at_once(
    rows: list[int], width: int, calls: int
) -> None:
    size = 4096
    data = np.frombuffer(mmap.mmap(-1, 128 * size), np.uint8)
    index = np.array(rows).view(np.uint8)
    there = _kernels.Addressing((65,), (size,), len(rows), (), (), True)
    assert _kernels.will_need(there, data, 0, index, 8, 0, len(rows), 0, width) == calls


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: _kernels.Addressing((1,) * 65, (1,) * 65, 1, (), (), True), "more axes than"),
        (lambda: _kernels.Addressing((), (), 1, (1,) * 65, (1,) * 65, True), "more axes than"),
        (lambda: _kernels.Layout((), (), 1), "a layout has 1 to 64 axes"),
        (lambda: _kernels.Layout((1,) * 65, (1,) * 65, 1), "a layout has 1 to 64 axes"),
        (lambda: grid(axes=65), "more axes than an array can have"),
        (lambda: grid(tile=0), "a unit has 1 to 512 columns"),
        (lambda: grid(tile=513), "a unit has 1 to 512 columns"),
    ],
)
def test_shapes_that_no_array_has(make: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason}"):
        make()
