"""Elements as model files store them: in little-endian byte order, or packed."""

import os

from ndtool.errors import OutputError, printable
from ndtool.rules.dtypes import Dtype
from ndtool.storage.descriptors import BLOCK_SIZE, read_at, write_at


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
