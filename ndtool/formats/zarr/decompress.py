"""Decompressors with bounded output, for untrusted chunks.

Each takes the compressed bytes, the maximum decompressed size, and whether the size must be exactly
that. Damaged bytes raise ValueError or the library's own exception.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

Decompress = Callable[[memoryview, int, bool], bytes | bytearray]

_STEP = 1 << 16  # compressed bytes per call of a decompressor
_BLOSC_HEADER = 16
_ZSTD, _SKIPPABLE, _SKIPPABLE_MASK = 0xFD2FB528, 0x184D2A50, 0xFFFFFFF0
_ZSTD_BLOCKS = 1 << 20  # maximum per chunk, each of up to 128 KiB
_RLE = 1


def decompressor(config: dict[str, Any]) -> Decompress | None:
    """Return the decompressor for a numcodecs configuration, None if it is no compressor."""
    match config["id"]:
        case "gzip":
            return partial(_streamed, lambda: zlib.decompressobj(16 + zlib.MAX_WBITS))
        case "zlib":
            return partial(_streamed, zlib.decompressobj)
        case "bz2":
            from bz2 import BZ2Decompressor

            return partial(_streamed, BZ2Decompressor)
        case "lzma":
            return partial(_streamed, _lzma(config))
        case "zstd":
            return _zstd
        case "lz4":
            return _lz4
        case "blosc":
            return _blosc
    return None


def _lzma(config: dict[str, Any]) -> Callable[[], Any]:
    import lzma

    kind, filters = config.get("format", lzma.FORMAT_XZ), config.get("filters")
    return lambda: lzma.LZMADecompressor(kind, filters=filters)


def _streamed(make: Callable[[], Any], raw: memoryview, max_nbytes: int, exact: bool) -> bytearray:
    """Decompress one stream or several concatenated ones; trailing bytes are ignored."""
    out, offset, first, streams, stream = bytearray(), 0, 0, 0, make()
    while offset < len(raw):
        data = raw[offset : offset + _STEP]
        try:
            out += stream.decompress(data, max_nbytes + 1 - len(out))
        except MemoryError:
            raise
        except Exception:
            if not streams or raw[first : first + 2] == raw[:2]:  # a damaged stream
                raise
            first = len(raw)  # trailing bytes
            break
        if len(out) > max_nbytes:
            raise ValueError(f"a chunk has more than {max_nbytes} bytes decompressed")
        offset += len(data)
        if stream.eof:
            offset -= len(stream.unused_data)
            streams += 1
            first, stream = offset, make()
    if not streams or (first < len(raw) and raw[first : first + 2] == raw[:2]):
        raise ValueError(f"a chunk of {len(raw)} bytes is truncated")
    return out


def _lz4(raw: memoryview, max_nbytes: int, exact: bool) -> bytes:
    import numcodecs

    _require_size(int.from_bytes(raw[:4], "little"), max_nbytes)
    return numcodecs.LZ4().decode(raw)  # type: ignore[no-any-return]


def _blosc(raw: memoryview, max_nbytes: int, exact: bool) -> bytes:
    import numcodecs

    size, stored_nbytes = (int.from_bytes(raw[offset : offset + 4], "little") for offset in (4, 12))
    if len(raw) < _BLOSC_HEADER or stored_nbytes != len(raw):  # numcodecs would read out of bounds
        raise ValueError(f"a chunk of {len(raw)} bytes is truncated")
    _require_size(size, max_nbytes)
    return numcodecs.Blosc().decode(raw)  # type: ignore[no-any-return]


def _require_size(size: int, max_nbytes: int) -> None:
    if size > max_nbytes:
        raise ValueError(f"a chunk claims {size} bytes: at most {max_nbytes} are valid")


class _Frame(NamedTuple):
    """A zstd frame: its byte range in a chunk, the offset of its blocks, and its content size.

    size: None if the frame's header has none.
    """

    start: int
    blocks: int
    stop: int
    size: int | None


def _zstd(raw: memoryview, max_nbytes: int, exact: bool) -> bytes:
    """Decompress zstd frames, one by one.

    For a frame without a content size, the library's output is unbounded. In one such frame, the
    expected size is inserted; the library then rejects content of any other size.
    """
    import numcodecs

    decode, total, unsized, decoded = numcodecs.Zstd().decode, 0, 0, []
    for frame in _zstd_frames(raw):
        total += frame.size or 0
        unsized += frame.size is None
    _require_size(total, max_nbytes)
    if unsized > 1 or (unsized and (not exact or total == max_nbytes)):
        raise ValueError("a zstd frame has no content size")
    for frame in _zstd_frames(raw):
        encoded: Any = raw[frame.start : frame.stop]
        if frame.size is None:
            encoded = _with_size(raw, frame, max_nbytes - total)
        if frame.size != 0:  # the library rejects empty frames
            decoded.append(decode(encoded))
    return decoded[0] if len(decoded) == 1 else b"".join(decoded)


def _with_size(raw: memoryview, frame: _Frame, size: int) -> bytes:
    """Return a copy of a frame with an 8-byte content size inserted into its header."""
    start = frame.start + 4
    head = bytes((raw[start] | 0xC0,))
    return b"".join((
        raw[frame.start : start], head, raw[start + 1 : frame.blocks], size.to_bytes(8, "little"),
        raw[frame.blocks : frame.stop],
    ))  # fmt: skip


def _zstd_frames(raw: memoryview) -> Iterator[_Frame]:
    offset, count = 0, 0

    def number(start: int, size: int) -> int:
        if start + size > len(raw):
            raise ValueError("a zstd frame is truncated")
        return int.from_bytes(raw[start : start + size], "little")

    while offset < len(raw):
        start, magic = offset, number(offset, 4)
        if magic & _SKIPPABLE_MASK == _SKIPPABLE:
            offset += 8 + number(offset + 4, 4)
            continue
        if magic != _ZSTD:
            raise ValueError("not a zstd frame")
        flags = number(offset + 4, 1)
        single, checksum = flags >> 5 & 1, flags >> 2 & 1
        offset += 5 + (not single) + (0, 1, 2, 4)[flags & 3]  # window descriptor, dictionary ID
        width = (single, 2, 4, 8)[flags >> 6]
        size = number(offset, width) + (256 if width == 2 else 0) if width else None
        offset = blocks = offset + width
        is_last, is_empty = False, True
        while not is_last:
            head = number(offset, 3)
            is_last, is_empty = bool(head & 1), is_empty and not head >> 3
            offset += 3 + (1 if head >> 1 & 3 == _RLE else head >> 3)
            if (count := count + 1) > _ZSTD_BLOCKS:
                raise ValueError(f"more than {_ZSTD_BLOCKS} zstd blocks")
        offset += 4 * checksum
        if offset > len(raw):
            raise ValueError("a zstd frame is truncated")
        if size == 0 and not is_empty:
            raise ValueError("a zstd frame has a content size of 0, but is not empty")
        yield _Frame(start, blocks, offset, 0 if is_empty and size is None else size)
