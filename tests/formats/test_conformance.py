"""The conformance suite that all formats and storages run."""

import errno
import importlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors.numpy
from command import environment
from inputs import assert_refused, feeding, piped, read_array
from later import later
from limits import fail_with
from messages import message, model, tensor
from npyfile import ARRAY, npy, npy_with_header
from outputs import (
    CREATE_OUTPUT_SCRIPT,
    fill,
    list_preserved_members,
    metadata_of,
    open_sink,
    save,
    temporary_sink,
)
from strategies import bits_equal

from ndtool.analysis.oracle import reference
from ndtool.arrays.assembly import box_slices
from ndtool.errors import (
    DtypeError,
    InputError,
    NdtoolError,
    OutputError,
    ResourceError,
    UsageError,
)
from ndtool.formats import locators, table
from ndtool.formats.streams import Streams
from ndtool.formats.table import Format
from ndtool.publish import sinks
from ndtool.rules import grid
from ndtool.rules.operators import Attributes
from ndtool.runs import steps
from ndtool.runs.calls import OpenCall, Request

zarr = later("zarr")
h5py = pytest.importorskip("h5py", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")


HAS_PYARROW = find_spec("pyarrow") is not None
EXISTING = b"old bytes"
TOY = Format(".toy", False, "toy_format")
MEMORY_LIMIT = 4 << 20  # bytes that a header may allocate, whatever it declares


@pytest.fixture(scope="module", autouse=True)
def imports() -> None:
    """Import what tests would measure; start threads whose files stay open."""
    zarr.create_array({}, shape=(1,), dtype="i1")
    with suppress(ImportError):
        importlib.import_module("fsspec.asyn").get_loop()
    with suppress(ImportError):
        importlib.import_module("pyarrow.parquet")


@pytest.fixture(autouse=True)
def files(workdir: Path, check_files_closed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "FORMATS", (*table.FORMATS, TOY))


# Writers of each format without ndtool


def zip_file(raw: bytes, method: int) -> bytes:
    import zipfile

    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        archive.writestr("a.npy", raw)
    return stream.getvalue()


def toy_file(array: Any, step: tuple[int, ...] | None = None) -> bytes:
    """Return a file of the toy format; step: the shape of a block."""
    step = tuple(max(1, size // 2) for size in array.shape) if step is None else step
    sizes = "|".join(",".join(map(str, shape)) for shape in (array.shape, step))
    starts = product(
        *(range(0, axis_size, size) for axis_size, size in zip(array.shape, step, strict=True))
    )
    raw_blocks = [
        array[(*(slice(i, i + size) for i, size in zip(start, step, strict=True)), ...)].tobytes()
        for start in starts
    ]
    return f"TOY {array.dtype.str}|{sizes}\n".encode() + b"".join(raw_blocks)


def zarr_files(array: Any, **settings: Any) -> dict[str, bytes]:
    """Return the files of a Zarr store."""
    store: dict[str, Any] = {}
    chunks = tuple(max(1, size // 2) for size in array.shape)
    created = zarr.create_array(
        store, shape=array.shape, dtype=array.dtype, chunks=chunks, **settings
    )
    created[...] = array
    return {name: content.to_bytes() for name, content in store.items()}


def hdf5_file(array: Any, **settings: Any) -> bytes:
    """Return an HDF5 file of an array."""
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        is_opaque = array.dtype.kind in "mM"
        values = array.astype(h5py.opaque_dtype(array.dtype)) if is_opaque else array
        file.create_dataset("a", data=values, **settings)
    return stream.getvalue()


def chunked_hdf5_file(array: Any, **settings: Any) -> bytes:
    """Return an HDF5 file of an array in chunks."""
    return hdf5_file(array, chunks=tuple(max(1, size // 2) for size in array.shape), **settings)


def huge_hdf5_file() -> bytes:
    """Return an HDF5 file that declares a huge array."""
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        file.create_dataset("a", shape=(1 << 40,), dtype="<f8", chunks=(1 << 39,))
    return stream.getvalue()


HUGE_HDF5 = huge_hdf5_file()


def is_hdf5(array: Any) -> bool:
    """Whether h5py has the type."""
    return array.dtype.kind != "U"


def is_chunked(array: Any) -> bool:
    """Whether an HDF5 dataset of the array can have chunks."""
    return is_hdf5(array) and array.nbytes > 0 and array.ndim > 0


def write_files(path: str, raw: bytes | dict[str, bytes]) -> None:
    """Write a file, or the files of a store."""
    shutil.rmtree(path, ignore_errors=True)
    for name, content in named_bodies(raw):
        target = Path(path, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def read_files(path: str) -> bytes | dict[str, bytes]:
    """Return the bytes of a file, or of the visible files of a store."""
    if os.path.isfile(path):
        return Path(path).read_bytes()
    paths = (
        file for file in Path(path).rglob("*") if file.is_file() and ".ndtool-" not in str(file)
    )
    return {str(file.relative_to(path)): file.read_bytes() for file in paths}


HUGE_HEADER = "{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }\n"


def safetensors_file(array: Any) -> bytes:
    return safetensors.numpy.save({"a": array.copy()})


def safetensors_with_header(text: str, payload: bytes = b"") -> bytes:
    return len(text).to_bytes(8, "little") + text.encode() + payload


def is_tensor(array: Any) -> bool:
    """Whether safetensors has the type, and the byte order."""
    return array.dtype.kind in "biuf" and array.dtype.str[0] != ">"


def is_onnx(array: Any) -> bool:
    """Whether ONNX has the type, and the byte order."""
    return array.dtype.kind in "biufc" and array.dtype.str[0] != ">"


def is_column(array: Any) -> bool:
    """Whether a column can have an array: native numbers of rank 1, or lists of at least one."""
    native = array.dtype.kind in "if" and array.dtype.str[0] != ">"
    return native and (array.ndim == 1 or (array.ndim == 2 and array.shape[1] > 0))


def column_file(array: Any, kind: str) -> bytes:
    """Return a Parquet or Arrow file of one column, in groups of two rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    values = pa.array(array.reshape(-1))
    if array.ndim == 2:
        values = pa.FixedSizeListArray.from_arrays(values, array.shape[1])
    table, stream = pa.table({"a": values}), io.BytesIO()
    if kind == "parquet":
        pq.write_table(table, stream, row_group_size=2)
    else:
        with pa.ipc.new_file(stream, table.schema) as writer:
            writer.write_table(table, max_chunksize=2 if kind == "arrow" else None)
    return stream.getvalue()


HUGE_TENSOR = message((1, 1 << 40), (2, 11), (8, "a"))


class FormatWriter(NamedTuple):
    """How a test writes files of a format without ndtool.

    make_file: return the bytes of a file, or of the files of a store, with an array. huge: the bytes
    of a file that declares a huge array. supports: whether the format supports an array.
    """

    make_file: Callable[[Any], Any]
    huge: Any
    streamed: bool = False
    supports: Callable[[Any], bool] = lambda _: True

    @property
    def arrays(self) -> list[Any]:
        return [array for array in ARRAYS if self.supports(array)]


WRITERS = {
    "npy": FormatWriter(npy, npy_with_header(HUGE_HEADER), True),
    "npy of Fortran": FormatWriter(
        lambda a: npy(np.array(a, order="F")), npy_with_header(HUGE_HEADER), True
    ),
    "npz": FormatWriter(lambda a: zip_file(npy(a), 0), zip_file(npy_with_header(HUGE_HEADER), 0)),
    "npz deflated": FormatWriter(
        lambda a: zip_file(npy(a), 8), zip_file(npy_with_header(HUGE_HEADER), 8)
    ),
    "safetensors": FormatWriter(
        safetensors_file,
        safetensors_with_header(
            '{"a":{"dtype":"F64","shape":[1099511627776],"data_offsets":[0,8796093022208]}}'
        ),
        supports=is_tensor,
    ),
    "pb": FormatWriter(tensor, HUGE_TENSOR, supports=is_onnx),
    "onnx": FormatWriter(lambda a: model(tensor(a)), model(HUGE_TENSOR), supports=is_onnx),
    "hdf5": FormatWriter(hdf5_file, HUGE_HDF5, supports=is_hdf5),
    "hdf5 in chunks": FormatWriter(
        lambda a: chunked_hdf5_file(a, compression="gzip", shuffle=True),
        HUGE_HDF5,
        supports=is_chunked,
    ),
    "hdf5 of lzf": FormatWriter(
        lambda a: chunked_hdf5_file(a, compression="lzf", fletcher32=True),
        HUGE_HDF5,
        supports=is_chunked,
    ),
    **{
        name: FormatWriter(
            partial(column_file, kind=name), magic + 32 * b"\xff" + magic, supports=is_column
        )
        for name, magic in (
            ("parquet", b"PAR1"),
            ("arrow", b"ARROW1"),
            ("arrow of one batch", b"ARROW1"),
        )
        if HAS_PYARROW
    },
    "toy": FormatWriter(toy_file, b"TOY <f8|1099511627776|1099511627776\n"),
}
HUGE = b"""{"zarr_format": 2, "shape": [1099511627776], "chunks": [1099511627776], "dtype": "<f8",
 "fill_value": 0, "order": "C", "filters": null, "compressor": null}"""
HUGE_3 = b"""{"zarr_format": 3, "node_type": "array", "shape": [1099511627776], "data_type": "float64",
 "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1099511627776]}},
 "chunk_key_encoding": {"name": "default"}, "fill_value": 0,
 "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}"""
STORES = {
    "zarr": FormatWriter(lambda a: zarr_files(a, zarr_format=2), {".zarray": HUGE}),
    "zarr of Fortran": FormatWriter(
        lambda a: zarr_files(a, zarr_format=2, order="F"), {".zarray": HUGE}
    ),
    "zarr 3": FormatWriter(
        lambda a: zarr_files(a, zarr_format=3),
        {"zarr.json": HUGE_3},
        supports=lambda a: a.dtype.str[0] != ">",
    ),
}
STORAGES = ("file", "object", "standard input", "pipe", "FIFO")
WRITERS_AND_STORAGES = [
    pytest.param(format_writer, storage, id=f"{name}-{storage}")
    for name, format_writer in (WRITERS | STORES).items()
    for storage in STORAGES
    if storage in ("file", "object") or format_writer.streamed
]
all_storages = pytest.mark.parametrize(("format_writer", "storage"), WRITERS_AND_STORAGES)
every_writer = pytest.mark.parametrize("format_writer", WRITERS.values(), ids=WRITERS)


@contextmanager
def open_storage(storage: str, raw: Any) -> Iterator[tuple[str, Streams]]:
    """Write bytes to a storage; yield its argument and the streams to open it with."""
    write_files("in", raw)
    if storage == "file":
        yield "in", Streams()
        return
    if storage == "object":
        memory = pytest.importorskip("fsspec").filesystem("memory")
        memory.pipe({f"/in/{name}".rstrip("/"): body for name, body in named_bodies(raw)})
        yield "memory://in", Streams()
        memory.rm("/in", recursive=True)
        return
    if storage == "standard input":
        fd = os.open("in", os.O_RDONLY)
        yield "-", Streams(fd)
        os.close(fd)
        return
    if storage == "FIFO":
        os.mkfifo("fifo")
        with feeding(raw, "fifo"):
            yield "fifo", Streams(-1)
        os.unlink("fifo")
        return
    with piped(raw) as fd:
        yield "-", Streams(fd)


def named_bodies(raw: bytes | dict[str, bytes]) -> list[tuple[str, bytes]]:
    """Return the bytes of a file under the name "", or those of the files of a store."""
    return list(raw.items()) if isinstance(raw, dict) else [("", raw)]


def load_or_error(argument: str) -> Any:
    """Return the array of a file, or the error that refuses it."""
    try:
        with closing(locators.open_source(argument, Streams(-1))) as opened:
            return read_array(opened).copy()
    except NdtoolError as exc:
        return exc


ARRAYS = [
    np.arange(prod(shape) * np.dtype(code).itemsize, dtype="u1").view(code).reshape(shape)
    for shape in ((2, 3, 4), (7,), (0, 3), (3, 0), (), (1, 1, 1, 1, 5))
    for code in ("<f4", ">f4", "<i8", ">u2", "?", "|S3", "<U2", ">U2", ">c16", "<M8[ns]", "|V5")
] + [np.arange(30_000, dtype=">i4").reshape(300, 100)]


# Sources


@all_storages
def test_every_format_gives_the_values_and_metadata(
    format_writer: FormatWriter, storage: str
) -> None:
    for array in format_writer.arrays[:: 1 if storage == "file" else 3]:
        raw = format_writer.make_file(array)
        with (
            open_storage(storage, raw) as (argument, streams),
            closing(locators.open_source(argument, streams)) as opened,
        ):
            assert bits_equal(read_array(opened), array)
            assert (opened.name, opened.warning) == (argument, None)
            opened.require_unchanged()
            metadata = opened.metadata
            shape, step = metadata.shape, metadata.block_shape
            count = grid.count_blocks(shape, step) if metadata.order == "C" else 0
            for index in range(count):
                box = grid.box(shape, step, index)
                expected = array[box_slices(box)].tobytes()
                buffer = memoryview(bytearray(len(expected)))
                opened.read(shape, box, buffer, None, 1)
                assert buffer == expected
        with open_storage(storage, raw) as (argument, streams):
            (entry,) = locators.describe(argument, streams)
            assert entry.metadata == metadata


def variants(raw: Any, change: Callable[[bytes, int], bytes]) -> Iterator[tuple[str, int]]:
    """Write a file, or each file of a store, changed at some offsets; yield the name and offset."""
    write_files("in", raw)
    for name, body in named_bodies(raw):
        for offset in range(0, len(body), max(1, len(body) // 150)):
            Path("in", name).write_bytes(change(body, offset))
            yield name, offset
        Path("in", name).write_bytes(body)


@pytest.mark.parametrize("name", [*WRITERS, *STORES])
def test_truncated_files_are_refused(name: str) -> None:
    raw = (WRITERS | STORES)[name].make_file(ARRAY)
    for where in variants(raw, lambda body, length: body[:length]):
        result = load_or_error("in")
        assert isinstance(result, InputError) or bits_equal(result, ARRAY), where


@pytest.mark.parametrize("storage", ["standard input", "pipe"])
def test_truncated_streams_are_refused(storage: str) -> None:
    raw = npy(ARRAY)
    for length in range(len(raw)):
        with open_storage(storage, raw[:length]) as (argument, streams), pytest.raises(InputError):
            locators.open_source(argument, streams)


def flip(body: bytes, offset: int) -> bytes:
    bits = (1, 0x80, 0x10, 0xFF)[offset % 4]
    return body[:offset] + bytes([body[offset] ^ bits]) + body[offset + 1 :]


@pytest.mark.parametrize(
    "name", [name for name in (*WRITERS, *STORES) if "hdf5" not in name]
)  # test_hdf5.py damages these files in a process of their own
def test_any_changed_byte_gives_an_array_or_an_error(name: str) -> None:
    for where in variants((WRITERS | STORES)[name].make_file(ARRAY[0]), flip):
        with suppress(NdtoolError):
            locators.describe("in")
        result = load_or_error("in")
        assert isinstance(result, NdtoolError) or result.nbytes < MEMORY_LIMIT, where


def truncate_file() -> None:
    os.truncate("in", os.path.getsize("in") - 1)


def modify() -> None:
    os.utime("in", ns=(1, 1))


def replace() -> None:
    Path("new").write_bytes(Path("in").read_bytes())
    os.replace("new", "in")


@pytest.mark.parametrize(
    ("name", "change", "storage"),
    [
        *product(WRITERS, (truncate_file, modify, replace), ["file"]),
        *product(["npy"], (truncate_file, modify), ["standard input"]),
    ],
)
def test_changes_of_an_open_input_are_detected(
    name: str, change: Callable[[], None], storage: str
) -> None:
    with (
        open_storage(storage, WRITERS[name].make_file(ARRAY[0])) as (argument, streams),
        closing(locators.open_source(argument, streams)) as opened,
    ):
        change()
        verb = "was replaced" if change is replace else "changed"
        with pytest.raises(OutputError, match=f" {verb} during the run"):
            opened.require_unchanged()


@every_writer
def test_a_descriptor_of_an_open_input_is_recognized(format_writer: FormatWriter) -> None:
    Path("in").write_bytes(format_writer.make_file(ARRAY))
    Path("other").write_bytes(b"")
    with closing(locators.open_source("in", Streams(-1))) as opened:
        for name, expected in (("in", True), ("other", False)):
            fd = os.open(name, os.O_RDONLY)
            assert opened.is_same_file(fd) is expected
            os.close(fd)
        assert not opened.is_same_file(-1)


@all_storages
def test_declared_sizes_take_no_memory(format_writer: FormatWriter, storage: str) -> None:
    with open_storage(storage, format_writer.huge) as (argument, streams):
        tracemalloc.start()
        with pytest.raises(NdtoolError):
            locators.open_source(argument, streams)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_LIMIT
        tracemalloc.stop()


# Sinks


def load_by_library(name: str) -> Any:
    """Return the array read by another library, or by ndtool if none supports the format."""
    if name.endswith(".toy") or name in ENCODED:
        return load_or_error(name)
    if ".safetensors" in name:
        (array,) = safetensors.numpy.load_file(name.partition(":")[0]).values()
        return array
    if ".pb" in name:
        onnx = pytest.importorskip("onnx")
        return onnx.numpy_helper.to_array(onnx.load_tensor(name.partition(":")[0]))
    if ".zarr" in name:
        path, _, node = name.partition(":")
        result = zarr.open_array(path, path=node, mode="r")
        dtype = load_or_error(name).dtype  # in version 3, the library returns native byte order
        return np.asarray(result[...]).astype(dtype)
    if ".h" in name:
        path, _, member = name.partition(":")
        with h5py.File(path) as file:
            assert len(file) == 1
            array = file[member or "output"]
            return array[...].astype(load_or_error(name).dtype)  # h5py marks types with metadata
    result = np.load(name.partition(":")[0])
    if isinstance(result, np.ndarray):
        return result
    with result as archive:
        assert len(archive.files) == 1
        return archive[archive.files[0]]


def stored_form(target: str, array: Any) -> Any:
    """Return an array as a format stores it: safetensors and ONNX have one byte order."""
    is_little_endian = ".safetensors" in target or ".pb" in target
    return array.astype(array.dtype.newbyteorder("<")) if is_little_endian else array


def supported_arrays(target: str) -> list[Any]:
    """Return the arrays that a format supports."""
    kinds = "biuf" if ".safetensors" in target else "biufc" if ".pb" in target else "biufcmMSUV"
    kinds = kinds.replace("U", "" if ".h" in target else "U")
    return [array for array in ARRAYS if array.dtype.kind in kinds]


TARGETS = (
    "x.npy", "x.npz", "x.npz:a", "x.safetensors", "x.safetensors:a", "x.pb", "x.pb:a", "x.h5",
    "x.hdf5:a", "x.toy",
)  # fmt: skip
STORE_TARGETS = ("x.zarr", "x.zarr:a")
ENCODED = ("x.csv", *(("x.parquet", "x.arrow") if HAS_PYARROW else ()))
targets = pytest.mark.parametrize("target", TARGETS)
targets_and_stores = pytest.mark.parametrize("target", [*TARGETS, *STORE_TARGETS])
all_targets = pytest.mark.parametrize("target", [*TARGETS, *STORE_TARGETS, *ENCODED])


def sample(target: str) -> Any:
    """Return an array that a format supports."""
    return ARRAY[0].astype("<f8") if target in ENCODED else ARRAY


@contextmanager
def closing_sink(out: Any) -> Iterator[Any]:
    """Yield a sink, and abort it."""
    try:
        yield out
    finally:
        out.abort()


def write_reversed(out: Any, array: Any) -> None:
    """Write all blocks in work items of uneven sizes, in reverse order if any is possible."""
    metadata = out.metadata
    if out.name in ENCODED:
        fill(out, array, "items")
        return
    for index in reversed(range(grid.count_blocks(metadata.shape, metadata.block_shape))):
        box = tuple(
            slice(*bounds) for bounds in grid.box(metadata.shape, metadata.block_shape, index)
        )
        raw = array[(*box, ...)].tobytes()
        step = max(7, len(raw) // 20)
        for offset in reversed(range(0, len(raw), step)):
            out.write(offset, memoryview(raw[offset : offset + step]), index)


def write_existing(target: str) -> Any:
    """Write an array to the path of a target and return its bytes."""
    path = target.partition(":")[0]
    raw: Any = zip_file(npy(ARRAY), 0) if path.endswith("z") else EXISTING
    if path.endswith(".safetensors"):
        raw = safetensors_file(ARRAY)
    if path.endswith(".pb"):
        raw = tensor(ARRAY)
    if ".h" in path:
        raw = hdf5_file(ARRAY)
    if path.endswith(".zarr"):
        raw = zarr_files(ARRAY) if path == target else zarr_files(ARRAY, name="a")
    write_files(path, raw)
    return raw


@targets_and_stores
@pytest.mark.parametrize("settings", ["reversed", "whole"])
def test_outputs_are_read_as_they_were_written(target: str, settings: str) -> None:
    for array in supported_arrays(target)[settings == "whole" :: 2]:
        with temporary_sink(target, array) as out:
            assert (out.metadata.dtype, out.metadata.shape) == metadata_of(array)[:2]
            assert not out.streamed
            if settings == "whole":
                fill(out, array, "map")
            else:
                write_reversed(out, array)
            sinks.commit(out)
        assert bits_equal(load_by_library(target), stored_form(target, array))
        assert bits_equal(load_or_error(target), stored_form(target, array))


@targets_and_stores
def test_an_output_is_zero_before_it_is_written(target: str) -> None:
    """Chunks of a store must be written; a mapped file is complete without a write."""
    with temporary_sink(target) as out:
        if ".zarr" in target:
            with pytest.raises(ValueError, match="only 0 of 1 chunks were written"):
                sinks.commit(out)
            return
        sinks.commit(out)
    assert bits_equal(load_by_library(target), np.zeros_like(ARRAY))


@all_targets
def test_the_existing_file_is_preserved_until_the_commit(tmpfile_mode: str, target: str) -> None:
    existing, path = write_existing(target), target.partition(":")[0]
    for outcome in ("aborted", "committed"):
        out = open_sink(target, sample(target) + 1)
        write_reversed(out, sample(target) + 1)
        assert read_files(path) == existing
        if outcome == "committed":
            sinks.commit(out)
        out.abort()
        assert os.listdir() == [path]
        assert (read_files(path) == existing) == (outcome == "aborted")
    assert bits_equal(load_by_library(target), sample(target) + 1)


@pytest.mark.parametrize("target", [*TARGETS, *ENCODED])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite", "pwrite later"])
def test_a_full_or_failing_disk_leaves_the_existing_file(
    tmpfile_mode: str, target: str, call: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    existing, path = write_existing(target), target.partition(":")[0]
    out = open_sink(target, sample(target)) if call == "pwrite later" else None
    error_type = ResourceError if code == errno.ENOSPC else OutputError

    def write() -> None:
        with closing_sink(out or open_sink(target, sample(target))) as opened:
            write_reversed(opened, sample(target))
            sinks.commit(opened)

    with monkeypatch.context() as patch:
        patch.setattr(os, call.removesuffix(" later"), fail_with(code))
        with pytest.raises(error_type, match=f"^{path}: "):
            write()
    assert os.listdir() == [path]
    assert Path(path).read_bytes() == existing


@all_targets
def test_no_clobber_refuses_existing_files(tmpfile_mode: str, target: str) -> None:
    existing, path = write_existing(target), target.partition(":")[0]
    for create in (open_sink, list_preserved_members):
        with pytest.raises(OutputError, match="exists and may not be replaced"):
            create(target, sample(target), clobber=False)
    assert read_files(path) == existing
    shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
    with temporary_sink(target, sample(target), clobber=False) as out:
        existing = write_existing(target)  # another process creates the file first
        fill(out, sample(target), "map")
        with pytest.raises(OutputError, match=r"exists and|was created by another"):
            sinks.commit(out)
    assert os.listdir() == [path]
    assert read_files(path) == existing


def member_names(names: Iterable[str]) -> list[str]:
    """Return names without the root of HDF5."""
    return [name.removeprefix("/") for name in names]


CONTAINERS = ("x.npz", "x.safetensors", "x.h5", "x.zarr")


@pytest.mark.parametrize("path", CONTAINERS)
def test_one_of_several_arrays_must_be_named(path: str) -> None:
    for number in range(14):
        save(f"{path}:m{number:02}", np.zeros((number + 1, 2)))
    for argument, reason, kind in (
        (path, r": the \w+ has 14 \w+: name one of them", UsageError),
        (f"{path}:n", r": /?n is no \w+ of the ", InputError),
    ):
        error = assert_refused(argument, f"^{path}{reason}", kind)
        assert error.places[0].lstrip("/").startswith("m00: "), error.places
        assert (len(error.places), error.places[-1]) == (11, "and 4 more")


@pytest.mark.parametrize(
    ("target", "code"),
    [
        *(
            ("x.safetensors:a", code)
            for code in ("c16", "S3", "U2", "M8[ns]", "m8[s]", "V2", "f2,i4")
        ),
        *(("x.pb", code) for code in ("S3", "U2", "M8[ns]", "V5", "V2", "f16", "i4,i4")),
        *((f"x.{suffix}", code) for suffix in ("csv", "parquet", "arrow") for code in ("c8", "S3")),
        ("x.h5", "U2"),
    ],
)
def test_types_that_a_format_lacks_are_refused_before_any_work(target: str, code: str) -> None:
    for refuse in (open_sink, list_preserved_members):
        with pytest.raises(DtypeError, match=r" cannot (hold|store) | does not support "):
            refuse(target, np.zeros(3, code))
    assert os.listdir() == []


@pytest.mark.parametrize("path", CONTAINERS)
def test_one_of_several_arrays_is_written_and_the_others_stay(path: str) -> None:
    assert save(f"{path}:a", clobber=False) is None
    assert member_names(save(f"{path}:b", ARRAY + 1, clobber=False)) == ["a"]
    before = read_files(path)
    for target, options, text in (
        (path, {}, "2 arrays"),
        (path, {"clobber": False}, "exists and may not be replaced"),
        (f"{path}:b", {"clobber": False}, "exists and may not be replaced"),
        (f"{path}:c", {"clobber": False, "only": True}, "exists and may not be replaced"),
    ):
        for attempt in (save, list_preserved_members):
            with pytest.raises(OutputError, match=text):
                attempt(target, **options)
            assert read_files(path) == before
    assert member_names(list_preserved_members(f"{path}:b")) == ["a"]
    assert member_names(save(f"{path}:b", ARRAY + 2)) == ["a"]
    assert bits_equal(load_or_error(f"{path}:a"), ARRAY)
    assert bits_equal(load_or_error(f"{path}:b"), ARRAY + 2)
    assert save(f"{path}:d", ARRAY + 3, only=True) is None
    assert bits_equal(load_or_error(path), ARRAY + 3)
    assert member_names(entry.member for entry in locators.describe(path)) == ["d"]
    assert save(path, ARRAY + 4, only=True) is None
    assert bits_equal(load_or_error(path), ARRAY + 4)
    assert os.listdir() == [path]


@pytest.mark.parametrize("path", ["x.npz", "x.safetensors", "x.h5"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_file_that_another_process_writes_meanwhile_is_not_replaced(
    path: str, exists: bool
) -> None:
    if exists:
        save(f"{path}:a")
    out = open_sink(f"{path}:c")
    save(f"{path}:b", ARRAY + 1)
    theirs = read_files(path)
    fill(out, ARRAY)
    with pytest.raises(OutputError, match=r"was replaced|changed during|was created by another"):
        sinks.commit(out)
    out.abort()
    assert os.listdir() == [path]
    assert read_files(path) == theirs


KILLED_PROGRAM = f"""{CREATE_OUTPUT_SCRIPT}
import time
sys.path.insert(0, sys.argv[2])
table.FORMATS = (*table.FORMATS, table.Format(".toy", False, "toy_format"))
out = created(sys.argv[1], 1000)
out.write(0, memoryview(b"new"))
print("ready", flush=True)
time.sleep(600)
"""


@targets
def test_a_kill_leaves_the_existing_file(target: str) -> None:
    existing, path = write_existing(target), target.partition(":")[0]
    support = str(Path(__file__).parents[1] / "support")
    command = [sys.executable, "-c", KILLED_PROGRAM, target, support]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.kill()
    assert child.returncode == -signal.SIGKILL
    assert os.listdir() == [path]
    assert Path(path).read_bytes() == existing


# Complete runs


RNG = np.random.default_rng(7)
INPUTS = {
    "data": RNG.integers(-9, 9, (7, 5, 4)).astype("<f8"),
    "tuples": RNG.integers(-5, 5, (7, 3, 1)),
    "pairs": np.stack([RNG.integers(-7, 7, (4, 5)), RNG.integers(-5, 5, (4, 5))], -1),
    "rows": RNG.integers(-9, 9, (4, 5, 4)).astype("<f8"),
    "axis_indices": RNG.integers(-5, 5, (6, 8, 3)),
    "axis_updates": RNG.integers(-9, 9, (6, 8, 3)).astype("<f8"),
}
GRIDS = {"data": (3, 2, 4), "tuples": (2, 2, 1), "pairs": (3, 2, 2), "rows": (4, 2, 3)}
GRIDS |= {"axis_indices": (5, 3, 2), "axis_updates": (1, 8, 2)}
RUNS = [
    ("gather_nd", ("data", "tuples"), Attributes(batch_dims=1)),
    ("gather_nd", ("data", "pairs"), Attributes()),
    ("gather_elements", ("data", "axis_indices"), Attributes(axis=1)),
    ("gather", ("data", "axis_indices"), Attributes(axis=1)),
    *(("scatter_nd", ("data", "pairs", "rows"), Attributes(reduction=r)) for r in ("none", "add")),
    *(
        ("scatter_elements", ("data", "axis_indices", "axis_updates"), Attributes(axis=1, reduction=r))
        for r in ("none", "add", "max")
    ),
]  # fmt: skip


def reference_result(operator: str, arrays: list[Any], attributes: Attributes) -> Any:
    parameters = {
        "gather_nd": ("batch_dims",), "gather_elements": ("axis",), "gather": ("axis",),
        "scatter_nd": ("reduction",), "scatter_elements": ("axis", "reduction"),
    }  # fmt: skip
    arguments = {name: getattr(attributes, name) for name in parameters[operator]}
    return getattr(reference, operator)(*arrays, **arguments)


RUN_OUTPUTS = (
    "out.toy", "out.npy", "out.npz:a", "out.safetensors", "out.pb", "out.h5", "out.h5:a/b", "out.zarr",
    "out.zarr:a",
)  # fmt: skip


@pytest.mark.parametrize("number", range(2 * len(RUN_OUTPUTS)))
def test_runs_on_blocks_give_the_bits_of_the_reference(number: int) -> None:
    """Each run with several outputs, and each output with several runs in both byte orders."""
    operator, inputs, attributes = RUNS[number % len(RUNS)]
    output, order = RUN_OUTPUTS[number % len(RUN_OUTPUTS)], "<>"[number // len(RUN_OUTPUTS)]
    arrays = [INPUTS[name].astype(INPUTS[name].dtype.newbyteorder(order)) for name in inputs]
    suffix = "zarr" if ".zarr" in output else "toy"
    for name, array in zip(inputs, arrays, strict=True):
        is_store = suffix == "zarr"
        body = zarr_files(array, zarr_format=2) if is_store else toy_file(array, GRIDS[name])
        write_files(f"{name}.{suffix}", body)
    data, indices, updates = (*(f"{name}.{suffix}" for name in inputs), None)[:3]
    request = Request(operator, data, indices, updates, output, attributes)
    with OpenCall(request) as call:
        assert steps.run(call).preserved is None
    assert bits_equal(
        load_by_library(output), stored_form(output, reference_result(operator, arrays, attributes))
    )


@pytest.mark.parametrize("name", ["x.toy", *(f"{path}:data" for path in CONTAINERS), "x.zarr"])
def test_a_run_may_replace_the_array_that_it_reads(name: str) -> None:
    arrays = [INPUTS[role] for role in ("data", "pairs", "rows")]
    for target, array in zip((name, "pairs.toy", "rows.toy"), arrays, strict=True):
        save(target, array, "map")
    with OpenCall(Request("scatter_nd", name, "pairs.toy", "rows.toy", name)) as call:
        steps.run(call)
    assert bits_equal(load_or_error(name), reference_result("scatter_nd", arrays, Attributes()))
    assert sorted(os.listdir()) == ["pairs.toy", "rows.toy", name.partition(":")[0]]
