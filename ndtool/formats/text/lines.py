"""Text in blocks of complete lines, for files of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ndtool.errors import InputError, printable

SIZE = 1 << 20  # bytes of a block
LONGEST = 16 << 20  # bytes of a line
_BOM = b"\xef\xbb\xbf"
_WIDE = (b"\xff\xfe", b"\xfe\xff")


def buffers(read: Callable[[int], bytes], label: str) -> Iterator[bytes]:
    """Yield the bytes of a text in buffers, without a byte order mark; InputError for UTF-16."""
    first = True
    while buffer := read(SIZE):
        if first and buffer.startswith(_WIDE):
            raise InputError(f"{printable(label)}: the text is UTF-16: expected UTF-8")
        yield buffer.removeprefix(_BOM) if first else buffer
        first = False


def blocks(read: Callable[[int], bytes], label: str) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of lines that end in a newline, each with the number of its first line."""
    rest, number = b"", 1
    for buffer in buffers(read, label):
        stop = buffer.rfind(b"\n") + 1
        if stop:
            block, rest = rest + buffer[:stop], buffer[stop:]
            yield number, block.replace(b"\r\n", b"\n")
            number += block.count(b"\n")
        else:
            rest += buffer
        if len(rest) > LONGEST:
            raise InputError(f"{printable(label)}: line {number} has more than {LONGEST} bytes")
    if rest:
        yield number, rest.removesuffix(b"\r") + b"\n"
