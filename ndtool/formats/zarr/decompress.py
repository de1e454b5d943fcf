"""Decompressors with bounded output, for untrusted chunks.

Each takes the compressed bytes, the maximum decompressed size, and whether that is the exact size.
Damaged bytes raise ValueError or an exception of the library.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

Decompress = Callable[[memoryview, int, bool], bytes | bytearray]

_INPUT_BLOCK = 1 << 16  # maximum compressed bytes per call of a decompressor
_BLOSC_HEADER_SIZE = 16
_ZSTD_MAGIC, _SKIPPABLE_MAGIC, _SKIPPABLE_MASK = 0xFD2FB528, 0x184D2A50, 0xFFFFFFF0
_MAX_ZSTD_BLOCKS = 1 << 20  # per chunk; a block has up to 128 KiB
_RLE_BLOCK = 1


def decompressor(config: dict[str, Any]) -> Decompress | None:
    """Return the decompressor of a numcodecs codec, None if the codec is not a compressor."""
    match config["id"]:
        case "gzip":
            return partial(_decompress_streams, lambda: zlib.decompressobj(16 + zlib.MAX_WBITS))
        case "zlib":
            return partial(_decompress_streams, zlib.decompressobj)
        case "bz2":
            from bz2 import BZ2Decompressor

            return partial(_decompress_streams, BZ2Decompressor)
        case "lzma":
            return partial(_decompress_streams, _lzma_factory(config))
        case "zstd":
            return _decompress_zstd
        case "lz4":
            return _decompress_lz4
        case "blosc":
            return _decompress_blosc
    return None


def _lzma_factory(config: dict[str, Any]) -> Callable[[], Any]:
    import lzma

    container, filters = config.get("format", lzma.FORMAT_XZ), config.get("filters")
    return lambda: lzma.LZMADecompressor(container, filters=filters)


def _decompress_streams(
    make_decompressor: Callable[[], Any], raw: memoryview, max_nbytes: int, is_exact: bool
) -> bytearray:
    """Decompress one stream or several concatenated ones; trailing bytes are ignored."""
    out, offset, stream_start, stream_count, decompressor = (
        bytearray(),
        0,
        0,
        0,
        make_decompressor(),
    )
    while offset < len(raw):
        data = raw[offset : offset + _INPUT_BLOCK]
        try:
            out += decompressor.decompress(data, max_nbytes + 1 - len(out))
        except MemoryError:
            raise
        except Exception:
            if not stream_count or raw[stream_start : stream_start + 2] == raw[:2]:
                raise  # a damaged stream
            stream_start = len(raw)  # trailing bytes
            break
        if len(out) > max_nbytes:
            raise ValueError(f"a chunk has more than {max_nbytes} bytes decompressed")
        offset += len(data)
        if decompressor.eof:
            offset -= len(decompressor.unused_data)
            stream_count += 1
            stream_start, decompressor = offset, make_decompressor()
    if not stream_count or (
        stream_start < len(raw) and raw[stream_start : stream_start + 2] == raw[:2]
    ):
        raise ValueError(f"a chunk of {len(raw)} bytes is truncated")
    return out


def _decompress_lz4(raw: memoryview, max_nbytes: int, is_exact: bool) -> bytes:
    import numcodecs

    _require_size(int.from_bytes(raw[:4], "little"), max_nbytes)
    return numcodecs.LZ4().decode(raw)  # type: ignore[no-any-return]


def _decompress_blosc(raw: memoryview, max_nbytes: int, is_exact: bool) -> bytes:
    import numcodecs

    size, stored_nbytes = (int.from_bytes(raw[offset : offset + 4], "little") for offset in (4, 12))
    # numcodecs would read out of bounds.
    if len(raw) < _BLOSC_HEADER_SIZE or stored_nbytes != len(raw):
        raise ValueError(f"a chunk of {len(raw)} bytes is truncated")
    _require_size(size, max_nbytes)
    return numcodecs.Blosc().decode(raw)  # type: ignore[no-any-return]


def _require_size(size: int, max_nbytes: int) -> None:
    if size > max_nbytes:
        raise ValueError(f"a chunk claims {size} bytes: at most {max_nbytes} are valid")


class _ZstdFrame(NamedTuple):
    """A zstd frame: its byte range in a chunk, the offset of its blocks, and its content size.

    content_size: None if the frame's header has none.
    """

    start: int
    blocks_offset: int
    stop: int
    content_size: int | None


def _decompress_zstd(raw: memoryview, max_nbytes: int, is_exact: bool) -> bytes:
    """Decompress zstd frames, one by one.

    For a frame without a content size, the library's output is unbounded. If a chunk has a single
    such frame, its expected size is inserted; the library then rejects content of another size.
    """
    import numcodecs

    decode, total_size, unsized_count, decoded = numcodecs.Zstd().decode, 0, 0, []
    for frame in _zstd_frames(raw):
        total_size += frame.content_size or 0
        unsized_count += frame.content_size is None
    _require_size(total_size, max_nbytes)
    if unsized_count > 1 or (unsized_count and (not is_exact or total_size == max_nbytes)):
        raise ValueError("a zstd frame has no content size")
    for frame in _zstd_frames(raw):
        encoded: Any = raw[frame.start : frame.stop]
        if frame.content_size is None:
            encoded = _insert_content_size(raw, frame, max_nbytes - total_size)
        if frame.content_size != 0:  # the library rejects empty frames
            decoded.append(decode(encoded))
    return decoded[0] if len(decoded) == 1 else b"".join(decoded)


def _insert_content_size(raw: memoryview, frame: _ZstdFrame, size: int) -> bytes:
    """Return a copy of a frame with an 8-byte content size inserted into its header."""
    start = frame.start + 4
    descriptor = bytes((raw[start] | 0xC0,))
    header, blocks = raw[start + 1 : frame.blocks_offset], raw[frame.blocks_offset : frame.stop]
    return b"".join(
        (raw[frame.start : start], descriptor, header, size.to_bytes(8, "little"), blocks)
    )


def _zstd_frames(raw: memoryview) -> Iterator[_ZstdFrame]:
    offset, block_count = 0, 0

    def read_integer(start: int, size: int) -> int:
        if start + size > len(raw):
            raise ValueError("a zstd frame is truncated")
        return int.from_bytes(raw[start : start + size], "little")

    while offset < len(raw):
        start, magic = offset, read_integer(offset, 4)
        if magic & _SKIPPABLE_MASK == _SKIPPABLE_MAGIC:
            offset += 8 + read_integer(offset + 4, 4)
            continue
        if magic != _ZSTD_MAGIC:
            raise ValueError("not a zstd frame")
        flags = read_integer(offset + 4, 1)
        is_single_segment, has_checksum = flags >> 5 & 1, flags >> 2 & 1
        # The magic number and the flags, a window descriptor, a dictionary ID.
        offset += 5 + (not is_single_segment) + (0, 1, 2, 4)[flags & 3]
        width = (is_single_segment, 2, 4, 8)[flags >> 6]
        size = read_integer(offset, width) + (256 if width == 2 else 0) if width else None
        offset = blocks_offset = offset + width
        is_last, is_empty = False, True
        while not is_last:
            block_header = read_integer(offset, 3)
            is_last, is_empty = bool(block_header & 1), is_empty and not block_header >> 3
            offset += 3 + (1 if block_header >> 1 & 3 == _RLE_BLOCK else block_header >> 3)
            if (block_count := block_count + 1) > _MAX_ZSTD_BLOCKS:
                raise ValueError(f"more than {_MAX_ZSTD_BLOCKS} zstd blocks")
        offset += 4 * has_checksum
        if offset > len(raw):
            raise ValueError("a zstd frame is truncated")
        if size == 0 and not is_empty:
            raise ValueError("a zstd frame has a content size of 0, but is not empty")
        yield _ZstdFrame(start, blocks_offset, offset, 0 if is_empty and size is None else size)
