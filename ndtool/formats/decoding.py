"""Arrays that are decoded on opening, to a contiguous buffer in memory or in an unnamed file."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ndtool.errors import InputError, NdtoolError, ResourceError, library_message, printable
from ndtool.storage.descriptors import BLOCK_SIZE
from ndtool.storage.local import ByteRange


@contextmanager
def library_errors(label: str, kind: type[NdtoolError] = InputError) -> Iterator[None]:
    """Raise a library's exceptions about a file as NdtoolErrors; damage may raise any type."""
    try:
        yield
    except NdtoolError:
        raise
    except MemoryError:
        raise ResourceError(f"{printable(label)}: not enough memory") from None
    except Exception as exc:
        raise kind(f"{printable(label)}: {library_message(exc)}") from None


def blocks_of(buffer: memoryview) -> Iterator[bytes]:
    """Yield a buffer in blocks."""
    for start in range(0, len(buffer), BLOCK_SIZE):
        yield bytes(buffer[start : start + BLOCK_SIZE])


def joined(decoded: Iterable[bytes], nbytes: int, label: str) -> ByteRange:
    """Return the first bytes of decoded blocks; the last block may have padding."""
    from ndtool.storage import tempfiles

    buffer, position = tempfiles.allocate(nbytes, f"temporary copy of {printable(label)}"), 0
    for block in decoded:
        elements = block[: nbytes - position]
        buffer[position : position + len(elements)] = elements
        position += len(elements)
    return ByteRange(buffer.toreadonly())
