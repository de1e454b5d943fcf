"""The Zarr format, version 3 and 2, through the zarr library: arrays in chunks, read one by one.

A block is a chunk; of a shard, its index and that chunk are read. Every read is a basic slice
that is one chunk, so that none is decoded twice, and the library never selects elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from threading import RLock
from typing import TYPE_CHECKING, Any

from ndtool.arrays import grid, zarrsite, zarrwriter
from ndtool.arrays.local import ZARR_METADATA, Folder, Tick, Told
from ndtool.arrays.source import Entry, Facts, Touched
from ndtool.arrays.storage import failure
from ndtool.arrays.targets import Target
from ndtool.arrays.zarrstore import (
    LISTED,
    arrays_in,
    codecs,
    facts_of,
    kind,
    label,
    open_array,
    said,
)
from ndtool.arrays.zarrwriter import ZarrSink
from ndtool.engine import crew
from ndtool.errors import InputError, NdtoolError, OutputError, UsageError, called, printable
from ndtool.rules.shapes import Shape

if TYPE_CHECKING:
    import numpy as np

_FLAGS = 1 << 26  # chunks up to which each has a flag of its own
_MASK = (1 << 64) - 1
_BLOSC = 16  # bytes of its header, of which the last four say how many there are


def recognises(place: Any) -> bool:
    """Tell whether a place is a folder: only those of Zarr stores are places."""
    return hasattr(place, "names")


def entries(place: Folder, path: str, member: str | None) -> list[Entry]:
    """Return what the metadata of all arrays, or of one, say; one that is none has no facts."""
    if member is not None:
        return [_entry(place, path, _choose(place, path, member))]
    return [_entry(place, path, member) for member in arrays_in(place)]


def open_source(place: Folder, name: str, path: str, member: str | None) -> ZarrSource:
    """Return one array, the only one where none is named; it closes the place."""
    chosen = _choose(place, path, member)
    array = open_array(place, path, chosen)
    return ZarrSource(name, facts_of(array, label(path, chosen)), array, place, chosen)


def check(target: Target) -> tuple[str, ...] | None:
    """Raise what `create` would about the target alone; return the arrays that stay."""
    return zarrsite.check(target)


def step(target: Target, facts: Facts) -> Shape:
    """Return the shape of the chunks, or shards, that a new array would have."""
    return zarrwriter.step(target, facts)


def create(target: Target, facts: Facts) -> ZarrSink:
    """Return a new array in a store, new or as it is."""
    return ZarrSink(target, facts)


def _choose(place: Folder, path: str, member: str | None) -> str:
    if member is not None:
        node = member.strip("/")
        if kind(place, node) == "array":
            return node
        known = arrays_in(place)
        inside = [one for one in known if one.startswith(f"{node}/")]
        if inside and node:
            raise _which(place, path, inside, f"{printable(member)} is a group of")
        raise InputError(
            f"{printable(path)}: {printable(member)} is not an array of the store",
            places=_listing(place, path, known),
        )
    known = arrays_in(place)
    if not known:
        raise InputError(f"{printable(path)}: the store has no arrays")
    if len(known) > 1:
        raise _which(place, path, known, "the store has")
    return known[0]


def _which(place: Folder, path: str, known: list[str], what: str) -> UsageError:
    count = f"{len(known)} arrays" if len(known) > 1 else "an array"
    return UsageError(
        f"{printable(path)}: {what} {count}: name one of them",
        places=_listing(place, path, known),
        hint=f"for example {printable(label(path, known[0]))}",
    )


def _listing(place: Folder, path: str, known: list[str]) -> tuple[str, ...]:
    lines = [
        f"{printable(one or '/', 80)}: {_entry(place, path, one).label}" for one in known[:LISTED]
    ]
    more = len(known) - LISTED
    return (*lines, f"and {more} more") if more > 0 else tuple(lines)


def _entry(place: Folder, path: str, node: str) -> Entry:
    name = label(path, node)
    try:
        facts = facts_of(open_array(place, path, node), name)
    except NdtoolError as exc:
        if isinstance(exc, UsageError):
            raise
        reason = exc.message.removeprefix(f"{printable(name)}: ")
        return Entry(name, node or None, None, None, place.size, reason, None)
    return Entry(name, node or None, facts, None, place.size, "in chunks", None)


class ZarrSource:
    """An array of a store.

    A change during the run is told by what its metadata's file and the files of all chunks that
    were read are like, each looked at before its first read and at the end.
    """

    warning = None
    tick: Tick | None = None

    def __init__(self, name: str, facts: Facts, array: Any, place: Folder, node: str) -> None:
        self.name, self.facts, self.at_once = name, facts, place.at_once
        self._array, self._place, self._node = array, place, node
        self._files = tuple(array.shards or array.chunks)  # elements of one file
        self._seen: set[int] | bytearray = set()
        count = grid.blocks(facts.shape, self._files)
        if count <= _FLAGS:
            self._seen = bytearray(count // 8 + 1)
        self._blosc = array.shards is None and codecs(array)[-1:] == ["blosc"]
        self._sum = 0
        self._lock = RLock()
        self._metadata = self._looked_at_metadata()

    def whole(self, touched: Touched | None = None) -> None:
        return None

    def block(self, number: int) -> memoryview:
        import numpy as np

        facts = self.facts
        place = grid.box(facts.shape, facts.grid, number)
        key = self._note(
            tuple(first // step for (first, _), step in zip(place, self._files, strict=True))
        )
        if self._blosc:
            self._check_blosc(key)
        with said(self.name):
            got = self._array.get_basic_selection(tuple(slice(*ends) for ends in place))
            block = np.ascontiguousarray(got, self._numpy())
            if block.size != prod(stop - first for first, stop in place):
                raise InputError(f"{called(self.name)}: a chunk has another size")
        raw: Any = block.reshape(-1).view(np.uint8)
        return memoryview(raw).toreadonly()

    def _check_blosc(self, key: str) -> None:
        """Refuse a chunk that is shorter than it says: its decoder would read beyond its end."""
        try:
            found = self._place.peek(key, _BLOSC)
        except OSError as exc:
            raise failure(exc, self.name) from None
        if found is None:
            return
        head, size = found
        if len(head) < _BLOSC or int.from_bytes(head[-4:], "little") != size:
            raise InputError(f"{called(self.name)}: a chunk of {size} bytes is cut short")

    def _numpy(self) -> np.dtype[Any]:
        from numpy.lib.format import descr_to_dtype

        dtype: np.dtype[Any] = descr_to_dtype(self.facts.dtype.descr)
        return dtype

    def recheck(self) -> None:
        change = self._place.change()
        if not change and self._looked_at_metadata() != self._metadata:
            change = "changed during the run"
        if not change and self._sum_now() != self._sum:
            change = "changed during the run: other bytes are in a chunk that was read"
        if change:
            raise OutputError(f"{called(self.name)} {change}")

    def told(self) -> Told:
        with said(self.name):
            return self._place.told(self._node)

    def is_open_as(self, fd: int) -> bool:
        return False

    def close(self) -> None:
        self._place.close()

    def _note(self, at: tuple[int, ...]) -> str:
        """Take note of what a chunk's file is like, before it is read first; return its key."""
        number, key = 0, self._key(at)
        for count, i in zip(grid.blocks_along(self.facts.shape, self._files), at, strict=True):
            number = number * count + i
        with self._lock:
            if isinstance(self._seen, set):
                new = number not in self._seen
                self._seen.add(number)
            else:
                new = not self._seen[number >> 3] >> (number & 7) & 1
                self._seen[number >> 3] |= 1 << (number & 7)
            if new and self._array.shards is not None:  # who reads another chunk of it waits
                self._take_note(number, key)
        if new and self._array.shards is None:
            self._take_note(number, key)
        return key

    def _take_note(self, number: int, key: str) -> None:
        told = self._place.ready(key, self._array.shards is None)
        with self._lock:
            self._sum = (self._sum + hash((number, *told))) & _MASK

    def _noted(self) -> Iterator[int]:
        if isinstance(self._seen, set):
            yield from self._seen
            return
        for byte, flags in enumerate(self._seen):
            for bit in range(8) if flags else ():
                if flags >> bit & 1:
                    yield byte * 8 + bit

    def _sum_now(self) -> int:
        """Return what the sum of the notes would be of the files that there are now."""
        total = [0]

        def look(number: int) -> None:
            box = grid.box(self.facts.shape, self._files, number)
            at = (first // step for (first, _), step in zip(box, self._files, strict=True))
            told = self._place.like(self._key(tuple(at)))
            with self._lock:
                total[0] = (total[0] + hash((number, *told))) & _MASK

        crew.share(look, self._noted(), self.at_once)
        return total[0]

    def _key(self, at: tuple[int, ...]) -> str:
        """Return the path in the store of the chunk or shard at a place of their grid."""
        return f"{self._node}/{self._array.metadata.encode_chunk_key(at)}".lstrip("/")

    def _looked_at_metadata(self) -> tuple[tuple[Any, ...], ...]:
        names = (f"{self._node}/{name}".lstrip("/") for name in ZARR_METADATA[:2])
        return tuple(map(self._place.like, names))
