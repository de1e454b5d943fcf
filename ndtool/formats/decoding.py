"""Elements as files store them: decoded on opening, into one buffer, and converted on writing."""

import io
import os
from collections.abc import Iterable, Iterator
from typing import Any

from ndtool.arrays.source import ArrayMetadata, ContiguousSource, Storage
from ndtool.errors import OutputError, UsageError, printable
from ndtool.rules.dtypes import Dtype
from ndtool.storage.descriptors import BLOCK_SIZE, read_at, write_at
from ndtool.storage.local import File

# Attributes by which NetCDF libraries convert the values.
NETCDF_ATTRIBUTES = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
_NAN = ("NaN", "AAAAAAAA+H8=", "AADAfw==")  # as xarray writes it in Zarr
DEFAULT_LIMIT = 1 << 30  # decompressed bytes of a member or text, without NDTOOL_MAX_INFLATE


def inflate_limit() -> int:
    """Return the maximum number of decompressed bytes of an archive's member or of a text."""
    text = os.environ.get("NDTOOL_MAX_INFLATE", "").strip()
    if not text:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise UsageError(f"NDTOOL_MAX_INFLATE is {printable(repr(text))}: expected bytes")
    return int(text)


def unapplied_warning(label: str, attributes: object) -> str | None:
    """Return the warning that attributes of NetCDF are not applied, None without such ones.

    attributes: by name. A fill value of NaN changes nothing.
    """
    if not isinstance(attributes, dict):
        return None
    fill = attributes.get("_FillValue")
    ignored = "_FillValue" if fill in _NAN or fill != fill else ""
    names = [name for name in NETCDF_ATTRIBUTES if name in attributes and name != ignored]
    text = f"{printable(label)}: values as stored: {', '.join(names)} not applied"
    return text if names else None


class InputFile(io.RawIOBase):
    """A file object from which a library reads a storage, from offset `start` on."""

    def __init__(self, storage: File, label: str, start: int = 0) -> None:
        self.storage, self.label, self.start, self.position = storage, label, start, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        position = offset + (0, self.position, self.storage.size - self.start)[whence]
        if position < 0:
            raise OSError("before the beginning of the file")
        self.position = position
        return position

    def tell(self) -> int:
        return self.position

    def readinto(self, buffer: Any) -> int:
        view, offset = memoryview(buffer).cast("B"), self.start + self.position
        count = max(0, min(len(view), self.storage.size - offset))
        view[:count] = self.storage.read(offset, count, self.label)
        self.position += count
        return count


def open_range(
    storage: File,
    name: str,
    label: str,
    metadata: ArrayMetadata,
    offset: int,
    bits: int = 8,
    *,
    owner: Storage | None = None,
    warning: str | None = None,
) -> ContiguousSource:
    """Open an array that is a byte range of a file; closing the source closes the file.

    bits: per element; packed elements, of fewer than 8 bits, are unpacked, others are mapped.
    owner: what the source closes instead of the file, and compares with its state at the start.
    """
    try:
        if not bits % 8:
            return ContiguousSource.in_file(name, metadata, storage, offset, label, warning, owner)
        from ndtool.engine import packing

        elements = packing.unpack_blocks(
            read_blocks(storage, offset, metadata.packed_nbytes, label), bits
        )
        buffer = join_blocks(elements, metadata.nbytes, label)
        return ContiguousSource(name, metadata, buffer, owner or storage, warning)
    except BaseException:
        storage.close()
        raise


def read_blocks(storage: File, start: int, nbytes: int, label: str) -> Iterator[bytes]:
    """Read a byte range of a file in blocks."""
    storage.download([(start, start + nbytes)])
    for offset in range(start, start + nbytes, BLOCK_SIZE):
        yield storage.read(offset, min(BLOCK_SIZE, start + nbytes - offset), label)


def join_blocks(blocks: Iterable[bytes], nbytes: int, label: str) -> memoryview:
    """Join decoded blocks to `nbytes` bytes, without the padding of the last block."""
    from ndtool.storage import tempfiles

    position = 0
    with tempfiles.open_buffer(nbytes, f"temporary copy of {printable(label)}") as (buffer, write):
        for block in blocks:
            elements = memoryview(block)[: nbytes - position]
            write(position, elements)
            position += len(elements)
    return buffer.toreadonly()


def convert_stored(fd: int, name: str, start: int, stop: int, dtype: Dtype) -> None:
    """Convert written elements in place to little-endian byte order, or pack them.

    Model files require both. Packed elements must be the last of the file, which becomes shorter.
    """
    is_swapped = dtype.order == ">" and dtype.swap_size > 1
    if not is_swapped and dtype.bits % 8 == 0:
        return
    from ndtool.engine import copies, packing

    for offset in range(start, stop, BLOCK_SIZE):  # a multiple of all swap and group sizes
        block = bytearray(read_at(fd, offset, min(BLOCK_SIZE, stop - offset)))
        if len(block) < min(BLOCK_SIZE, stop - offset):
            raise OutputError(f"{printable(name)}: the file became shorter")
        if is_swapped:
            copies.swap_bytes(memoryview(block), dtype.swap_size)
            write_at(fd, offset, block)
        else:
            packed = packing.pack(bytes(block), dtype.bits)
            write_at(fd, start + (offset - start) * dtype.bits // 8, packed)
    if not is_swapped:
        os.ftruncate(fd, start + -(-(stop - start) * dtype.bits // 8))
