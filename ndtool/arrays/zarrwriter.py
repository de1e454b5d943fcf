"""An array that is written to a Zarr store: whole chunks, in a folder that gets its name last."""

from __future__ import annotations

import os
import stat
from math import prod
from threading import Lock
from typing import Any, NamedTuple

from ndtool.arrays import grid
from ndtool.arrays import zarrstore as zarr
from ndtool.arrays.local import ZARR_METADATA, LocalFolder, is_store
from ndtool.arrays.newfolder import NewFolder
from ndtool.arrays.source import Facts
from ndtool.arrays.storage import failure
from ndtool.arrays.targets import Storing, Target, exists
from ndtool.errors import DtypeError, OutputError, UsageError, printable
from ndtool.rules import dtypes
from ndtool.rules.shapes import Shape


class Site(NamedTuple):
    """Where an array goes.

    path: the folder that takes its name at the end. rest: where the array is in it, "" where it is
    the array. above: groups that it is in, from the root on. old: whether something is there.
    version: that of the store. kept: arrays that stay in it, None where it is the store.
    """

    path: str
    rest: str
    above: tuple[str, ...]
    old: bool
    version: int | None
    kept: tuple[str, ...] | None


def site(target: Target) -> Site:
    """Return where an array goes; NdtoolError for what may not be written there."""
    root, parts = _split(target)
    if target.old is not None and not stat.S_ISDIR(target.old.st_mode):
        raise OutputError(
            f"{printable(target.path)} is a file: expected the folder of a Zarr store"
        )
    if target.old is None and parts and not os.path.lexists(root):
        return Site(root, "/".join(parts), (), False, None, None)
    if not parts or target.only:
        return _root(target, root, parts)
    here, above, rest = root, [], list(parts)
    while rest:
        if zarr.kind(here) != "group":
            raise OutputError(f"{printable(here)} is not a group: no array can be in it")
        above.append(here)
        here = os.path.join(here, rest.pop(0))
        if not os.path.lexists(here):
            break
    old = os.path.lexists(here)
    if old and not target.clobber:
        raise exists(f"{target.path}:{target.member}")
    if old and zarr.kind(here) != "array":
        what = "a group" if zarr.kind(here) == "group" else "something else"
        raise OutputError(f"{printable(here)} is {what}: only an array is replaced")
    store = zarr.arrays_in(LocalFolder(root))
    kept = tuple(name for name in store if name != "/".join(parts))
    return Site(here, "/".join(rest), tuple(above), old, _version(root), kept)


def _root(target: Target, root: str, parts: list[str]) -> Site:
    target.require_replaceable()
    known = zarr.arrays_in(LocalFolder(root)) if target.old is not None else []
    if not target.only and zarr.kind(root) == "group" and known:
        raise OutputError(
            f"{printable(target.path)} is a group of {len(known)} arrays: which is to be written?",
            places=tuple(map(printable, known[: zarr.LISTED])),
            hint=f"name it, as {printable(target.path)}:{printable(known[0])};"
            " --only replaces them all",
        )
    return Site(root, "/".join(parts), (), target.old is not None, None, None)


def _split(target: Target) -> tuple[str, list[str]]:
    """Return the folder of the whole store, and the names on the way to the array in it."""
    root, member = target.path.rstrip("/") or "/", target.member or ""
    parts = [part for part in member.split("/") if part]
    for part in parts:
        if part in (".", "..", *ZARR_METADATA) or part.startswith("__") or "\0" in part:
            raise UsageError(f"{printable(member)}: no array of a store can be called {part!r}")
    if target.member is not None and not parts:
        raise UsageError(f"{printable(target.path)}:{printable(member)}: the array has no name")
    while is_store(os.path.dirname(os.path.abspath(root))):
        root, name = os.path.split(os.path.abspath(root))
        parts.insert(0, name)
    return root, parts


def _version(root: str) -> int:
    return 3 if os.path.isfile(os.path.join(root, "zarr.json")) else 2


def check(target: Target) -> tuple[str, ...] | None:
    """Raise what `create` would about the target alone; return the arrays that stay."""
    zarr.library()
    place = site(target)
    parent = os.path.dirname(os.path.realpath(place.path))
    if not os.access(parent, os.W_OK | os.X_OK):
        raise OutputError(f"{printable(parent)}: it takes no folder")
    return place.kept


class ZarrSink:
    """An array whose chunks, or shards, are each written once, when their bytes are all there."""

    streamed = False

    def __init__(self, target: Target, facts: Facts) -> None:
        self.name = target.path
        library = zarr.library()
        self._site = site(target)
        self.kept = self._site.kept
        self._pending: dict[int, tuple[bytearray, list[int]]] = {}
        self._lock = Lock()
        try:
            self._folder = NewFolder(self._site.path, self._site.old, target.clobber, target.sync)
        except OSError as exc:
            raise failure(exc, self.name, OutputError) from None
        try:
            asked = target.storing
            version = self._site.version or asked.like.get("zarr_format", 3)
            self._array = _made(
                library, self._folder.inside, self._site.rest, facts, asked, version
            )
            step = tuple(map(int, self._array.shards or self._array.chunks))
            self.facts = facts._replace(grid=step)
            self._dtype = _numpy(facts)
        except BaseException:
            self.abort()
            raise

    def map(self) -> None:
        return None

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        """Write bytes of a block, in any order and from any thread."""
        total = self._nbytes(block)
        if start < 0 or start + len(view) > total:
            raise ValueError(f"{len(view)} bytes at {start} are not within {total}")
        if len(view) == total:
            self._put(block, view)
            return
        with self._lock:
            held, missing = self._pending.setdefault(block, (bytearray(total), [total]))
            held[start : start + len(view)] = view
            missing[0] -= len(view)
            if missing[0]:
                return
            del self._pending[block]
        self._put(block, memoryview(held))

    def _put(self, block: int, view: memoryview | bytearray) -> None:
        import numpy as np

        place = grid.box(self.facts.shape, self.facts.grid, block)
        sizes = tuple(stop - first for first, stop in place)
        part: Any = np.ndarray(sizes, self._dtype, view)
        with zarr.said(self.name, OutputError):
            self._array.set_basic_selection(tuple(slice(*ends) for ends in place), part)

    def _nbytes(self, block: int) -> int:
        place = grid.box(self.facts.shape, self.facts.grid, block)
        return prod(stop - first for first, stop in place) * self.facts.dtype.itemsize

    def finish(self) -> _Published:
        for block, (held, _) in self._pending.items():
            self._put(block, held)
        self._pending.clear()
        try:
            self._folder.sync()
        except OSError as exc:
            raise failure(exc, self.name, OutputError) from None
        return _Published(self._folder, self._site.above)

    def abort(self) -> None:
        self._folder.drop()


class _Published:
    """A folder in a store, whose groups may hold the metadata of all that is in them."""

    def __init__(self, folder: NewFolder, above: tuple[str, ...]) -> None:
        self.path = folder.path
        self._folder, self._above = folder, above

    def take_name(self) -> None:
        self._folder.take_name()
        for group in self._above:
            if _is_consolidated(group):
                store = zarr.library().storage.LocalStore(group)
                what = f"{self.path} is written, but not into the metadata of {group}"
                with zarr.said(what, OutputError), zarr.quiet():
                    zarr.library().consolidate_metadata(store)

    def sync_folder(self) -> None:
        self._folder.sync_folder()

    def drop(self) -> None:
        self._folder.drop()


def _is_consolidated(group: str) -> bool:
    if os.path.isfile(os.path.join(group, ".zmetadata")):
        return True
    try:
        with open(os.path.join(group, "zarr.json"), "rb") as file:
            return b'"consolidated_metadata":{' in b"".join(file.read().split())
    except OSError:
        return False


def _made(library: Any, folder: str, rest: str, facts: Facts, asked: Storing, version: int) -> Any:
    """Make an array without chunks in a new store."""
    import numpy as np

    dtype = _numpy(facts)
    told: dict[str, Any] = {"zarr_format": version, "compressors": _compressor(asked, version)}
    chunks, shards = _cut(facts.shape, asked, version)
    if version == 3 and facts.dtype.order == ">" and dtype.names is None:
        told["serializer"] = library.codecs.BytesCodec(endian="big")
    with zarr.said(folder, UsageError), zarr.quiet():
        try:
            made = library.create_array(
                library.storage.LocalStore(folder),
                name=rest or None,
                shape=facts.shape,
                dtype=dtype,
                chunks=chunks or "auto",
                shards=shards,
                fill_value=np.zeros((), dtype)[()],
                config={"write_empty_chunks": True},  # or what equals zero might lose its sign
                **told,
            )
            again = library.open_array(library.storage.LocalStore(folder), path=rest, mode="r")
        except (ValueError, TypeError) as exc:
            if "data type" in str(exc) or isinstance(exc, TypeError):
                raise _no_type(facts, version) from None
            raise
    if zarr.facts_of(again, folder).dtype != dtypes.from_descr(facts.dtype.descr):
        raise _no_type(facts, version)
    return made


def _no_type(facts: Facts, version: int) -> DtypeError:
    return DtypeError(f"Zarr {version} keeps no elements of type {facts.dtype.name} as they are")


def _numpy(facts: Facts) -> Any:
    import numpy as np
    from numpy.lib.format import descr_to_dtype

    descr = facts.dtype.descr
    try:
        return descr_to_dtype(descr) if not isinstance(descr, np.dtype) else descr
    except TypeError:
        raise DtypeError(
            f"{facts.dtype.name} is not one of NumPy's types on this machine"
        ) from None


def _cut(shape: Shape, asked: Storing, version: int) -> tuple[Shape | None, Shape | None]:
    """Return chunks and shards: those asked for, else those of data where the rank is the same."""
    for name, sizes in (("--chunks", asked.chunks), ("--shards", asked.shards)):
        if sizes is not None and len(sizes) != len(shape):
            raise UsageError(
                f"{name} {','.join(map(str, sizes))} has {len(sizes)} sizes:"
                f" the output has rank {len(shape)}"
            )
    if asked.shards is not None and version == 2:
        raise UsageError("--shards: a store of Zarr version 2 has no shards")
    chunks, shards = asked.chunks, asked.shards
    if chunks is None and shards is None and len(asked.like.get("chunks", ())) == len(shape):
        chunks = tuple(asked.like.get("chunks", ())) or None
        shards = tuple(asked.like.get("shards") or ()) if version == 3 else None
        if chunks and not shards:
            chunks = tuple(min(step, max(1, n)) for step, n in zip(chunks, shape, strict=True))
    if chunks and shards and any(whole % part for whole, part in zip(shards, chunks, strict=True)):
        raise UsageError(
            f"--shards {','.join(map(str, shards))} is no multiple of the chunks"
            f" {','.join(map(str, chunks))}"
        )
    return chunks, shards or None


def _compressor(asked: Storing, version: int) -> Any:
    """Return what compresses chunks: what was asked for, else what does so in data."""
    codec = asked.codec or _codec_of(asked.like)
    if codec is None:
        return "auto"
    name, _, level = codec.partition(":")
    if name == "none":
        return None
    if version == 2:
        import numcodecs

        kinds = {"zstd": numcodecs.Zstd, "gzip": numcodecs.GZip, "blosc": numcodecs.Blosc}
    else:
        from zarr import codecs

        kinds = {"zstd": codecs.ZstdCodec, "gzip": codecs.GzipCodec, "blosc": codecs.BloscCodec}
    key = "clevel" if name == "blosc" else "level"
    return kinds[name](**({key: int(level)} if level else {}))


def _codec_of(like: dict[str, Any]) -> str | None:
    """Return how data are compressed, as --codec says it; None where it cannot."""
    told = like.get("codecs", "")
    for codec in filter(None, told.split(", ")):
        name, *words = codec.split()
        if name in ("zstd", "gzip", "blosc"):
            return ":".join([name, *words[-1:]])
    return "none" if told in ("none", "bytes") else None
