"""An array that is written to a Zarr store: whole chunks, in a folder that gets its name last."""

from __future__ import annotations

from math import prod
from threading import Lock
from typing import Any, NamedTuple

from ndtool.arrays import grid, zarrsite
from ndtool.arrays import zarrstore as zarr
from ndtool.arrays.newfile import Unpublished
from ndtool.arrays.shared import Shared
from ndtool.arrays.source import Facts
from ndtool.arrays.storage import failure
from ndtool.arrays.targets import Storing, Target
from ndtool.arrays.zarrsite import NewStore, Site
from ndtool.engine import crew
from ndtool.errors import DtypeError, OutputError, UsageError
from ndtool.rules import dtypes
from ndtool.rules.shapes import Shape


class Chunks:
    """An array of a store whose chunks, or shards, are written, each as a whole."""

    streamed = False

    def __init__(self, name: str, facts: Facts, array: Any, at_once: int = 1) -> None:
        self.name, self.facts, self.at_once = name, facts, at_once
        self._array, self._dtype = array, _numpy(facts)

    @classmethod
    def again(cls, shared: Shared) -> Chunks:
        """Return an array that another process made."""
        library = zarr.library()
        with zarr.said(shared.name, OutputError), zarr.quiet():
            store = zarrsite.again(shared)
            array = library.open_array(store, path=shared.within, mode="r+")
            array = array.with_config({"write_empty_chunks": True})
        at_once = 1 if shared.mark is None else crew.MOST  # a store far away takes its time
        return cls(shared.name, shared.facts, array, at_once)

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        """Write all bytes of a block, from any thread."""
        if start or len(view) != self.nbytes(block):
            raise ValueError(f"{len(view)} bytes at {start} are no block")
        self.put(block, view)

    def put(self, block: int, view: memoryview | bytearray) -> None:
        """Write a block."""
        import numpy as np

        place = grid.box(self.facts.shape, self.facts.grid, block)
        sizes = tuple(stop - first for first, stop in place)
        part: Any = np.ndarray(sizes, self._dtype, view)
        with zarr.said(self.name, OutputError):
            self._array.set_basic_selection(tuple(slice(*ends) for ends in place), part)

    def nbytes(self, block: int) -> int:
        """Return how many bytes a block has."""
        place = grid.box(self.facts.shape, self.facts.grid, block)
        return prod(stop - first for first, stop in place) * self.facts.dtype.itemsize

    def close(self) -> None:
        """Do nothing: a store is not open."""


class ZarrSink:
    """An array whose chunks, or shards, are each written once, when their bytes are all there."""

    streamed = False

    def __init__(self, target: Target, facts: Facts) -> None:
        self.name = target.path
        library = zarr.library()
        self._site = zarrsite.site(target)
        self.kept = self._site.kept
        self._pending: dict[int, tuple[bytearray, list[int]]] = {}
        self._lock = Lock()
        try:
            self._output = zarrsite.output(self._site, target)
        except OSError as exc:
            raise failure(exc, self.name, OutputError) from None
        try:
            self._array = _made(library, self._output, facts, target.storing, self._site)
            step = _step(self._array)
            self.facts = facts._replace(grid=step, notes={"chunks": list(step)})
            self._chunks = Chunks(self.name, self.facts, self._array)
        except BaseException:
            self.abort()
            raise

    @property
    def at_once(self) -> int:
        return self._output.at_once

    def map(self) -> None:
        return None

    def shared(self) -> Shared | None:
        """Return how other processes write to it, None where they cannot."""
        return self._output.shared(self.name, self.facts)

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        """Write bytes of a block, in any order and from any thread."""
        total = self._chunks.nbytes(block)
        if start < 0 or start + len(view) > total:
            raise ValueError(f"{len(view)} bytes at {start} are not within {total}")
        if len(view) == total:
            self._chunks.put(block, view)
            return
        with self._lock:
            held, missing = self._pending.setdefault(block, (bytearray(total), [total]))
            held[start : start + len(view)] = view
            missing[0] -= len(view)
            if missing[0]:
                return
            del self._pending[block]
        self._chunks.put(block, memoryview(held))

    def finish(self) -> Unpublished:
        for block, (held, _) in self._pending.items():
            self._chunks.put(block, held)
        self._pending.clear()
        try:
            self._output.sync()
        except OSError as exc:
            raise failure(exc, self.name, OutputError) from None
        return self._output

    def abort(self) -> None:
        self._output.drop()


def step(target: Target, facts: Facts) -> Shape:
    """Return the shape of the chunks, or shards, that a new array would have."""
    library = zarr.library()
    nowhere = Nowhere(target.path, library.storage.MemoryStore())
    return _step(_made(library, nowhere, facts, target.storing, zarrsite.site(target)))


def _step(array: Any) -> Shape:
    return tuple(map(int, array.shards or array.chunks))


class Nowhere(NamedTuple):
    """A store that is only looked at."""

    path: str
    store: Any
    within: str = ""


def _made(
    library: Any, output: NewStore | Nowhere, facts: Facts, asked: Storing, site: Site
) -> Any:
    """Make an array without chunks in a new store."""
    import numpy as np

    version = site.version or asked.like.get("zarr_format", 3)
    dtype = _numpy(facts)
    told: dict[str, Any] = {"zarr_format": version, "compressors": _compressor(asked, version)}
    chunks, shards = _cut(facts.shape, asked, version)
    if version == 3 and facts.dtype.order == ">" and dtype.names is None:
        told["serializer"] = library.codecs.BytesCodec(endian="big")
    with zarr.said(output.path, UsageError), zarr.quiet():
        try:
            made = library.create_array(
                output.store,
                name=output.within or None,
                shape=facts.shape,
                dtype=dtype,
                chunks=chunks or "auto",
                shards=shards,
                fill_value=np.zeros((), dtype)[()],
                config={"write_empty_chunks": True},  # or what equals zero might lose its sign
                **told,
            )
            again = library.open_array(output.store, path=output.within, mode="r")
        except (ValueError, TypeError) as exc:
            if "data type" in str(exc) or isinstance(exc, TypeError):
                raise _no_type(facts, version) from None
            raise
    if zarr.facts_of(again, output.path).dtype != dtypes.from_descr(facts.dtype.descr):
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
