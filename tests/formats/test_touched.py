"""Partial reads: a gather from chunked or remote data reads only the parts that it needs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cases_of
from test_conformance import toy_file
from toy_format import Blocks

from ndtool.analysis import explain, infer, preview, typed, verify
from ndtool.analysis.oracle import reference
from ndtool.arrays import assembly
from ndtool.errors import BoundsError
from ndtool.formats import table
from ndtool.formats.table import Format
from ndtool.rules import dtypes, grid, shapes
from ndtool.rules.operators import Attributes
from ndtool.runs import operands, steps, touched
from ndtool.runs.calls import OpenCall, Request
from ndtool.runs.touched import TouchedByGather

ORDERS = ("C", "F")


def gathered(plan: Any, indices: Any) -> TouchedByGather:
    raw = memoryview(np.ascontiguousarray(indices)).cast("B") if indices.size else memoryview(b"")
    return TouchedByGather(plan, raw, dtypes.from_numpy(indices.dtype), plan.attributes)


def elements(plan: Any, indices: Any) -> Any:
    """Return which elements of data are gathered, for each output position in turn."""
    hit = np.zeros(plan.data, bool)
    if plan.is_elementwise:
        for coordinates in np.ndindex(plan.indices):
            hit[
                (
                    *coordinates[: plan.elements_axis],
                    int(indices[coordinates]),
                    *coordinates[plan.elements_axis + 1 :],
                )
            ] = True
    else:
        b = len(plan.batch)
        for coordinates in np.ndindex(plan.indices[:-1]):
            hit[(*coordinates[:b], *map(int, indices[coordinates]))] = True
    return hit


@st.composite
def calls(draw: Any) -> tuple[Any, Any]:
    """Draw a plan of a gather and its indices."""
    operator, (data, indices), arguments = draw(cases_of("gather_nd") | cases_of("gather_elements"))
    sizes = {"data": data.shape, "indices": indices.shape}
    plan = shapes.infer(operator, sizes, Attributes(**arguments))[1]
    return plan, np.ascontiguousarray(indices)


@pytest.mark.parametrize("slab", [touched.BATCH_TUPLES, 3])
@settings(deadline=None)
@given(call=calls(), steps=st.data())
def test_blocks_are_those_of_the_elements(call: Any, steps: Any, slab: int) -> None:
    plan, indices = call
    step = tuple(steps.draw(st.integers(1, max(1, size))) for size in plan.data)
    hit = elements(plan, indices)
    count = grid.count_blocks(plan.data, step)
    expected = [
        n for n in range(count) if hit[assembly.box_slices(grid.box(plan.data, step, n))].any()
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(touched, "BATCH_TUPLES", slab)
        one = gathered(plan, indices)
        assert list(one.blocks(step)) == expected
        assert list(one.blocks(step)) == expected


@pytest.mark.parametrize("granule", [1, 16, touched.GRANULE])
@pytest.mark.parametrize("order", ORDERS)
@settings(deadline=None)
@given(call=calls(), itemsize=st.sampled_from([1, 2, 8, 24]))
def test_ranges_hold_the_elements(call: Any, order: str, granule: int, itemsize: int) -> None:
    plan, indices = call
    hit = elements(plan, indices).ravel(order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(touched, "GRANULE", granule)
        ranges = list(gathered(plan, indices).ranges(itemsize, order))
    expected = np.repeat(hit, itemsize)
    actual = np.zeros(hit.size * itemsize, bool)
    for start, stop in ranges:
        assert 0 <= start < stop <= actual.size
        actual[start:stop] = True
    assert not (expected & ~actual).any()
    ends = [end for byte_range in ranges for end in byte_range]
    assert ends == sorted(set(ends)), "ascending, disjoint, none touching the next"
    if granule == 1:
        assert (actual == expected).all()


# Sources that count reads


@pytest.fixture
def read(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return the blocks read of each file, recorded as they are read."""
    report: list[tuple[str, int]] = []
    read_chunk = Blocks.read_chunk

    def record_chunk(self: Blocks, number: int, box: grid.Box) -> Any:
        report.append((self.name, number))
        return read_chunk(self, number, box)

    monkeypatch.setattr(Blocks, "read_chunk", record_chunk)
    toy = Format(".toy", False, "toy_format")
    monkeypatch.setattr(table, "FORMATS", (*table.FORMATS, toy))
    return report


DATA = np.arange(24 * 10, dtype="<i4").reshape(24, 10)
ROWS = np.array([[3], [-1], [4], [3], [-24]])
ALONG = np.array([[5, 5, 5], [-1, -2, 7]])


def put(**arrays: Any) -> None:
    for name, array in arrays.items():
        step = (5, 4) if name in ("data", "updates") else tuple(max(1, n) for n in array.shape)
        Path(f"{name}.toy").write_bytes(toy_file(array, step))


def block_numbers(read: list[tuple[str, int]], name: str) -> list[int]:
    return sorted(number for one, number in read if one == name)


def test_a_gather_reads_each_touched_block_once_and_no_other(read: Any) -> None:
    put(data=DATA, indices=ROWS)
    request = Request("gather_nd", "data.toy", "indices.toy", output="out.npy")
    with OpenCall(request) as call, steps.prepare(call, steps.resolve_output(call)) as prepared_run:
        assert block_numbers(read, "data.toy") == [], "validated, not read yet"
        steps.execute(prepared_run)
    assert (np.load("out.npy") == DATA[ROWS[:, 0]]).all()
    assert block_numbers(read, "data.toy") == [0, 1, 2, 12, 13, 14]


def test_elements_read_each_touched_block_once_and_no_other(read: Any) -> None:
    put(data=DATA, indices=ALONG)
    request = Request(
        "gather_elements", "data.toy", "indices.toy", None, "out.npy", Attributes(axis=0)
    )
    with OpenCall(request) as call:
        steps.run(call)
    assert (np.load("out.npy") == np.take_along_axis(DATA[:, :3], ALONG, 0)).all()
    assert block_numbers(read, "data.toy") == [3, 12]


def test_a_scatter_reads_every_block_once(read: Any) -> None:
    put(data=DATA, indices=ROWS, updates=DATA[:5])
    request = Request("scatter_nd", "data.toy", "indices.toy", "updates.toy", "out.npy")
    with OpenCall(request) as call:
        steps.run(call)
    assert (np.load("out.npy") == reference.scatter_nd(DATA, ROWS, DATA[:5])).all()
    assert block_numbers(read, "data.toy") == list(range(15))


def test_bounds_are_checked_before_data_are_read(read: Any) -> None:
    put(data=DATA, indices=np.array([[24]]))
    request = Request("gather_nd", "data.toy", "indices.toy")
    with OpenCall(request) as call, pytest.raises(BoundsError):
        operands.validate(call)
    assert block_numbers(read, "data.toy") == []


def test_a_preview_reads_only_the_blocks_that_the_gather_reads(read: Any) -> None:
    put(data=DATA, indices=ROWS)
    with OpenCall(Request("gather_nd", "data.toy", "indices.toy")) as call:
        text = preview.text(operands.validate(call))
    assert "[ 30  31  32" in text
    assert block_numbers(read, "data.toy") == [0, 1, 2, 12, 13, 14]


def test_an_explanation_reads_only_the_blocks_of_its_elements(read: Any) -> None:
    put(data=DATA, indices=ROWS, updates=DATA[:5])
    with typed.open_typed_call(Request("gather_nd", "data.toy", "indices.toy")) as call:
        one, _ = explain.explain(call, [(2, 9)], [(4, 0)]).explained
    assert one.value == DATA[4, 9]
    assert block_numbers(read, "data.toy") == [0, 2]
    read.clear()
    with typed.open_typed_call(Request("scatter_nd", "data.toy", "[[3]]", "int32[1,10]")) as call:
        explain.explain(call, [(23, 9)])
    assert block_numbers(read, "data.toy") == [14]


def test_inference_reads_nothing_and_verify_everything(read: Any) -> None:
    put(data=DATA, indices=ROWS)
    np.save("out.npy", DATA[ROWS[:, 0]])
    infer.infer("gather_nd", {"data": "data.toy", "indices": "indices.toy"})
    assert read == []
    request = Request("gather_nd", "data.toy", "indices.toy", output="out.npy")
    with verify.open_call(request) as call:
        verify.verify(call)
    assert block_numbers(read, "data.toy") == list(range(15))
