"""Normalization of arrays in boxes: Fortran order, byte order, unaligned offsets."""

import os
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from command import save
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Array, raw_bytes

import ndtool
from ndtool.engine import copies, layouts, tuning
from ndtool.engine.bind import Operand
from ndtool.errors import BoundsError
from ndtool.rules import dtypes
from ndtool.rules.operators import Attributes
from ndtool.runs import steps
from ndtool.runs.calls import OpenCall, Request
from ndtool.storage import tempfiles

TYPES = ("|u1", ">f4", ">c8", "<U3", "|V100")
SHAPES = st.lists(st.integers(1, 7), max_size=4).map(tuple)


def distinct_elements(shape: tuple[int, ...], itemsize: int) -> Array:
    """Return elements in Fortran order, distinct as far as their bytes allow."""
    rng = np.random.default_rng(0)
    flat = rng.integers(0, 256, (*shape, itemsize), np.uint8)
    return np.asarray(flat.view(f"V{itemsize}")[..., 0], order="F")


@settings(deadline=None)
@given(
    shape=SHAPES,
    code=st.sampled_from(TYPES),
    order=st.sampled_from("<>"),
    fortran=st.booleans(),
    limit=st.one_of(st.integers(1, 300), st.integers(200, 20_000)),
    threads=st.integers(1, 3),
)
def test_every_byte_is_written_once(
    shape: tuple[int, ...], code: str, order: str, fortran: bool, limit: int, threads: int
) -> None:
    dtype = dtypes.from_numpy(np.dtype(code))
    array = distinct_elements(shape, dtype.itemsize)
    normalized = array.tobytes("C")
    if dtype.swap_size > 1 and dtype.order != order:
        normalized = (
            np.frombuffer(normalized, np.uint8).reshape(-1, dtype.swap_size)[:, ::-1].tobytes()
        )
    strides = layouts.contiguous_strides(shape, dtype.itemsize, fortran)
    data = Operand(memoryview(array.tobytes("F" if fortran else "C")), 0, strides)
    out, write_counts = bytearray(len(normalized)), np.zeros(len(normalized), int)

    def write(start: int, view: memoryview) -> None:
        assert len(view) <= max(limit, dtype.itemsize)
        write_counts[start : start + len(view)] += 1
        out[start : start + len(view)] = view

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "NORMALIZED_BOX", limit)
        patch.setattr("ndtool.machine.threads.MIN_WORK", 1)
        copies.write_normalized(data, shape, dtype, order, write, threads)
    assert bytes(out) == normalized
    assert (write_counts == 1).all()


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4, 2)], ids=str)
def test_empty_arrays_write_nothing(shape: tuple[int, ...]) -> None:
    data = Operand(memoryview(b""), 0, layouts.contiguous_strides(shape, 4, True))
    copies.write_normalized(data, shape, dtypes.from_code("<f4"), ">", fail_if_called, 2)


def fail_if_called(*_: object) -> None:
    raise AssertionError("this must not be called")


# Runs on files


@pytest.fixture
def small_boxes(monkeypatch: pytest.MonkeyPatch, workdir: Path) -> pytest.MonkeyPatch:
    """Let normalized copies be in files, and be made by several threads."""
    monkeypatch.setattr(tempfiles, "MAX_IN_MEMORY", 0)
    monkeypatch.setattr("ndtool.machine.threads.MIN_WORK", 1)
    return monkeypatch


def run_operator(operator: str, attributes: Attributes, threads: int, *arrays: str) -> Array:
    request = Request(operator, *arrays, output="out.npy", attributes=attributes, threads=threads)  # fmt: skip
    with OpenCall(request) as call:
        steps.run(call)
    return np.load("out.npy")


@pytest.mark.parametrize(
    ("code", "data", "tuples", "b"),
    [
        ("|u1", (40, 30), (50, 1), 0),
        (">f4", (40, 5, 7), (30, 3, 2), 0),
        (">c8", (6, 40, 17), (6, 50, 1), 1),
        ("<U3", (3, 2, 9, 33), (3, 2, 20, 1), 2),
        ("|V100", (1, 40, 1, 30), (40, 1), 0),
    ],
)
def test_gathers_of_rows_from_fortran_files(
    small_boxes: pytest.MonkeyPatch,
    code: str,
    data: tuple[int, ...],
    tuples: tuple[int, ...],
    b: int,
) -> None:
    dtype = np.dtype(code)
    array = distinct_elements(data, dtype.itemsize)
    sizes = np.array(data[b : b + tuples[-1]])
    indices = np.random.default_rng(7).integers(-sizes, sizes, tuples)
    expected = raw_bytes(ndtool.gather_nd(np.ascontiguousarray(array), indices, b))
    for order, packed, box, threads in (
        ("C", 1 << 28, 70, 1), ("F", 1 << 28, 999, 3), ("C", 0, 70, 2),
    ):  # fmt: skip
        save(data=array.view(dtype), indices=np.array(indices, order=order))
        small_boxes.setattr(tuning, "MAX_PACKED", packed)
        small_boxes.setattr(tuning, "NORMALIZED_BOX", box)
        small_boxes.setattr(tuning, "WRITE_SIZE", box + 13)
        result = run_operator(
            "gather_nd", Attributes(batch_dims=b), threads, "data.npy", "indices.npy"
        )
        assert result.dtype == dtype
        assert raw_bytes(result) == expected, (order, packed, box, threads)


@pytest.mark.parametrize("code", ["<f4", ">f8"])
def test_scatters_into_fortran_files(small_boxes: pytest.MonkeyPatch, code: str) -> None:
    rng = np.random.default_rng(3)
    data = rng.integers(0, 99, (40, 5, 7)).astype(code)
    indices, updates = rng.integers(-40, 40, (90, 1)), rng.integers(0, 9, (90, 5, 7)).astype(code)
    expected = data.copy()
    np.add.at(expected, indices[:, 0], updates)
    for index_order, box, threads in product("CF", (70, 999), (1, 3)):
        save(data=np.asarray(data, order="F"), indices=np.asarray(indices, order="F"))
        save(updates=np.asarray(updates, order=index_order))
        small_boxes.setattr(tuning, "NORMALIZED_BOX", box)
        names = "data.npy", "indices.npy", "updates.npy"
        result = run_operator("scatter_nd", Attributes(reduction="add"), threads, *names)
        assert raw_bytes(result) == raw_bytes(expected), (index_order, box, threads)


def test_an_index_out_of_bounds_comes_before_a_copy(small_boxes: pytest.MonkeyPatch) -> None:
    save(data=np.asarray(np.ones((40, 100)), order="F"), indices=[[3], [40]] * 20)
    small_boxes.setattr(tempfiles, "open_buffer", fail_if_called)
    with pytest.raises(BoundsError, match="20 of 40"):
        run_operator("gather_nd", Attributes(), 2, "data.npy", "indices.npy")
    assert sorted(os.listdir()) == ["data.npy", "indices.npy"]
