"""Text: numbers in .txt, .csv, .tsv, .json and .jsonl files, or in any file as text:PATH.

A file is parsed when it is opened, into a buffer of elements, so that it is an array like others.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ndtool.arrays.source import ArrayMetadata, Flat, MemberInfo
from ndtool.errors import InputError, printable
from ndtool.formats.streams import Stream
from ndtool.formats.table import ANY, Wanted
from ndtool.formats.text import nested, rows, writer
from ndtool.formats.text.numbers import NotIntegersError, Values, as_float
from ndtool.publish.encoded import EncodedSink
from ndtool.publish.targets import Target
from ndtool.rules.dtypes import Dtype
from ndtool.storage import locations
from ndtool.storage.descriptors import CHUNK, reader
from ndtool.storage.local import ByteRange, File
from ndtool.storage.tempfiles import Spool

_JSON = {".json": nested, ".jsonl": nested}
_BEGINNINGS = {b"[": ".json", b"{": ".jsonl"}  # of text without a known suffix
_DESCRIBED = 32  # columns
Read = Callable[[int], bytes]


def recognises(storage: File) -> bool:
    """Return False: any bytes may be text, which only a suffix or `text:` identifies."""
    return False


def arrays(storage: File, path: str) -> list[str]:
    """Return the names of the columns; reads only the first lines."""
    suffix = _suffix(path)
    return [] if suffix in _JSON else list(rows.names(_read(storage, path), suffix, path) or ())


def entries(storage: File, path: str, member: str | None, wanted: Wanted = ANY) -> list[MemberInfo]:
    """Return the member info of chosen columns, or of each one with a name; reads all rows.

    Of many columns, those after the first ones have no metadata: each requires all rows.
    """
    if member is None and (names := arrays(storage, path)):
        rest = (
            MemberInfo(f"{path}:{name}", name, None, None, storage.size, "text", None)
            for name in names[_DESCRIBED:]
        )
        return [*(_entry(storage, path, name, wanted) for name in names[:_DESCRIBED]), *rest]
    return [_entry(storage, path, member, wanted)]


def _entry(storage: File, path: str, member: str | None, wanted: Wanted) -> MemberInfo:
    name = path if member is None else f"{path}:{member}"
    try:
        metadata, _ = _parsed(lambda: _read(storage, path), path, member, wanted, path)
    except InputError as exc:
        if member is None:
            raise
        reason = exc.message.removeprefix(f"{printable(path)}: ")
        return MemberInfo(name, member, None, None, storage.size, reason, None)
    return MemberInfo(name, member, metadata, None, storage.size, "text", None)


def open_source(
    storage: File, name: str, path: str, member: str | None, wanted: Wanted = ANY
) -> Flat:
    """Parse the chosen columns, or all of them; closing the source closes the file."""
    metadata, buffer = _parsed(lambda: _read(storage, path), path, member, wanted, path)
    return Flat(name, metadata, ByteRange(buffer), storage)


def read_stream(stream: Stream, member: str | None, wanted: Wanted) -> Flat:
    """Parse all that is left of a stream."""
    label = stream.begin()
    if wanted.dtype is not None or wanted.integers:
        metadata, buffer = _parsed(lambda: stream.text, "", member, wanted, label)
        return Flat(stream.name, metadata, ByteRange(buffer))
    spool = Spool(wanted.directory)  # as the type depends on all numbers, they may be read twice
    while piece := stream.text(CHUNK):
        spool.write(piece)
    copy = spool.finish()

    def read() -> Read:
        return reader(lambda at, n: bytes(copy[at : at + n]), 0)

    metadata, buffer = _parsed(read, "", member, wanted, label)
    return Flat(stream.name, metadata, ByteRange(buffer))


def stream_entry(stream: Stream, member: str | None, wanted: Wanted) -> MemberInfo:
    """Parse all that is left of a stream, and return its member info."""
    metadata = read_stream(stream, member, wanted).metadata
    return MemberInfo(stream.name, member, metadata, None, metadata.nbytes, "a stream", None)


def stored(dtype: Dtype) -> Dtype:
    """Return the element type as stored; DtypeError if it is none of numbers."""
    return writer.stored(dtype)


def create(target: Target, metadata: ArrayMetadata) -> EncodedSink:
    """Return a sink for a new file of a line for each row."""
    return writer.create(target, metadata, _suffix(target.path))


def _parsed(
    read: Callable[[], Read], path: str, member: str | None, wanted: Wanted, label: str
) -> tuple[ArrayMetadata, memoryview]:
    """Return metadata and elements. read: returns a function that reads from the beginning."""
    chosen = None if member is None else tuple(member.split(","))
    while True:
        values = Values(wanted, label)
        text, suffix = read(), _suffix(path)
        if not suffix:
            text, suffix = _guessed(text)
        try:
            shape = _JSON.get(suffix, rows).parse(text, suffix, chosen, values, label)
        except NotIntegersError:
            wanted = as_float(wanted)
            continue
        dtype, buffer = values.finish()
        return ArrayMetadata(dtype, shape, "C", shape, {}), buffer


def _guessed(read: Read) -> tuple[Read, str]:
    """Return a reader of the same text, and the suffix that its first character stands for."""
    begin = read(1 << 10)
    suffix = _BEGINNINGS.get(begin.removeprefix(b"\xef\xbb\xbf").lstrip()[:1], ".txt")

    def again(count: int) -> bytes:
        nonlocal begin
        head, begin = begin[:count], begin[count:]
        return head or read(count)

    return again, suffix


def _read(storage: File, label: str) -> Read:
    return reader(lambda at, n: storage.read(at, min(n, storage.size - at), label), 0)


def _suffix(path: str) -> str:
    name = path.partition("?")[0] if locations.is_url(path) else path
    suffix = os.path.splitext(name)[1]
    return suffix if suffix in (*_JSON, *rows.DELIMITERS, ".txt") else ""
