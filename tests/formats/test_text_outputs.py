"""Text outputs: .csv, .tsv and .txt, whose numbers round-trip exactly."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool, save
from outputs import open_sink
from outputs import save as write
from test_text import read

from ndtool.errors import RuleError, UsageError
from ndtool.formats import rows
from ndtool.formats.text import writer

pytestmark = pytest.mark.usefixtures("workdir", "check_files_closed")
RNG = np.random.default_rng(3)
FLOATS = ["float16", "float32", "float64", ">f4", ">f8"]
INTEGERS = ["bool", "int8", "uint8", ">i2", "int64", "uint64"]


def array(dtype: str, shape: tuple[int, ...]) -> Any:
    """Return an array of random bits, so that all magnitudes occur."""
    code = np.dtype(dtype)
    if code.kind == "b":
        return RNG.integers(0, 2, shape).astype(code)
    count = int(np.prod(shape))
    return RNG.integers(0, 256, count * code.itemsize, "u1").view(code).reshape(shape)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.txt"])
def test_round_trip(dtype: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BATCH_SIZE", 100)
    for form, shape in zip(
        ("write", "items", "map", "write", "items"),
        ((500,), (40, 30), (2, 700), (0,), (7, 2)),
        strict=True,
    ):
        expected = array(dtype, shape)
        if expected.dtype.kind == "f":
            expected[np.isnan(expected)] = np.nan  # text has two of them
            expected.reshape(-1)[7:8] = -np.nan
        write(name, expected, form)
        values = read(name, dtype)
        assert (values.shape, values.dtype) == (expected.shape, expected.dtype)
        assert values.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint64", ">i2"])
@pytest.mark.parametrize("width", [1, 3])
def test_pyarrow_writes_the_same_text(
    dtype: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow.csv", exc_type=ImportError)
    arrays = [array(dtype, (1000, width)) for _ in range(3)]
    if "f" in dtype:
        numbers = [0.0, -0.0, 1e-4, 9.9999e-5, 1e15, 1e16, 5e-324, 2**53, 999999.5, 1e6, -np.inf]
        few = RNG.choice(np.array(numbers), (1000, width))
        usual = [RNG.normal(0, 10.0**n, (300, width)) for n in range(-7, 18)]
        arrays += [RNG.integers(-9, 9, (1000, width)), few, *usual]
    for expected in [a.astype(dtype) for a in arrays]:
        if expected.dtype.kind == "f":
            expected[np.isnan(expected)] = np.nan
        texts = []
        for limit in (0, 1 << 40):
            monkeypatch.setattr(writer, "_MIN_ARROW_BYTES", limit)
            write("x.csv", expected)
            texts.append(Path("x.csv").read_bytes())
        assert texts[0] == texts[1]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_nan_whose_bits_text_would_lose_is_refused(dtype: str) -> None:
    expected = np.zeros((400_000, 2), dtype)
    expected[333_333, 1] = np.nan
    expected.view(f"u{expected.itemsize}")[333_333, 1] += 1
    save(x=expected)
    result = ndtool("convert", "x.npy", "x.csv")
    assert (result.status, os.path.exists("x.csv")) == (4, False)
    assert "x.csv: element [333333, 1] is a NaN with the bits 0x" in result.err


def test_the_text_is_as_short_as_possible() -> None:
    write("x.csv", np.array([[0.1, 1e-5, 1], [np.nan, -np.inf, -0.0]], "f4"))
    assert Path("x.csv").read_text() == "0.1,1e-05,1.0\nnan,-inf,-0.0\n"
    write("x.txt", np.array([[True, False]]))
    assert Path("x.txt").read_text() == "1 0\n"


@pytest.mark.parametrize(
    ("name", "wanted", "kind", "text"),
    [
        ("x.csv", np.zeros((2, 2, 2)), RuleError, "x.csv: the output has rank 3: a text file has"),
        ("x.csv", np.zeros(()), RuleError, "the output has rank 0"),
        ("x.json", np.zeros(2), UsageError, "x.json: .json is read, never written: expected one"),
        ("x.csv.gz", np.zeros(2), UsageError, "x.csv.gz: compressed text is read, never written"),
        ("x.csv:a", np.zeros(2), UsageError, "the file holds one array, and has no members"),
        ("text:x", np.zeros(2), UsageError, "text:x: it is read, never written"),
    ],
)
def test_arrays_that_text_cannot_have(
    name: str, wanted: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as excinfo:
        open_sink(name, wanted)
    assert text in str(excinfo.value)
    assert os.listdir() == []


def test_commands_write_text() -> None:
    save(data=np.arange(12, dtype="f4").reshape(4, 3) / 8)
    assert ndtool("gather", "data.npy", "[2, 0]", "-o", "x.csv").status == 0
    assert Path("x.csv").read_text() == "0.75,0.875,1.0\n0.0,0.125,0.25\n"
    assert ndtool("scatter", "data.npy", "[1, 3]", "x.csv", "-o", "y.tsv").status == 0
    assert ndtool("convert", "y.tsv", "y.npy").status == 0
    assert np.load("y.npy").tolist() == np.load("data.npy")[[0, 2, 2, 0]].tolist()
    result = ndtool("gather", "data.npy", "[[2, 0]]", "-o", "z.csv")
    assert (result.status, os.path.exists("z.csv")) == (4, False)
    result = ndtool("gather", "data.npy", "[2]", "-o", "z.csv", "--dry-run")
    assert (result.status, os.path.exists("z.csv")) == (0, False)
    big = np.arange(1 << 18, dtype="i4").reshape(-1, 4)
    save(big=big)
    result = ndtool("scatter", "big.npy", "[0]", "[[7, 7, 7, 7]]", "-o", "b.csv")
    result = ndtool("gather", "big.npy", "[3]", "-o", "b.csv", "--memory", "1MiB")
    assert (result.status, Path("b.csv").read_text()) == (0, "12,13,14,15\n")


@pytest.mark.parametrize("shape", [(3, 0), (0, 3)])
def test_a_shape_that_text_would_lose_is_refused(shape: tuple[int, ...]) -> None:
    save(empty=np.zeros(shape))
    result = ndtool("convert", "empty.npy", "out.csv")
    assert result.status == 4
    assert f"shape {list(shape)}: text would lose it" in result.err
    assert not Path("out.csv").exists()


def test_the_first_columns_of_many_are_described() -> None:
    names = [f"c{number}" for number in range(100)]
    Path("wide.csv").write_text(",".join(names) + "\n" + ",".join("5" for _ in names) + "\n")
    entries = ndtool("inspect", "wide.csv", "--json").json["arrays"]
    assert len(entries) == 100
    assert sum(entry["dtype"] is not None for entry in entries) == 32
