"""Bytes of a file as an array of a type and shape that the argument says: raw:TYPE[SHAPE]:PATH."""

from __future__ import annotations

import os
import re
from math import prod
from typing import NamedTuple

from ndtool.arrays import places
from ndtool.arrays.local import File
from ndtool.arrays.source import Entry, Facts, Flat, surplus
from ndtool.errors import InputError, UsageError, printable, redacted
from ndtool.rules import dtypes, shapes
from ndtool.rules.dtypes import Dtype

# A type, which may have a unit in brackets, a shape, then a path, which may have anything.
_FORM = re.compile(r"raw:([^:\[\]]+(?:\[[0-9]*[A-Za-z]+\])?)\[([^\]]*)\]:(.+)", re.DOTALL)
_SIZES = re.compile(r"(?:[0-9]{1,19}(?:, ?[0-9]{1,19})*)?")
_OFFSET = re.compile(r"(.+)@([0-9]{1,19})", re.DOTALL)


class Raw(NamedTuple):
    """An argument, taken apart; ends: whether the array is to reach the end of the file."""

    dtype: Dtype
    shape: tuple[int, ...]
    path: str
    offset: int
    ends: bool

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def facts(self) -> Facts:
        """What the argument says of the array."""
        return Facts(self.dtype, self.shape, "C", self.shape, {"offset": self.offset})


def parse(argument: str) -> Raw:
    """Take `raw:TYPE[SHAPE]:PATH[@OFFSET]` apart.

    A file whose name ends in `@` and digits comes first. Raises UsageError, and DtypeError for
    what is no element type.
    """
    match = _FORM.fullmatch(argument)
    if match is None or not _SIZES.fullmatch(match[2]):
        raise UsageError(
            f"{printable(argument)}: expected raw:TYPE[SIZE,...]:FILE[@OFFSET]",
            hint="for example raw:float32[1000,64]:dump.bin@4096",
        )
    shape = tuple(map(int, match[2].split(","))) if match[2] else ()
    dtype, path, offset = dtypes.from_name(match[1]), match[3], 0
    where = None if os.path.lexists(path) else _OFFSET.fullmatch(path)
    if where is not None:
        path, offset = where[1], int(where[2])
    # Zeros count as ones: (0, 2**62, 2**62) has strides that no integer holds.
    claimed = prod(size or 1 for size in shape) * dtype.itemsize
    if len(shape) > shapes.MOST_RANK or max(*shape, 0, claimed, offset) > shapes.MOST:
        raise UsageError(
            f"{printable(argument)}: valid up to {shapes.MOST_RANK} sizes and {shapes.MOST} bytes,"
            " axes of size 0 counted as 1"
        )
    return Raw(dtype, shape, path, offset, where is None)


def entries(argument: str) -> list[Entry]:
    """Return what `inspect` tells about the array."""
    raw = parse(argument)
    with places.open_place(raw.path) as place:
        argument = redacted(argument)
        warning = _checked(place, argument, raw)
        return [Entry(argument, None, raw.facts, raw.offset, place.size, "", warning)]


def open_source(argument: str) -> Flat:
    """Return the array, mapped where it is."""
    raw, argument = parse(argument), redacted(argument)
    place = places.open_place(raw.path)
    try:
        warning = _checked(place, argument, raw)
        stretch = place.stretch(raw.offset, raw.nbytes, argument)
        return Flat(argument, raw.facts, stretch, place, warning)
    except BaseException:
        place.close()
        raise


def _checked(place: File, argument: str, raw: Raw) -> str | None:
    """Refuse a file that is too short; return what is odd about one that is too long."""
    left = place.size - raw.offset - raw.nbytes
    if left < 0:
        raise InputError(
            f"{printable(argument)}: expected {raw.nbytes} bytes from byte {raw.offset} on,"
            f" found {max(0, place.size - raw.offset)}"
        )
    return surplus(argument, left) if raw.ends else None
