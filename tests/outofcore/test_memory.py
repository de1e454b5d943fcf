"""Memory use as planned: every operator on every format, within a limit.

All inputs are larger than the limit and its tolerance, so that a buffer that grows with one of
them and that the plan omits is detected.
"""

import os
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from command import ndtool
from later import later
from memory import MemoryUse, measure_memory, peak_megabytes

later("zarr")
BUDGET = 16  # MiB
ALLOWANCE = 15  # MiB: additional memory of the interpreter and packages in a longer run
TUPLES, ROWS = 1 << 22, 1 << 23

# Shapes of data, indices and updates: 64, 32 and 32 MiB.
SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "gather-nd": ((ROWS,), (TUPLES, 1)),
    "gather": ((2, ROWS // 2), (TUPLES,)),
    "gather-elements": ((2048, 4096), (1024, 4096)),
    "scatter-nd": ((ROWS,), (TUPLES, 1), (TUPLES,)),
    "scatter-elements": ((2048, 4096), (1024, 4096), (1024, 4096)),
}
NAMES = ("data", "idx", "upd")
GATHERS = ("error", "clip", "wrap", "fill")
SCATTERS = (("none", "error"), ("add", "drop"), ("max", "clip"))
FORMATS = ("npy", "npz", "safetensors", "zarr", "h5", "raw", "pipe")
CODECS = {"zarr": "zstd:1", "h5": "gzip:1"}
SLOW_REASON = "each operator stays within its memory with each format"
FAST_CASES = {("gather", "npy"), ("scatter-nd", "zarr")}


def mode_options(operator: str, case_number: int) -> tuple[str, ...]:
    """Return options of an out-of-bounds mode, which the case number selects."""
    if operator.startswith("gather"):
        axis = ("--axis", "1") if operator == "gather" else ()
        return *axis, "--out-of-bounds", GATHERS[case_number % len(GATHERS)]
    reduction, mode = SCATTERS[case_number % len(SCATTERS)]
    return "--reduction", reduction, "--out-of-bounds", mode


def operator_format_cases() -> Iterator[object]:
    """Yield each operator with each format, in different out-of-bounds modes.

    Afterwards a gather and a scatter with each format that is read into complete buffers.
    """
    for operator_number, operator in enumerate(SHAPES):
        for format_number, kind in enumerate(FORMATS):
            marks = () if (operator, kind) in FAST_CASES else pytest.mark.slow(SLOW_REASON)
            options = mode_options(operator, operator_number + format_number)
            options = (*options, "--memory", f"{BUDGET}MiB")
            yield pytest.param(operator, kind, options, "sweep", marks=marks)
    buffered = product(("gather-nd", "scatter-nd"), ("npz", "safetensors", "zarr", "pipe"))
    for number, (operator, kind) in enumerate(buffered):
        marks = () if number == 5 else pytest.mark.slow(SLOW_REASON)
        yield pytest.param(operator, kind, ("--memory", "4GiB"), "direct", marks=marks)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for the inputs, which are created on demand."""
    return tmp_path_factory.mktemp("memory")


def chunks_option(shape: tuple[int, ...]) -> str:
    """Return chunks of 512 KiB that are contiguous in row-major order."""
    longest = max(shape)
    sizes = (16, longest) if longest == 4096 else (1 if n < longest else 1 << 16 for n in shape)
    return ",".join(map(str, sizes))


def create_inputs(folder: Path, operator: str, kind: str) -> list[str]:
    """Return the inputs of an operator in a format."""
    rng, arguments = np.random.default_rng(3), []
    for name, shape in zip(NAMES, SHAPES[operator], strict=False):
        base = folder / f"{operator}-{name}"
        npy, path = f"{base}.npy", f"{base}.{kind}"
        if not os.path.exists(npy):
            size = SHAPES[operator][0][1 if operator == "gather" else 0]
            array = rng.integers(0, size, shape) if name == "idx" else np.ones(shape)
            np.save(npy, array)
        if kind == "npz" and not os.path.exists(path):
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
                archive.write(npy, "x.npy")
        elif kind in ("safetensors", *CODECS) and not os.path.exists(path):
            options = (
                ("--chunks", chunks_option(shape), "--codec", CODECS[kind])
                if kind in CODECS
                else ()
            )
            assert ndtool("convert", npy, path, *options).status == 0
        if kind == "raw":
            offset, dtype = np.load(npy, "r").offset, "int64" if name == "idx" else "float64"
            path = f"raw:{dtype}[{','.join(map(str, shape))}]:{npy}@{offset}"
        arguments.append(npy if kind in ("npy", "pipe") else path)
    return arguments


@contextmanager
def pipe_file(path: str) -> Iterator[IO[bytes]]:
    """Yield a pipe with the content of a file."""
    with subprocess.Popen(["cat", path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process.stdout


def measure_run(folder: Path, operator: str, kind: str, options: tuple[str, ...]) -> MemoryUse:
    """Run an operator on inputs in a format (of a pipe: only data), and measure its memory."""
    inputs = create_inputs(folder, operator, kind)
    output = str(folder / (f"out.{kind}" if kind in CODECS else "out.npy"))
    if kind == "pipe":
        with pipe_file(inputs[0]) as stdin:
            return measure_memory(operator, "-", *inputs[1:], *options, "-o", output, stdin=stdin)
    return measure_memory(operator, *inputs, *options, "-o", output)


@pytest.fixture(scope="module")
def baseline(folder: Path) -> float:
    """Return the megabytes of a run on small stores, with all packages loaded."""
    np.save(folder / "small.npy", np.ones(9))
    small = str(folder / "small.zarr")
    assert ndtool("convert", str(folder / "small.npy"), small).status == 0
    return peak_megabytes("gather-nd", small, "[[3]]", "-o", str(folder / "least.zarr"))


@pytest.mark.parametrize(("operator", "kind", "options", "way"), list(operator_format_cases()))
def test_a_run_stays_within_its_memory_and_its_plan(
    folder: Path, baseline: float, operator: str, kind: str, options: tuple[str, ...], way: str
) -> None:
    if kind == "h5":
        pytest.importorskip("h5py", reason="h5py is not installed")
    peak_memory, plan = measure_run(folder, operator, kind, options)
    assert plan["way"] == way, plan["reason"]
    assert way == "direct" or plan["memory"] <= BUDGET << 20
    assert peak_memory - baseline < plan["memory"] / (1 << 20) + ALLOWANCE


@pytest.mark.slow("indices that are computed take memory, too")
def test_computed_indices_stay_within_the_memory(folder: Path, baseline: float) -> None:
    """Those of tensor-scatter, and those that count from 1."""
    past, update = str(folder / "past.npy"), str(folder / "update.npy")
    if not os.path.exists(past):
        np.save(past, np.ones((TUPLES, 2)))
        np.save(update, np.ones((TUPLES, 1)))
        np.save(folder / "writes.npy", np.arange(TUPLES) % 2)
    data, ids = create_inputs(folder, "gather-nd", "zarr")
    limit = "--memory", f"{BUDGET}MiB", "-o", str(folder / "out.npy")
    for arguments in (
        ("tensor-scatter", past, update, str(folder / "writes.npy"), "--axis", "1"),
        ("gather-nd", data, ids, "--index-base", "1", "--out-of-bounds", "fill"),
    ):
        peak_memory, plan = measure_memory(*arguments, *limit)
        assert plan["memory"] <= BUDGET << 20
        assert peak_memory - baseline < plan["memory"] / (1 << 20) + ALLOWANCE


@pytest.mark.parametrize(
    ("question", "options"),
    [
        pytest.param("verify", ("--reduction", "mean"), marks=pytest.mark.slow("arrays of verify")),
        ("stats", ()),
        ("explain", ("--at", "5")),
    ],
)
def test_a_question_stays_within_its_memory(
    folder: Path, baseline: float, question: str, options: tuple[str, ...]
) -> None:
    """With an HTML report, on inputs larger than the limit."""
    data, idx, upd, _ = files = [str(folder / f"{name}.npy") for name in ("d", "i", "u", "o")]
    if not os.path.exists(data):
        np.save(data, np.ones(ROWS))
        np.save(idx, np.random.default_rng(1).integers(0, ROWS, (1 << 17, 1)))
        np.save(upd, np.ones(1 << 17))
    if question == "verify":
        assert ndtool("scatter-nd", *files[:3], *options, "-o", files[3]).status == 0
    count = {"stats": 2, "explain": 3, "verify": 4}[question]
    report = ("--html", str(folder / "report.html"), "-q", "--memory", f"{BUDGET}MiB")
    peak_memory = peak_megabytes(question, "scatter-nd", *files[:count], *options, *report)
    assert peak_memory - baseline < BUDGET + ALLOWANCE


@pytest.mark.parametrize(
    ("codec", "output"),
    [
        pytest.param("zstd:1", "out.zarr", marks=pytest.mark.slow("chunks of inputs and outputs")),
        pytest.param("zstd:1", "out.npy", marks=pytest.mark.slow("chunks of inputs alone")),
        pytest.param("none", "out.zarr", marks=pytest.mark.slow("chunks without a codec")),
    ],
)
def test_large_chunks_are_part_of_the_planned_memory(
    folder: Path, baseline: float, codec: str, output: str
) -> None:
    rows, budget = 1 << 18, 64
    store, idx = str(folder / f"chunks-{codec[:4]}.zarr"), str(folder / "rows.npy")
    rng = np.random.default_rng(4)
    if not os.path.exists(idx):
        np.save(folder / "table.npy", rng.integers(0, 1000, (rows, 128)).astype(np.float32))
        np.save(idx, rng.integers(0, rows, (rows, 1)))
    if not os.path.exists(store):
        extra = ("--chunks", "16384,128", "--codec", codec)
        assert ndtool("convert", str(folder / "table.npy"), store, *extra).status == 0
    peak_memory, plan = measure_memory(
        "gather-nd", store, idx, "--memory", f"{budget}MiB", "-o", str(folder / output)
    )
    assert plan["way"] == "sweep"
    assert plan["memory"] <= budget << 20
    assert peak_memory - baseline < plan["memory"] / (1 << 20) + ALLOWANCE


@pytest.mark.parametrize(("kind", "codec"), [("zarr", "gzip:1"), ("h5", "none")])
def test_chunks_larger_than_the_memory_limit_are_refused(
    workdir: Path, kind: str, codec: str
) -> None:
    if kind == "h5":
        pytest.importorskip("h5py", reason="h5py is not installed")
    np.save("x.npy", np.zeros((1 << 18, 4), np.float32))
    np.save("i.npy", np.array([[3], [4]]))
    store, buffers = f"x.{kind}", 2 if codec == "none" else 4
    assert ndtool("convert", "x.npy", store, "--chunks", "131072,4", "--codec", codec).status == 0
    size = 1 << 21
    message = (
        f"a chunk of {size} bytes takes {buffers * size} bytes of memory: more than the 2000000 of"
    )
    chunks = ("--chunks", "131072,4", "--codec", codec)
    for arguments in (
        ("gather-nd", store, "i.npy", "-o", "o.npy"),
        ("gather-nd", "x.npy", "i.npy", "-o", f"o.{kind}", *chunks),
        ("scatter-nd", store, "i.npy", "full:1:float32[2,4]", "-o", "o.npy"),
    ):
        completed = ndtool(*arguments, "--memory", "2000000")
        if "o.npy" in arguments:
            assert (completed.status, message in completed.err) == (6, True), completed.err
            assert not os.path.exists("o.npy")
    completed = ndtool("gather-nd", store, "i.npy", "-o", "o.npy", "--memory", "9000000", "--json")
    assert completed.status == 0
    assert completed.json["plan"]["memory"] <= 9_000_000 + (1 << 24)
