"""Codecs of chunks, of Zarr and HDF5 alike: a table of them, and chains with bounded output.

The libraries of these formats run any codec that is installed, and trust the sizes in the bytes of
a chunk. Here the maximum size of a chunk follows from an array's metadata, and is enforced before
and after each codec.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ndtool.errors import UsageError, format_value
from ndtool.rules.plans import Shape

if TYPE_CHECKING:
    import numpy as np

Decode = Callable[[memoryview, int, bool], Any]

_INPUT_BLOCK = 1 << 16  # maximum bytes given to a decompressor after the first stream
_BLOSC_HEADER_SIZE = 16
_ZSTD_MAGIC, _SKIPPABLE_MAGIC, _SKIPPABLE_MASK = 0xFD2FB528, 0x184D2A50, 0xFFFFFFF0
_MAX_ZSTD_BLOCKS = 1 << 20  # per chunk; a block has up to 128 KiB
_RLE_BLOCK = 1


class Codec(NamedTuple):
    """A codec from bytes to bytes.

    max_encoded: returns the maximum encoded size for a decoded size. is_fixed_size: whether every
    encoded size is the maximum. decode: takes the encoded bytes, the maximum decoded size, and
    whether every decoded size is the maximum; damaged bytes raise ValueError or an exception of a
    codec's library. needs_library: whether it is numcodecs'.
    """

    name: str
    max_encoded: Callable[[int], int]
    is_fixed_size: bool
    decode: Decode
    encode: Callable[[Any], Any]
    needs_library: bool = True


class Chain:
    """The codecs of a chunk: a permutation of its axes, then codecs of bytes, in order.

    nbytes: size of a decoded chunk. max_nbytes: maximum size of an encoded chunk. is_fixed_size:
    whether every encoded chunk has that size.
    """

    def __init__(
        self, shape: Shape, dtype: np.dtype[Any], axes: Sequence[int], codecs: Iterable[Codec]
    ) -> None:
        self._dtype, self._axes, self._codecs = dtype, tuple(axes), tuple(codecs)
        self._stored_shape = tuple(shape[axis] for axis in axes)
        self._inverse_axes = tuple(sorted(range(len(shape)), key=self._axes.__getitem__))
        self.nbytes = prod(shape) * dtype.itemsize
        self._sizes = self._sizes_of(self._codecs)
        self.max_nbytes, self.is_fixed_size = self._sizes[-1]

    def _sizes_of(self, codecs: Sequence[Codec]) -> list[tuple[int, bool]]:
        """Return the maximum size after each codec, and whether it is the size of every chunk."""
        sizes = [(self.nbytes, True)]
        for codec in codecs:
            size, is_exact = sizes[-1]
            sizes.append((codec.max_encoded(size), is_exact and codec.is_fixed_size))
        return sizes

    def require_library(self) -> None:
        """Raise UsageError if a codec needs the numcodecs package, which is missing."""
        names = [codec.name for codec in self._codecs if codec.needs_library]
        if names and not has_library():
            raise UsageError(
                f"codec {names[0]} needs the numcodecs package", hint="pip install 'ndtool[zarr]'"
            )

    def decode(self, raw: bytes, skipped: int = 0) -> np.ndarray[Any, Any]:
        """Decode a chunk. skipped: a bit is set for each codec that was not applied."""
        import numpy as np

        codecs, sizes = self._codecs, self._sizes
        if skipped:
            codecs = tuple(codec for i, codec in enumerate(codecs) if not skipped >> i & 1)
            sizes = self._sizes_of(codecs)
        chunk = memoryview(raw)
        _check_size(chunk, sizes[-1], "a chunk")
        with np.errstate(all="ignore"):  # overflow in a filter is no error
            for codec, (size, is_exact) in zip(reversed(codecs), sizes[-2::-1], strict=True):
                chunk = _as_bytes(codec.decode(chunk, size, is_exact))
                _check_size(chunk, (size, is_exact), f"a chunk without {codec.name}")
        return (
            np.frombuffer(chunk, self._dtype)
            .reshape(self._stored_shape)
            .transpose(self._inverse_axes)
        )

    def encode(self, array: np.ndarray[Any, Any]) -> memoryview:
        import numpy as np

        chunk: Any = np.ascontiguousarray(array.transpose(self._axes)).reshape(-1)
        for codec in self._codecs:
            chunk = codec.encode(chunk)
        return _as_bytes(chunk)


def _check_size(chunk: memoryview, expected: tuple[int, bool], subject: str) -> None:
    size, is_exact = expected
    if len(chunk) > size or (is_exact and len(chunk) != size):
        qualifier = "" if is_exact else "at most "
        raise ValueError(f"{subject} has {len(chunk)} bytes: expected {qualifier}{size}")


def _as_bytes(buffer: Any) -> memoryview:
    import numpy as np

    if isinstance(buffer, np.ndarray):
        buffer = np.ascontiguousarray(buffer).reshape(-1).view(np.uint8)
    return memoryview(buffer).cast("B")


# The table


def make(config: dict[str, Any], itemsize: int) -> Codec:
    """Return the codec of a configuration: of numcodecs, with its name as `id`.

    itemsize: of the elements. Raises ValueError for an unknown codec or a malformed configuration.
    """
    name = config.get("id")
    make_codec = _MAKERS.get(name) if isinstance(name, str) else None
    if make_codec is None:
        raise ValueError(f"codec {format_value(name)} is not allowed")
    codec: Codec = make_codec(config, itemsize)
    return codec


def has_library() -> bool:
    """Whether the numcodecs package is installed."""
    try:
        return find_spec("numcodecs") is not None
    except ValueError:
        return False


def _library() -> Any:
    import numcodecs

    return numcodecs


def _from_library(config: dict[str, Any]) -> Any:
    return _library().get_codec(dict(config))


def _make_compressor(decode: Decode, config: dict[str, Any], itemsize: int) -> Codec:
    """Return a compressor of numcodecs."""

    def encode(chunk: Any) -> Any:
        return _from_library(config).encode(chunk)

    return Codec(config["id"], lambda n: n + n // 8 + (1 << 14), False, decode, encode)


def _make_zlib(config: dict[str, Any], itemsize: int) -> Codec:
    """Return gzip or zlib of the standard library."""
    window, level = zlib.MAX_WBITS + 16 * (config["id"] == "gzip"), config.get("level", 1)
    if type(level) is not int or not -1 <= level <= 9:
        raise ValueError(f"codec {config['id']}: level is {format_value(level)}: expected 0..9")

    def encode(chunk: Any) -> bytes:
        compressor = zlib.compressobj(level, wbits=window)
        return compressor.compress(_as_bytes(chunk)) + compressor.flush()

    decode = partial(_decompress_streams, lambda: zlib.decompressobj(window))
    return Codec(config["id"], lambda n: n + n // 8 + (1 << 14), False, decode, encode, False)


def _make_bz2(config: dict[str, Any], itemsize: int) -> Codec:
    from bz2 import BZ2Decompressor

    return _make_compressor(partial(_decompress_streams, BZ2Decompressor), config, itemsize)


def _make_lzma(config: dict[str, Any], itemsize: int) -> Codec:
    import lzma

    container, filters = config.get("format", lzma.FORMAT_XZ), config.get("filters")

    def make_decompressor() -> Any:
        return lzma.LZMADecompressor(container, filters=filters)

    return _make_compressor(partial(_decompress_streams, make_decompressor), config, itemsize)


def _make_filter(max_encoded: Callable[[int], int], config: dict[str, Any], itemsize: int) -> Codec:
    """Return a filter of numcodecs."""
    codec = _from_library(config)
    return Codec(config["id"], max_encoded, True, lambda raw, *_: codec.decode(raw), codec.encode)


_make_checksum = partial(_make_filter, lambda n: n + 4)  # of 4 bytes, which numcodecs verifies


def _make_crc32c(config: dict[str, Any], itemsize: int) -> Codec:
    try:
        import google_crc32c
    except ModuleNotFoundError:
        return _make_checksum(config, itemsize)
    if config.get("location", "end") != "end":
        return _make_checksum(config, itemsize)

    def checksum(raw: Any) -> bytes:
        value: int = google_crc32c.value(bytes(raw))
        return value.to_bytes(4, "little")

    return _checksum("crc32c", checksum)


def _checksum(name: str, checksum: Callable[[memoryview], bytes]) -> Codec:
    """Return a codec that appends a checksum of 4 bytes."""

    def decode(raw: memoryview, max_nbytes: int, is_exact: bool) -> memoryview:
        if len(raw) < 4 or raw[-4:] != checksum(raw[:-4]):
            raise ValueError(f"the {name} checksum of a chunk is wrong")
        return raw[:-4]

    def encode(chunk: Any) -> bytes:
        return b"".join((_as_bytes(chunk), checksum(_as_bytes(chunk))))

    return Codec(name, lambda n: n + 4, True, decode, encode, False)


def _make_fletcher32(config: dict[str, Any], itemsize: int) -> Codec:
    return _checksum("fletcher32", _fletcher32)


def _fletcher32(raw: memoryview) -> bytes:
    """Return the checksum as HDF5 stores it: of big-endian words of two bytes."""
    import numpy as np

    words = np.frombuffer(bytes(raw) + bytes(len(raw) % 2), ">u2")
    weights, low, high = np.arange(_WORDS, 0, -1, dtype=np.uint64), 0, 0
    for first in range(0, len(words), _WORDS):
        block = words[first : first + _WORDS].astype(np.uint64)
        high += len(block) * low + int((block * weights[-len(block) :]).sum())
        low += int(block.sum())
    # The sums are folded: 65535 stands for each of its multiples but 0.
    low, high = ((total - 1) % 65535 + 1 if total else 0 for total in (low, high))
    return (high << 16 | low).to_bytes(4, "little")


_WORDS = 1 << 14  # of which the weighted sum fits in 64 bits


def _make_shuffle(config: dict[str, Any], itemsize: int) -> Codec:
    """Return the filter that stores the first bytes of all elements, then the second and so on."""
    size = config.get("elementsize", 4)
    if type(size) is not int or size < 1:
        raise ValueError(f"codec shuffle: elementsize is {format_value(size)}")

    def decode(raw: memoryview, max_nbytes: int, is_exact: bool) -> Any:
        return _transpose(raw, size, False)

    def encode(chunk: Any) -> Any:
        return _transpose(_as_bytes(chunk), size, True)

    return Codec("shuffle", lambda n: n, True, decode, encode, False)


def _transpose(raw: memoryview, size: int, encodes: bool) -> Any:
    import numpy as np

    if len(raw) % size:
        raise ValueError(f"a chunk of {len(raw)} bytes is no multiple of elementsize {size}")
    source = np.frombuffer(raw, np.uint8)
    source = source.reshape((-1, size) if encodes else (size, -1))
    result: Any = np.empty(source.shape[::-1], np.uint8)
    if size > len(raw) // size:
        result[...] = source.T
        return result
    for i in range(size):  # faster by planes
        if encodes:
            result[i] = source[:, i]
        else:
            result[:, i] = source[i]
    return result


def _make_cast(config: dict[str, Any], itemsize: int) -> Codec:
    """Return a filter that encodes elements as another type."""
    import numpy as np

    name = config["id"]
    decoded_key, encoded_key = (
        ("decode_dtype", "encode_dtype") if name == "astype" else ("dtype", "astype")
    )
    decoded_dtype = np.dtype(config[decoded_key])
    encoded_dtype = np.dtype(config.get(encoded_key) or decoded_dtype)
    if decoded_dtype.kind not in "biufcmM" or encoded_dtype.kind not in "biufcmM":
        raise ValueError(f"codec {name}: expected numeric types")
    for key in ("scale", "offset", "digits"):
        if type(config.get(key, 0)) not in (int, float) or abs(config.get(key, 0)) >= 1 << 63:
            raise ValueError(
                f"codec {name}: {key} is {format_value(config[key])}: expected a number"
            )
    codec = _from_library(config)

    def max_encoded(n: int) -> int:
        if n % decoded_dtype.itemsize:
            raise ValueError(f"codec {name}: {n} bytes are no multiple of {decoded_dtype}")
        return n // int(decoded_dtype.itemsize) * int(encoded_dtype.itemsize)

    def decode(chunk: memoryview, max_nbytes: int, is_exact: bool) -> Any:
        if not is_exact:  # the size may not be a multiple of the element size
            raise ValueError(f"codec {name} after a compressor")
        return codec.decode(chunk)

    return Codec(name, max_encoded, True, decode, codec.encode)


def _decompress_streams(
    make_decompressor: Callable[[], Any], raw: memoryview, max_nbytes: int, is_exact: bool
) -> bytearray:
    """Decompress one stream or several concatenated ones; trailing bytes are ignored."""
    out, decompressor = bytearray(), make_decompressor()
    offset = stream_start = stream_count = 0
    while offset < len(raw):
        data = raw[offset : offset + _INPUT_BLOCK if offset else len(raw)]
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
    _require_size(int.from_bytes(raw[:4], "little"), max_nbytes)
    return _library().LZ4().decode(raw)  # type: ignore[no-any-return]


def _decompress_blosc(raw: memoryview, max_nbytes: int, is_exact: bool) -> bytes:
    size, stored_nbytes = (int.from_bytes(raw[offset : offset + 4], "little") for offset in (4, 12))
    # numcodecs would read out of bounds.
    if len(raw) < _BLOSC_HEADER_SIZE or stored_nbytes != len(raw):
        raise ValueError(f"a chunk of {len(raw)} bytes is truncated")
    _require_size(size, max_nbytes)
    return _library().Blosc().decode(raw)  # type: ignore[no-any-return]


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
    decode, total_size, unsized_count, decoded = _library().Zstd().decode, 0, 0, []
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


_MAKERS: dict[str, Callable[[dict[str, Any], int], Codec]] = {
    "adler32": _make_checksum,
    "astype": _make_cast,
    "bitround": partial(_make_filter, lambda n: n),
    "blosc": partial(_make_compressor, _decompress_blosc),
    "bz2": _make_bz2,
    "crc32": _make_checksum,
    "crc32c": _make_crc32c,
    "delta": _make_cast,
    "fixedscaleoffset": _make_cast,
    "fletcher32": _make_fletcher32,
    "gzip": _make_zlib,
    "jenkins_lookup3": _make_checksum,
    "lz4": partial(_make_compressor, _decompress_lz4),
    "lzma": _make_lzma,
    "packbits": partial(_make_filter, lambda n: 1 + -(-n // 8)),
    "quantize": _make_cast,
    "shuffle": _make_shuffle,
    "zlib": _make_zlib,
    "zstd": partial(_make_compressor, _decompress_zstd),
}
NAMES = tuple(_MAKERS)
