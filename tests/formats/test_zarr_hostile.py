"""Hostile Zarr stores: chunks, shards and metadata that contradict the array's limits."""

import json
import os
import re
import socket
import struct
import sys
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Completed, ndtool
from later import later
from limits import limit_resources
from memory import run_measured
from strategies import bits_equal
from test_zarr import check_refused, load, put
from test_zarr_remote import serve
from webserver import Server

from ndtool.errors import InputError, ResourceError
from ndtool.formats import codecs

zarr = later("zarr")
numcodecs = later("numcodecs")
google_crc32c = pytest.importorskip("google_crc32c")
pytestmark = [
    pytest.mark.usefixtures("workdir"),
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
]

CHUNK = 1 << 20
DATA = (np.arange(4 * CHUNK) % 251).astype("u1")
BOMB = 1 << 27  # bytes
OWN = 64  # megabytes of memory of a run, besides chunks
VERSIONS: list[dict[str, Any]] = [
    {"zarr_format": 2},
    {"zarr_format": 3},
    {"zarr_format": 3, "shards": DATA.shape},
]


def store(**options: Any) -> tuple[Path, Path]:
    """Write a store; return its metadata file, and that of its first chunk or shard."""
    put("x.zarr", DATA, **{"chunks": (CHUNK,), "compressors": None, **options})
    old = Path("x.zarr/.zarray")
    return (
        (old, Path("x.zarr/0")) if old.exists() else (Path("x.zarr/zarr.json"), Path("x.zarr/c/0"))
    )


def run_gather(argument: str = "x.zarr") -> Completed:
    """Gather from a store that must be refused within the memory limit."""
    result, peak_memory = run_measured(
        "gather-nd", argument, "[[0]]", "-o", "o.npy", "--threads", "2"
    )
    assert peak_memory <= OWN + 3, peak_memory  # chunks of a megabyte
    assert result.status == 3, result
    assert result.err.startswith("error: "), result.err
    assert result.err.count("\n") == 1, result.err
    assert not os.path.exists("o.npy")
    return result


def error_of() -> str:
    """Return the error of a store in this process, raised before memory is allocated."""
    with pytest.raises(InputError) as excinfo:
        load("x.zarr")
    assert "\n" not in excinfo.value.message
    return excinfo.value.message


# Chunks


def compress(compressor: Any) -> bytes:
    out = b"".join(compressor.compress(bytes(1 << 24)) for _ in range(BOMB >> 24))
    return out + bytes(compressor.flush())


def frame(size: int, says: int | None) -> bytes:
    """Return a zstd frame of some size, in blocks of one byte repeated."""
    head = b"\0\x50" if says is None else b"\xc0\x50" + struct.pack("<Q", says)
    blocks = size >> 17
    body = b"".join(
        struct.pack("<I", 1 << 20 | 2 | (i == blocks - 1))[:3] + b"\0" for i in range(blocks)
    )
    return b"\x28\xb5\x2f\xfd" + head + body


BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "gzip": ("gzip", lambda: compress(zlib.compressobj(9, zlib.DEFLATED, 31))),
    "zlib": ("zlib", lambda: compress(zlib.compressobj(9))),
    "zstd that says its size": ("zstd", lambda: frame(BOMB, BOMB)),
    "zstd that does not": ("zstd", lambda: frame(BOMB, None)),
    "zstd that lies": ("zstd", lambda: frame(BOMB, CHUNK)),
    "zstd in two frames": ("zstd", lambda: frame(1 << 17, 1 << 17) + frame(BOMB, BOMB)),
    "zstd, one frame more": ("zstd", lambda: frame(CHUNK, CHUNK) + frame(BOMB, None)),
    "lz4": ("lz4", lambda: struct.pack("<I", BOMB) + b"\x1f\x00\x01\x00" + b"\xff" * 9999),
    "blosc": ("blosc", lambda: bytes(numcodecs.Blosc("zstd").encode(bytes(BOMB)))),
}


@cache
def bomb(name: str) -> bytes:
    return BOMBS[name][1]()


def codec(name: str, version: int) -> Any:
    if version == 2:
        return numcodecs.get_codec({"id": name})
    prefix = "" if name in ("blosc", "gzip", "zstd") else "numcodecs."
    return {"name": prefix + name, "configuration": {"level": 1} if name == "gzip" else {}}


def in_shard(body: bytes, offset: int = 0, size: int | None = None, count: int = 4) -> bytes:
    """Return a shard with one chunk at the position in its index."""
    index = np.full((count, 2), (1 << 64) - 1, "<u8")
    index[0] = offset, len(body) if size is None else size
    raw = index.tobytes()
    return body + raw + struct.pack("<I", google_crc32c.value(raw))


@pytest.mark.slow("each codec of each version is bounded while it decompresses")
@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("options", VERSIONS, ids=["2", "3", "shards"])
def test_a_chunk_that_decompresses_to_more_than_it_may(name: str, options: Any) -> None:
    kind = BOMBS[name][0]
    _, chunk = store(**options, compressors=codec(kind, options["zarr_format"]))
    assert bits_equal(load("x.zarr")[:9], DATA[:9])
    body = bomb(name)
    chunk.write_bytes(in_shard(body) if "shards" in options else body)
    run_gather()


@pytest.mark.slow("a chunk is bounded while it is downloaded")
@pytest.mark.parametrize("options", VERSIONS[:2], ids=["2", "3"])
def test_a_chunk_behind_a_url_that_is_larger_than_it_may_be(options: Any, web: Server) -> None:
    _, chunk = store(**options, compressors=codec("gzip", options["zarr_format"]))
    with chunk.open("wb") as file:
        file.truncate(BOMB)
    url = serve(web, "x.zarr")
    web.sent = 0
    result = run_gather(url)
    assert "at most 1196032 are valid" in result.err
    assert web.sent < 4 * CHUNK
    chunk.write_bytes(bomb("gzip"))
    run_gather(serve(web, "x.zarr"))
    web.objects[f"/{chunk}"].length = False
    web.objects[f"/{chunk}"].ranges = False
    web.objects[f"/{chunk}"].content = bytes(BOMB)
    assert "an unknown number of bytes: at most 1196032 are valid" in run_gather(url).err


@pytest.mark.parametrize("version", [2, 3])
def test_every_codec_of_numcodecs_that_is_allowed(version: int) -> None:
    """Stores written by the package are read bit for bit."""
    compressors: list[dict[str, Any]] = [
        {"id": "blosc", "cname": "lz4", "shuffle": 2}, {"id": "gzip"}, {"id": "lz4"}, {"id": "zlib"},
        {"id": "zstd", "checksum": True}, {"id": "shuffle"}, {"id": "crc32c"},
        {"id": "fletcher32"},
    ]  # fmt: skip
    data = np.arange(600, dtype="<f4").reshape(20, 30) / 4
    for item in compressors:
        options: dict[str, Any]
        if version == 2:
            options = {"filters": None, "compressors": numcodecs.get_codec(dict(item))}
        else:
            configuration = {key: value for key, value in item.items() if key != "id"}
            options = {
                "compressors": [{"name": f"numcodecs.{item['id']}", "configuration": configuration}]
            }
        put("x.zarr", data, zarr_format=version, **options)
        assert bits_equal(load("x.zarr"), zarr.open_array("x.zarr", mode="r")[...]), item


@pytest.mark.parametrize("sizes", [(5,), (3, 2), (1, 4)])
def test_frames_of_zstd(sizes: tuple[int, ...]) -> None:
    """As streams write them: frames with or without a size, skippable and empty ones."""
    decode = codecs.make({"id": "zstd"}).decode
    skippable = b"\x50\x2a\x4d\x18" + struct.pack("<I", 3) + b"abc"
    empty = bytes(numcodecs.Zstd().encode(b""))
    first = b"".join(frame(size << 17, size << 17) for size in sizes[:-1])
    last, last_with_size = frame(sizes[-1] << 17, None), frame(sizes[-1] << 17, sizes[-1] << 17)
    total = sum(sizes) << 17
    for raw in (first + last, skippable + first + last, first + last_with_size, last + empty):
        expected = total if raw != last + empty else sizes[-1] << 17
        assert bytes(decode(memoryview(raw), expected)) == bytes(expected)
        for wrong in (expected - 1, expected + 1):
            with pytest.raises((ValueError, RuntimeError)):
                decode(memoryview(raw), wrong)
        for length in range(len(raw) - len(empty)):
            with pytest.raises((ValueError, RuntimeError, IndexError)):
                decode(memoryview(raw)[:length], expected)
    for raw in (frame(1 << 17, 0), frame(1 << 17, 1 << 16), frame(1 << 17, 1 << 18), b"nonsense"):
        with pytest.raises((ValueError, RuntimeError)):
            decode(memoryview(raw), 1 << 17)


@pytest.mark.parametrize("name", ["gzip", "zlib"])
def test_bytes_after_a_compressed_chunk(name: str) -> None:
    """They are ignored, a second stream too: what it has is missing in the chunk."""
    codec = codecs.make({"id": name})
    assert codec.encode is not None
    raw = bytes(codec.encode(b"abc"))
    assert codec.decode(memoryview(raw + raw), 3) == b"abc"
    with pytest.raises(ValueError, match="a chunk has more than 2 bytes"):
        codec.decode(memoryview(raw), 2)
    with pytest.raises(ValueError, match="truncated"):
        codec.decode(memoryview(raw[:-3]), 3)


@pytest.mark.parametrize(
    ("offset", "size", "expected_text"),
    [
        (0, 1 << 63, "c/0 has a chunk of 9223372036854775808 bytes: at most 1048576 are valid"),
        ((1 << 64) - 500, 1000, "c/0 is truncated"),
        (1 << 62, 1000, "c/0 is truncated"),
        (0, CHUNK + 1, "c/0 has a chunk of 1048577 bytes: at most 1048576 are valid"),
        (0, CHUNK - 1, "a chunk has 1048575 bytes: expected 1048576"),
    ],
)
def test_a_false_shard_index(offset: int, size: int, expected_text: str) -> None:
    _, shard = store(**VERSIONS[2])
    shard.write_bytes(in_shard(bytes(CHUNK), offset, size))
    assert expected_text in error_of()


def test_a_shard_of_more_chunks_than_an_index_may_have() -> None:
    meta, _ = store(**VERSIONS[2])
    document = json.loads(meta.read_text())
    document["shape"] = document["chunk_grid"]["configuration"]["chunk_shape"] = [1 << 40]
    document["codecs"][0]["configuration"]["chunk_shape"] = [1]
    meta.write_text(json.dumps(document))
    check_refused("x.zarr", InputError, "a shard has 1099511627776 chunks: at most 1048576")


# Files


def fifo(path: Path) -> None:
    os.mkfifo(path)


def socket_file(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        before = os.getcwd()
        os.chdir(path.parent)
        try:
            sock.bind(path.name)
        finally:
            os.chdir(before)


def secret_link(path: Path) -> None:
    Path("secret.txt").write_bytes(bytes(CHUNK))
    path.symlink_to(os.path.relpath("secret.txt", path.parent))


def oversized_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(3 << 30)


KINDS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a FIFO": (fifo, "is a FIFO: expected a file of a store"),
    "a socket": (socket_file, "is a socket: expected a file of a store"),
    "a directory": (Path.mkdir, "is a directory: expected a file of a store"),
    "a link to a device": (lambda path: path.symlink_to("/dev/zero"), "leads outside of the store"),
    "a link to nothing": (lambda path: path.symlink_to("missing"), "is a link to a missing file"),
    "a link to a file": (secret_link, "leads outside of the store: expected a file in it"),
    "a link to itself": (lambda path: path.symlink_to(path.name), "levels of symbolic links"),
    "a long file": (oversized_file, "has 3221225472 bytes: at most "),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", VERSIONS, ids=["2", "3", "shards"])
def test_a_chunk_that_is_no_file_of_the_store(options: Any, kind: str) -> None:
    make, expected_text = KINDS[kind]
    _, chunk = store(**options)
    chunk.unlink()
    make(chunk)
    if kind == "a long file" and "shards" in options:
        expected_text = "the crc32c checksum of a chunk is wrong"
    assert expected_text in error_of()


def test_a_folder_of_chunks_outside_the_store() -> None:
    store()
    os.rename("x.zarr/c", "elsewhere")
    os.symlink("../elsewhere", "x.zarr/c")
    assert "x.zarr/c/0 leads outside of the store" in error_of()


def test_links_within_a_store_are_followed() -> None:
    _, chunk = store()
    os.rename(chunk, "x.zarr/c/zero")
    chunk.symlink_to("zero")
    os.symlink("x.zarr", "y.zarr")
    assert bits_equal(load("x.zarr"), DATA)
    assert bits_equal(load("y.zarr"), DATA)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", VERSIONS[:2], ids=["2", "3"])
def test_metadata_that_are_no_file_of_the_store(options: Any, kind: str) -> None:
    meta, _ = store(**options)
    meta.unlink()
    KINDS[kind][0](meta)
    assert error_of()


# Metadata


@pytest.mark.slow("metadata are bounded before they are parsed")
@pytest.mark.parametrize("options", VERSIONS[:2], ids=["2", "3"])
@pytest.mark.parametrize("remote", [False, True])
def test_metadata_that_would_fill_the_memory(options: Any, remote: bool, web: Server) -> None:
    meta, _ = store(**options)
    text = meta.read_bytes().rstrip()
    for body, expected_text in (
        (text + b" " * BOMB, f"has {len(text) + BOMB} bytes: at most 16777216 are valid"),
        (text[:-1] + b',"attributes":{"a":[' + b"[]," * (5 << 20) + b"[]]}}", "more than 1048576"),
        (b"[" * (8 << 20), "more than 1048576 values"),
        (b"[" * 500_000, "recursion"),
        (b"[]", "its metadata are no JSON object"),
    ):
        meta.write_bytes(body)
        result = run_gather(serve(web, "x.zarr") if remote else "x.zarr")
        assert expected_text in result.err or (remote and body[:1] == b"["), "which is no metadata"


TYPES = [
    (2, "dtype", "|V2147483647"), (2, "dtype", "|S2147483647"), (2, "dtype", "<U536870911"),
    (2, "dtype", [["a", "<i4"], ["b", "|V2147483647"]]), (2, "dtype", [["a", "|V9", [1 << 28]]]),
    (3, "data_type", {"name": "raw_bytes", "configuration": {"length_bytes": (1 << 31) - 1}}),
    (3, "data_type", "r17179869176"),
]  # fmt: skip


@pytest.mark.parametrize(("version", "key", "value"), TYPES, ids=str)
def test_elements_that_would_fill_the_memory(version: int, key: str, value: Any) -> None:
    meta, _ = store(zarr_format=version)
    document = json.loads(meta.read_text())
    meta.write_text(json.dumps({**document, key: value, "fill_value": "AAAA"}))
    problem = "bytes: at most 1048576 are valid|expected a type of fixed size"
    assert re.search(problem, error_of())


@pytest.mark.parametrize(("dtype", "value"), [("<i4", 1.5), ("<i4", True), ("|b1", 2), ("|S2", 5)])
def test_fill_values_of_another_type(dtype: str, value: Any) -> None:
    meta, _ = store(zarr_format=2)
    document = json.loads(meta.read_text())
    meta.write_text(json.dumps({**document, "dtype": dtype, "fill_value": value}))
    assert "is not of its type" in error_of()


FILTERS: list[tuple[dict[str, Any], str]] = [
    ({"id": "shuffle", "elementsize": 1 << 40}, "multiple of elementsize"),
    ({"id": "pickle"}, "codec numcodecs.pickle is not allowed: expected one of blosc, "),
    ({"id": "pcodec"}, "codec numcodecs.pcodec is not allowed: expected one of blosc, "),
    (
        {"id": "delta", "dtype": "<i4"},
        "codec numcodecs.delta is not allowed: expected one of blosc, ",
    ),
    ({"id": ["x"]}, "codec numcodecs.['x'] is not allowed"),
    ({"id": 3}, "codec numcodecs.3 is not allowed"),
]


@pytest.mark.parametrize(
    ("value", "expected_text"), FILTERS, ids=[str(value[0]["id"]) for value in FILTERS]
)
def test_filters_that_are_not_bounded(value: Any, expected_text: str) -> None:
    meta, _ = store(zarr_format=2)
    document = json.loads(meta.read_text())
    meta.write_text(json.dumps({**document, "filters": [value]}))
    assert expected_text in error_of()
    meta.write_text(json.dumps({**document, "filters": [{"id": "zlib"}, value]}))
    assert error_of()
    twice = [{"id": "zlib"}, {"id": "gzip"}]
    meta.write_text(json.dumps({**document, "filters": twice}))
    assert "codec gzip after another compressor" in error_of()


SHARDING = {
    "name": "sharding_indexed",
    "configuration": {
        "chunk_shape": [CHUNK], "codecs": [{"name": "bytes"}],
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    },
}  # fmt: skip
GZIP = {"name": "gzip", "configuration": {"level": 1}}
CHAINS: list[tuple[Any, str]] = [
    ([{"name": "bytes"}, {"name": "numcodecs.pickle"}], "codec numcodecs.pickle is not allowed"),
    ([{"name": "vlen-utf8"}], "codec vlen-utf8 is not allowed"),
    ([{"name": "numcodecs.zfpy"}], "codec numcodecs.zfpy is not allowed: expected one of blosc, "),
    ([{"name": "bytes"}, SHARDING], "codec sharding_indexed with others: expected it alone"),
    (
        [{**SHARDING, "configuration": {**SHARDING["configuration"], "codecs": [SHARDING]}}],  # type: ignore[dict-item]
        "codec sharding_indexed is not allowed",
    ),
    (
        [{**SHARDING, "configuration": {**SHARDING["configuration"], "index_codecs": [GZIP]}}],  # type: ignore[dict-item]
        "codec gzip is not allowed: expected one of bytes, crc32c",
    ),
    ({"bytes": 1}, "codecs {'bytes': 1}: expected a list"), ("bytes", "."), ([7], "codec 7: expected a name"), ([], "."), (None, "."),
]  # fmt: skip


@pytest.mark.parametrize(("chain", "expected_text"), CHAINS, ids=str)
def test_codecs_that_are_not_allowed(chain: Any, expected_text: str) -> None:
    meta, _ = store(zarr_format=3)
    document = json.loads(meta.read_text())
    meta.write_text(json.dumps({**document, "codecs": chain}))
    assert expected_text in error_of()


def test_the_zarr_package_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """It trusts sizes, follows links, and its thread would block its callers' exit."""
    store(shards=DATA.shape)
    monkeypatch.setitem(sys.modules, "zarr", None)
    assert bits_equal(load("x.zarr"), DATA)
    result = ndtool("convert", "x.zarr", "y.zarr")
    assert (result.status, result.err) == (0, "")


# Limits of the process


@pytest.mark.parametrize(
    ("megabytes", "to"),
    [(60, "o.zarr"), (140, "o.npy"), (280, "o.zarr"), (350, "o.npy"), (512, "o.zarr")],
)
@pytest.mark.usefixtures("without_coverage")
def test_little_memory(megabytes: int, to: str) -> None:
    store(compressors="auto")
    result = ndtool("convert", "x.zarr", to, preexec_fn=limit_resources(AS=megabytes << 20))
    if result.status:
        assert result.status == 6
        assert result.err.startswith("error: ")
        assert "Traceback" not in result.err
        assert os.listdir() == ["x.zarr"]
        assert megabytes < 512
    else:
        actual = np.load(to) if to == "o.npy" else load(to)
        assert bits_equal(actual, DATA)


def test_few_descriptors() -> None:
    store(compressors="auto")
    put("old.zarr", np.arange(3), chunks=(1,))
    for to, count in (("o.npy", 6), ("o.zarr", 8), ("old.zarr", 7)):
        result = ndtool("convert", "x.zarr", to, preexec_fn=limit_resources(NOFILE=count))
        assert "Traceback" not in result.err
        assert result.status in (0, 6)
        if result.status:
            assert "Too many open files" in result.err
        else:
            assert bits_equal(np.load(to) if to == "o.npy" else load(to), DATA)
        assert not [name for name in os.listdir() if name.startswith(".")]


def test_a_package_that_cannot_be_loaded_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    store(compressors="auto")

    def fail(name: str, *arguments: Any) -> Any:
        if name == "numcodecs":
            raise ImportError("libx.so: failed to map segment from shared object")
        return original_import(name, *arguments)

    original_import = __import__
    monkeypatch.setattr("builtins.__import__", fail)
    with pytest.raises(ResourceError, match="failed to map segment"):
        load("x.zarr")
