"""Arrays larger than memory: a sweep has the bits of direct execution, or leaves nothing."""

import json
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from command import ndtool, python, save, snapshot
from inputs import scalars_to_update
from limits import limit_resources

from ndtool.arrays.source import ContiguousSource
from ndtool.cli.options import _parse_memory
from ndtool.engine import tuning
from ndtool.errors import NdtoolError, UsageError
from ndtool.rules.operators import Attributes
from ndtool.runs import plan, steps
from ndtool.runs.calls import OpenCall, Request

GATHER = ("gather-nd", "data.npy", "idx.npy")
SCATTER = ("scatter-nd", "data.npy", "idx.npy", "upd.npy", "--reduction", "add")
ALONG = ("gather-elements", "table.npy", "rows.npy", "--axis", "0")
MEAN = (*SCATTER[:4], "--reduction", "mean", "--no-include-self")
CHANGE = ("scatter-elements", "table.npy", "rows.npy", "changes.npy", "--reduction", "max")
SMALL_MEMORY = ("--memory", "1MiB")


@pytest.fixture
def folder(workdir: Path) -> Path:
    """Write data of 4 MiB, with random tuples, some of them duplicates."""
    rng = np.random.default_rng(7)
    save(
        **scalars_to_update(rng),
        table=rng.random((2000, 500), np.float32),
        rows=rng.integers(-2000, 2000, (300, 400), np.int32),
        changes=rng.random((300, 400), np.float32),
    )
    return workdir


@pytest.mark.parametrize(
    ("call", "output"),
    [
        *((call, "out.npy") for call in (GATHER, SCATTER, ALONG, CHANGE, MEAN)),
        (GATHER, "out.npz:x"), (SCATTER, "-"), (GATHER, "-"),
    ],
)  # fmt: skip
def test_a_sweep_equals_direct_execution(folder: Path, call: tuple[str, ...], output: str) -> None:
    name = output.partition(":")[0]
    results = []
    for options, expected_way in (
        ((), "direct"),
        (SMALL_MEMORY, "sweep"),
        ((*SMALL_MEMORY, "--threads", "1"), "sweep"),
    ):
        result = ndtool(*call, *options, "-o", output, "--json")
        assert result.status == 0, result.err
        report = result.json if output != "-" else json.loads(result.err)
        assert report["plan"]["way"] == expected_way
        results.append(result.out if output == "-" else (folder / name).read_bytes())
        (folder / name).unlink(missing_ok=True)
    assert results[0] == results[1] == results[2]


def test_the_plan_says_what_a_sweep_takes(folder: Path) -> None:
    plan = ndtool(*GATHER, *SMALL_MEMORY, "--dry-run", "--json").json["plan"]
    assert list(plan) == [
        "way", "partitions", "blocks", "read", "written", "spilled", "memory", "requests", "reason",
    ]  # fmt: skip
    assert (plan["way"], plan["partitions"], plan["blocks"]) == (
        "sweep",
        (4 << 20) // (1 << 16),
        28,
    )
    assert 0 < plan["spilled"] < 50_000 * (4 + 4 + 1)
    read = (4 << 20) + 50_000 * 16 + plan["spilled"]
    assert read - 2 <= plan["read"] <= read  # shares of a file are rounded
    assert plan["written"] == 50_000 * 4 + plan["spilled"]
    assert plan["memory"] <= 1 << 20
    message = ndtool(*GATHER, *SMALL_MEMORY, "--dry-run").err
    assert "plan: sweep, 64 partitions, 28 blocks; " in message


@pytest.mark.parametrize("kind", ["few tuples", "sorted", "region", "fits in memory"])
def test_fast_accesses_are_direct(folder: Path, kind: str) -> None:
    idx = np.load("idx.npy")
    if kind == "few tuples":
        idx = idx[:1, :20]
    elif kind == "sorted":
        linear_indices = np.sort(
            np.ravel_multi_index(tuple(idx.reshape(-1, 2).T % 1024), (1024, 1024))
        )
        idx = np.stack(np.unravel_index(linear_indices, (1024, 1024)), -1)
    elif kind == "region":
        idx[..., 0] = 700 + idx[..., 0] % 32  # few pages, whatever a page costs
    save(idx=idx)
    limit = "8MiB" if kind == "fits in memory" else "1MiB"
    result = ndtool(*GATHER, "--memory", limit, "-o", "out.npy", "--json")
    assert result.json["plan"]["way"] == "direct"
    assert np.array_equal(np.load("out.npy"), np.load("data.npy")[tuple(np.moveaxis(idx, -1, 0))])


@pytest.mark.parametrize(
    ("tuples", "cached", "page", "limit", "method"),
    [
        (2_000, 0.0, 1 << 13, None, "direct"),
        (2_000, 0.0, tuning.RANDOM_READ_COST, None, "sweep"),
        (10_000, 0.0, 1 << 13, None, "sweep"),
        (10_000, 1.0, tuning.RANDOM_READ_COST, None, "direct"),
    ],
    ids=["fast pages", "slow pages", "more pages than memory holds", "all in memory"],
)
def test_the_cost_of_a_page_decides(
    workdir: Path, monkeypatch: pytest.MonkeyPatch,
    tuples: int, cached: float, page: int, limit: int | None, method: str,
) -> None:  # fmt: skip
    np.lib.format.open_memmap("data.npy", "w+", np.float32, (1 << 24,))
    save(idx=np.random.default_rng(2).integers(0, 1 << 24, (tuples, 1)))
    monkeypatch.setattr(plan.memory, "available", lambda: 1 << 24)
    monkeypatch.setattr(ContiguousSource, "cached_fraction", lambda *_, **__: cached)
    monkeypatch.setattr(plan, "page_cost", lambda data, prefetches: page)
    with OpenCall(
        Request("gather_nd", "data.npy", "idx.npy", output="out.npy", memory=limit)
    ) as call:
        assert plan.choose(call, limit, steps.resolve_output(call)).way == method


def test_the_output_may_be_data(folder: Path) -> None:
    assert ndtool(*SCATTER, "-o", "direct.npy").status == 0
    assert ndtool(*SCATTER, *SMALL_MEMORY, "-o", "data.npy").status == 0
    assert Path("data.npy").read_bytes() == Path("direct.npy").read_bytes()


@pytest.mark.parametrize("position", [(0, 0, 0), (31, 7, 1), (49, 999, 1)])
def test_the_first_bad_index_of_any_block_is_named(
    folder: Path, position: tuple[int, int, int]
) -> None:
    idx = np.load("idx.npy")
    idx[position], idx[49, 999, 1] = 1024, 5000
    save(idx=idx)
    before = snapshot(folder)
    result = ndtool(*GATHER, *SMALL_MEMORY, "-o", "out.npy")
    value = idx[position]
    assert result.status == 5
    assert f"idx.npy[{', '.join(map(str, position))}] = {value}\n" in result.err
    assert snapshot(folder) == before


@pytest.mark.parametrize(
    ("rule", "report"),
    [("error", r"idx\.npy\[40, 500, 0\] = -1025"), ("fill", "changed during the run")],
    ids=["found by the sweep", "checked before"],
)
def test_an_index_that_changes_during_the_run_is_reported(
    folder: Path, rule: str, report: str
) -> None:
    request = Request(
        "gather_nd", "data.npy", "idx.npy", output="out.npy", memory=1 << 20,
        attributes=Attributes(out_of_bounds=rule),
    )  # fmt: skip
    with OpenCall(request) as call, steps.prepare(call, steps.resolve_output(call)) as prepared_run:
        assert prepared_run.plan.way == "sweep"
        idx = np.load("idx.npy", mmap_mode="r+")
        idx[40, 500, 0] = -1025
        idx.flush()
        with pytest.raises(NdtoolError, match=report):
            steps.execute(prepared_run)
    assert not Path("out.npy").exists()


@pytest.mark.usefixtures("without_coverage")
@pytest.mark.parametrize("call", [GATHER, SCATTER])
def test_a_temporary_file_needs_disk_space(folder: Path, call: tuple[str, ...]) -> None:
    before = snapshot(folder)
    save(
        idx=np.concatenate([np.load("idx.npy")] * 12), upd=np.concatenate([np.load("upd.npy")] * 12)
    )
    result = ndtool(
        *call, *SMALL_MEMORY, "-o", "out.npy", preexec_fn=limit_resources(FSIZE=4_400_000)
    )
    assert result.status == 6
    assert re.search("temporary file: needs [0-9]+ bytes", result.err)
    assert snapshot(folder).keys() == before.keys()


@pytest.mark.parametrize(
    ("phase", "signal_name"), [("split", "SIGTERM"), ("sweep", "SIGKILL"), ("replay", "SIGINT")]
)
def test_nothing_is_left_of_a_run_that_is_ended(folder: Path, phase: str, signal_name: str) -> None:
    program = f"""
import os, signal, sys
from ndtool.outofcore import phases
before, calls = phases.TASKS["{phase}"], []
def end(group, *task):
    calls.append(task)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.{signal_name})
    return before(group, *task)
phases.TASKS["{phase}"] = end
from ndtool.__main__ import main
sys.exit(main())
"""
    (folder / "spill").mkdir()
    before = snapshot(folder)
    result = python(program, *GATHER, *SMALL_MEMORY, "--spill", "spill", "-o", "out.npy")
    assert result.status in (-signal.SIGKILL, 128 + signal.SIGTERM, 128 + signal.SIGINT)
    assert result.err == ""
    assert snapshot(folder) == before


@pytest.fixture
def repeated_indices(workdir: Path) -> tuple[str, ...]:
    """Write data of 2 batches that share indices of 32 MiB."""
    rng = np.random.default_rng(5)
    save(
        table=rng.random((2, 1 << 21), np.float32),
        many=rng.integers(-(1 << 21), 1 << 21, 1 << 22),
        few=rng.integers(0, 1 << 21, 1 << 12),
    )
    return "gather", "table.npy", "many.npy", "--axis", "1"


def test_repeated_indices_larger_than_memory_are_read_again(
    repeated_indices: tuple[str, ...],
) -> None:
    result = ndtool(*repeated_indices, "--memory", "8MiB", "--dry-run", "--json")
    spilled = result.json["plan"]["spilled"]
    read = (16 << 20) + 2 * (32 << 20) + spilled
    assert read - 2 <= result.json["plan"]["read"] <= read  # shares of a file are rounded
    assert ndtool(*repeated_indices, "--memory", "8MiB", "-o", "out.npy").status == 0
    expected = np.load("table.npy")[:, np.load("many.npy")]
    assert np.array_equal(np.load("out.npy"), expected)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("1048576", 1 << 20), ("1MiB", 1 << 20), ("2m", 2 << 20), ("3GB", 3 * 10**9),
        ("1.5GB", None), ("1GiB", 1 << 30), ("1T", 1 << 40), ("2000000B", 2_000_000),
        ("1MB", None), ("0", None), ("-1G", None), ("G", None), ("1PiB", None), ("1 GiB", None),
    ],
)  # fmt: skip
def test_sizes_are_taken_with_their_units(text: str, nbytes: int | None) -> None:
    if nbytes is None:
        with pytest.raises(
            UsageError,
            match=r"is not a size: expected bytes|is too little memory: expected at least 1MiB",
        ):
            _parse_memory(text)
    else:
        assert _parse_memory(text) == nbytes
