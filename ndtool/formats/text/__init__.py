"""Text: numbers in .txt, .csv, .tsv, .json and .jsonl files, or in any file as text:PATH.

Each may be compressed with gzip.

A file is parsed completely when it is opened, into a contiguous buffer of elements.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ndtool.arrays.source import ArrayMetadata, ContiguousSource, MemberInfo
from ndtool.errors import InputError, UsageError, printable
from ndtool.formats.rows import EncodedSink
from ndtool.formats.streams import Stream
from ndtool.formats.table import DEFAULT_OPTIONS, TextOptions
from ndtool.formats.text import lines, nested, rows, writer
from ndtool.formats.text.lines import Read
from ndtool.formats.text.values import FLOAT64, NotIntegersError, Values
from ndtool.publish.targets import Target
from ndtool.storage import locations
from ndtool.storage.descriptors import BLOCK_SIZE, sequential_reader
from ndtool.storage.local import File
from ndtool.storage.tempfiles import Spool

_JSON = (".json", ".jsonl", ".ndjson")
_SUFFIXES_BY_FIRST_BYTE = {b"[": ".json", b"{": ".jsonl"}  # of text without a known suffix
_MAX_DESCRIBED = 32  # columns with metadata in `entries`
stored_dtype = writer.stored_dtype


def recognises(storage: File) -> bool:
    """Return False: any bytes may be text, which only a suffix or `text:` identifies."""
    return False


def array_names(storage: File, path: str) -> list[str]:
    """Return the names of the columns; reads lines up to the header."""
    suffix = _suffix(path)
    if suffix in _JSON:
        return []
    text = lines.decompressed(_open_text(storage, path), path)
    return list(rows.column_names(text, suffix, path) or ())


def entries(
    storage: File, path: str, member: str | None, options: TextOptions = DEFAULT_OPTIONS
) -> list[MemberInfo]:
    """Return the member info of the selected columns, or of each named column; reads all rows.

    Only the first _MAX_DESCRIBED columns have metadata: each requires reading all rows.
    """
    if member is None and (names := array_names(storage, path)):
        described, others = names[:_MAX_DESCRIBED], names[_MAX_DESCRIBED:]
        infos = [_entry(storage, path, name, options) for name in described]
        return infos + [MemberInfo(f"{path}:{name}", name, None, None, "text") for name in others]
    return [_entry(storage, path, member, options)]


def _entry(storage: File, path: str, member: str | None, options: TextOptions) -> MemberInfo:
    name = path if member is None else f"{path}:{member}"
    try:
        source = open_source(storage, name, path, member, options)
    except InputError as exc:
        if member is None:
            raise
        reason = exc.message.removeprefix(f"{printable(path)}: ")
        return MemberInfo(name, member, None, None, reason)
    return MemberInfo(name, member, source.metadata, None, "text", source.warning)


def open_source(
    storage: File, name: str, path: str, member: str | None, options: TextOptions = DEFAULT_OPTIONS
) -> ContiguousSource:
    """Parse the selected columns, or all columns; closing the source closes the file."""
    return _parse(lambda: _open_text(storage, path), path, member, options, path, name, storage)


def read_stream(stream: Stream, member: str | None, options: TextOptions) -> ContiguousSource:
    """Parse a stream up to its end."""
    label = stream.begin()
    if options.dtype is not None or options.integers:
        return _parse(lambda: stream.read_bytes, "", member, options, label, stream.name)
    spool = Spool(options.directory)  # text may be read twice, as its type depends on all numbers
    while block := stream.read_bytes(BLOCK_SIZE):
        spool.write(block)
    copy = spool.finish()

    def open_text() -> Read:
        return sequential_reader(lambda start, n: bytes(copy[start : start + n]), 0)

    return _parse(open_text, "", member, options, label, stream.name)


def create(target: Target, metadata: ArrayMetadata) -> EncodedSink:
    """Return a sink for a new file with a line for each row."""
    if target.path.endswith(".gz"):
        raise UsageError(f"{printable(target.path)}: compressed text is read, never written")
    return writer.create(target, metadata, _suffix(target.path))


def _parse(
    open_text: Callable[[], Read],
    path: str,
    member: str | None,
    options: TextOptions,
    label: str,
    name: str,
    storage: File | None = None,
) -> ContiguousSource:
    """Return a source of the elements. open_text: returns a function that reads from the start."""
    selected = None if member is None else tuple(member.split(","))
    while True:
        values = Values(options, label, name)
        read_text, suffix = lines.decompressed(open_text(), label), _suffix(path)
        if not suffix:
            read_text, suffix = _detect_format(read_text)
        try:
            parse = nested.parse if suffix in _JSON else rows.parse
            shape = parse(read_text, suffix, selected, values, label)
        except NotIntegersError:
            options = options._replace(dtype=FLOAT64)
            continue
        dtype, buffer = values.finish()
        metadata = ArrayMetadata(dtype, shape, "C", shape, {})
        return ContiguousSource(name, metadata, buffer, storage, values.warning)


def _detect_format(read: Read) -> tuple[Read, str]:
    """Return a function that reads the same text, and the suffix for the text's first character."""
    head = read(1 << 10)
    suffix = _SUFFIXES_BY_FIRST_BYTE.get(head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1], ".txt")
    return lines.join(head, read), suffix


def _open_text(storage: File, label: str) -> Read:
    return sequential_reader(
        lambda start, n: storage.read(start, min(n, storage.size - start), label), 0
    )


def _suffix(path: str) -> str:
    name = path.partition("?")[0] if locations.is_url(path) else path
    suffix = os.path.splitext(name.removesuffix(".gz"))[1]
    return suffix if suffix in (*_JSON, *rows.DELIMITERS_BY_SUFFIX, ".txt") else ""
