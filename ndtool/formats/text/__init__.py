"""Text: numbers in .txt, .csv, .tsv, .json and .jsonl files, or in any file as text:PATH.

A file is parsed when it is opened, into a buffer of elements, so that it is an array like others.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ndtool.arrays.source import ArrayMetadata, FlatSource, MemberInfo
from ndtool.errors import InputError, printable
from ndtool.formats.streams import Stream
from ndtool.formats.table import ANY, TextOptions
from ndtool.formats.text import nested, rows, writer
from ndtool.formats.text.numbers import NotIntegersError, Values, as_float
from ndtool.publish.encoded import EncodedSink
from ndtool.publish.targets import Target
from ndtool.storage import locations
from ndtool.storage.descriptors import BLOCK_SIZE, sequential_reader
from ndtool.storage.local import ByteRange, File
from ndtool.storage.tempfiles import Spool

_JSON = {".json": nested, ".jsonl": nested}
_BEGINNINGS = {b"[": ".json", b"{": ".jsonl"}  # of text without a known suffix
_DESCRIBED = 32  # columns
Read = Callable[[int], bytes]
stored = writer.stored


def recognises(storage: File) -> bool:
    """Return False: any bytes may be text, which only a suffix or `text:` identifies."""
    return False


def arrays(storage: File, path: str) -> list[str]:
    """Return the names of the columns; reads only the first lines."""
    suffix = _suffix(path)
    return [] if suffix in _JSON else list(rows.names(_read(storage, path), suffix, path) or ())


def entries(
    storage: File, path: str, member: str | None, options: TextOptions = ANY
) -> list[MemberInfo]:
    """Return the member info of chosen columns, or of each one with a name; reads all rows.

    Of many columns, those after the first ones have no metadata: each requires all rows.
    """
    if member is None and (names := arrays(storage, path)):
        rest = (
            MemberInfo(f"{path}:{name}", name, None, None, storage.size, "text")
            for name in names[_DESCRIBED:]
        )
        return [*(_entry(storage, path, name, options) for name in names[:_DESCRIBED]), *rest]
    return [_entry(storage, path, member, options)]


def _entry(storage: File, path: str, member: str | None, options: TextOptions) -> MemberInfo:
    name = path if member is None else f"{path}:{member}"
    try:
        metadata, _ = _parsed(lambda: _read(storage, path), path, member, options, path)
    except InputError as exc:
        if member is None:
            raise
        reason = exc.message.removeprefix(f"{printable(path)}: ")
        return MemberInfo(name, member, None, None, storage.size, reason)
    return MemberInfo(name, member, metadata, None, storage.size, "text")


def open_source(
    storage: File, name: str, path: str, member: str | None, options: TextOptions = ANY
) -> FlatSource:
    """Parse the chosen columns, or all of them; closing the source closes the file."""
    metadata, buffer = _parsed(lambda: _read(storage, path), path, member, options, path)
    return FlatSource(name, metadata, ByteRange(buffer), storage)


def read_stream(stream: Stream, member: str | None, options: TextOptions) -> FlatSource:
    """Parse the rest of a stream."""
    label = stream.begin()
    if options.dtype is not None or options.integers:
        metadata, buffer = _parsed(lambda: stream.text, "", member, options, label)
        return FlatSource(stream.name, metadata, ByteRange(buffer))
    spool = Spool(options.directory)  # as the type depends on all numbers, they may be read twice
    while block := stream.text(BLOCK_SIZE):
        spool.write(block)
    copy = spool.finish()

    def read() -> Read:
        return sequential_reader(lambda start, n: bytes(copy[start : start + n]), 0)

    metadata, buffer = _parsed(read, "", member, options, label)
    return FlatSource(stream.name, metadata, ByteRange(buffer))


def stream_entry(stream: Stream, member: str | None, options: TextOptions) -> MemberInfo:
    """Parse the rest of a stream, and return its member info."""
    metadata = read_stream(stream, member, options).metadata
    return MemberInfo(stream.name, member, metadata, None, metadata.nbytes, "a stream")


def create(target: Target, metadata: ArrayMetadata) -> EncodedSink:
    """Return a sink for a new file with a line for each row."""
    return writer.create(target, metadata, _suffix(target.path))


def _parsed(
    read: Callable[[], Read], path: str, member: str | None, options: TextOptions, label: str
) -> tuple[ArrayMetadata, memoryview]:
    """Return metadata and elements. read: returns a function that reads from the beginning."""
    selected = None if member is None else tuple(member.split(","))
    while True:
        values = Values(options, label)
        text, suffix = read(), _suffix(path)
        if not suffix:
            text, suffix = _detect_format(text)
        try:
            shape = _JSON.get(suffix, rows).parse(text, suffix, selected, values, label)
        except NotIntegersError:
            options = as_float(options)
            continue
        dtype, buffer = values.finish()
        return ArrayMetadata(dtype, shape, "C", shape, {}), buffer


def _detect_format(read: Read) -> tuple[Read, str]:
    """Return a reader of the same text, and the suffix of the format of its first character."""
    buffer = read(1 << 10)
    suffix = _BEGINNINGS.get(buffer.removeprefix(b"\xef\xbb\xbf").lstrip()[:1], ".txt")

    def read_buffered(count: int) -> bytes:
        nonlocal buffer
        block, buffer = buffer[:count], buffer[count:]
        return block or read(count)

    return read_buffered, suffix


def _read(storage: File, label: str) -> Read:
    return sequential_reader(
        lambda start, n: storage.read(start, min(n, storage.size - start), label), 0
    )


def _suffix(path: str) -> str:
    name = path.partition("?")[0] if locations.is_url(path) else path
    suffix = os.path.splitext(name)[1]
    return suffix if suffix in (*_JSON, *rows.DELIMITERS, ".txt") else ""
