"""`ndtool convert`: an array from any format to any other, with equal bits, or an error."""

import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from command import NDTOOL, ndtool, run_in_terminal, save, snapshot
from inputs import load
from memory import peak_megabytes
from npyfile import npy, write_sparse
from outputs import list_preserved_members
from strategies import bits_equal

from ndtool.errors import OutputError
from ndtool.runs import convert

DATA = np.arange(24, dtype="<f4").reshape(4, 6)
HALF = np.arange(6).astype(ml_dtypes.bfloat16)
TARGETS = ("b.npy", "b.npz", "b.npz:x", "b.safetensors", "b.safetensors:x")


pytestmark = pytest.mark.usefixtures("workdir", "check_files_closed")


def run(source: str, output: str, **options: Any) -> Any:
    with convert.Conversion(source, output, **options) as conversion:
        return conversion.run()


def stored_form(target: str, array: Any) -> Any:
    """Return an array as a format stores it: safetensors has one byte order."""
    return array.astype(array.dtype.newbyteorder("<")) if "safetensors" in target else array


def test_large_arrays_in_either_order_are_converted() -> None:
    array = np.arange(3_000_000, dtype=">i4").reshape(1500, 2000)
    for order in "CF":
        np.save("a.npy", np.array(array, order=order))  # type: ignore[call-overload]
        fractions: list[float] = []
        for target in TARGETS:
            Path(target.partition(":")[0]).unlink(missing_ok=True)
            with convert.Conversion("a.npy", target) as conversion:
                conversion.run(fractions.append)
            assert bits_equal(load(target), stored_form(target, array))
        assert sorted(fractions)[-1] == 1
        assert all(0 < fraction <= 1 for fraction in fractions)


def test_streams_are_converted() -> None:
    for array in (DATA, np.asfortranarray(DATA), np.zeros((0, 3))):
        completed = ndtool("convert", "-", "-", stdin=npy(array))
        assert completed == (0, npy(np.array(array, order="C")), "", "")


def test_a_file_may_be_converted_in_place() -> None:
    np.save("a.npy", np.asfortranarray(DATA))
    run("a.npy", "a.npy")
    assert Path("a.npy").read_bytes() == npy(DATA)
    np.savez("a.npz", x=DATA, y=HALF.view("V2"))
    assert run("a.npz:x", "a.npz:z") == ("x", "y")
    assert run("a.npz:z", "a.npz:x") == ("y", "z")


@pytest.mark.parametrize("target", ["h.npy", "h.npz", "h.npz:x", "h.zarr", "-"])
def test_a_type_that_the_target_lacks_is_refused(target: str) -> None:
    if target == "h.zarr":
        pytest.importorskip("zarr", exc_type=ImportError)
    safetensors.numpy.save_file({"h": HALF}, "h.safetensors")
    before = snapshot(Path())
    completed = ndtool("convert", "h.safetensors", target)
    assert (completed.status, completed.out) == (4, b"")
    assert "its format does not support bfloat16, which would be stored as V2" in completed.err
    assert "--as-void stores it as V2, and --dtype bfloat16 reads that" in completed.err
    assert snapshot(Path()) == before
    completed = ndtool("convert", "h.safetensors", target, "--as-void")
    assert (completed.status, completed.err) == (0, "")
    if target == "-":
        Path("h.npy").write_bytes(completed.out)
        target = "h.npy"
    assert bits_equal(load(target), HALF.view("V2"))
    completed = ndtool("convert", target, "again.safetensors", "--dtype", "bfloat16")
    assert (completed.status, completed.err) == (0, "")
    assert bits_equal(load("again.safetensors"), HALF)


def test_conversions_are_reported() -> None:
    np.savez("a.npz", x=DATA)
    completed = ndtool("convert", "a.npz", "b.npy", "--json")
    assert completed.status == 0
    record = completed.json
    assert record.pop("seconds") > 0
    assert isinstance(record.pop("version"), str)
    assert record == {
        "source": {"name": "a.npz", "dtype": "float32", "shape": [4, 6], "order": "C"},
        "output": {"name": "b.npy", "dtype": "float32", "shape": [4, 6], "bytes": 96},
        "warnings": [],
    }
    completed = ndtool("convert", "b.npy", "a.npz:y")
    assert (completed.out, completed.err) == (b"", "preserved x\n")
    Path("b.npy").write_bytes(npy(DATA) + b"more")
    completed = ndtool("convert", "b.npy", "-", "--json")
    assert completed.out == npy(DATA)
    assert "4 bytes after the array are ignored" in completed.err
    completed = ndtool("convert", "b.npy", "c.npy")
    assert completed.err == "warning: b.npy: 4 bytes after the array are ignored\n"


def test_a_terminal_shows_the_written_file() -> None:
    save(a=DATA)
    completed = run_in_terminal(*NDTOOL, "convert", "a.npy", "b.npy")
    assert completed.status == 0
    assert completed.screen.startswith("wrote b.npy: float32[4,6], 96 bytes in ")
    completed = run_in_terminal(*NDTOOL, "convert", "a.npy", "-")
    assert completed.status == 2
    assert "standard output is a terminal" in completed.screen


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("missing.npy", "b.npy"), 3, "missing.npy: No such file"),
        (("a.npy", "a.npy", "--no-clobber"), 7, "a.npy exists and may not be replaced"),
        (("a.npy", "folder/b.npy"), 7, "folder/b.npy: there is no folder folder"),
        (("a.npy",), 2, "missing argument"),
        (("a.npy", "b.npy", "--dtype", "nonsense"), 2, "'--dtype': 'nonsense'"),
        (("a.npy", "raw:f4[24]:x"), 2, "it is read, never written"),
        (("[1, 2]", "b.npy"), 3, "[1, 2]: No such file"),
    ],
)
def test_invalid_conversions_are_refused(
    arguments: tuple[str, ...], status: int, message: str
) -> None:
    save(a=DATA)
    before = snapshot(Path())
    completed = ndtool("convert", *arguments)
    assert completed.status == status
    assert message in completed.err
    assert snapshot(Path()) == before


def test_a_source_that_changes_during_the_run_is_an_error() -> None:
    save(a=DATA)
    with convert.Conversion("a.npy", "b.npy") as conversion:
        os.utime("a.npy", ns=(1, 1))
        with pytest.raises(OutputError, match=r"a\.npy changed during the run"):
            conversion.run()
    assert not Path("b.npy").exists()
    assert list_preserved_members("b.npy") is None


@pytest.mark.slow("a conversion takes memory by its chunks, not by its array")
@pytest.mark.parametrize("target", ["b.npy", "b.safetensors"])
@pytest.mark.parametrize("fortran", [False, True])
def test_memory_is_bounded(target: str, fortran: bool) -> None:
    write_sparse("a.npy", ">f4", (1 << 15, 1 << 11), fortran)
    assert peak_megabytes("convert", "a.npy", target) < 64
    assert os.path.getsize(target) > 1 << 28
