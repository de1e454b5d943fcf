"""Partitions in levels: groups, and the partitions of each group; runs that exceed their memory."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command import ndtool, save, snapshot
from hypothesis import given, settings
from hypothesis import strategies as st
from inputs import scalars_to_update
from strategies import EXAMPLES, bits_equal

from ndtool import files
from ndtool.arrays.source import ContiguousSource
from ndtool.engine import bind
from ndtool.engine.bind import MAX_PARTITIONS
from ndtool.formats import outputs
from ndtool.outofcore import execution
from ndtool.outofcore.partitioning import Rows, rows_of
from ndtool.publish import sinks
from ndtool.rules import grid
from ndtool.runs import steps
from ndtool.runs.calls import OpenCall, Request

SCATTER = ("scatter-nd", "data.npy", "idx.npy", "upd.npy", "--reduction", "add")


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(1, 64))
def test_each_row_is_in_one_partition_of_one_group(
    data: st.DataObject, depth: int, rows: int
) -> None:
    sizes = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    call = Rows(10, 8, sizes, 1, True)
    if len(sizes) > 1 or data.draw(st.booleans()):
        box = tuple(data.draw(st.integers(1, size)) for size in sizes)
        call = call._replace(box=box, chunk_bytes=1)
    partitioning = call.partition(8 * rows, depth)
    assert partitioning.depth <= depth
    boxes = [tuple((0, size) for size in sizes)]
    for level in range(partitioning.depth):
        assert len(boxes) == partitioning.levels[level].groups
        children = []
        for outer in boxes:
            shape = partitioning.shapes[level]
            count = bind.bind_boxes(grid.box_shape(outer), shape).partitions
            assert count <= partitioning.levels[level].fan_out
            children += [partitioning.child(outer, level, number) for number in range(count)]
        boxes = children
        counts = np.zeros(sizes, int)
        for inner in boxes:
            counts[tuple(slice(*bounds) for bounds in inner)] += 1
        assert (counts == 1).all()
    assert len(boxes) == partitioning.partitions


def test_the_number_of_partitions_is_unbounded() -> None:
    """10 PB of float32: IDs of two bytes number the children of a group, not all partitions."""
    rows = Rows(10**13, 8, (10**16 // 4,), 4, True, workers=3)
    partitioning = rows.choose(1 << 33, 1 << 50)
    assert partitioning.partitions > MAX_PARTITIONS >= partitioning.fan_out
    assert [partitioning.levels[depth].row_bytes for depth in (0, -1)] == [8, 4]


def test_a_task_on_a_cluster_holds_the_offsets_of_deeper_groups() -> None:
    """Those of the call are the client's."""
    rows = Rows(1 << 20, 8, (1 << 22,), 4, True, on_cluster=True)
    partitioning = rows.partition(1 << 20, 2)
    assert (partitioning.depth, partitioning.in_memory, partitioning.workers) == (2, 0, 1)
    tables = [8 * (level.fan_out + 2) * (partitioning.blocks + 1) for level in partitioning.levels]
    assert partitioning.memory - partitioning.limited_memory == tables[0]
    assert partitioning.limited_memory > partitioning.scratch_bytes + tables[1]


@pytest.fixture
def folder(workdir: Path) -> Path:
    rng = np.random.default_rng(7)
    save(
        **scalars_to_update(rng),
        wide=rng.random((40, 1 << 17), np.float32),
        rows=rng.integers(-40, 40, (90, 1)),
        changes=rng.random((90, 1 << 17), np.float32),
    )
    return workdir


def test_a_run_that_exceeds_memory_is_refused_with_the_minimum(folder: Path) -> None:
    call = ("scatter-nd", "wide.npy", "rows.npy", "changes.npy", "--reduction", "add")
    assert ndtool(*call, "-o", "direct.npy").status == 0
    before = snapshot(folder)
    for dry_run in ((), ("--dry-run",)):
        completed = ndtool(*call, "--memory", "1MiB", "-o", "out.npy", "--no-trace", *dry_run)
        assert completed.status == 6
        match = re.fullmatch(
            r"error: --memory 1.05 MB is less than the [0-9.]+ MB that this run needs at least\n"
            r"  hint: --memory ([0-9]+), or more\n",
            completed.err,
        )
        assert match, completed.err
        assert snapshot(folder) == before
    completed = ndtool(*call, "--memory", match[1], "-o", "out.npy", "--json")
    assert (completed.status, completed.json["plan"]["way"]) == (0, "sweep")
    assert completed.json["plan"]["memory"] <= int(match[1])
    assert Path("out.npy").read_bytes() == Path("direct.npy").read_bytes()
    assert ndtool(*call, "--memory", str(int(match[1]) * 9 // 10), "-o", "out.npy").status == 6


def test_wide_rows_are_gathered_directly_in_any_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages are released after they are read, so that few are in memory."""
    advice: list[str] = []
    monkeypatch.setattr(ContiguousSource, "advise", lambda self, kind, *_: advice.append(kind))
    result = files.gather_nd("wide.npy", "rows.npy", out="out.npy", memory=1 << 20)
    assert bits_equal(np.load("out.npy"), np.load("wide.npy")[np.load("rows.npy")[:, 0]])
    assert result.shape == (90, 1 << 17)
    assert advice.count("dontneed") == 90


def test_chunks_that_exceed_memory_are_refused_with_the_minimum(folder: Path) -> None:
    pytest.importorskip("zarr", exc_type=ImportError)
    assert ndtool("convert", "wide.npy", "wide.zarr", "--chunks", "40,1024").status == 0
    completed = ndtool("gather-nd", "wide.zarr", "rows.npy", "--memory", "1MiB", "-o", "out.npy")
    assert completed.status == 6
    assert " that this run needs at least\n" in completed.err
    min_memory = re.findall(r"--memory ([0-9]+), or more", completed.err)[0]
    completed = ndtool(
        "gather-nd", "wide.zarr", "rows.npy", "--memory", min_memory, "-o", "out.npy"
    )
    assert completed.status == 0, completed.err
    assert bits_equal(np.load("out.npy"), np.load("wide.npy")[np.load("rows.npy")[:, 0]])


def test_data_in_fortran_order_are_refused_if_larger_than_memory(folder: Path) -> None:
    save(fortran=np.asfortranarray(np.load("data.npy")))
    for call in (
        ("gather-nd", "fortran.npy", "idx.npy"),
        ("scatter-nd", "fortran.npy", *SCATTER[2:]),
    ):
        before = snapshot(folder)
        completed = ndtool(*call, "--memory", "1MiB", "-o", "out.npy")
        assert completed.status == 6
        assert completed.err == (
            "error: fortran.npy is in Fortran order and larger than --memory 1.05 MB, so it cannot"
            " be read in parts: expected a local file or a store, in C order\n"
            "  hint: ndtool convert fortran.npy NEW makes one\n"
        )
        assert snapshot(folder) == before
        assert ndtool(*call, "--memory", "8MiB", "-o", "out.npy").status == 0
        assert ndtool(*call, "-o", "out.npy").status == 0
    save(idx=np.load("idx.npy")[:1, :20])
    assert ndtool("gather-nd", "fortran.npy", "idx.npy", "--memory", "1MiB").status == 0


def test_a_clipped_group_has_indices_of_its_own_size(workdir: Path) -> None:
    """Of 2 TiB in a sparse file, the last group is smaller than 2^32 rows, the others are not."""
    edge = 1 << 41  # the last group begins here
    data = np.lib.format.open_memmap("data.npy", "w+", np.uint8, (edge + 100,))
    wanted = {edge + 5: 55, edge: 10, edge + 7: 77, 3: 4, (1 << 33) + 9: 91, edge - 1: 8}
    for row, value in wanted.items():
        data[row] = value
    data.flush()
    del data
    save(idx=np.array([[row] for row in wanted] * 50))
    with OpenCall(Request("gather_nd", "data.npy", "idx.npy", output="out.npy")) as call:
        planned = rows_of(call.inference, call.sources, call.metadata, 1).partition(1 << 27)
        planned = replace(planned, shapes=((1 << 36,), (1 << 34,), (1 << 29,), (1 << 24,)))
        sink = outputs.create(steps.resolve_output(call))
        list(execution.run(call, planned, (), sink, lambda _: None, print))
        sinks.commit(sink)
        sink.abort()
    assert np.load("out.npy").tolist() == list(wanted.values()) * 50


@pytest.mark.parametrize("operator", ["gather_nd", "scatter_nd"])
def test_a_partition_of_more_than_2_to_the_32_rows(
    folder: Path, monkeypatch: pytest.MonkeyPatch, operator: str
) -> None:
    """Its row indices have 8 bytes; here as if its only partition were so large."""
    pytest.importorskip("zarr", exc_type=ImportError)
    assert ndtool("convert", "data.npy", "data.zarr", "--chunks", "300,300").status == 0
    inputs = ("idx.npy", "upd.npy")[: 1 + (operator == "scatter_nd")]
    expected = getattr(files, operator)("data.npy", *inputs).array
    large = bind.bind_boxes((1 << 33,), (1 << 33,))
    monkeypatch.setattr(bind, "bind_boxes", lambda *_: large)
    monkeypatch.setattr("ndtool.outofcore.partitioning.SHORT_ROWS", 1)
    with OpenCall(Request(operator, "data.zarr", *inputs, output="out.npy")) as call:
        rows = rows_of(call.inference, call.sources, call.metadata, 2)
        sink = outputs.create(steps.resolve_output(call))
        list(execution.run(call, rows.partition(1 << 40), (), sink, lambda _: None, print))
        sinks.commit(sink)
        sink.abort()
    assert bits_equal(np.load("out.npy"), expected)
