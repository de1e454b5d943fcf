"""The Zarr format, version 3 and 2, through the zarr library: arrays in chunks, read one by one.

A block is a chunk; of a shard, its index and that chunk are read. Every read is a basic slice
that is one chunk, so that none is decoded twice, and the library never selects elements.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import prod
from threading import Lock
from typing import TYPE_CHECKING, Any

from ndtool.arrays import grid, zarrwriter
from ndtool.arrays.local import ZARR_METADATA, LocalFolder
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
from ndtool.errors import InputError, NdtoolError, OutputError, UsageError, called, printable

if TYPE_CHECKING:
    import numpy as np

_FLAGS = 1 << 26  # chunks up to which each has a flag of its own
_MASK = (1 << 64) - 1
_BLOSC = 16  # bytes of its header, of which the last four say how many there are


def recognises(place: Any) -> bool:
    """Tell whether a place is a folder: only those of Zarr stores are places."""
    return isinstance(place, LocalFolder)


def entries(place: LocalFolder, path: str, member: str | None) -> list[Entry]:
    """Return what the metadata of all arrays, or of one, say; one that is none has no facts."""
    if member is not None:
        return [_entry(place, path, _choose(place, path, member))]
    return [_entry(place, path, member) for member in arrays_in(place)]


def open_source(place: LocalFolder, name: str, path: str, member: str | None) -> ZarrSource:
    """Return one array, the only one where none is named; it closes the place."""
    chosen = _choose(place, path, member)
    array = open_array(place, path, chosen)
    return ZarrSource(name, facts_of(array, label(path, chosen)), array, place, chosen)


def check(target: Target) -> tuple[str, ...] | None:
    """Raise what `create` would about the target alone; return the arrays that stay."""
    return zarrwriter.check(target)


def create(target: Target, facts: Facts) -> ZarrSink:
    """Return a new array in a store, new or as it is."""
    return zarrwriter.ZarrSink(target, facts)


def _choose(place: LocalFolder, path: str, member: str | None) -> str:
    if member is not None:
        node = member.strip("/")
        if kind(os.path.join(place.path, node)) == "array":
            return node
        inside = [one for one in arrays_in(place) if one.startswith(f"{node}/")]
        if inside and node:
            raise _which(place, path, inside, f"{printable(member)} is a group of")
        raise InputError(
            f"{printable(path)}: {printable(member)} is not an array of the store",
            places=_listing(place, path, arrays_in(place)),
        )
    known = arrays_in(place)
    if not known:
        raise InputError(f"{printable(path)}: the store has no arrays")
    if len(known) > 1:
        raise _which(place, path, known, "the store has")
    return known[0]


def _which(place: LocalFolder, path: str, known: list[str], what: str) -> UsageError:
    count = f"{len(known)} arrays" if len(known) > 1 else "an array"
    return UsageError(
        f"{printable(path)}: {what} {count}: name one of them",
        places=_listing(place, path, known),
        hint=f"for example {printable(label(path, known[0]))}",
    )


def _listing(place: LocalFolder, path: str, known: list[str]) -> tuple[str, ...]:
    lines = [
        f"{printable(one or '/', 80)}: {_entry(place, path, one).label}" for one in known[:LISTED]
    ]
    more = len(known) - LISTED
    return (*lines, f"and {more} more") if more > 0 else tuple(lines)


def _entry(place: LocalFolder, path: str, node: str) -> Entry:
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

    A change during the run is told by the size, time and number of its metadata's file and of the
    files of all chunks that were read, each looked at before its first read and at the end.
    """

    warning = None

    def __init__(self, name: str, facts: Facts, array: Any, place: LocalFolder, node: str) -> None:
        self.name, self.facts = name, facts
        self._array, self._place = array, place
        self._folder = os.path.join(place.path, node)
        self._files = tuple(array.shards or array.chunks)  # elements of one file
        self._seen: set[int] | bytearray = set()
        count = grid.blocks(facts.shape, self._files)
        if count <= _FLAGS:
            self._seen = bytearray(count // 8 + 1)
        self._blosc = array.shards is None and codecs(array)[-1:] == ["blosc"]
        self._sum = 0
        self._lock = Lock()
        self._metadata = self._looked_at_metadata()

    def whole(self, touched: Touched | None = None) -> None:
        return None

    def block(self, number: int) -> memoryview:
        import numpy as np

        facts = self.facts
        place = grid.box(facts.shape, facts.grid, number)
        self._note(
            tuple(first // step for (first, _), step in zip(place, self._files, strict=True))
        )
        if self._blosc:
            self._check_blosc(place)
        with said(self.name):
            got = self._array.get_basic_selection(tuple(slice(*ends) for ends in place))
            block = np.ascontiguousarray(got, self._numpy())
            if block.size != prod(stop - first for first, stop in place):
                raise InputError(f"{called(self.name)}: a chunk has another size")
        raw: Any = block.reshape(-1).view(np.uint8)
        return memoryview(raw).toreadonly()

    def _check_blosc(self, place: grid.Box) -> None:
        """Refuse a chunk that is shorter than it says: its decoder would read beyond its end."""
        try:
            with open(self._file(place), "rb") as file:
                head, size = file.read(_BLOSC), os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return
        except OSError as exc:
            raise failure(exc, self.name) from None
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
        if not change and sum(map(self._looked_at, self._noted())) & _MASK != self._sum:
            change = "changed during the run: other bytes are in a chunk that was read"
        if change:
            raise OutputError(f"{called(self.name)} {change}")

    def is_open_as(self, fd: int) -> bool:
        return False

    def close(self) -> None:
        self._place.close()

    def _note(self, at: tuple[int, ...]) -> None:
        """Take note of what the file of a chunk is like, before it is read first."""
        number = 0
        for count, i in zip(grid.blocks_along(self.facts.shape, self._files), at, strict=True):
            number = number * count + i
        with self._lock:
            if isinstance(self._seen, set):
                new = number not in self._seen
                self._seen.add(number)
            else:
                new = not self._seen[number >> 3] >> (number & 7) & 1
                self._seen[number >> 3] |= 1 << (number & 7)
            if new:
                self._sum = (self._sum + self._looked_at(number)) & _MASK

    def _noted(self) -> Iterator[int]:
        if isinstance(self._seen, set):
            yield from self._seen
            return
        for byte, flags in enumerate(self._seen):
            for bit in range(8) if flags else ():
                if flags >> bit & 1:
                    yield byte * 8 + bit

    def _looked_at(self, number: int) -> int:
        """Return a number that tells what the file of a chunk is like from what it was."""
        path = self._file(grid.box(self.facts.shape, self._files, number))
        return hash((number, *_like(path))) & _MASK

    def _file(self, place: grid.Box) -> str:
        """Return where the chunk or shard is that has an element."""
        at = tuple(first // step for (first, _), step in zip(place, self._files, strict=True))
        return os.path.join(self._folder, self._array.metadata.encode_chunk_key(at))

    def _looked_at_metadata(self) -> tuple[tuple[int, ...], ...]:
        return tuple(_like(os.path.join(self._folder, name)) for name in ZARR_METADATA[:2])


def _like(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_size, status.st_mtime_ns, status.st_ino
