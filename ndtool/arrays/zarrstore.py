"""What the zarr package tells of stores: which arrays they have, and what these are like."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

from ndtool.arrays.local import ZARR_METADATA, Folder, LocalFolder
from ndtool.arrays.source import Facts
from ndtool.arrays.storage import failure
from ndtool.errors import DtypeError, InputError, NdtoolError, ResourceError, UsageError, printable
from ndtool.rules import dtypes, shapes
from ndtool.rules.dtypes import Dtype

LISTED = 10  # arrays that an error names
LARGEST = 1 << 31  # bytes of a chunk: each thread holds one
_REASON = 200  # characters of what the library says


def library() -> Any:
    """Return the zarr package; UsageError where there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import zarr
    except ImportError:
        raise UsageError(
            "a Zarr store needs the zarr package", hint="pip install 'ndtool[zarr]'"
        ) from None
    if int(zarr.__version__.partition(".")[0]) < 3:
        raise UsageError(
            f"zarr is of version {zarr.__version__}: expected 3 or later",
            hint="pip install --upgrade 'ndtool[zarr]'",
        )
    return zarr


@contextmanager
def said(label: str, kind: type[NdtoolError] = InputError) -> Iterator[None]:
    """Turn whatever the library raises about metadata or chunks into one sentence."""
    try:
        yield
    except NdtoolError:
        raise
    except MemoryError:
        raise ResourceError(f"{printable(label)}: no memory for a chunk") from None
    except OSError as exc:
        raise failure(exc, label, kind) from None
    except Exception as exc:  # it raises of every kind where what it reads is wrong
        reason = printable(" ".join(str(exc).split()) or type(exc).__name__, _REASON)
        raise kind(f"{printable(label)}: {reason}") from None


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the library's warnings, on what others may not be able to read, to itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def arrays_in(place: Folder) -> list[str]:
    """Return the paths of all arrays of a store, sorted; "" is the store itself.

    Behind a URL consolidated metadata are believed, as to list a store takes a request for each
    of its groups, and an http server lists nothing.
    """
    if not isinstance(place, LocalFolder) and (known := _consolidated(place)):
        return sorted(known)
    found, waiting = [], [""]
    while waiting:
        path = waiting.pop()
        here = kind(place, path)
        if here == "array":
            found.append(path)
        elif here == "group":
            if not place.lists:
                raise InputError(
                    f"{printable(place.path)} is a group without consolidated metadata, and its"
                    " server lists nothing: name the array"
                )
            waiting += [f"{path}/{name}" if path else name for name in place.names(path)]
    return sorted(found)


def is_consolidated(place: Folder) -> bool:
    """Whether a group has the metadata of all that is in it."""
    new = _json(place.read("zarr.json")).get("consolidated_metadata")
    return isinstance(new, dict) or place.read(".zmetadata") is not None


def _consolidated(place: Folder) -> list[str]:
    """Return the arrays that the metadata of all of a store tell of."""
    told = _json(place.read("zarr.json")).get("consolidated_metadata")
    told = told.get("metadata") if isinstance(told, dict) else None
    if isinstance(told, dict):
        return [
            path for path, one in told.items()
            if isinstance(one, dict) and one.get("node_type") == "array"
        ]  # fmt: skip
    old = _json(place.read(".zmetadata")).get("metadata")
    paths = old if isinstance(old, dict) else ()
    return [path.removesuffix(".zarray").rstrip("/") for path in paths if path.endswith(".zarray")]


def _json(raw: bytes | None) -> dict[str, Any]:
    """Return metadata, none where they are damaged: the package says what is wrong with them."""
    try:
        found = json.loads(raw or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def kind(place: Folder, path: str) -> str:
    """Say whether an array or a group is at a path; "" where it is neither."""
    new, old_array, old_group = (f"{path}/{name}".lstrip("/") for name in ZARR_METADATA[:3])
    raw = place.read(new)
    if raw is not None:
        return "group" if _json(raw).get("node_type") == "group" else "array"
    if place.read(old_array) is not None:
        return "array"
    return "group" if place.read(old_group) is not None else ""


def label(path: str, node: str) -> str:
    """Return what an array of a store is called."""
    return f"{path}:{node}" if node else path


def store_of(place: Folder, read_only: bool) -> Any:
    """Return a folder as the package takes it."""
    zarr = library()
    if isinstance(place, LocalFolder):
        return zarr.storage.LocalStore(place.path, read_only=read_only)
    from ndtool.arrays.remotefolder import RemoteFolder
    from ndtool.arrays.zarrremote import RemoteStore

    assert isinstance(place, RemoteFolder), "folders are here or behind a URL"
    return RemoteStore(place, read_only)


def open_array(place: Folder, path: str, node: str) -> Any:
    """Return the library's array at a path of a store."""
    zarr = library()
    called = label(path, node)
    with said(called), quiet():
        array = zarr.open(store=store_of(place, True), path=node, mode="r")
        if not isinstance(array, zarr.Array):
            raise InputError(f"{printable(called)} is a group: expected an array")
        return array


def facts_of(array: Any, label: str) -> Facts:
    """Return what the metadata of an array say."""
    with said(label), quiet():
        metadata = array.metadata
        dtype = _dtype(array, label)
        shape, chunks = tuple(map(int, array.shape)), tuple(map(int, array.chunks))
        shards = None if array.shards is None else list(map(int, array.shards))
        notes = {
            "zarr_format": int(metadata.zarr_format),
            "chunks": list(chunks),
            "shards": shards,
            "codecs": ", ".join(_described(array)) or "none",
        }
    if len(shape) > shapes.MOST_RANK:
        raise InputError(f"{printable(label)}: rank {len(shape)}: valid 0..{shapes.MOST_RANK}")
    facts = Facts(dtype, shape, "C", chunks, notes)
    # Zeros count as ones: (0, 2**62, 2**62) has strides that no integer holds.
    claimed = prod(size or 1 for size in shape) * dtype.itemsize
    least = min((*chunks, *(shards or ())), default=1)
    if min(shape, default=0) < 0 or least < 1 or claimed > shapes.MOST:
        raise InputError(f"{printable(label)}: no array can have shape {list(shape)}")
    if (held := prod(chunks) * dtype.itemsize) > LARGEST:
        raise ResourceError(
            f"{printable(label)}: a chunk has {held} bytes: at most {LARGEST} are read at once"
        )
    return facts


def _dtype(array: Any, label: str) -> Dtype:
    from numpy.lib.format import dtype_to_descr

    dtype = array.dtype
    if dtype.hasobject or dtype.kind not in "biufcmMSUV":
        kind = getattr(array.metadata, "data_type", None) or array.metadata.dtype
        kind = printable(str(kind), 80)
        raise InputError(
            f"{printable(label)}: elements of type {kind}: expected a type of fixed size"
        )
    if _is_big(array.metadata.to_dict()):
        dtype = dtype.newbyteorder(">")
    try:
        return dtypes.from_descr(dtype_to_descr(dtype))
    except DtypeError as exc:
        raise InputError(f"{printable(label)}: {exc.message}") from None


def _is_big(metadata: dict[str, Any]) -> bool:
    """Whether the codecs of version 3 store the other byte order than that of its types."""
    return any(
        codec.get("name") in ("bytes", "endian") and _configured(codec).get("endian") == "big"
        for codec in _chain(metadata)
    )


def _chain(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what encodes a chunk, in order: of a shard, what encodes a chunk in it."""
    if metadata.get("zarr_format") == 2:
        chain = [*(metadata.get("filters") or ()), metadata.get("compressor")]
        return [_as_dict(codec) for codec in chain if codec is not None]
    chain = [_as_dict(codec) for codec in metadata.get("codecs") or ()]
    inner = [_configured(c).get("codecs") for c in chain if c.get("name") == "sharding_indexed"]
    return [_as_dict(codec) for codec in inner[0]] if inner and inner[0] else chain


def _as_dict(codec: Any) -> dict[str, Any]:
    if isinstance(codec, dict):
        return codec
    told: dict[str, Any] = (codec.get_config if hasattr(codec, "get_config") else codec.to_dict)()
    return told


def _configured(codec: dict[str, Any]) -> dict[str, Any]:
    told = codec.get("configuration") or {}
    return {key: getattr(value, "value", value) for key, value in told.items()}


def codecs(array: Any) -> list[str]:
    """Return the names of what encodes a chunk."""
    with quiet():
        chain = _chain(array.metadata.to_dict())
    return [str(codec.get("name") or codec.get("id")) for codec in chain]


def _described(array: Any) -> Iterator[str]:
    """Yield what encodes a chunk, with the levels."""
    for name, codec in zip(codecs(array), _chain(array.metadata.to_dict()), strict=True):
        told = _configured(codec) or codec
        level = told.get("level", told.get("clevel"))
        inner = f" {told['cname']}" if "cname" in told else ""
        yield name + inner + (f" {level}" if level is not None else "")
