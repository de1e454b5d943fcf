"""Interpret the metadata of arrays in Zarr stores: shape, dtype, chunks and codecs.

The zarr package parses the metadata of one array at a time, without access to the store: its reads
follow links, have no limits, and run in a thread that may block the exit of the process.
"""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any, TypeVar

from ndtool.arrays.source import ArrayMetadata, ChunkLayout
from ndtool.errors import (
    DtypeError,
    InputError,
    NdtoolError,
    ResourceError,
    UsageError,
    format_value,
    library_message,
    printable,
)
from ndtool.formats import numpytypes
from ndtool.formats.numpytypes import numpy_dtype
from ndtool.formats.zarr import chains, hierarchy
from ndtool.formats.zarr.hierarchy import Read
from ndtool.machine import memory, signals
from ndtool.rules import shapes
from ndtool.rules.dtypes import Dtype
from ndtool.storage.descriptors import failure
from ndtool.storage.local import ZARR_METADATA, Folder

T = TypeVar("T")

MAX_CHUNK_BYTES = 1 << 31  # limited because each thread has a chunk in memory
MAX_SHARD_CHUNKS = 1 << 20  # limited because a shard's index has 16 bytes per chunk
_MAX_REASON_LENGTH = 200  # characters of the library's messages
_OUT_OF_MEMORY_TEXTS = ("can't start new thread", "failed to map segment", "Cannot allocate memory")


def library() -> Any:
    """Import and return the zarr package; UsageError if it is missing or too old."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import zarr
    except ModuleNotFoundError:  # other ImportErrors, of a broken package, are raised
        raise UsageError(
            "a Zarr store needs the zarr package", hint="pip install 'ndtool[zarr]'"
        ) from None
    if int(zarr.__version__.partition(".")[0]) < 3:
        raise UsageError(
            f"zarr is of version {zarr.__version__}: expected 3 or later",
            hint="pip install --upgrade 'ndtool[zarr]'",
        )
    if signals.is_command_line():
        memory.return_freed_memory()  # chunk buffers that threads of the package freed
    return zarr


@contextmanager
def convert_errors(label: str, error_type: type[NdtoolError] = InputError) -> Iterator[None]:
    """Convert exceptions of the zarr and numcodecs packages to NdtoolErrors."""
    try:
        yield
    except NdtoolError:
        raise
    except MemoryError:
        raise ResourceError(f"{printable(label)}: no memory for a chunk") from None
    except OSError as exc:
        raise failure(exc, label, error_type) from None
    except Exception as exc:  # invalid metadata raise exceptions of any type
        reason = library_message(exc, _MAX_REASON_LENGTH)
        if any(text in str(exc) for text in _OUT_OF_MEMORY_TEXTS):
            raise ResourceError(f"{printable(label)}: {reason}") from None
        raise error_type(f"{printable(label)}: {reason}") from None


def run_coroutine(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the zarr package in a new event loop."""

    def run_in_loop() -> T:
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(coroutine)
        finally:
            loop.close()
            coroutine.close()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_in_loop()
    from concurrent.futures import ThreadPoolExecutor  # an event loop runs in this thread

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run_in_loop).result()


@contextmanager
def suppress_warnings() -> Iterator[None]:
    """Suppress the zarr package's warnings, which concern compatibility with other software."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def label(path: str, node: str) -> str:
    """Return the name of an array for messages."""
    return f"{path}:{node}" if node else path


def open_array(storage: Folder, path: str, node: str) -> Any:
    """Return the zarr package's array at a path of a store, which has only metadata."""
    name = label(path, node)
    if hierarchy.node_type(storage, node) == "group":
        raise InputError(f"{printable(name)} is a group: expected an array")
    return parse_array(storage.read, name, node)


def parse_array(read: Read, label: str, node: str) -> Any:
    """Parse the metadata at a path; return the zarr package's array."""
    zarr = library()
    version_3_key, version_2_key = (f"{node}/{name}".lstrip("/") for name in ZARR_METADATA[:2])
    raw, version = hierarchy.read_metadata(read, version_3_key, label), 3
    if raw is None:
        raw, version = hierarchy.read_metadata(read, version_2_key, label), 2
    with convert_errors(label), suppress_warnings():
        document = json.loads(raw or b"")
        if not isinstance(document, dict):
            raise InputError(f"{printable(label)}: its metadata are no JSON object")
        if document.get("zarr_format") != version:
            zarr_format = format_value(document.get("zarr_format"))
            raise InputError(f"{printable(label)}: zarr_format {zarr_format}: expected {version}")
        chains.require_allowed(document, label)
        empty = zarr.storage.StorePath(zarr.storage.MemoryStore(), node)
        return zarr.Array(zarr.AsyncArray(document, empty))


def layout_of(array: Any, dtype: Dtype, label: str) -> chains.Layout:
    """Return the layout of an array's files."""
    with convert_errors(label), suppress_warnings():
        document = _to_json_types(array.metadata.to_dict())
        chunks = tuple(map(int, array.chunks))
        return chains.parse_layout(document, chunks, numpy_dtype(dtype))


def _to_json_types(value: Any) -> Any:
    """Convert the zarr package's metadata to JSON types."""
    if isinstance(value, dict):
        return {key: _to_json_types(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json_types(item) for item in value]
    if hasattr(value, "to_dict") or hasattr(value, "get_config"):
        return _to_json_types(
            value.get_config() if hasattr(value, "get_config") else value.to_dict()
        )
    return getattr(value, "value", value)


def metadata_of(array: Any, label: str) -> ArrayMetadata:
    """Return the array metadata of a Zarr array; NdtoolError if it exceeds a limit."""
    with convert_errors(label), suppress_warnings():
        zarr_metadata = array.metadata
        dtype = _dtype(array, label)
        shape, chunks = tuple(map(int, array.shape)), tuple(map(int, array.chunks))
        shards = None if array.shards is None else tuple(map(int, array.shards))
        codecs = tuple(_describe_codecs(array))
        layout = ChunkLayout(chunks, shards, codecs, int(zarr_metadata.zarr_format))
    if len(shape) > shapes.MAX_RANK:
        raise InputError(f"{printable(label)}: rank {len(shape)}: valid 0..{shapes.MAX_RANK}")
    metadata = ArrayMetadata(dtype, shape, "C", chunks, {"zarr_format": layout.version}, layout)
    # Sizes of 0 count as 1: the strides of (0, 2**62, 2**62) overflow int64.
    declared_nbytes = prod(size or 1 for size in shape) * dtype.itemsize
    min_size = min((*chunks, *(shards or ())), default=1)
    if min(shape, default=0) < 0 or min_size < 1 or declared_nbytes > shapes.MAX_SIZE:
        raise InputError(f"{printable(label)}: no array can have shape {list(shape)}")
    if (
        shards
        and (count := prod(n // k for n, k in zip(shards, chunks, strict=True))) > MAX_SHARD_CHUNKS
    ):
        raise ResourceError(
            f"{printable(label)}: a shard has {count} chunks: at most {MAX_SHARD_CHUNKS} can be"
            " in one"
        )
    if (nbytes := prod(chunks) * dtype.itemsize) > MAX_CHUNK_BYTES:
        raise ResourceError(
            f"{printable(label)}: a chunk has {nbytes} bytes: at most {MAX_CHUNK_BYTES} are read"
            " at once"
        )
    return metadata


def _dtype(array: Any, label: str) -> Dtype:
    dtype = array.dtype
    if dtype.hasobject or dtype.kind not in "biufcmMSUV":
        type_name = getattr(array.metadata, "data_type", None) or array.metadata.dtype
        type_name = printable(str(type_name), 80)
        raise InputError(
            f"{printable(label)}: elements of type {type_name}: expected a type of fixed size"
        )
    if any(_codec_config(codec).get("endian") == "big" for codec in _codecs(array)):
        dtype = dtype.newbyteorder(">")  # types of version 3 have no byte order
    try:
        return numpytypes.from_numpy(dtype)
    except DtypeError as exc:
        raise InputError(f"{printable(label)}: {exc.message}") from None


def _codecs(array: Any) -> list[dict[str, Any]]:
    """Return the codecs of a chunk, also of a chunk in a shard, in order of encoding."""
    document = _to_json_types(array.metadata.to_dict())
    if document["zarr_format"] == 2:
        codecs = [*(document.get("filters") or ()), document.get("compressor")]
        return [codec for codec in codecs if codec is not None]
    first, *_ = codecs = document["codecs"]
    return list(_codec_config(first)["codecs"] if first["name"] == chains.SHARDING else codecs)


def _codec_config(codec: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a codec, which in version 2 includes the name as `id`."""
    return codec if "id" in codec else codec.get("configuration") or {}


def _describe_codecs(array: Any) -> Iterator[str]:
    """Yield descriptions of a chunk's codecs with their levels: "zstd 3"."""
    for codec in _codecs(array):
        config = _codec_config(codec)
        level = config.get("level", config.get("clevel"))
        fields = (codec.get("name", codec.get("id")), config.get("cname"), level)
        yield " ".join(str(field) for field in fields if field is not None)
