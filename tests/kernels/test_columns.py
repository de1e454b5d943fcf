"""Elements operators that write mapped files in blocks of columns: bits, pages and memory."""

import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import (
    Case,
    gather_elements_cases,
    many,
    raw_bytes,
    scatter_elements_cases,
    void_view,
)

from ndtool import _kernels
from ndtool.analysis.oracle import reference
from ndtool.engine import bind, columns, gathers, tuning
from ndtool.machine import cgroups, memory
from ndtool.rules.operators import Attributes
from ndtool.runs import steps
from ndtool.runs.calls import OpenCall
from ndtool.runs.request import Request

INPUTS = ("d.npy", "i.npy", "u.npy")
PAGE = _kernels.PAGE


@pytest.fixture
def small_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Write outputs along an axis other than the last in blocks of a few pages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tuning, "INCOMPLETE_PAGES", 0)
    monkeypatch.setattr(memory, "available", lambda: 0)
    monkeypatch.setattr(tuning, "COLUMN_BLOCK", 2 * PAGE)
    bind.bind_tiles.cache_clear()
    yield monkeypatch
    bind.bind_tiles.cache_clear()


def run(case: Case, threads: int = 2, order: str = "C") -> np.ndarray:
    """Run a case from files to a file."""
    for name, array in zip(INPUTS, case.arrays, strict=False):
        np.save(name, np.asarray(array, order=order))  # type: ignore[call-overload]
    attributes = Attributes(**case.arguments)
    request = Request(
        case.operator, *INPUTS[: len(case.arrays)], output="o.npy", attributes=attributes,
        threads=threads,
    )  # fmt: skip
    with OpenCall(request) as call:
        steps.run(call)
    return np.load("o.npy")


def reference_result(case: Case) -> np.ndarray:
    return getattr(reference, case.operator)(*case.arrays, **case.arguments)


def is_saved_exactly(case: Case) -> bool:
    """Whether np.save and np.load preserve a case's types."""
    return all(np.dtype(a.dtype.str) == a.dtype and a.dtype.char not in "gG" for a in case.arrays)


def make_arrays(shape: tuple[int, ...], axis: int, dtype: str = "i4", extra: int = 3) -> list[Any]:
    """Return data, indices of both signs with duplicates, and updates."""
    rng = np.random.default_rng(1)
    index_shape = (*shape[:axis], shape[axis] + extra, *shape[axis + 1 :])
    data, updates = rng.integers(0, 99, shape), rng.integers(0, 99, index_shape)
    indices = rng.integers(-shape[axis], shape[axis], index_shape)
    return [data.astype(dtype), indices, updates.astype(dtype)]


@pytest.mark.slow("random blocks of columns have the bits of the loop")
@many
@given(
    case=st.one_of(gather_elements_cases(), scatter_elements_cases()).filter(is_saved_exactly),
    threads=st.integers(1, 3),
    block=st.integers(1, 200),
    bands=st.integers(1, 5),
)
def test_blocks_have_the_bits_of_the_reference(
    small_blocks: pytest.MonkeyPatch, case: Case, threads: int, block: int, bands: int
) -> None:
    small_blocks.setattr(columns, "LINE", 1)
    small_blocks.setattr(tuning, "COLUMN_BLOCK", block)
    small_blocks.setattr(tuning, "BANDS", bands)
    with np.errstate(all="ignore"):
        expected = reference_result(case)
    assert raw_bytes(run(case, threads)) == raw_bytes(expected)


@pytest.mark.slow("each division of columns has the bits of the loop")
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["i1", ">f4", "c16", "S3"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((25, 2048), 0), ((3, 10, 1024), 1), ((70, 101), 0), ((9, 10, 100), 0)]
)
def test_every_division_of_columns_has_the_bits_of_the_reference(
    small_blocks: pytest.MonkeyPatch, shape: tuple[int, ...], axis: int, dtype: str, order: str
) -> None:
    data, indices, updates = make_arrays(shape, axis, dtype)
    reduction = "none" if dtype == "S3" else "add"
    for bands in (1, 3, 100):
        small_blocks.setattr(tuning, "BANDS", bands)
        scatter_case = Case(
            "scatter_elements", (data, indices, updates), {"axis": axis, "reduction": reduction}
        )
        assert raw_bytes(run(scatter_case, 2, order)) == raw_bytes(reference_result(scatter_case))
    gather_case = Case("gather_elements", (data, indices), {"axis": axis})
    assert raw_bytes(run(gather_case, 2, order)) == raw_bytes(reference_result(gather_case))


@pytest.mark.parametrize("shape", [(64, 2048), (63, 2048), (256, 32)], ids=str)
def test_bands_whose_tiles_exceed_the_cache_are_correct(
    small_blocks: pytest.MonkeyPatch, shape: tuple[int, int]
) -> None:
    small_blocks.setattr(tuning, "TILE", 1 << 10)  # two tiles hold 32 rows of a cache line
    scatter = Case("scatter_elements", make_arrays(shape, 0, "f4"), {"axis": 0, "reduction": "max"})
    assert raw_bytes(run(scatter)) == raw_bytes(reference_result(scatter))


@pytest.mark.parametrize("operator", ["gather_elements", "scatter_elements"])
@pytest.mark.parametrize("columns_of_row", [1024, 3072, 1000])
def test_every_page_is_written_by_two_blocks_at_most(
    small_blocks: pytest.MonkeyPatch, operator: str, columns_of_row: int
) -> None:
    small_blocks.setattr(tuning, "COLUMN_BLOCK", 8 * PAGE)
    small_blocks.setattr(tuning, "BANDS", 100)
    writes_by_page: Counter[int] = Counter()
    size = 0
    original = _kernels.spread

    def count_pages(rows: Any, count: int, out: Any, pitch: int, options: Any) -> None:
        nonlocal size
        size = max(size, len(out))  # the first block begins at the start of the output
        offset = 128 + size - len(out)
        width = len(rows) // count
        writes_by_page.update(
            {
                page
                for row in range(count)
                for page in range(
                    (offset + row * pitch) // PAGE, (offset + row * pitch + width - 1) // PAGE + 1
                )
            }
        )
        original(rows, count, out, pitch, options)

    small_blocks.setattr(_kernels, "spread", count_pages)
    arrays = make_arrays((40, columns_of_row), 0)
    arguments: dict[str, Any] = {"axis": 0}
    if operator == "scatter_elements":
        arguments["reduction"] = "add"
    else:
        arrays = arrays[:2]
    case = Case(operator, tuple(arrays), arguments)
    assert raw_bytes(run(case)) == raw_bytes(reference_result(case))
    assert len(writes_by_page) == -(-(128 + size) // PAGE)
    # if a row is no multiple of a page, pages at its ends are shared by two blocks
    assert max(writes_by_page.values()) <= (2 if columns_of_row % 1024 == 0 else 3)


@pytest.mark.parametrize("rows", [3, 4096, 1 << 15, 1 << 18])
@pytest.mark.parametrize("width", [100, 4096, 1 << 17])
@pytest.mark.parametrize("bands", [1, 4, 1 << 20])
def test_blocks_take_bounded_memory_and_cover_everything(rows: int, width: int, bands: int) -> None:
    panels = bind.Panels((), (), (), rows, width, rows, 4 * width, width, 4, 4, True)
    column_blocks = list(columns.divide_into_blocks(panels, rows, bytearray(1), bands))
    buffer_size = len(columns.allocate_buffer(panels, rows, bands, bytearray(1)))
    assert max(block.nbytes for block in column_blocks) <= buffer_size
    assert buffer_size <= tuning.COLUMN_BLOCK + 4 * rows <= 33 << 20
    assert sum(block.nbytes for block in column_blocks) == rows * width * 4


@pytest.mark.parametrize(
    ("megabytes", "limits", "uses_blocks"),
    [
        (1024, {}, True), (1025 * 16, {}, False), (1023 * 16, {}, True),
        (1 << 20, {"memory.max": 512 << 20}, True), (1 << 20, {"memory.max": "max"}, False),
        (1 << 20, {"memory.limit_in_bytes": 512 << 20}, True),
        (1 << 20, {"memory.max": 1 << 40}, False), (None, {}, True),
    ],
)  # fmt: skip
def test_blocks_are_used_for_outputs_that_are_large_relative_to_memory(
    megabytes: int | None,
    limits: dict[str, Any],
    uses_blocks: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The output has 1 GiB.

    With ample memory, elements are written directly to the output, not through blocks.
    """
    files = {"/proc/self/cgroup": "0::/a\n"}
    if megabytes is not None:
        files["/proc/meminfo"] = f"MemTotal: 1 kB\nMemAvailable: {megabytes << 10} kB\n"
    for name, value in limits.items():
        files[f"/sys/fs/cgroup/a/{name}"] = str(value)

    def open_system_file(path: str) -> io.StringIO:
        if path not in files:
            raise FileNotFoundError(path)
        return io.StringIO(files[path])

    for module in (cgroups, memory):
        monkeypatch.setattr(module, "open", open_system_file, raising=False)
    rows, width = 1 << 16, 4096
    panels = bind.Panels((), (), (), rows, width, rows, 4 * width, width, 4, 4, True)
    assert columns.are_blocks_faster(panels, rows) == uses_blocks


@pytest.mark.parametrize("operator", ["gather_elements", "scatter_elements"])
def test_an_index_that_becomes_invalid_during_the_run_is_an_error(
    small_blocks: pytest.MonkeyPatch, operator: str
) -> None:
    arrays = make_arrays((40, 1024), 0)
    arrays[1][-1, -1] = 40
    row = 4 * 1024
    if operator == "gather_elements":
        panels = bind.Panels((), (), (), 43, 1024, 40, row, 1024, 4, 4, True)
        data = bind.Operand(void_view(arrays[0]).tobytes(), 0, (row, 4))
        indices = _kernels.Indices(arrays[1].tobytes(), 8, False, False)
        out = bytearray(43 * row)
        assert not gathers.gather_columns(panels, data, indices, out, 2)
        return
    small_blocks.setattr("ndtool.engine.check.find_bounds_error", lambda *_: None)
    case = Case(operator, tuple(arrays), {"axis": 0, "reduction": "add"})
    with pytest.raises(Exception, match="changed during the run"):
        run(case)
