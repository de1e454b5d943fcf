"""Files without a header, whose type is in the argument: raw:TYPE[SHAPE]:PATH[@OFFSET]."""

from __future__ import annotations

import os
import re
from math import prod
from typing import NamedTuple

from ndtool.arrays.source import ArrayMetadata, ContiguousSource, trailing_bytes_warning
from ndtool.errors import UsageError, printable, redact_urls, refuse
from ndtool.formats.decoding import open_range
from ndtool.rules import dtypes, shapes
from ndtool.rules.dtypes import Dtype
from ndtool.storage import locations
from ndtool.storage.local import File

# raw:TYPE[SHAPE]:PATH, where the type may have a unit in brackets.
_PATTERN = re.compile(r"raw:([^:\[\]]+(?:\[[0-9]*[A-Za-z]+\])?)\[([^\]]*)\]:(.+)", re.DOTALL)
SIZES_PATTERN = re.compile(r"(?:[0-9]{1,19}(?:, ?[0-9]{1,19})*)?")
_OFFSET_PATTERN = re.compile(r"(.+)@([0-9]{1,19})", re.DOTALL)


class Raw(NamedTuple):
    """A parsed raw: argument. warns_of_surplus: whether bytes after the array cause a warning."""

    dtype: Dtype
    shape: tuple[int, ...]
    path: str
    offset: int
    warns_of_surplus: bool

    @property
    def metadata(self) -> ArrayMetadata:
        """The array metadata that the argument declares."""
        return ArrayMetadata(self.dtype, self.shape, "C", self.shape, {"offset": self.offset})


def parse(argument: str) -> Raw:
    """Parse `raw:TYPE[SHAPE]:PATH[@OFFSET]`.

    If a file with the name PATH@OFFSET exists, the argument refers to it, and the offset is 0.
    Raises UsageError, and DtypeError for an unknown element type.
    """
    match = _PATTERN.fullmatch(argument)
    if match is None or not SIZES_PATTERN.fullmatch(match[2]):
        raise UsageError(
            f"{printable(argument)}: expected raw:TYPE[SIZE,...]:FILE[@OFFSET]",
            hint="for example raw:float32[1000,64]:dump.bin@4096",
        )
    path, offset = match[3], 0
    suffix = None if os.path.lexists(path) else _OFFSET_PATTERN.fullmatch(path)
    if suffix is not None:
        path, offset = suffix[1], int(suffix[2])
    dtype, shape = parse_type(argument, match[1], match[2], offset)
    return Raw(dtype, shape, path, offset, suffix is None)


def parse_type(
    argument: str, name: str, sizes: str, offset: int = 0
) -> tuple[Dtype, tuple[int, ...]]:
    """Parse the TYPE and SHAPE of an argument; DtypeError or UsageError if they are invalid."""
    shape = tuple(map(int, sizes.split(","))) if sizes else ()
    dtype = dtypes.from_name(name)
    # Sizes of 0 count as 1: the strides of (0, 2**62, 2**62) overflow int64.
    nbytes = prod(size or 1 for size in shape) * dtype.itemsize
    if len(shape) > shapes.MAX_RANK or max(*shape, 0, nbytes, offset) > shapes.MAX_SIZE:
        raise UsageError(
            f"{printable(argument)}: valid up to {shapes.MAX_RANK} sizes and {shapes.MAX_SIZE}"
            " bytes, axes of size 0 counted as 1"
        )
    return dtype, shape


def open_source(argument: str) -> ContiguousSource:
    """Open the array, memory-mapped."""
    raw, argument = parse(argument), redact_urls(argument)
    storage = locations.open_storage(raw.path)
    try:
        warning = _check_size(storage, argument, raw)
    except BaseException:
        storage.close()
        raise
    return open_range(storage, argument, argument, raw.metadata, raw.offset, warning=warning)


def _check_size(storage: File, argument: str, raw: Raw) -> str | None:
    """Raise InputError if the file is too short; return a warning if it is too long."""
    surplus_bytes = storage.size - raw.offset - raw.metadata.nbytes
    if surplus_bytes < 0:
        refuse(
            argument,
            f"expected {raw.metadata.nbytes} bytes at offset {raw.offset},"
            f" found {max(0, storage.size - raw.offset)}",
        )
    return trailing_bytes_warning(argument, surplus_bytes) if raw.warns_of_surplus else None
