"""Raw files as arrays: raw:TYPE[SHAPE]:FILE@OFFSET."""

from contextlib import closing
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from command import ndtool
from inputs import load
from strategies import bits_equal

from ndtool.errors import DtypeError, InputError, NdtoolError, OutputError, UsageError
from ndtool.formats import locators
from ndtool.formats.streams import Streams
from ndtool.rules import dtypes

RAW = bytes(range(256)) * 2


@pytest.fixture(autouse=True)
def files(workdir: Path, check_files_closed: None) -> None:
    Path("dump.bin").write_bytes(RAW)


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("float32", "<f4"), (">f4", ">f4"), ("<i8", "<i8"), ("uint16", "<u2"), ("bool", "?"),
        ("S5", "S5"), (">U2", ">U2"), ("V3", "V3"), ("datetime64[ns]", "<M8[ns]"),
        ("<m8[25s]", "<m8[25s]"), ("complex64", "<c8"), ("bfloat16", ml_dtypes.bfloat16),
        ("float8_e4m3fn", ml_dtypes.float8_e4m3fn),
    ],
)  # fmt: skip
def test_types_shapes_and_offsets(text: str, dtype: Any) -> None:
    for shape, offset in (("2,3", 0), ("2, 3", 1), ("5", 8), ("", 200), ("0,7", 3)):
        sizes = [int(size) for size in shape.split(",")] if shape else []
        expected = np.frombuffer(RAW, np.dtype(dtype), prod(sizes), offset).reshape(sizes)
        actual = load(f"raw:{text}[{shape}]:dump.bin" + (f"@{offset}" if offset else ""))
        assert bits_equal(actual, expected)


@pytest.mark.parametrize("name", ["a:b", "a@b", "a@7", "x:y@3", "raw:u1[2]:z", " ", "a\nb", "[1]"])
def test_any_name_of_a_file(name: str) -> None:
    Path(name).write_bytes(b"\1\2\3\4")
    assert load(f"raw:uint8[4]:{name}").tolist() == [1, 2, 3, 4]
    assert load(f"raw:uint8[2]:{name}@2").tolist() == [3, 4]


def test_an_offset_is_taken_only_where_no_file_has_the_whole_name() -> None:
    Path("x").write_bytes(b"\1\2")
    assert load("raw:uint8[1]:x@1").tolist() == [2]
    Path("x@1").write_bytes(b"\3")
    assert load("raw:uint8[1]:x@1").tolist() == [3]
    assert load("raw:uint8[1]:x@1@0").tolist() == [3]


def test_bytes_too_many() -> None:
    with closing(locators.open_source("raw:uint8[500]:dump.bin", Streams(-1))) as source:
        assert source.warning == "raw:uint8[500]:dump.bin: 12 bytes after the array are ignored"
    for argument in ("raw:uint8[512]:dump.bin", "raw:uint8[500]:dump.bin@3"):
        with closing(locators.open_source(argument, Streams(-1))) as source:
            assert source.warning is None
        (entry,) = locators.describe(argument)
        assert entry.position == (3 if "@" in argument else 0)


@pytest.mark.parametrize(
    ("argument", "kind", "message"),
    [
        ("raw:", UsageError, "expected raw:TYPE"),
        ("raw:float32:dump.bin", UsageError, "expected raw:TYPE"),
        ("raw:float32[2]", UsageError, "expected raw:TYPE"),
        ("raw:float32[2]:", UsageError, "expected raw:TYPE"),
        ("raw:float32[-2]:dump.bin", UsageError, "expected raw:TYPE"),
        ("raw:float32[2,]:dump.bin", UsageError, "expected raw:TYPE"),
        ("raw:float32[2.0]:dump.bin", UsageError, "expected raw:TYPE"),
        ("raw:[2]:dump.bin", UsageError, "expected raw:TYPE"),
        ("raw:float[2]:dump.bin", DtypeError, "'float' is not an element type"),
        ("raw:object[2]:dump.bin", DtypeError, "is not an element type"),
        ("raw:|O[2]:dump.bin", DtypeError, "is not an element type"),
        ("raw:S0[2]:dump.bin", DtypeError, "0 bytes"),
        ("raw:uint8[513]:dump.bin", InputError, "expected 513 bytes at offset 0, found 512"),
        ("raw:uint8[2]:dump.bin@511", InputError, "expected 2 bytes at offset 511, found 1"),
        ("raw:uint8[2]:dump.bin@9999", InputError, "expected 2 bytes at offset 9999, found 0"),
        ("raw:uint8[0]:dump.bin@9999", InputError, "expected 0 bytes at offset 9999, found 0"),
        (f"raw:uint8[0,{2**62},{2**62}]:dump.bin", UsageError, "axes of size 0 counted as 1"),
        (f"raw:uint8[{2**63}]:dump.bin", UsageError, "valid up to"),
        (f"raw:uint8[0]:dump.bin@{2**63}", UsageError, "valid up to"),
        ("raw:uint8[" + "1," * 64 + "1]:dump.bin", UsageError, "valid up to 64 sizes"),
        ("raw:uint8[1]:missing", InputError, "missing: No such file"),
        ("raw:uint8[1]:.", InputError, "is a directory"),
        ("raw:uint8[1]:-", InputError, "-: No such file"),
        ("raw:uint8[1]:nul\0", InputError, "is not a valid file name"),
    ],
)
def test_refused_arguments(argument: str, kind: type[NdtoolError], message: str) -> None:
    for refuse in (lambda name: locators.open_source(name, Streams(-1)), locators.describe):
        with pytest.raises(kind) as excinfo:
            refuse(argument)
        assert message in excinfo.value.message
        assert excinfo.value.message.isprintable()


def test_a_file_that_changes() -> None:
    with closing(locators.open_source("raw:uint8[512]:dump.bin", Streams(-1))) as source:
        Path("dump.bin").write_bytes(RAW + b"x")
        with pytest.raises(OutputError, match="changed during the run"):
            source.require_unchanged()


def test_it_is_no_output() -> None:
    for options in ((), ("--dry-run", "--no-trace")):
        result = ndtool("gather-nd", "raw:u1[512]:dump.bin", "[0]", "-o", "raw:u1[]:x", *options)
        assert result.status == 2
        assert "it is read, never written" in result.err
    assert [path.name for path in Path().iterdir()] == ["dump.bin"]


def test_every_extended_type_has_its_size() -> None:
    for name, size in dtypes.EXTENSION_DTYPES.items():
        with closing(locators.open_source(f"raw:{name}[3]:dump.bin", Streams(-1))) as source:
            assert (source.metadata.dtype.name, source.metadata.nbytes) == (name, 3 * size)
