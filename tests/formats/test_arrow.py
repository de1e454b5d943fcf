"""Columns of Parquet and Arrow files as inputs and outputs, compared with pyarrow and pandas."""

import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool, python
from inputs import load
from later import later
from outputs import open_sink
from outputs import save as write_array

from ndtool import files
from ndtool.arrays.source import ContiguousSource
from ndtool.errors import InputError, NdtoolError, OutputError, RuleError, UsageError
from ndtool.formats import arrow, locators
from ndtool.formats.streams import Streams

pa = later("pyarrow")
pq = later("pyarrow.parquet")
feather = later("pyarrow.feather")

pytestmark = pytest.mark.usefixtures("workdir")
SUFFIXES = ("parquet", "arrow", "feather")
every_suffix = pytest.mark.parametrize("suffix", SUFFIXES)
TYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64",
]  # fmt: skip
RNG = np.random.default_rng(2)


def write_table(name: str, table: Any, rows: int = 2, **options: Any) -> None:
    """Write a table with several row groups, as pyarrow does."""
    if name.endswith(".parquet"):
        pq.write_table(table, name, row_group_size=rows, **options)
    elif name.endswith(".feather"):
        feather.write_feather(table, name, chunksize=rows, **options)
    else:
        with pa.OSFile(name, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=rows)


def random_array(dtype: str, *shape: int) -> Any:
    return RNG.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)


@every_suffix
@pytest.mark.parametrize("dtype", TYPES)
def test_values_of_every_type_are_read(dtype: str, suffix: str) -> None:
    column, lists = random_array(dtype, 7), random_array(dtype, 7, 3)
    fixed_lists = pa.FixedSizeListArray.from_arrays(pa.array(lists.reshape(-1)), 3)
    variable_lists = pa.array(lists.tolist(), pa.list_(pa.from_numpy_dtype(dtype)))
    table = pa.table(
        {"a": column, "b": column[::-1].copy(), "fixed": fixed_lists, "free": variable_lists}
    )
    for rows in (1, 2, 3, 7, 100):
        write_table(f"x.{suffix}", table, rows)
        for name, expected in (
            ("a", column),
            ("b,a", np.stack([column[::-1], column], -1)),
            ("fixed", lists),
            ("free", lists),
        ):
            result = load(f"x.{suffix}:{name}")
            assert result.dtype == expected.dtype
            assert np.array_equal(result, expected), (rows, name)


@every_suffix
def test_dictionaries_tensors_and_slices_are_read(suffix: str) -> None:
    ids = pa.array([5, 7, 5, 5])
    table = pa.table({"ids": ids.dictionary_encode(), "big": ids.cast(pa.int32())})
    write_table(f"x.{suffix}", table, 3)
    assert load(f"x.{suffix}:ids").tolist() == [5, 7, 5, 5]
    tensor = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.float32(), (2,)),
        pa.FixedSizeListArray.from_arrays(pa.array(np.arange(8, dtype="f4")), 2),
    )
    write_table(f"x.{suffix}", pa.table({"t": tensor}))
    assert load(f"x.{suffix}").tolist() == np.arange(8).reshape(4, 2).tolist()
    write_table(f"x.{suffix}", table.select(["big"]).slice(1, 2), 5)
    assert load(f"x.{suffix}").tolist() == [7, 5]
    write_table(f"x.{suffix}", table.select(["big"]).slice(0, 0))
    assert load(f"x.{suffix}").shape == (0,)


def test_large_row_groups_are_read_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "BLOCK_BYTES", 100)
    lists = RNG.random((50, 3))
    fixed_lists = pa.FixedSizeListArray.from_arrays(pa.array(lists.reshape(-1)), 3)
    write_table(
        "x.parquet", pa.table({"e": fixed_lists, "a": np.arange(50), "b": np.arange(50)}), 20
    )
    assert np.array_equal(load("x.parquet:e"), lists)
    assert np.array_equal(load("x.parquet:a,b"), np.stack([np.arange(50)] * 2, -1))


def test_row_groups_of_different_lengths_are_read() -> None:
    column = np.arange(40)
    with pq.ParquetWriter("x.parquet", pa.schema([("a", pa.int64())])) as writer:
        for first, stop in ((0, 3), (3, 20), (20, 20), (20, 39), (39, 40)):
            writer.write_table(pa.table({"a": column[first:stop]}))
    assert np.array_equal(load("x.parquet"), column)


def test_pandas_frames_are_read() -> None:
    pandas = pytest.importorskip("pandas", exc_type=ImportError)
    frame = pandas.DataFrame({"id": [3, 1, 2], "name": list("abc")}, index=[7, 8, 9])
    frame.to_parquet("x.parquet")
    frame.reset_index().to_feather("x.feather")
    assert load("x.parquet:id").tolist() == [3, 1, 2]
    assert load("x.feather:index,id").tolist() == [[7, 3], [8, 1], [9, 2]]


@pytest.mark.parametrize("suffix", ["arrow", "feather"])
def test_an_uncompressed_column_of_one_batch_is_mapped(suffix: str) -> None:
    lists = RNG.random((30_000, 4))
    fixed_lists = pa.FixedSizeListArray.from_arrays(pa.array(lists.reshape(-1)), 4)
    table = pa.table({"a": np.arange(30_000), "e": fixed_lists})
    options = {"compression": "uncompressed"} if suffix == "feather" else {}
    write_table(f"x.{suffix}", table, 1 << 20, **options)
    for name, expected in (("a", np.arange(30_000)), ("e", lists)):
        with closing(locators.open_source(f"x.{suffix}:{name}", Streams(-1))) as opened:
            assert isinstance(opened, ContiguousSource)
            assert opened.is_mapped
        (entry,) = locators.describe(f"x.{suffix}:{name}")
        raw = np.fromfile(f"x.{suffix}", expected.dtype, expected.size, offset=entry.position)
        assert np.array_equal(raw.reshape(expected.shape), expected)


LISTS = [
    ("list", pa.list_(pa.float32())),
    ("large list", pa.large_list(pa.float32())),
    ("list of lists", pa.list_(pa.list_(pa.float32(), 2))),
    ("fixed list", pa.list_(pa.float32(), 4)),
    ("structs", pa.struct([("x", pa.list_(pa.float32()))])),
]


@every_suffix
@pytest.mark.parametrize(("kind", "arrow_type"), LISTS, ids=[kind for kind, _ in LISTS])
@pytest.mark.parametrize("bad", [None, []], ids=["null", "empty"])
def test_only_selected_rows_may_not_be_null_or_of_another_length(
    suffix: str, kind: str, arrow_type: Any, bad: Any
) -> None:
    row: Any = [1.0, 2.0, 3.0, 4.0]
    if kind == "list of lists":
        row = [[1.0, 2.0], [3.0, 4.0]]
    if bad == [] and kind == "fixed list":
        pytest.skip("a fixed list is never empty")
    rows = [bad, bad, row, row, bad, row]
    if kind == "structs":
        rows = [None if item is None else {"x": item} for item in rows]
    name = "e.x" if kind == "structs" else "e"
    write_table(f"x.{suffix}", pa.table({"e": pa.array(rows, arrow_type)}), 2)
    flat = files.gather(f"x.{suffix}:{name}", "[2, -1, -1]").array.reshape(3, 4)
    assert flat.tolist() == [[1, 2, 3, 4]] * 3
    for index in (0, 4):
        reason = "null" if bad is None else f"a list of 0: expected {len(row)}, as in row 2"
        with pytest.raises(InputError, match=f"row {index} is {reason}"):
            files.gather(f"x.{suffix}:{name}", f"[{index}, 2]")
    with pytest.raises(InputError, match="row 0 is"):
        load(f"x.{suffix}:{name}")
    (entry,) = locators.describe(f"x.{suffix}")
    assert entry.metadata is not None
    assert entry.metadata.shape in ((6, 4), (6, 2, 2))


@every_suffix
def test_nulls_in_lists_without_elements_are_refused(suffix: str) -> None:
    for lists in (
        pa.array([[], None], pa.list_(pa.int8(), 0)),
        pa.array([[], None, []], pa.list_(pa.int8())),
        pa.array([None, []], pa.list_(pa.int8())),
    ):
        write_table(f"x.{suffix}", pa.table({"e": lists}), 1)
        with pytest.raises(InputError, match=r"row [01] is null|size=0"):
            files.gather(f"x.{suffix}:e", "[0]")
    write_table(f"x.{suffix}", pa.table({"e": pa.array([[], []], pa.list_(pa.int8()))}))
    assert load(f"x.{suffix}:e").shape == (2, 0)


def test_a_padding_index_selects_no_row() -> None:
    write_table("x.parquet", pa.table({"a": pa.array([None, 1, 2, None])}), 2)
    assert files.gather("x.parquet", "[-1, 2]", pad=-1).array.tolist() == [0, 2]
    result = files.gather("x.parquet", "[-4, 2, 9]", negatives=False, out_of_bounds="fill").array
    assert result.tolist() == [0, 2, 0]


@every_suffix
def test_fields_of_structs_are_columns(suffix: str) -> None:
    users = [{"id": i, "at": {"x": i / 2, "y": -i}} for i in range(5)]
    table = pa.table({"user": users, "user.id": np.arange(5) * 10, "n": np.arange(5)})
    write_table(f"x.{suffix}", table, 2)
    assert load(f"x.{suffix}:user.at.x").tolist() == [0, 0.5, 1, 1.5, 2]
    assert load(f"x.{suffix}:user.at.y,n").tolist() == [[-i, i] for i in range(5)]
    assert load(f"x.{suffix}:user.id").tolist() == [0, 10, 20, 30, 40]
    names = {entry.member for entry in locators.describe(f"x.{suffix}")}
    assert names == {"user.id", "user.at.x", "user.at.y", "n"}
    write_table(f"x.{suffix}", table.select(["user"]), 2)
    assert load(f"x.{suffix}:user.id").tolist() == [0, 1, 2, 3, 4]
    for missing in ("user.x", "user.at.", "user.id.x", "user", ".id"):
        with pytest.raises(InputError):
            load(f"x.{suffix}:{missing}")


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_arrow_streams_are_read(compression: str | None) -> None:
    lists = RNG.random((3000, 4))
    table = pa.table(
        {
            "a": np.arange(3000),
            "e": pa.FixedSizeListArray.from_arrays(lists.reshape(-1), 4),
            "d": pa.array([5, 7] * 1500).dictionary_encode(),
        }
    )
    options = pa.ipc.IpcWriteOptions(compression=compression)
    for rows in (250, 3000):
        with (
            pa.OSFile("x.arrow", "wb") as file,
            pa.ipc.new_stream(file, table.schema, options=options) as writer,
        ):
            writer.write_table(table, max_chunksize=rows)
        assert np.array_equal(load("x.arrow:a"), np.arange(3000))
        assert np.array_equal(load("x.arrow:e"), lists)
        assert load("x.arrow:d").tolist() == [5, 7] * 1500
        position = locators.describe("x.arrow:e")[0].position
        assert (position is not None) == (compression is None and rows == 3000)
    raw = Path("x.arrow").read_bytes()
    for size in (0, 8, 100, 700, len(raw) // 2):
        Path("x.arrow").write_bytes(raw[:size])
        with pytest.raises(NdtoolError):
            load("x.arrow:e")


@pytest.mark.parametrize("compression", [None, "lz4"])
@pytest.mark.parametrize("writer_name", ["new_file", "new_stream"])
def test_a_batch_that_claims_another_length_is_refused(
    writer_name: str, compression: str | None
) -> None:
    rows = 12_345
    lists = pa.FixedSizeListArray.from_arrays(RNG.integers(0, 9, 2 * rows), 2)
    table = pa.table({"a": np.arange(rows), "e": lists})
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with getattr(pa.ipc, writer_name)("x.arrow", table.schema, options=options) as writer:
        writer.write_table(table.slice(0, 100))
        writer.write_table(table)
    raw = Path("x.arrow").read_bytes()
    length, count = rows.to_bytes(8, "little"), raw.count(rows.to_bytes(8, "little"))
    assert files.gather("x.arrow:a", "[-1, 0]").array.tolist() == [rows - 1, 0]
    for claimed in (-1, rows - 1, rows + 1, 1 << 40, (1 << 63) - 1):
        changed = raw.replace(length, claimed.to_bytes(8, "little", signed=True), 1)
        assert changed.count(length) == count - 1
        Path("x.arrow").write_bytes(changed)
        for name in ("a", "e"):
            with pytest.raises(NdtoolError):
                files.gather(f"x.arrow:{name}", "[100, -1]")


def test_a_folder_of_parquet_files_is_one_table() -> None:
    os.mkdir("t")
    for name in ("part-1", "part-0", "part-2"):
        first = int(name[-1]) * 10
        write_table(
            f"t/{name}.parquet", pa.table({"a": np.arange(first, first + 10), "b": [1.5] * 10}), 4
        )
    Path("t/_SUCCESS").touch()
    assert load("t:a").tolist() == list(range(30))
    assert files.gather("t:a", "[29, 3, -30]").array.tolist() == [29, 3, 0]
    assert {entry.name for entry in locators.describe("t")} == {"t:a", "t:b"}
    with closing(locators.open_source("t:a", Streams(-1))) as opened:
        opened.require_unchanged()
        write_table("t/part-1.parquet", pa.table({"a": np.arange(11), "b": [1.5] * 11}), 4)
        with pytest.raises(OutputError, match="changed during the run"):
            opened.require_unchanged()
    write_table("t/part-1.parquet", pa.table({"a": np.arange(10)}), 4)
    with pytest.raises(InputError, match=r"part-1\.parquet: its columns are not those of t/part-0"):
        load("t:a")


def test_large_row_groups_are_read_within_small_memory() -> None:
    values = np.arange(1 << 22)  # 32 MiB
    write_table("x.parquet", pa.table({"a": values}), 1 << 22)
    rows = RNG.integers(0, len(values), 1 << 16)
    np.save("i.npy", rows)
    completed = ndtool("gather", "x.parquet:a", "i.npy", "-o", "o.npy", "--memory", "32MiB")
    assert completed.status == 0, completed
    assert np.array_equal(np.load("o.npy"), values[rows])


REFUSED = [
    ({"a": pa.array([1, None, 3])}, "a", "x:a: row 1 is null: expected a value in every row"),
    ({"a": pa.array([[1, 2], None])}, "a", "x:a: row 1 is null"),
    ({"a": pa.array([[1, 2], [3, None]])}, "a", "x:a: row 1 is null"),
    ({"a": pa.array([[1, 2], [3, 4], [5]])}, "a", "row 2 is a list of 1: expected 2, as in row 0"),
    ({"a": pa.array(["x"])}, "a", "x:a: a column of string: expected numbers, or lists of them"),
    ({"a": pa.array([{"b": 1}])}, "a", "x: 'a' is not a column of the file"),
    ({"a": pa.array([1], pa.decimal128(5))}, "a", "x:a: a column of decimal128(5, 0)"),
    ({"a": pa.array([[[1]]])}, "a", "x:a: a column of list<"),
    ({"a": pa.array([1]), "b": pa.array([1.5])}, "a,b", "expected columns of one type"),
    ({"a": pa.array([1])}, "b", "x: 'b' is not a column of the file"),
]  # fmt: skip


@every_suffix
@pytest.mark.parametrize(("columns", "names", "message"), REFUSED)
def test_columns_that_are_no_arrays_are_refused(
    columns: Any, names: str, message: str, suffix: str
) -> None:
    write_table(f"x.{suffix}", pa.table(columns), 1)
    with pytest.raises(InputError) as excinfo:
        load(f"x.{suffix}:{names}")
    assert message in excinfo.value.message.replace(f"x.{suffix}", "x")


@every_suffix
def test_a_column_is_named_unless_it_is_the_only_one(suffix: str) -> None:
    table = pa.table({"a": [1], "b": [2]})
    write_table(f"x.{suffix}", table)
    with pytest.raises(UsageError, match="the file has 2 columns: name one of them"):
        load(f"x.{suffix}")
    write_table(f"x.{suffix}", pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]))
    with pytest.raises(InputError, match="'a' names 2 columns"):
        load(f"x.{suffix}:a")
    write_table(f"x.{suffix}", pa.table({}))
    with pytest.raises(InputError, match="the file has no columns"):
        load(f"x.{suffix}")


def test_encrypted_and_version_1_files_are_refused() -> None:
    Path("x.parquet").write_bytes(b"PARE" + bytes(20) + b"PARE")
    with pytest.raises(InputError, match="the file is encrypted"):
        load("x.parquet:a")
    Path("x.feather").write_bytes(b"FEA1" + bytes(20) + b"FEA1")
    with pytest.raises(InputError, match="a Feather file of version 1: expected version 2"):
        load("x.feather:a")


# Outputs


@every_suffix
@pytest.mark.parametrize("dtype", [*TYPES, ">i4", ">f8"])
def test_pyarrow_reads_the_outputs(
    dtype: str, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow, "GROUP_BYTES", 64)
    for shape in ((50,), (20, 3), (0,), (0, 3)):
        expected = random_array(dtype, *shape)
        write_array(f"x.{suffix}:ids", expected, "items")
        if suffix == "parquet":
            table = pq.read_table("x.parquet")
        else:
            table = pa.ipc.open_file(pa.memory_map(f"x.{suffix}")).read_all()
        assert table.column_names == ["ids"]
        column = table.column(0).combine_chunks()
        for _ in shape[1:]:
            column = column.flatten()
        assert np.array_equal(column.to_numpy(zero_copy_only=False), expected.reshape(-1))
        result = load(f"x.{suffix}")
        assert (result.shape, result.dtype) == (shape, expected.dtype.newbyteorder("="))
        assert np.array_equal(result, expected)


@every_suffix
def test_unsupported_outputs_are_refused(suffix: str) -> None:
    for shape in ((2, 2, 2), (), (2, 0)):
        with pytest.raises(RuleError):
            open_sink(f"x.{suffix}", np.zeros(shape))
    assert os.listdir() == []
    write_table(f"x.{suffix}", pa.table({"a": [1], "b": [2]}))
    with pytest.raises(OutputError, match="only=True"):
        open_sink(f"x.{suffix}", np.zeros(2))
    write_table(f"y.{suffix}", pa.table({"words": ["one"]}))
    with pytest.raises(OutputError, match="has words, which would be lost"):
        open_sink(f"y.{suffix}:b", np.zeros(2))
    write_array(f"y.{suffix}:words", np.zeros(2))
    write_array(f"y.{suffix}:b", np.zeros(2), only=True)
    assert load(f"y.{suffix}:b").tolist() == [0, 0]
    os.unlink(f"y.{suffix}")
    write_array(f"x.{suffix}", np.zeros(2), only=True)
    assert load(f"x.{suffix}").tolist() == [0, 0]


def test_a_missing_pyarrow_is_reported() -> None:
    write_table("x.parquet", pa.table({"a": [1]}))
    program = "import sys; sys.modules['pyarrow'] = None; from ndtool.__main__ import main; "
    program += "sys.argv = ['ndtool', 'inspect', 'x.parquet']; sys.exit(main())"
    completed = python(program)
    assert completed.status == 2
    assert "a Parquet or Arrow file needs the pyarrow package" in completed.err
    assert "pip install 'ndtool[arrow]'" in completed.err
    assert sys.modules["pyarrow"] is not None


def test_reading_columns_imports_no_pandas() -> None:
    """As pyarrow's own conversions to NumPy do, which takes longer than most runs."""
    rows = pa.array([[1.5, 2.5], None, [3.5, 4.5]], pa.list_(pa.float32()))
    write_table("a.parquet", pa.table({"rows": rows, "flags": [True, False, True]}))
    program = "import sys, ndtool.files as files\n"
    program += "for name in ('rows', 'flags'): files.gather(f'a.parquet:{name}', [2])\n"
    program += "files.gather('a.parquet:flags', [1], out='b.parquet')\n"
    completed = python(program + "assert 'pandas' not in sys.modules\n")
    assert completed.status == 0, completed.err
