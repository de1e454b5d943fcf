"""Text in blocks of complete lines, for files of any size, compressed with gzip or not."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from ndtool.errors import InputError, ResourceError, printable, refuse
from ndtool.formats.decoding import inflate_limit

Read = Callable[[int], bytes]
READ_SIZE = 1 << 20
MAX_LINE_BYTES = 16 << 20
GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")


def decompressed(read: Read, label: str) -> Read:
    """Return a function that reads the same text; if it is compressed with gzip, the content."""
    head = read(1 << 10)
    if not head.startswith(GZIP):
        return join(head, read)
    import gzip

    limit, total = inflate_limit(), 0
    file: Any = SimpleNamespace(read=join(head, read))  # the method that GzipFile calls
    stream = gzip.GzipFile(fileobj=file)

    def read_content(count: int) -> bytes:
        nonlocal total
        try:
            block: bytes = stream.read(count)
        except (OSError, EOFError, zlib.error) as exc:
            if isinstance(exc, InputError):
                raise
            problem = "truncated" if isinstance(exc, EOFError) else "damaged"
            refuse(label, f"the compressed text is {problem}")
        total += len(block)
        if total > limit:
            raise ResourceError(
                f"{printable(label)}: more than {limit} bytes decompressed",
                hint="NDTOOL_MAX_INFLATE allows more; uncompressed text has no limit",
            )
        return block

    return read_content


def join(head: bytes, read: Read) -> Read:
    """Return a function that reads `head`, then what `read` reads."""

    def read_joined(count: int) -> bytes:
        nonlocal head
        block, head = head[:count], head[count:]
        return block + read(count - len(block)) if len(block) < count else block

    return read_joined


def read_buffers(read: Read, label: str) -> Iterator[bytes]:
    """Yield the bytes of a text in buffers, without the byte order mark; InputError for UTF-16.

    Their size doubles up to eight times READ_SIZE.
    """
    first, size = True, READ_SIZE
    while buffer := read(size):
        if first and buffer.startswith(_UTF16_BOMS):
            refuse(label, "the text is UTF-16: expected UTF-8")
        yield buffer.removeprefix(_BOM) if first else buffer
        first, size = False, min(2 * size, 8 * READ_SIZE)


def read_blocks(read: Read, label: str) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of complete lines, each with the number of its first line."""
    incomplete_line, length, line_number = list[bytes](), 0, 1
    for buffer in read_buffers(read, label):
        stop = buffer.rfind(b"\n") + 1
        if stop:
            block = b"".join([*incomplete_line, buffer[:stop]])
            incomplete_line, length = [], 0
            yield line_number, block.replace(b"\r\n", b"\n") if b"\r" in block else block
            line_number += block.count(b"\n")
        incomplete_line.append(buffer[stop:])
        length += len(buffer) - stop
        if length > MAX_LINE_BYTES:
            refuse(label, f"line {line_number} has more than {MAX_LINE_BYTES} bytes")
    if last_line := b"".join(incomplete_line):
        yield line_number, last_line.removesuffix(b"\r") + b"\n"
