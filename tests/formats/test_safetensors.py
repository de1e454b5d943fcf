"""Safetensors files: read and written as the safetensors package does; damaged ones are refused."""

import json
import os
import struct
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from command import ndtool, snapshot
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inputs import load
from limits import fail_with
from outputs import list_preserved_members, open_sink
from outputs import save as write
from strategies import bits_equal

from ndtool.errors import InputError, NdtoolError, OutputError, UsageError
from ndtool.formats import locators
from ndtool.formats.safetensors import headers
from ndtool.formats.streams import Streams

ARRAYS = {
    "a": np.arange(12, dtype="<f4").reshape(3, 4),
    "b": np.arange(5, dtype="u1"),
    "c/d:e": np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3),
    "empty": np.zeros((0, 3), "<i8"),
    "scalar": np.array(7, "<i8"),
}
METADATA = {"format": "pt", "what": 'é "quoted"\n'}


pytestmark = pytest.mark.usefixtures("workdir", "check_files_closed")


def pack(header: str | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    raw = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def attempt(argument: str) -> Any:
    """Return a tensor, or the error that refuses it: a sentence, and a status."""
    try:
        return load(argument)
    except NdtoolError as exc:
        error = exc
    assert error.status == 3
    assert error.message.isprintable()
    return error


# Reading


CODES = [code for code, (name, _) in headers._TYPES.items() if name]


@pytest.mark.parametrize("code", CODES)
def test_every_type_that_the_package_writes(code: str) -> None:
    name, bits = headers._TYPES[code]
    raw = bytes(range(3 * 4 * bits // 8))
    word = {"float8_e4m3fnuz": "float8_e4m3fnuz"}.get(name, name)
    spec = {"dtype": word, "shape": [3, 4], "data": raw}
    try:
        Path("m.safetensors").write_bytes(safetensors.serialize({"x": spec}))
    except (safetensors.SafetensorError, TypeError, ValueError):
        header = {"x": {"dtype": code, "shape": [3, 4], "data_offsets": [0, len(raw)]}}
        Path("m.safetensors").write_bytes(pack(json.dumps(header), raw))
    with closing(locators.open_source("m.safetensors", Streams(-1))) as source:
        assert source.metadata.dtype.name == name
        assert source.metadata.shape == (3, 4)
        stored_bytes = source.load().tobytes()
        if bits < 8:  # a byte each, the first in the lowest bits
            packed_integer = int.from_bytes(raw, "little")
            raw = bytes(packed_integer >> bits * k & ((1 << bits) - 1) for k in range(12))
        assert stored_bytes == raw


NARROW = '{"x":{"dtype":"%s","shape":[4],"data_offsets":[0,%d]},"y":{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}}'


@pytest.mark.parametrize(
    ("code", "size", "message"), [("Q17", 9, "Q17 is unknown"), ("F12", 6, "F12 is unknown")]
)
def test_types_that_are_unknown(code: str, size: int, message: str) -> None:
    text = NARROW % (code, size, size, size + 1)
    Path("m.safetensors").write_bytes(pack(text, bytes(size + 1)))
    with pytest.raises(InputError, match=message):
        load("m.safetensors:x")
    assert bits_equal(load("m.safetensors:y"), np.zeros(1, "u1"))
    entries = locators.describe("m.safetensors")
    assert [entry.metadata is None for entry in entries] == [True, False]
    assert message.split()[0] in entries[0].problem
    assert write("m.safetensors:y", ARRAYS["b"]) == ("x",)
    assert bits_equal(load("m.safetensors:y"), ARRAYS["b"])


# Damage


def read_by_package(raw: bytes) -> dict[str, tuple[str, list[int], bytes]] | None:
    """Return the package's result for a file, None if it refuses it."""
    try:
        return {
            name: (header_entry["dtype"], header_entry["shape"], bytes(header_entry["data"]))
            for name, header_entry in safetensors.deserialize(raw)
        }
    except Exception:
        return None


def read(raw: bytes) -> headers.Header:
    return headers.read_header(lambda start, n: raw[start : start + n], len(raw), "m")


def read_or_none(raw: bytes) -> headers.Header | None:
    try:
        return read(raw)
    except InputError:
        return None


def small_file() -> bytes:
    arrays = {name: ARRAYS[name] for name in ("a", "b", "c/d:e")}
    return bytes(safetensors.numpy.save(arrays, METADATA))


@pytest.mark.parametrize("change", [*(1 << bit for bit in range(8)), 0xFF, 0x03, 0x5C])
def test_every_byte_of_the_header_damaged(change: int) -> None:
    raw = bytearray(small_file())
    for offset in range(8 + int.from_bytes(raw[:8], "little")):
        raw[offset] ^= change
        reference = read_by_package(bytes(raw))
        header = read_or_none(bytes(raw))
        if header is not None:
            unknown = any(tensor.code not in headers._TYPES for tensor in header.tensors)
            assert (reference is None) == unknown, offset
            for tensor in header.tensors if reference is not None else ():
                data = bytes(
                    raw[header.data_offset + tensor.start : header.data_offset + tensor.stop]
                )
                word, shape, expected = reference[tensor.name]
                assert (tensor.code, list(tensor.shape), data) == (word, shape, expected), offset
        raw[offset] ^= change


ENTRY = '{"dtype":"U8","shape":[2],"data_offsets":[0,2]}'
NEXT = '{"dtype":"U8","shape":[2],"data_offsets":[2,4]}'


def header_entry(
    dtype: str = '"U8"', shape: str = "[2]", offsets: str = "[0,2]", more: str = ""
) -> str:
    return f'{{"x":{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}{more}}}}}'


HOSTILE = [
    ('{"x":' + ENTRY + ',"x":' + NEXT + "}", 4, "two of the name 'x'"),
    ('{"x":' + ENTRY + ',"\\u0078":' + NEXT + "}", 4, "two of the name 'x'"),
    ('{"__metadata__":{},"x":' + ENTRY + ',"__metadata__":{}}', 2, "two of the name"),
    ('{"__metadata__":{"k":"1","k":"2"},"x":' + ENTRY + "}", 2, "two of the name 'k'"),
    ('{"__metadata__":{"k":1},"x":' + ENTRY + "}", 2, "expected __metadata__ of strings"),
    ('{"__metadata__":{"k":' + "[" * 9999 + '},"x":' + ENTRY + "}", 2, "not JSON"),
    ('{"__metadata__":["k"],"x":' + ENTRY + "}", 2, "expected __metadata__ of strings"),
    ('{"x":' + ENTRY + ',"y":' + ENTRY + "}", 4, "overlaps the one before it"),
    ('{"x":' + ENTRY + ',"y":' + NEXT.replace("[2,4]", "[3,5]") + "}", 5, "leaves a gap before it"),
    ('{"x":' + NEXT + "}", 4, "leaves a gap before it: expected 0"),
    ('{"x":' + ENTRY + "}", 3, "claims 2 bytes of data, the file has 3"),
    ('{"x":' + ENTRY + "}", 1, "claims 2 bytes of data, the file has 1"),
    ('{"x":' + ENTRY + "} {}", 2, "not JSON: Extra data"),
    ('{"x":' + ENTRY + ",}", 2, "not JSON"),
    ('{"x":' + ENTRY, 2, "not JSON"),
    ('{"x" ' + ENTRY + "}", 2, "not JSON"),
    ("{x:" + ENTRY + "}", 2, "not JSON"),
    ('{"\\ud800":' + ENTRY + "}", 2, "not JSON"),
    ('{"x\n":' + ENTRY + "}", 2, "not JSON"),
    ('{"x":' + "[" * 100_000 + "}", 0, "not JSON"),
    ('{"x":{"dtype":' + "[" * 4000 + "}}", 0, "not JSON"),
    ('{"x":{}}', 0, "has the keys : expected"),
    ('{"x":[]}', 0, "has no object: expected data_offsets"),
    ('{"x":{"dtype":"U8","shape":[0]}}', 0, "has the keys dtype, shape: expected"),
    (header_entry(more=',"more":1'), 2, "has the keys dtype, shape, data_offsets, more"),
    (header_entry(more=',"dtype":"U8"'), 2, "two of the name 'dtype'"),
    (header_entry(dtype="8"), 2, "has the dtype 8"),
    (header_entry(dtype='"u8"'), 2, "has the dtype 'u8'"),
    (header_entry(dtype='"U8\\n"'), 2, "has the dtype"),
    (header_entry(shape="2"), 2, "has the shape 2"),
    (header_entry(shape="[2.0]"), 2, "has the shape"),
    (header_entry(shape="[2e0]"), 2, "has the shape"),
    (header_entry(shape="[true,2]"), 2, "has the shape"),
    (header_entry(shape="[-2]"), 2, "has the shape"),
    (header_entry(shape="[NaN]"), 2, "has the shape"),
    (header_entry(shape="[" + "9" * 4500 + "]"), 2, "not JSON"),
    (header_entry(shape=f"[0,{2**63}]"), 2, "has the shape"),
    (
        header_entry(shape=f"[0,{2**62},{2**62}]", offsets="[0,0]"),
        0,
        "valid up to 9223372036854775807 bytes",
    ),
    (header_entry(shape="[" + "1," * 64 + "2]"), 2, "has the shape"),
    (header_entry(shape="[3]"), 2, "needs 3 bytes, its data_offsets have 2"),
    (header_entry(dtype='"F4"', shape="[3]"), 2, "needs 12 bits"),
    (header_entry(dtype='"U16"', shape="[2]"), 2, "needs 4 bytes"),
    (header_entry(offsets="[2,0]"), 2, "has the data_offsets"),
    (header_entry(offsets="[0,1,2]"), 2, "has the data_offsets"),
    (header_entry(offsets="[0,2.0]"), 2, "has the data_offsets"),
    (header_entry(offsets="[false,2]"), 2, "has the data_offsets"),
    (header_entry(offsets=f"[0,{2**64}]"), 2, "has the data_offsets"),
]


@pytest.mark.parametrize(("header", "data", "message"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_headers(header: str, data: int, message: str) -> None:
    raw = pack(header, bytes(data))
    Path("m.safetensors").write_bytes(raw)
    tracemalloc.start()
    for argument in ("m.safetensors:x", "m.safetensors"):
        assert message in str(attempt(argument))
    with pytest.raises(InputError, match=r"invalid header|claims"):
        locators.describe("m.safetensors")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    before = snapshot(Path())
    with pytest.raises(OutputError):
        open_sink("m.safetensors:z", ARRAYS["a"])
    assert snapshot(Path()) == before


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (pack(header_entry(), b"ab", 10**6), "the header claims 1000000 bytes, only"),
        (pack(header_entry(), b"ab", 2**63), "the header claims"),
        (pack(header_entry().encode()[:-1] + b"\xff", b"ab"), "not UTF-8"),
        (pack("{}"), "the file has no tensors"),
        (pack("", b""), ""),
        (pack(" {}"), ""),
    ],
)
def test_lengths_and_encodings(raw: bytes, message: str) -> None:
    Path("m.safetensors").write_bytes(raw)
    assert message in str(attempt("m.safetensors:x"))


def test_a_header_beyond_the_cap_takes_no_memory() -> None:
    with open("m.safetensors", "wb") as file:
        file.write(pack("{", b"", 100_000_001))
        file.truncate(200_000_000)
    tracemalloc.start()
    assert "valid up to 100000000" in str(attempt("m.safetensors:x"))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize(
    "header",
    [
        '{"x":' + "[[]," * 1_000_000,
        '{"x":{"dtype":' + "[[]," * 1_000_000 + "}}",
        '{"__metadata__":{"k":' + "[[]," * 1_000_000,
        '{"__metadata__":' + "[[]," * 1_000_000,
        '{"x":[' + "[]," * 600_000,
    ],
)
def test_a_hostile_header_takes_little_more_memory_than_its_bytes(header: str) -> None:
    Path("m.safetensors").write_bytes(pack(header))
    tracemalloc.start()
    assert "invalid header" in str(attempt("m.safetensors:x"))
    assert tracemalloc.get_traced_memory()[1] < 4 * len(header) + (1 << 20)
    tracemalloc.stop()


def test_equivalent_json_is_accepted() -> None:
    header = (
        ' {\n"x"\t: { "shape" :[ 2 ],\r"data_offsets":[0 , 2] , "\\u0064type":"U8"} , '
        '"__metadata__" : { "a" : "b\\u00e9" } } \n'
    ).lstrip()
    Path("m.safetensors").write_bytes(pack(header, b"\7\10"))
    assert load("m.safetensors:x").tolist() == [7, 8]
    assert read_by_package(pack(header, b"\7\10")) is not None


def test_metadata_that_are_null_are_none_and_stay() -> None:
    """The safetensors package accepts them."""
    raw = pack('{"__metadata__": null ,"x":' + ENTRY + "}", b"\7\10")
    assert read_by_package(raw) is not None
    Path("m.safetensors").write_bytes(raw)
    assert load("m.safetensors:x").tolist() == [7, 8]
    write("m.safetensors:y", np.arange(3))
    check_file("m.safetensors", {"x": np.array([7, 8], "u1"), "y": np.arange(3)}, None)


# Writing


def check_file(path: str, arrays: dict[str, Any], metadata: Any) -> None:
    """Compare a file with its expected content, as the package reads it; check the alignment."""
    raw = Path(path).read_bytes()
    header = read(raw)
    assert header.data_offset % 64 == 0
    for tensor in header.tensors:
        assert (header.data_offset + tensor.start) % tensor.alignment == 0
    with safetensors.safe_open(path, "numpy") as file:
        assert file.metadata() == metadata
    reference = safetensors.numpy.load_file(path)
    assert reference.keys() == arrays.keys()
    for name, array in arrays.items():
        assert bits_equal(reference[name], array), name
        assert bits_equal(load(f"{path}:{name}"), array), name


@pytest.mark.parametrize("system", ["system copies", "copied here"])
@pytest.mark.parametrize("name", ["new", *ARRAYS])
@pytest.mark.parametrize("mode", ["write", "items", "map"])
def test_other_tensors_and_metadata_are_preserved(
    name: str, mode: str, system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if system != "system copies":
        monkeypatch.setattr(os, "copy_file_range", fail_with(18))
    safetensors.numpy.save_file(ARRAYS, "m.safetensors", METADATA)
    before = read(Path("m.safetensors").read_bytes()).metadata
    for array in (np.arange(70, dtype="<u2"), np.zeros((2, 0), "<f8"), np.array(True)):
        preserved = write(f"m.safetensors:{name}", array, mode)
        assert preserved is not None
        assert set(preserved) == ARRAYS.keys() - {name}
        check_file("m.safetensors", {**ARRAYS, name: array}, METADATA)
        assert read(Path("m.safetensors").read_bytes()).metadata == before


types = st.sampled_from(["u1", "<i2", "<f4", "<f8", ">f8", ">u2", ">c8", "?", "bfloat16"])
tensor_names = st.sampled_from(["a", "b", "c", "é/\u2203", 'q"\\\n', "x:y"])


@st.composite
def arrays_of_any_type(draw: Any) -> Any:
    name, count = draw(types), draw(st.integers(0, 300))
    dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    raw = np.arange(count * dtype.itemsize, dtype="u1") % (2 if name == "?" else 251)
    return raw.astype("u1").view(dtype)


def to_little_endian(array: Any) -> Any:
    return array.astype(array.dtype.newbyteorder("<")) if array.dtype.str[0] == ">" else array


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(tensor_names, arrays_of_any_type()), min_size=1, max_size=8))
def test_many_tensors_one_after_the_other(steps: list[tuple[str, Any]]) -> None:
    Path("m.safetensors").unlink(missing_ok=True)
    stored_arrays: dict[str, Any] = {}
    for name, array in steps:
        preserved = write(f"m.safetensors:{name}", array, "items")
        assert (preserved is None) == (not stored_arrays)
        assert set(preserved or ()) == stored_arrays.keys() - {name}
        stored_arrays[name] = to_little_endian(array)
        check_file("m.safetensors", stored_arrays, None)


@pytest.mark.parametrize(
    ("name", "message"), [("__metadata__", "no tensor may be"), ("m\udcff", "is not UTF-8")]
)
def test_names_that_no_tensor_may_have(name: str, message: str) -> None:
    for refuse in (open_sink, list_preserved_members):
        with pytest.raises(UsageError, match=message):
            refuse(f"m.safetensors:{name}", ARRAYS["a"])


def test_a_file_that_is_no_safetensors_file_stays() -> None:
    Path("m.safetensors").write_bytes(b"something else")
    with pytest.raises(OutputError, match="not a safetensors file") as excinfo:
        open_sink("m.safetensors:x", ARRAYS["a"])
    assert "only=True" in excinfo.value.hint
    assert Path("m.safetensors").read_bytes() == b"something else"
    write("m.safetensors:x", ARRAYS["a"], only=True)
    check_file("m.safetensors", {"x": ARRAYS["a"]}, None)


def test_a_header_that_would_be_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    safetensors.numpy.save_file(ARRAYS, "m.safetensors")
    size = int.from_bytes(Path("m.safetensors").read_bytes()[:8], "little")
    monkeypatch.setattr(headers, "MAX_HEADER_BYTES", size + 20)
    with pytest.raises(OutputError, match="the header would have"):
        open_sink("m.safetensors:" + "n" * 100, ARRAYS["a"])


# Models in several files


def shards(**weights: str) -> None:
    index = {"metadata": {"total_size": 1}, "weight_map": weights}
    Path("model.safetensors.index.json").write_text(json.dumps(index))


INDEX = "model.safetensors.index.json"


def test_a_model_in_several_files() -> None:
    safetensors.numpy.save_file({"a": ARRAYS["a"]}, "one.safetensors")
    Path("sub").mkdir()
    safetensors.numpy.save_file({"b": ARRAYS["b"], "c/d:e": ARRAYS["c/d:e"]}, "sub/two")
    shards(**{"a": "one.safetensors", "b": "sub/two", "c/d:e": "sub/two"})
    for name in ("a", "b", "c/d:e"):
        assert bits_equal(load(f"{INDEX}:{name}"), ARRAYS[name])
        assert bits_equal(load(f"{Path(INDEX).resolve()}:{name}"), ARRAYS[name])
        (entry,) = locators.describe(f"{INDEX}:{name}")
        assert entry.member == name
        assert entry.metadata is not None
    assert [entry.member for entry in locators.describe(INDEX)] == ["a", "b", "c/d:e"]
    with pytest.raises(UsageError, match="has 3 tensors") as excinfo:
        load(INDEX)
    assert "a: one.safetensors" in excinfo.value.places
    with pytest.raises(InputError, match="x is no tensor"):
        load(f"{INDEX}:x")
    before = snapshot(Path())
    for refuse in (open_sink, list_preserved_members):
        with pytest.raises(OutputError, match="index of a model in several files"):
            refuse(f"{INDEX}:a", ARRAYS["a"])
    assert snapshot(Path()) == before


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("/etc/passwd", "expected a relative path inside the model's folder"),
        ("../out.safetensors", "expected a relative path inside the model's folder"),
        ("sub/../../out.safetensors", "expected a relative path inside the model's folder"),
        ("", "expected a relative path inside the model's folder"),
        ("nul\0", "expected a relative path inside the model's folder"),
        ("file:///etc/passwd", "expected a relative path inside the model's folder"),
        ("memory://x", "expected a relative path inside the model's folder"),
        ("link", "a link out of the model's folder"),
        ("folder/out.safetensors", "a link out of the model's folder"),
        ("missing", "No such file"),
        ("text", "not a safetensors file, as the index says"),
        ("other.safetensors", "which has no such tensor"),
        (".", "is a directory"),
    ],
)
def test_files_that_an_index_may_not_refer_to(workdir: Path, file: str, message: str) -> None:
    model = workdir / "model"
    model.mkdir()
    safetensors.numpy.save_file({"a": ARRAYS["a"]}, "out.safetensors")
    safetensors.numpy.save_file({"other": ARRAYS["a"]}, "model/other.safetensors")
    (model / "link").symlink_to(workdir / "out.safetensors")
    (model / "folder").symlink_to(workdir)
    (model / "text").write_text("text that is long enough")
    os.chdir(model)
    shards(a=file)
    assert message in str(attempt(f"{INDEX}:a"))
    os.chdir(workdir)
    assert message in str(attempt(f"model/{INDEX}:a"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("{}", "has no weight_map"),
        ('{"weight_map": {}}', "has no weight_map"),
        ('{"weight_map": []}', "has no weight_map"),
        ('{"a": 1}', "has no weight_map"),
        ('{"weight_map": {"a": 1}}', "expected the file of tensor 'a'"),
        ('{"weight_map": {"a": "x", "a": "y"}}', "two of the name 'a'"),
        ('{"weight_map": {"a": "x"}, "weight_map": {"a": "x"}}', "two of the name"),
        ('{"weight_map": {"a": "x"}} {}', "not JSON: Extra data"),
        (
            '{"metadata": {"x": [1, -2.5e3, null, "\\""]}, "weight_map": {"a": ""}}',
            "inside the model's folder",
        ),
        ('{"metadata": }', "not JSON"),
        ('{"metadata": [' + "[" * 100_000, "not JSON"),
        ('{"weight_map": {"a": ' + "[" * 100_000, "not JSON"),
        ('{"weight_map": {"a": "\xff"}}', "No such file"),
        ('{"weight_map": {"a": "\udcff\udcfe"}}', "not UTF-8"),
    ],
)
def test_a_malformed_index(text: str, message: str) -> None:
    Path(INDEX).write_bytes(text.encode("utf-8", "surrogateescape"))
    assert message in str(attempt(f"{INDEX}:a"))


def test_a_file_of_the_model_that_is_missing_is_listed_so() -> None:
    safetensors.numpy.save_file({"a": ARRAYS["a"]}, "one.safetensors")
    shards(a="one.safetensors", b="gone", c="one.safetensors")
    entries = {entry.member: entry for entry in locators.describe(INDEX)}
    assert entries["a"].metadata is not None
    assert "No such file" in entries["b"].problem
    assert "no such tensor" in entries["c"].problem


# Complete runs


def test_bfloat16_needs_no_dtype_and_is_kept() -> None:
    ones = np.ones((2, 3), ml_dtypes.bfloat16)
    safetensors.numpy.save_file({"data": ARRAYS["c/d:e"], "ones": ones}, "m.safetensors")
    run = (
        "scatter-nd",
        "m.safetensors:data",
        "[[0],[0]]",
        "m.safetensors:ones",
        "--reduction",
        "add",
    )
    result = ndtool(*run, "-o", "out.safetensors")
    assert (result.status, result.err) == (0, "")
    expected = ARRAYS["c/d:e"].copy()
    np.add.at(expected, [0, 0], ones)
    check_file("out.safetensors", {"output": expected}, None)
    word = "bfloat16 is stored as V2: --dtype bfloat16 reads it"
    result = ndtool(*run, "-o", "out.npy")
    assert (result.status, result.err) == (0, f"warning: out.npy: {word}\n")
    assert np.load("out.npy").tobytes() == expected.tobytes()
    result = ndtool(*run)
    assert result.err == f"warning: standard output: {word}\n"
    result = ndtool(*run, "-o", "out.npy", "--json")
    assert result.json["warnings"] == [f"out.npy: {word}"]
    result = ndtool(*run, "-o", "out.npy", "-q")
    assert result.err == ""
