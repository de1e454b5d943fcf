"""Zarr stores of the zarr package: read and written bit for bit, chunk by chunk."""

import os
import re
from contextlib import closing
from math import prod
from typing import Any

import numpy as np
import pytest
from command import ndtool
from inputs import load
from later import later
from strategies import bits_equal

from ndtool.errors import InputError, OutputError, ResourceError, UsageError
from ndtool.formats import locators
from ndtool.formats.streams import Streams

zarr = later("zarr")
pytestmark = [
    pytest.mark.usefixtures("workdir"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]
codecs = later("numcodecs")

RNG = np.random.default_rng(12)


def put(path: str, array: Any, **settings: Any) -> Any:
    """Write an array with the zarr package and return its array object."""
    store, _, node = path.partition(":")
    settings = {"chunks": tuple(max(1, -(-n // 2)) for n in array.shape), **settings}
    zarr_array = zarr.create_array(
        store, name=node or None, shape=array.shape, dtype=array.dtype, overwrite=True, **settings
    )
    zarr_array[...] = array
    return zarr_array


def random_array(code: Any, shape: tuple[int, ...]) -> Any:
    dtype = np.dtype(code)
    if dtype.kind == "U":  # not all bytes are valid characters
        letters = RNG.integers(1, 0x10FFFF, prod(shape) * dtype.itemsize // 4, dtype="u4")
        letters[(letters >= 0xD800) & (letters < 0xE000)] = 65
        return letters.astype(f"{dtype.str[0]}u4").view(dtype).reshape(shape)
    if dtype.kind == "b":
        return RNG.integers(0, 2, shape).astype(dtype)
    return np.frombuffer(RNG.bytes(prod(shape) * dtype.itemsize), dtype).reshape(shape)


CODES = (
    "|b1", "|i1", "<i2", ">i4", "<i8", ">u2", "<u8", "<f2", ">f4", "<f8", "<c8", ">c16",
    "|S3", "<U2", ">U2", "<M8[ns]", ">M8[10us]", "<m8[D]", "|V5",
    [("a", "<i2"), ("b", "<f8")],
)  # fmt: skip
SHAPES = ((7, 5, 3), (7,), (), (0, 3), (3, 0), (1, 1, 5))
WAYS = {
    "version 3": {},
    "version 3, big-endian": {"serializer": zarr.codecs.BytesCodec(endian="big")},
    "version 3, transposed": {
        "filters": [{"name": "transpose", "configuration": {"order": (2, 1, 0)}}]
    },
    "version 3, blosc": {"compressors": zarr.codecs.BloscCodec(cname="lz4", shuffle="shuffle")},
    "version 3, gzip": {"compressors": zarr.codecs.GzipCodec(level=2)},
    "version 3, no compression": {"compressors": None},
    "version 3, keys as in version 2": {"chunk_key_encoding": {"name": "v2", "separator": "/"}},
    "shards": {"chunks": (2, 1, 3), "shards": (4, 2, 3)},
    "version 2": {"zarr_format": 2},
    "version 2, Fortran": {"zarr_format": 2, "order": "F"},
    "version 2, nested": {
        "zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"},
    },
    "version 2, filters": {
        "zarr_format": 2, "filters": [codecs.Shuffle(4)], "compressors": codecs.Zlib(3),
    },
}  # fmt: skip


@pytest.mark.parametrize("method", WAYS)
def test_encodings_of_values(method: str) -> None:
    array = random_array("<i4", (7, 5, 3))
    put("x.zarr", array, **WAYS[method])
    actual = load("x.zarr")
    assert actual.dtype.str == (">i4" if "big" in method else "<i4")
    assert (actual == array).all()


@pytest.mark.parametrize("version", [2, 3])
def test_a_shape_without_elements_whose_strides_no_integer_holds(version: int) -> None:
    zarr.create_array(
        "x.zarr", shape=(0, 2**62, 2**62), dtype="i4", chunks=(1, 2, 2), zarr_format=version
    )
    with pytest.raises(InputError, match="no array can have shape"):
        load("x.zarr")


def test_no_fill_value_is_zeros() -> None:
    zarr.create_array(
        "x.zarr", shape=(4,), chunks=(2,), dtype="<i4", fill_value=None, zarr_format=2
    )
    assert bits_equal(load("x.zarr"), np.zeros(4, "<i4"))


# Refusals


def check_refused(argument: str, kind: Any, match: str) -> None:
    with pytest.raises(kind) as excinfo:
        locators.open_source(argument, Streams(-1))
    assert re.search(match, excinfo.value.message), excinfo.value.message
    assert "\n" not in excinfo.value.message


def test_arrays_of_a_group_are_listed() -> None:
    put("x.zarr:a", np.zeros(3))
    put("x.zarr:deep/b", np.zeros((2, 2), "i1"))
    check_refused("x.zarr", UsageError, "^x.zarr: the store has 2 arrays: name one of them$")
    check_refused(
        "x.zarr:deep", UsageError, "^x.zarr: deep is a group of 1 array: name one of them$"
    )
    check_refused("x.zarr:c", InputError, "^x.zarr: c is no array of the store$")
    check_refused("x.zarr:../x.zarr/a", InputError, "is no array of the store|segment")
    entries = locators.describe("x.zarr")
    assert [(entry.name, entry.label) for entry in entries] == [
        ("x.zarr:a", "float64[3]"), ("x.zarr:deep/b", "int8[2,2]"),
    ]  # fmt: skip
    assert entries[0].metadata is not None
    assert entries[0].metadata.layout is not None
    assert entries[0].metadata.layout.chunks == (2,)


def test_the_only_array_of_a_group_needs_no_name() -> None:
    put("x.zarr:a/b", np.arange(3))
    assert load("x.zarr").tolist() == load("x.zarr/a").tolist() == [0, 1, 2]
    assert load("x.zarr/a/b").tolist() == load("x.zarr:a/b").tolist() == [0, 1, 2]


def test_folders_that_are_no_stores_are_refused() -> None:
    os.mkdir("x.zarr")
    check_refused("x.zarr", InputError, "is a directory")
    check_refused("x.zarr:a", InputError, "^x.zarr is a directory")
    zarr.create_group("y.zarr")
    check_refused("text:y.zarr", InputError, "^y.zarr is a directory")


def test_chunks_larger_than_memory_are_refused() -> None:
    zarr.create_array("x.zarr", shape=(1 << 40,), chunks=(1 << 33,), dtype="i1")
    check_refused(
        "x.zarr", ResourceError, "^x.zarr: a chunk has 8589934592 bytes: at most 2147483648"
    )


def test_an_array_larger_than_any_disk_is_read_where_it_is_touched() -> None:
    array = zarr.create_array("x.zarr", shape=(1 << 40,), chunks=(1000,), dtype="i1")
    array[(1 << 39) : (1 << 39) + 3] = [1, 2, 3]
    np.save("i.npy", np.array([[1 << 39], [(1 << 39) + 2], [-1]]))
    result = ndtool("gather-nd", "x.zarr", "i.npy", "-o", "o.npy")
    assert result.status == 0, result
    assert np.load("o.npy").tolist() == [1, 3, 0]


@pytest.mark.parametrize(("codec", "package"), [("zstd", "numcodecs"), ("crc32c", "google_crc32c")])
def test_a_missing_package_gives_an_install_hint(
    codec: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: Any = {"compressors": "auto"} if codec == "zstd" else {"compressors": None}
    put("x.zarr", np.zeros(4), chunks=(2,), shards=(4,), **options)
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(UsageError, match=f"codec {codec} needs the {package} package") as excinfo:
        locators.open_source("x.zarr", Streams(-1))
    assert excinfo.value.hint == "pip install 'ndtool[zarr]'"


# Damage


# Changes during the run


def touch(path: str) -> None:
    os.utime(path, ns=(1, 1))


def replace_store() -> None:
    os.rename("x.zarr", "gone")
    put("x.zarr", np.arange(1000))


@pytest.mark.parametrize("shards", [None, (500,)])
@pytest.mark.parametrize("version", [2, 3])
def test_changes_during_the_run(version: int, shards: Any) -> None:
    if shards and version == 2:
        pytest.skip("version 2 has no shards")
    chunk = "x.zarr/{}".format if version == 2 else "x.zarr/c/{}".format
    for change, report in (
        (lambda: touch(chunk(0)), True),
        (lambda: touch(chunk(1)), False),  # which was not read
        (lambda: os.unlink(chunk(0)), True),
        (lambda: touch("x.zarr/zarr.json" if version == 3 else "x.zarr/.zarray"), True),
        (replace_store, True),
    ):
        put(
            "x.zarr",
            np.arange(1000),
            chunks=(250,) if shards else (500,),
            shards=shards,
            zarr_format=version,
        )
        with closing(locators.open_source("x.zarr", Streams(-1))) as opened_source:
            opened_source.read_block(0, ((0, 250),))
            opened_source.require_unchanged()
            change()
            if report:
                with pytest.raises(OutputError, match=" during the run"):
                    opened_source.require_unchanged()
            else:
                opened_source.require_unchanged()
        assert not opened_source.is_same_file(0)


# Memory
