"""Columns of Parquet and Arrow files, in and out, compared with pyarrow and pandas."""

import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool, python, save
from outputs import opened
from outputs import save as write

from ndtool.arrays import source
from ndtool.arrays.source import FlatSource
from ndtool.errors import DtypeError, InputError, NdtoolError, OutputError, RuleError, UsageError
from ndtool.formats import arrow, locators
from ndtool.formats.arrow import parquet
from ndtool.formats.streams import Streams
from ndtool.publish import sinks

pa = pytest.importorskip("pyarrow", exc_type=ImportError)
pq = pytest.importorskip("pyarrow.parquet", exc_type=ImportError)
pytest.importorskip("pyarrow.feather", exc_type=ImportError)

pytestmark = pytest.mark.usefixtures("workdir")
SUFFIXES = ("parquet", "arrow", "feather")
every_suffix = pytest.mark.parametrize("suffix", SUFFIXES)
TYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64",
]  # fmt: skip
RNG = np.random.default_rng(2)


def put(name: str, table: Any, rows: int = 2, **options: Any) -> None:
    """Write a table with several row groups, as pyarrow does."""
    if name.endswith(".parquet"):
        pq.write_table(table, name, row_group_size=rows, **options)
    elif name.endswith(".feather"):
        pa.feather.write_feather(table, name, chunksize=rows, **options)
    else:
        with pa.OSFile(name, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=rows)


def read(argument: str) -> Any:
    with closing(locators.open_source(argument, Streams(-1))) as one:
        raw = source.load_array(one).buffer.tobytes()
        return np.frombuffer(raw, one.metadata.dtype.descr).reshape(one.metadata.shape)


def numbers(dtype: str, *shape: int) -> Any:
    return RNG.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)


@every_suffix
@pytest.mark.parametrize("dtype", TYPES)
def test_values_of_every_type(dtype: str, suffix: str) -> None:
    column, lists = numbers(dtype, 7), numbers(dtype, 7, 3)
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(lists.reshape(-1)), 3)
    free = pa.array(lists.tolist(), pa.list_(pa.from_numpy_dtype(dtype)))
    table = pa.table({"a": column, "b": column[::-1].copy(), "fixed": fixed, "free": free})
    for rows in (1, 2, 3, 7, 100):
        put(f"x.{suffix}", table, rows)
        for name, wanted in (
            ("a", column),
            ("b,a", np.stack([column[::-1], column], -1)),
            ("fixed", lists),
            ("free", lists),
        ):
            found = read(f"x.{suffix}:{name}")
            assert found.dtype == wanted.dtype
            assert np.array_equal(found, wanted), (rows, name)


@every_suffix
def test_other_encodings(suffix: str) -> None:
    ids = pa.array([5, 7, 5, 5])
    table = pa.table({"ids": ids.dictionary_encode(), "big": ids.cast(pa.int32())})
    put(f"x.{suffix}", table, 3)
    assert read(f"x.{suffix}:ids").tolist() == [5, 7, 5, 5]
    tensor = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.float32(), (2,)),
        pa.FixedSizeListArray.from_arrays(pa.array(np.arange(8, dtype="f4")), 2),
    )
    put(f"x.{suffix}", pa.table({"t": tensor}))
    assert read(f"x.{suffix}").tolist() == np.arange(8).reshape(4, 2).tolist()
    put(f"x.{suffix}", table.select(["big"]).slice(1, 2), 5)
    assert read(f"x.{suffix}").tolist() == [7, 5]
    put(f"x.{suffix}", table.select(["big"]).slice(0, 0))
    assert read(f"x.{suffix}").shape == (0,)


def test_large_row_groups_are_decoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "MAX_BLOCK_BYTES", 100)
    monkeypatch.setattr(arrow, "BATCH_BYTES", 64)
    lists = RNG.random((50, 3))
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(lists.reshape(-1)), 3)
    put("x.parquet", pa.table({"e": fixed, "a": np.arange(50), "b": np.arange(50)}), 20)
    assert np.array_equal(read("x.parquet:e"), lists)
    assert np.array_equal(read("x.parquet:a,b"), np.stack([np.arange(50)] * 2, -1))


def test_row_groups_of_different_lengths() -> None:
    column = np.arange(40)
    with pq.ParquetWriter("x.parquet", pa.schema([("a", pa.int64())])) as writer:
        for first, stop in ((0, 3), (3, 20), (20, 20), (20, 39), (39, 40)):
            writer.write_table(pa.table({"a": column[first:stop]}))
    assert np.array_equal(read("x.parquet"), column)


def test_pandas_frames() -> None:
    pandas = pytest.importorskip("pandas", exc_type=ImportError)
    frame = pandas.DataFrame({"id": [3, 1, 2], "name": list("abc")}, index=[7, 8, 9])
    frame.to_parquet("x.parquet")
    frame.reset_index().to_feather("x.feather")
    assert read("x.parquet:id").tolist() == [3, 1, 2]
    assert read("x.feather:index,id").tolist() == [[7, 3], [8, 1], [9, 2]]


@pytest.mark.parametrize("suffix", ["arrow", "feather"])
def test_an_uncompressed_column_of_one_batch_is_mapped(suffix: str) -> None:
    lists = RNG.random((30_000, 4))
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(lists.reshape(-1)), 4)
    table = pa.table({"a": np.arange(30_000), "e": fixed})
    options = {"compression": "uncompressed"} if suffix == "feather" else {}
    put(f"x.{suffix}", table, 1 << 20, **options)
    for name, wanted in (("a", np.arange(30_000)), ("e", lists)):
        with closing(locators.open_source(f"x.{suffix}:{name}", Streams(-1))) as one:
            assert isinstance(one, FlatSource)
            assert one.load().mapped
        (entry,) = locators.describe(f"x.{suffix}:{name}")
        raw = np.fromfile(f"x.{suffix}", wanted.dtype, wanted.size, offset=entry.position)
        assert np.array_equal(raw.reshape(wanted.shape), wanted)


BAD = [
    ({"a": pa.array([1, None, 3])}, "a", "x:a: row 1 is null: expected a value in every row"),
    ({"a": pa.array([[1, 2], None])}, "a", "x:a: row 1 is null"),
    ({"a": pa.array([[1, 2], [3, None]])}, "a", "x:a: row 1 is null"),
    ({"a": pa.array([[1, 2], [3, 4], [5]])}, "a", "row 2 is a list of 1: expected 2, as in row 0"),
    ({"a": pa.array(["x"])}, "a", "x:a: a column of string: expected numbers, or lists of them"),
    ({"a": pa.array([{"b": 1}])}, "a", "x:a: a column of struct<b: int64>"),
    ({"a": pa.array([1], pa.decimal128(5))}, "a", "x:a: a column of decimal128(5, 0)"),
    ({"a": pa.array([[[1]]])}, "a", "x:a: a column of list<"),
    ({"a": pa.array([1]), "b": pa.array([1.5])}, "a,b", "b is float64, and a int64: expected col"),
    ({"a": pa.array([1])}, "b", "x: 'b' is not a column of the file"),
]  # fmt: skip


@every_suffix
@pytest.mark.parametrize(("columns", "names", "text"), BAD)
def test_refusals(columns: Any, names: str, text: str, suffix: str) -> None:
    put(f"x.{suffix}", pa.table(columns), 1)
    with pytest.raises(InputError) as caught:
        read(f"x.{suffix}:{names}")
    assert text in caught.value.message.replace(f"x.{suffix}", "x")


@every_suffix
def test_columns_are_named_or_the_only_one(suffix: str) -> None:
    table = pa.table({"a": [1], "b": [2]})
    put(f"x.{suffix}", table)
    with pytest.raises(UsageError, match="the file has 2 columns: name one of them"):
        read(f"x.{suffix}")
    put(f"x.{suffix}", pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]))
    with pytest.raises(InputError, match="'a' names 2 columns"):
        read(f"x.{suffix}:a")
    put(f"x.{suffix}", pa.table({}))
    with pytest.raises(InputError, match="the file has no columns"):
        read(f"x.{suffix}")


@every_suffix
@pytest.mark.parametrize("change", [1, 0x80, 0xFF])
def test_damaged_files_are_errors(suffix: str, change: int) -> None:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(12.0)), 3)
    put(f"x.{suffix}", pa.table({"a": np.arange(4), "e": lists}))
    raw = bytearray(Path(f"x.{suffix}").read_bytes())
    for at in range(0, len(raw), 3):
        raw[at] ^= change
        Path(f"x.{suffix}").write_bytes(raw)
        for name in ("a", "e"):
            try:
                assert read(f"x.{suffix}:{name}").nbytes < 1 << 20
            except NdtoolError:
                pass
        raw[at] ^= change
    for length in range(0, len(raw), 7):
        Path(f"x.{suffix}").write_bytes(raw[:length])
        with pytest.raises(NdtoolError):
            read(f"x.{suffix}:a")


def test_files_of_other_kinds() -> None:
    Path("x.parquet").write_bytes(b"PARE" + bytes(20) + b"PARE")
    with pytest.raises(InputError, match="the file is encrypted"):
        read("x.parquet:a")
    Path("x.feather").write_bytes(b"FEA1" + bytes(20) + b"FEA1")
    with pytest.raises(InputError, match="a Feather file of version 1: expected version 2"):
        read("x.feather:a")


# Outputs


@every_suffix
@pytest.mark.parametrize("dtype", [*TYPES, ">i4", ">f8"])
def test_outputs_are_what_pyarrow_reads(
    dtype: str, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "GROUP_BYTES", 64)
    for shape in ((50,), (20, 3), (0,), (0, 3)):
        wanted = numbers(dtype, *shape)
        write(f"x.{suffix}:ids", wanted, "items")
        if suffix == "parquet":
            table = pq.read_table("x.parquet")
        else:
            table = pa.ipc.open_file(pa.memory_map(f"x.{suffix}")).read_all()
        assert table.column_names == ["ids"]
        column = table.column(0).combine_chunks()
        for _ in shape[1:]:
            column = column.flatten()
        assert np.array_equal(column.to_numpy(zero_copy_only=False), wanted.reshape(-1))
        found = read(f"x.{suffix}")
        assert (found.shape, found.dtype) == (shape, wanted.dtype.newbyteorder("="))
        assert np.array_equal(found, wanted)


@every_suffix
def test_outputs_that_are_refused(suffix: str) -> None:
    for wanted, kind in (
        (np.zeros((2, 2, 2)), RuleError),
        (np.zeros(()), RuleError),
        (np.zeros((2, 0)), RuleError),
        (np.zeros(2, "c8"), DtypeError),
        (np.zeros(2, "S3"), DtypeError),
    ):
        with pytest.raises(kind):
            opened(f"x.{suffix}", wanted)
    assert os.listdir() == []
    put(f"x.{suffix}", pa.table({"a": [1], "b": [2]}))
    with pytest.raises(OutputError, match="--only"):
        opened(f"x.{suffix}", np.zeros(2))
    put(f"y.{suffix}", pa.table({"words": ["one"]}))
    with pytest.raises(OutputError, match="has words, which would be lost"):
        opened(f"y.{suffix}:b", np.zeros(2))
    write(f"y.{suffix}:words", np.zeros(2))
    write(f"y.{suffix}:b", np.zeros(2), only=True)
    assert read(f"y.{suffix}:b").tolist() == [0, 0]
    os.unlink(f"y.{suffix}")
    write(f"x.{suffix}", np.zeros(2), only=True)
    assert read(f"x.{suffix}").tolist() == [0, 0]
    before = Path(f"x.{suffix}").read_bytes()
    out = opened(f"x.{suffix}", np.ones(2))
    out.write(0, memoryview(np.ones(2).tobytes()))
    assert Path(f"x.{suffix}").read_bytes() == before
    sinks.commit(out)
    out.abort()
    assert read(f"x.{suffix}").tolist() == [1, 1]
    assert os.listdir() == [f"x.{suffix}"]


@every_suffix
def test_commands(suffix: str) -> None:
    data = RNG.random((2000, 16))
    save(data=data)
    rows = RNG.integers(0, 2000, 3000)
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(RNG.random(3000 * 16)), 16)
    put(f"i.{suffix}", pa.table({"id": rows, "v": fixed}), 700)
    ids, new = f"i.{suffix}:id", f"i.{suffix}:v"
    ran = ndtool("gather", "data.npy", ids, "-o", f"o.{suffix}")
    assert ran.status == 0, ran.err
    assert np.array_equal(read(f"o.{suffix}"), data[rows])
    wanted = data.copy()
    np.add.at(wanted, rows, read(new))
    add = ("data.npy", ids, new, "--reduction", "add")
    for more in ((), ("--memory", "1MiB")):
        ran = ndtool("scatter", *add, "-o", "s.npy", *more)
        assert (ran.status, np.load("s.npy").tobytes()) == (0, wanted.tobytes()), ran.err
    assert ndtool("verify", "scatter", *add[:3], "s.npy", *add[3:]).status == 0
    assert "float64[3000,16]" in ndtool("inspect", new).err + ndtool("inspect", new).out.decode()
    ran = ndtool("gather", new, "[1]", "-o", "x.npy", "--dry-run")
    assert ran.status == 0, ran.err


def test_without_pyarrow() -> None:
    put("x.parquet", pa.table({"a": [1]}))
    program = "import sys; sys.modules['pyarrow'] = None; from ndtool.__main__ import main; "
    program += "sys.argv = ['ndtool', 'inspect', 'x.parquet']; sys.exit(main())"
    ran = python(program)
    assert ran.status == 2
    assert "a Parquet or Arrow file needs the pyarrow package" in ran.err
    assert "pip install 'ndtool[arrow]'" in ran.err
    assert sys.modules["pyarrow"] is not None
