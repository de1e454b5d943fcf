"""Text in blocks of complete lines, for files of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ndtool.errors import InputError, printable

READ_SIZE = 1 << 20
MAX_LINE_BYTES = 16 << 20
_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")


def read_buffers(read: Callable[[int], bytes], label: str) -> Iterator[bytes]:
    """Yield the bytes of a text in buffers, without the byte order mark; InputError for UTF-16."""
    first = True
    while buffer := read(READ_SIZE):
        if first and buffer.startswith(_UTF16_BOMS):
            raise InputError(f"{printable(label)}: the text is UTF-16: expected UTF-8")
        yield buffer.removeprefix(_BOM) if first else buffer
        first = False


def read_blocks(read: Callable[[int], bytes], label: str) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of complete lines, each with the number of its first line."""
    incomplete_line, line_number = b"", 1
    for buffer in read_buffers(read, label):
        stop = buffer.rfind(b"\n") + 1
        if stop:
            block, incomplete_line = incomplete_line + buffer[:stop], buffer[stop:]
            yield line_number, block.replace(b"\r\n", b"\n")
            line_number += block.count(b"\n")
        else:
            incomplete_line += buffer
        if len(incomplete_line) > MAX_LINE_BYTES:
            raise InputError(
                f"{printable(label)}: line {line_number} has more than {MAX_LINE_BYTES} bytes"
            )
    if incomplete_line:
        yield line_number, incomplete_line.removesuffix(b"\r") + b"\n"
