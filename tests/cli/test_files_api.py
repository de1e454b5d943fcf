"""ndtool.files: the operators on files from Python, with the same arguments and errors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strategies import bits_equal

from ndtool import files
from ndtool.analysis.oracle import reference
from ndtool.errors import BoundsError, DtypeError, InputError, OutputError, UsageError

DATA = np.arange(60, dtype=">f8").reshape(3, 4, 5)
AXIS_INDICES = np.random.default_rng(1).integers(-3, 3, (2, 4, 5))
AXIS_UPDATES = np.random.default_rng(2).random((2, 4, 5))
CALLS: list[tuple[str, tuple[Any, ...]]] = [
    ("gather_nd", (DATA, np.array([[[2, 1]], [[0, -1]]]))),
    ("gather_nd", (DATA, np.array([[1], [3], [0]]), 1)),
    ("gather", (DATA, np.array([3, 0, 3], "u1"), 1)),
    ("gather_elements", (DATA, AXIS_INDICES, 0)),
    ("scatter_nd", (DATA, np.array([[2], [2]]), np.ones((2, 4, 5)), "add")),
    ("scatter_elements", (DATA, AXIS_INDICES, AXIS_UPDATES, 0, "max")),
]


POSITIONS = ((), (0,), (1,), (0, 1), (0, 1, 2))


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_files_and_arrays_mixed(number: int, workdir: Path) -> None:
    name, arguments = CALLS[number]
    expected = getattr(reference, name)(*arguments)
    for file_positions in (POSITIONS[number % 5], POSITIONS[(number + 2) % 5]):
        mixed_arguments: list[Any] = list(arguments)
        for position, value in enumerate(arguments):
            if isinstance(value, np.ndarray):
                mixed_arguments[position] = np.array(value, order=("C", "F")[number % 2])
                if position in file_positions:
                    np.save(f"{position}.npy", mixed_arguments[position])
                    name_of_file = f"{position}.npy" if position else workdir / "0.npy"
                    mixed_arguments[position] = name_of_file
        result = getattr(files, name)(*mixed_arguments)
        assert result.output is None
        assert bits_equal(result.array, expected)
        assert (result.shape, result.nbytes) == (expected.shape, expected.nbytes)
        result = getattr(files, name)(*mixed_arguments, out="out.npz:x", threads=2)
        assert (result.array, result.output, result.kept) == (None, "out.npz:x", ())
        assert bits_equal(np.load("out.npz")["x"], expected)


def test_an_output_may_be_an_input_and_preserves_other_members(workdir: Path) -> None:
    np.savez("a.npz", data=DATA, other=AXIS_INDICES)
    result = files.scatter_nd("a.npz:data", [[1]], np.zeros((1, 4, 5)), out="a.npz:data")
    assert result.kept == ("other",)
    with np.load("a.npz") as archive:
        assert bits_equal(archive["other"], AXIS_INDICES)
        assert not archive["data"][1].any()


def test_errors_are_those_of_the_command_line(workdir: Path) -> None:
    np.save("data.npy", DATA)
    with pytest.raises(InputError, match=r"nowhere\.npy"):
        files.gather_nd("nowhere.npy", [[0]])
    with pytest.raises(BoundsError) as excinfo:
        files.gather_nd("data.npy", [[0], [3]], out="out.npy")
    assert "data axis 0 of data.npy has size 3" in str(excinfo.value)
    with pytest.raises(BoundsError) as excinfo:
        files.gather_nd("data.npy", [[2**70]])
    assert excinfo.value.value == 2**70
    assert "data.npy" in str(excinfo.value)
    with pytest.raises(DtypeError):
        files.gather_nd("data.npy", [[0.5]])
    with pytest.raises(UsageError, match="spec"):
        files.gather_nd("data.npy", [[0]], spec="onyx")
    with pytest.raises(OutputError, match="exists"):
        files.gather_nd("data.npy", [[0]], out="data.npy", clobber=False)
    assert [path.name for path in workdir.iterdir()] == ["data.npy"]


class InvalidPath:
    def __fspath__(self) -> Any:
        return 5


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("out", 5), ("out", DATA), ("out", InvalidPath()), ("out", "x.pb:\ud800"), ("data", InvalidPath()),
        ("threads", "2"), ("threads", 1.5), ("memory", (1 << 20) - 1), ("memory", "1 G B"), ("spill", 3),
        ("spec", None), ("spec", b"onnx:13"), ("dtype", np.float32), ("dtype", []), ("chunks", "4"),
        ("chunks", (1.5,)), ("shards", (0,)), ("codec", "lz4"), ("codec", 5), ("progress", None),
    ],
)  # fmt: skip
def test_invalid_option_values_raise_usage_errors(option: str, value: Any, workdir: Path) -> None:
    arguments = {"data": DATA, "indices": [0], option: value}
    with pytest.raises(UsageError, match=f"^(the tensor's name|{option}|'lz4') "):
        files.gather(**arguments)
    assert not list(workdir.iterdir())


def test_bfloat16_by_name(workdir: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    data = np.arange(8).astype(ml_dtypes.bfloat16)
    np.save("data.npy", data)
    update = data[:1].view("V2")
    result = files.scatter_nd("data.npy", [[1]], update, "add", dtype="bfloat16")
    assert result.dtype == "bfloat16"
    assert bits_equal(result.array, data)


FIELDS = [("a", "<i4"), ("b", ">f8", (2,)), (("title", "c"), "S3")]


@pytest.mark.parametrize("dtype", [np.dtype(FIELDS), np.dtype(FIELDS, align=True)])
def test_records_in_memory_are_records_of_files(dtype: Any, workdir: Path) -> None:
    raw = np.arange(5 * dtype.itemsize, dtype="u1")
    data = raw.view(dtype)
    for out in (None, "out.npy", "out.npz:x"):
        result = files.gather(data, [3, 0], out=out)
        actual: Any = result.array if out is None else np.load(out.partition(":")[0])
        actual = actual["x"] if out == "out.npz:x" else actual
        assert (actual.dtype, actual.tobytes()) == (dtype, raw.reshape(5, -1)[[3, 0]].tobytes())
    np.save("data.npy", data)
    updated = files.scatter_nd("data.npy", [[1]], data[4:], out="data.npy")
    assert updated.dtype == "struct"
    assert np.load("data.npy").tobytes() == raw.reshape(5, -1)[[0, 4, 2, 3, 4]].tobytes()


def test_arrays_in_memory_that_files_cannot_have(workdir: Path) -> None:
    overlapping = np.dtype({"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [0, 2]})
    for data, message in (
        (np.zeros(3, overlapping), "data: its fields overlap"),
        (None, "data: dtype object holds Python objects"),
    ):
        with pytest.raises(DtypeError, match=message):
            files.gather(data, [0], out="out.npy")
