"""The contract of formats and storage: one suite for all of them."""

import errno
import io
import os
import shutil
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors.numpy
from command import environment
from limits import failing
from messages import message, model, tensor
from npyfile import ARRAY, npy, with_header
from outputs import PROGRAM, checked, fill, metadata_of, opened, written

from ndtool.analysis.oracle import reference
from ndtool.arrays import source
from ndtool.errors import InputError, NdtoolError, OutputError, ResourceError
from ndtool.formats import locators, table
from ndtool.formats.streams import Streams
from ndtool.formats.table import Format
from ndtool.publish import sinks
from ndtool.rules import grid
from ndtool.rules.operators import Attributes
from ndtool.runs import steps
from ndtool.runs.calls import OpenCall
from ndtool.runs.request import Request

zarr = pytest.importorskip("zarr", exc_type=ImportError)
h5py = pytest.importorskip("h5py", exc_type=ImportError)
zarr.create_array({}, shape=(1,), dtype="i1")  # its threads keep files open
pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")


def has_pyarrow() -> bool:
    """Whether pyarrow is installed; imports it, so that no test measures that."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        return False
    return True


OLD = b"old bytes"
TOY = Format(".toy", False, "toy_format")
LITTLE = 4 << 20  # bytes of memory, whatever a header declares


@pytest.fixture(autouse=True)
def workdir(workdir: Path, all_closed: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(table, "FORMATS", (*table.FORMATS, TOY))
    return workdir


# Writers of each format without ndtool


def zipped(raw: bytes, method: int) -> bytes:
    import zipfile

    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        archive.writestr("a.npy", raw)
    return stream.getvalue()


def blocks(array: Any, step: tuple[int, ...] | None = None) -> bytes:
    """Return a file of the toy format; step: the shape of a block."""
    step = tuple(max(1, size // 2) for size in array.shape) if step is None else step
    sizes = "|".join(",".join(map(str, one)) for one in (array.shape, step))
    starts = product(*(range(0, n, each) for n, each in zip(array.shape, step, strict=True)))
    parts = [
        array[
            (*(slice(i, i + each) for i, each in zip(position, step, strict=True)), ...)
        ].tobytes()
        for position in starts
    ]
    return f"TOY {array.dtype.str}|{sizes}\n".encode() + b"".join(parts)


def stored(array: Any, **settings: Any) -> dict[str, bytes]:
    """Return the files of a Zarr store."""
    store: dict[str, Any] = {}
    chunks = tuple(max(1, size // 2) for size in array.shape)
    made = zarr.create_array(store, shape=array.shape, dtype=array.dtype, chunks=chunks, **settings)
    made[...] = array
    return {name: content.to_bytes() for name, content in store.items()}


def dataset(array: Any, **settings: Any) -> bytes:
    """Return an HDF5 file of an array."""
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        opaque = array.dtype.kind in "mM"
        stored = array.astype(h5py.opaque_dtype(array.dtype)) if opaque else array
        file.create_dataset("a", data=stored, **settings)
    return stream.getvalue()


def chunked(array: Any, **settings: Any) -> bytes:
    """Return an HDF5 file of an array in chunks."""
    return dataset(array, chunks=tuple(max(1, size // 2) for size in array.shape), **settings)


def hollow(**settings: Any) -> bytes:
    """Return an HDF5 file that declares a huge array."""
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        file.create_dataset("a", shape=(1 << 40,), dtype="<f8", **settings)
    return stream.getvalue()


def is_hdf5(array: Any) -> bool:
    """Whether h5py has the type."""
    return array.dtype.kind != "U"


def is_chunked(array: Any) -> bool:
    """Whether an HDF5 dataset of the array can have chunks."""
    return is_hdf5(array) and array.nbytes > 0 and array.ndim > 0


def put(path: str, raw: bytes | dict[str, bytes]) -> None:
    """Write a file, or the files of a store."""
    if isinstance(raw, bytes):
        Path(path).write_bytes(raw)
        return
    shutil.rmtree(path, ignore_errors=True)
    for name, content in raw.items():
        where = Path(path, name)
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(content)


def found(path: str) -> bytes | dict[str, bytes]:
    """Return the bytes of a file, or of the visible files of a store."""
    if os.path.isfile(path):
        return Path(path).read_bytes()
    inside = (one for one in Path(path).rglob("*") if one.is_file() and ".ndtool-" not in str(one))
    return {str(one.relative_to(path)): one.read_bytes() for one in inside}


CLAIM = "{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }\n"


def tensors(array: Any) -> bytes:
    return safetensors.numpy.save({"a": array.copy()})


def with_tensors(text: str, payload: bytes = b"") -> bytes:
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


def columns(array: Any, kind: str) -> bytes:
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


FAR = message((1, 1 << 40), (2, 11), (8, "a"))


class Maker(NamedTuple):
    """make: the bytes of a file of an array, or of several. huge: of one that declares a huge size.

    holds: whether the format supports an array. stride: of the lengths at which files are cut short.
    is_foreign: whether another package's C code parses files, which may crash on damaged ones.
    """

    make: Callable[[Any], Any]
    huge: Any
    streamed: bool = False
    holds: Callable[[Any], bool] = lambda _: True
    stride: int = 1
    is_foreign: bool = False

    @property
    def arrays(self) -> list[Any]:
        return [array for array in ARRAYS if self.holds(array)]


MAKERS = {
    "npy": Maker(npy, with_header(CLAIM), True),
    "npy of Fortran": Maker(lambda a: npy(np.array(a, order="F")), with_header(CLAIM), True),
    "npz": Maker(lambda a: zipped(npy(a), 0), zipped(with_header(CLAIM), 0)),
    "npz deflated": Maker(lambda a: zipped(npy(a), 8), zipped(with_header(CLAIM), 8)),
    "safetensors": Maker(
        tensors,
        with_tensors(
            '{"a":{"dtype":"F64","shape":[1099511627776],"data_offsets":[0,8796093022208]}}'
        ),
        holds=is_tensor,
    ),
    "pb": Maker(tensor, FAR, holds=is_onnx),
    "onnx": Maker(lambda a: model(tensor(a)), model(FAR), holds=is_onnx),
    "hdf5": Maker(dataset, hollow(chunks=(1 << 39,)), holds=is_hdf5, stride=31, is_foreign=True),
    "hdf5 in chunks": Maker(
        lambda a: chunked(a, compression="gzip", shuffle=True),
        hollow(chunks=(1 << 39,)),
        holds=is_chunked,
        stride=31,
        is_foreign=True,
    ),
    "hdf5 of lzf": Maker(
        lambda a: chunked(a, compression="lzf", fletcher32=True),
        hollow(chunks=(1 << 39,)),
        holds=is_chunked,
        stride=31,
        is_foreign=True,
    ),
    **(
        {
            "parquet": Maker(
                lambda a: columns(a, "parquet"), b"PAR1" + 32 * b"\xff" + b"PAR1", holds=is_column
            ),
            "arrow": Maker(
                lambda a: columns(a, "arrow"), b"ARROW1" + 32 * b"\xff" + b"ARROW1", holds=is_column
            ),
            "arrow of one batch": Maker(
                lambda a: columns(a, "one"), b"ARROW1" + 32 * b"\xff" + b"ARROW1", holds=is_column
            ),
        }
        if has_pyarrow()
        else {}
    ),
    "toy": Maker(blocks, b"TOY <f8|1099511627776|1099511627776\n"),
}
HUGE = b'{"zarr_format": 2, "shape": [1099511627776], "chunks": [1099511627776], "dtype": "<f8",'
HUGE += b' "fill_value": 0, "order": "C", "filters": null, "compressor": null}'
STORES = {
    "zarr": Maker(lambda a: stored(a, zarr_format=2), {".zarray": HUGE}),
    "zarr of Fortran": Maker(lambda a: stored(a, zarr_format=2, order="F"), {".zarray": HUGE}),
}
LOCATIONS = ("file", "standard input", "pipe", "FIFO")
COMBINED = [
    pytest.param(maker, position, id=f"{name}-{position}")
    for name, maker in (MAKERS | STORES).items()
    for position in LOCATIONS
    if position == "file" or maker.streamed
]
everywhere = pytest.mark.parametrize(("maker", "position"), COMBINED)
every_maker = pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)


@contextmanager
def placed(position: str, raw: Any) -> Iterator[tuple[str, Streams]]:
    """Yield the argument for bytes in some storage, and the streams to open it with."""
    put("in", raw)
    if position == "file":
        yield "in", Streams()
        return
    if position == "standard input":
        fd = os.open("in", os.O_RDONLY)
        yield "-", Streams(fd)
        os.close(fd)
        return
    if position == "FIFO":
        os.mkfifo("fifo")
        fd = -1
    else:
        fd, end = os.pipe()

    def feed() -> None:
        try:
            with open("fifo" if position == "FIFO" else end, "wb") as file:
                file.write(raw)
        except BrokenPipeError:
            pass  # refused before the end of the stream

    thread = threading.Thread(target=feed)
    thread.start()
    yield ("fifo" if position == "FIFO" else "-"), Streams(fd)
    if fd >= 0:
        os.close(fd)
    thread.join()
    if position == "FIFO":
        os.unlink("fifo")


def value(one: Any) -> Any:
    """Return the array of a source."""
    byte_range = source.load_array(one)
    assert byte_range.buffer.readonly
    assert len(byte_range.buffer) == one.metadata.nbytes
    dtype = np.lib.format.descr_to_dtype(one.metadata.dtype.descr)
    flat = np.frombuffer(byte_range.buffer.tobytes(), dtype)
    return flat.reshape(one.metadata.shape, order=one.metadata.order)


def same(got: Any, wanted: Any) -> bool:
    return (got.dtype, got.shape, got.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())


def load(argument: str) -> Any:
    """Return the array of a file, or the error that refuses it."""
    try:
        with closing(locators.open_source(argument, Streams(-1))) as one:
            return value(one).copy()
    except NdtoolError as exc:
        return exc


ARRAYS = [
    np.arange(prod(shape) * np.dtype(code).itemsize, dtype="u1").view(code).reshape(shape)
    for shape in ((2, 3, 4), (7,), (0, 3), (3, 0), (), (1, 1, 1, 1, 5))
    for code in ("<f4", ">f4", "<i8", ">u2", "?", "|S3", "<U2", ">U2", ">c16", "<M8[ns]", "|V5")
] + [np.arange(30_000, dtype=">i4").reshape(300, 100)]


# Sources


@everywhere
def test_values_and_metadata(maker: Maker, position: str) -> None:
    for array in maker.arrays:
        with (
            placed(position, maker.make(array)) as (argument, streams),
            closing(locators.open_source(argument, streams)) as one,
        ):
            assert same(value(one), array)
            assert (one.name, one.warning) == (argument, None)
            one.recheck()
            metadata, count = (
                one.metadata,
                grid.count_blocks(one.metadata.shape, one.metadata.block_shape),
            )
            parts = [one.block(number) for number in range(count)]
            assert all(part.readonly for part in parts)
            assert sum(map(len, parts)) == metadata.nbytes
            del parts
        with placed(position, maker.make(array)) as (argument, streams):
            (entry,) = locators.describe(argument, streams)
            assert entry.metadata == metadata


@every_maker
def test_cut_short_at_every_length(maker: Maker) -> None:
    raw = maker.make(ARRAY)
    for length in range(0, len(raw), maker.stride):
        Path("in").write_bytes(raw[:length])
        got = load("in")
        assert isinstance(got, InputError) or same(got, ARRAY), length


@pytest.mark.parametrize("position", ["standard input", "pipe"])
def test_streams_cut_short_at_every_length(position: str) -> None:
    raw = npy(ARRAY)
    for length in range(len(raw)):
        with placed(position, raw[:length]) as (argument, streams), pytest.raises(InputError):
            locators.open_source(argument, streams)


@every_maker
@pytest.mark.parametrize("change", [1, 0x80, 0x10, 0xFF])
def test_any_changed_byte(maker: Maker, change: int) -> None:
    raw = bytearray(maker.make(ARRAY))
    if maker.is_foreign:
        pytest.skip("test_hdf5.py damages these files in a process of their own")
    for at in range(len(raw)):
        raw[at] ^= change
        Path("in").write_bytes(raw)
        try:
            locators.describe("in")
        except NdtoolError:
            pass
        got = load("in")
        assert isinstance(got, NdtoolError) or got.nbytes < LITTLE, at
        raw[at] ^= change


def truncate_file() -> None:
    os.truncate("in", os.path.getsize("in") - 1)


def modify() -> None:
    os.utime("in", ns=(1, 1))


def replace() -> None:
    Path("new").write_bytes(Path("in").read_bytes())
    os.replace("new", "in")


@every_maker
@pytest.mark.parametrize("change", [truncate_file, modify, replace])
@pytest.mark.parametrize("position", ["file", "standard input"])
def test_changes_while_it_is_open(maker: Maker, change: Callable[[], None], position: str) -> None:
    if position != "file" and (change is replace or not maker.streamed):
        pytest.skip("a descriptor stays on its file; other formats are read by their names")
    with (
        placed(position, maker.make(ARRAY)) as (argument, streams),
        closing(locators.open_source(argument, streams)) as one,
    ):
        change()
        expected_text = "was replaced" if change is replace else "changed"
        with pytest.raises(OutputError, match=f" {expected_text} during the run"):
            one.recheck()


@every_maker
def test_open_as_another_descriptor(maker: Maker) -> None:
    Path("in").write_bytes(maker.make(ARRAY))
    Path("other").write_bytes(b"")
    with closing(locators.open_source("in", Streams(-1))) as one:
        for name, expected in (("in", True), ("other", False)):
            fd = os.open(name, os.O_RDONLY)
            assert one.is_open_as(fd) is expected
            os.close(fd)
        assert not one.is_open_as(-1)


@everywhere
def test_claims_take_no_memory(maker: Maker, position: str) -> None:
    with placed(position, maker.huge) as (argument, streams):
        tracemalloc.start()
        with pytest.raises(NdtoolError):
            locators.open_source(argument, streams)
        assert tracemalloc.get_traced_memory()[1] < LITTLE
        tracemalloc.stop()


# Sinks


def loaded(name: str) -> Any:
    """Return the array read by another library, or by ndtool if none knows the format."""
    if name.endswith(".toy"):
        return load(name)
    if ".safetensors" in name:
        (array,) = safetensors.numpy.load_file(name.partition(":")[0]).values()
        return array
    if ".pb" in name:
        onnx = pytest.importorskip("onnx")
        return onnx.numpy_helper.to_array(onnx.load_tensor(name.partition(":")[0]))
    if ".zarr" in name:
        path, _, node = name.partition(":")
        got = zarr.open_array(path, path=node, mode="r")
        dtype = load(name).dtype  # in version 3, the library returns native byte order
        return np.asarray(got[...]).astype(dtype)
    if ".h" in name:
        path, _, member = name.partition(":")
        with h5py.File(path) as file:
            assert len(file) == 1
            array = file[member or "output"]
            return array[...].astype(load(name).dtype)  # h5py marks types with metadata
    got = np.load(name.partition(":")[0])
    if isinstance(got, np.ndarray):
        return got
    with got as archive:
        assert len(archive.files) == 1
        return archive[archive.files[0]]


def stored_form(target: str, array: Any) -> Any:
    """Return an array as a format stores it: safetensors and ONNX have one byte order."""
    little = ".safetensors" in target or ".pb" in target
    return array.astype(array.dtype.newbyteorder("<")) if little else array


def fitting(target: str) -> list[Any]:
    """Return the arrays that a format supports."""
    kinds = "biuf" if ".safetensors" in target else "biufc" if ".pb" in target else "biufcmMSUV"
    kinds = kinds.replace("U", "" if ".h" in target else "U")
    return [array for array in ARRAYS if array.dtype.kind in kinds]


TARGETS = (
    "x.npy",
    "x.npz",
    "x.npz:a",
    "x.safetensors",
    "x.safetensors:a",
    "x.pb",
    "x.pb:a",
    "x.h5",
    "x.hdf5:a",
    "x.toy",
)
targets = pytest.mark.parametrize("target", TARGETS)
targets_and_stores = pytest.mark.parametrize("target", [*TARGETS, "x.zarr", "x.zarr:a"])


@pytest.fixture(params=["unnamed", "hidden"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "hidden":
        monkeypatch.delattr(os, "O_TMPFILE")
    return request.param


def write_reversed(out: Any, array: Any) -> None:
    """Write all blocks in work items of odd sizes, in reverse order."""
    metadata = out.metadata
    for number in reversed(range(grid.count_blocks(metadata.shape, metadata.block_shape))):
        position = tuple(
            slice(*ends) for ends in grid.box(metadata.shape, metadata.block_shape, number)
        )
        raw = array[(*position, ...)].tobytes()
        step = max(7, len(raw) // 20)
        for at in reversed(range(0, len(raw), step)):
            out.write(at, memoryview(raw[at : at + step]), number)


def old_file(target: str) -> Any:
    """Write an array to the path of a target and return its bytes."""
    path = target.partition(":")[0]
    raw: Any = zipped(npy(ARRAY), 0) if path.endswith("z") else OLD
    if path.endswith(".safetensors"):
        raw = tensors(ARRAY)
    if path.endswith(".pb"):
        raw = tensor(ARRAY)
    if ".h" in path:
        raw = dataset(ARRAY)
    if path.endswith(".zarr"):
        raw = stored(ARRAY) if path == target else stored(ARRAY, name="a")
    put(path, raw)
    return raw


@targets_and_stores
@pytest.mark.parametrize("settings", ["reversed", "whole"])
def test_round_trip_of_outputs(target: str, settings: str) -> None:
    for array in fitting(target):
        with written(target, array) as out:
            assert (out.metadata.dtype, out.metadata.shape) == metadata_of(array)[:2]
            assert not out.streamed
            if settings == "whole":
                fill(out, array, "map")
            else:
                write_reversed(out, array)
            sinks.commit(out)
        assert same(loaded(target), stored_form(target, array))
        assert same(load(target), stored_form(target, array))


@targets_and_stores
def test_an_output_is_zero_before_it_is_written(target: str) -> None:
    """Required for chunks of a store; a mapped file is complete without."""
    with written(target) as out:
        if ".zarr" in target:
            with pytest.raises(ValueError, match="only 0 of 1 chunks were written"):
                sinks.commit(out)
            return
        sinks.commit(out)
    assert same(loaded(target), np.zeros_like(ARRAY))


@targets_and_stores
def test_the_old_file_stays_until_the_commit(way: str, target: str) -> None:
    old, path = old_file(target), target.partition(":")[0]
    for ends in ("aborted", "committed"):
        out = opened(target, ARRAY + 1)
        write_reversed(out, ARRAY + 1)
        assert found(path) == old
        if ends == "committed":
            sinks.commit(out)
        out.abort()
        assert os.listdir() == [path]
        assert (found(path) == old) == (ends == "aborted")
    assert same(loaded(target), ARRAY + 1)


@targets
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite", "pwrite later"])
def test_a_disk_that_is_full_or_fails(
    way: str, target: str, call: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, path = old_file(target), target.partition(":")[0]
    out = opened(target) if call == "pwrite later" else None
    with monkeypatch.context() as patch:
        patch.setattr(os, call.removesuffix(" later"), failing(code))
        kind = ResourceError if code == errno.ENOSPC else OutputError
        act = partial(opened, target) if out is None else partial(write_reversed, out, ARRAY)
        with pytest.raises(kind, match=f"^{path}: "):
            act()
    if out is not None:
        out.abort()
    assert os.listdir() == [path]
    assert Path(path).read_bytes() == old


@targets_and_stores
def test_no_clobber(way: str, target: str) -> None:
    old, path = old_file(target), target.partition(":")[0]
    for refuse in (opened, checked):
        with pytest.raises(OutputError, match="exists and may not be replaced"):
            refuse(target, clobber=False)
    assert found(path) == old
    shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
    with written(target, clobber=False) as out:
        old = old_file(target)  # another process was faster
        fill(out, ARRAY, "map")
        with pytest.raises(OutputError, match=r"exists and|was created by another"):
            sinks.commit(out)
    assert os.listdir() == [path]
    assert found(path) == old


KILLED = f"""{PROGRAM}
import time
sys.path.insert(0, sys.argv[2])
table.FORMATS = (*table.FORMATS, table.Format(".toy", False, "toy_format"))
out = created(sys.argv[1], 1000)
out.write(0, memoryview(b"new"))
print("ready", flush=True)
time.sleep(600)
"""


@targets
def test_a_kill_leaves_the_old_file(target: str) -> None:
    old, path = old_file(target), target.partition(":")[0]
    command = [sys.executable, "-c", KILLED, target, str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.kill()
    assert child.returncode == -signal.SIGKILL
    assert os.listdir() == [path]
    assert Path(path).read_bytes() == old


# Complete runs


RNG = np.random.default_rng(7)
INPUTS = {
    "data": RNG.integers(-9, 9, (7, 5, 4)).astype("<f8"),
    "tuples": RNG.integers(-5, 5, (7, 3, 1)),
    "pairs": np.stack([RNG.integers(-7, 7, (4, 5)), RNG.integers(-5, 5, (4, 5))], -1),
    "rows": RNG.integers(-9, 9, (4, 5, 4)).astype("<f8"),
    "along": RNG.integers(-5, 5, (6, 8, 3)),
    "each": RNG.integers(-9, 9, (6, 8, 3)).astype("<f8"),
}
GRIDS = {"data": (3, 2, 4), "tuples": (2, 2, 1), "pairs": (3, 2, 2), "rows": (4, 2, 3)}
GRIDS |= {"along": (5, 3, 2), "each": (1, 8, 2)}
RUNS = [
    ("gather_nd", ("data", "tuples"), Attributes(batch_dims=1)),
    ("gather_nd", ("data", "pairs"), Attributes()),
    ("gather_elements", ("data", "along"), Attributes(axis=1)),
    ("gather", ("data", "along"), Attributes(axis=1)),
    *(("scatter_nd", ("data", "pairs", "rows"), Attributes(reduction=r)) for r in ("none", "add")),
    *(
        ("scatter_elements", ("data", "along", "each"), Attributes(axis=1, reduction=r))
        for r in ("none", "add", "max")
    ),
]


def slow(operator: str, arrays: list[Any], attributes: Attributes) -> Any:
    taken = {
        "gather_nd": ("batch_dims",), "gather_elements": ("axis",), "gather": ("axis",),
        "scatter_nd": ("reduction",), "scatter_elements": ("axis", "reduction"),
    }  # fmt: skip
    given = {name: getattr(attributes, name) for name in taken[operator]}
    return getattr(reference, operator)(*arrays, **given)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize(
    "output",
    [
        "out.toy",
        "out.npy",
        "out.npz:a",
        "out.safetensors",
        "out.pb",
        "out.h5",
        "out.h5:a/b",
        "out.zarr",
        "out.zarr:a",
    ],
)
@pytest.mark.parametrize(("operator", "inputs", "attributes"), RUNS)
def test_runs_from_blocks_to_blocks(
    operator: str, inputs: tuple[str, ...], attributes: Attributes, output: str, order: str
) -> None:
    arrays = [INPUTS[name].astype(INPUTS[name].dtype.newbyteorder(order)) for name in inputs]
    arguments = [f"{name}.toy" for name in inputs]
    for name, array in zip(inputs, arrays, strict=True):
        Path(f"{name}.toy").write_bytes(blocks(array, GRIDS[name]))
    data, indices, updates = (*arguments, None)[:3]
    request = Request(operator, data, indices, updates, output, attributes)
    with OpenCall(request) as call:
        assert steps.run(call).preserved is None
    assert same(loaded(output), stored_form(output, slow(operator, arrays, attributes)))


def test_a_run_that_replaces_the_blocks_it_reads() -> None:
    arrays = [INPUTS[name] for name in ("data", "pairs", "rows")]
    for name, array in zip(("data", "pairs", "rows"), arrays, strict=True):
        Path(f"{name}.toy").write_bytes(blocks(array, GRIDS[name]))
    request = Request("scatter_nd", "data.toy", "pairs.toy", "rows.toy", "data.toy")
    with OpenCall(request) as call:
        steps.run(call)
    assert same(load("data.toy"), slow("scatter_nd", arrays, Attributes()))
