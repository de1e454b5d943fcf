"""Codecs and sizes of chunks, of Zarr and HDF5 alike: a table of codecs, and bounded chains.

The libraries of these formats run any codec that is installed, and trust the sizes in the bytes of
a chunk. Here the maximum size of a chunk follows from an array's metadata, and is enforced before
and after each codec.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.util import find_spec
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ndtool.errors import ResourceError, UsageError, format_value, printable, refuse
from ndtool.rules import shapes
from ndtool.rules.plans import Shape

if TYPE_CHECKING:
    import numpy as np

Decode = Callable[[memoryview, int], Any]

MAX_CHUNK_BYTES = 1 << 31  # limited because each thread has a chunk in memory

_BLOSC_HEADER_SIZE = 16


class Codec(NamedTuple):
    """A codec from bytes to bytes.

    overhead: bytes that encoding adds, None for a compressor. decode: takes the encoded bytes and
    the decoded size, of a compressor the exact one, else the maximum; damaged bytes raise an
    exception. encode: None for codecs that are only read. package: the name of the package that it
    needs, "" if none.
    """

    name: str
    overhead: int | None
    decode: Decode
    encode: Callable[[Any], Any] | None = None
    package: str = ""

    def max_encoded(self, nbytes: int) -> int:
        """Return the maximum encoded size."""
        return nbytes + (nbytes // 8 + (1 << 14) if self.overhead is None else self.overhead)


class Chain:
    """The codecs of a chunk: a permutation of its axes, then codecs of bytes, in order.

    nbytes: size of a decoded chunk. max_nbytes: maximum size of an encoded chunk. is_fixed_size:
    whether every encoded chunk has that size. Raises ValueError for several compressors.
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
            if codec.overhead is None and not is_exact:
                raise ValueError(f"codec {codec.name} after another compressor")
            sizes.append((codec.max_encoded(size), is_exact and codec.overhead is not None))
        return sizes

    def require_packages(self) -> None:
        """Raise UsageError if a codec needs a package that is missing."""
        for codec in self._codecs:
            if not is_available(codec.package):
                raise UsageError(
                    f"codec {codec.name} needs the {codec.package} package",
                    hint="pip install 'ndtool[zarr]'",
                )

    def decode(self, raw: bytes | memoryview, skipped: int = 0) -> np.ndarray[Any, Any]:
        """Decode a chunk. skipped: a bit is set for each codec that was not applied."""
        import numpy as np

        codecs, sizes = self._codecs, self._sizes
        if skipped:
            codecs = tuple(codec for i, codec in enumerate(codecs) if not skipped >> i & 1)
            sizes = self._sizes_of(codecs)
        chunk = memoryview(raw)
        _check_size(chunk, sizes[-1], "a chunk")
        for codec, size in zip(reversed(codecs), sizes[-2::-1], strict=True):
            chunk = _as_bytes(codec.decode(chunk, size[0]))
            _check_size(chunk, size, f"a chunk without {codec.name}")
        return (
            np.frombuffer(chunk, self._dtype)
            .reshape(self._stored_shape)
            .transpose(self._inverse_axes)
        )

    def encode(self, array: np.ndarray[Any, Any]) -> memoryview:
        import numpy as np

        chunk: Any = np.ascontiguousarray(array.transpose(self._axes)).reshape(-1)
        for codec in self._codecs:
            assert codec.encode is not None, "it is one of --codec, or crc32c of an index"
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


def is_available(package: str) -> bool:
    """Whether a package is installed, or none is needed."""
    try:
        return not package or find_spec(package) is not None
    except ValueError:
        return False


def require_limits(label: str, shape: Shape, itemsize: int, chunks: Shape | None = None) -> None:
    """Raise NdtoolError if an array is larger than any can be, or its chunks are invalid."""
    if chunks is not None and (len(chunks) != len(shape) or min(chunks, default=1) < 1):
        refuse(label, f"chunks {list(chunks)} of shape {list(shape)}")
    # Sizes of 0 count as 1: the strides of (0, 2**62, 2**62) overflow int64.
    if prod(size or 1 for size in shape) * itemsize > shapes.MAX_SIZE:
        refuse(label, f"no array can have shape {list(shape)}")
    if (nbytes := prod(chunks or ()) * itemsize) > MAX_CHUNK_BYTES:
        raise ResourceError(
            f"{printable(label)}: a chunk has {nbytes} bytes: at most {MAX_CHUNK_BYTES} are read at"
            " once"
        )


def default_chunks(shape: Shape, itemsize: int, nbytes: int = 1 << 20) -> Shape:
    """Return the shape of chunks of complete rows, of about `nbytes`."""
    sizes = [max(1, size) for size in shape]
    for axis in range(len(sizes)):
        slice_nbytes = prod(sizes) // sizes[axis] * itemsize
        sizes[axis] = min(sizes[axis], max(1, nbytes // slice_nbytes))
    return tuple(sizes)


# The table


def make(config: dict[str, Any]) -> Codec:
    """Return the codec of a configuration: of numcodecs, with its name as `id`.

    Raises ValueError for an unknown codec or a malformed configuration.
    """
    name = config.get("id")
    make_codec = _MAKERS.get(name) if isinstance(name, str) else None
    if make_codec is None:
        raise ValueError(f"codec {format_value(name)} is not allowed")
    codec: Codec = make_codec(config)
    return codec


def _make_numcodecs(decode: Decode, config: dict[str, Any]) -> Codec:
    """Return a compressor of numcodecs."""

    def encode(chunk: Any) -> Any:
        import numcodecs

        return numcodecs.get_codec(dict(config)).encode(chunk)

    return Codec(config["id"], None, decode, encode, "numcodecs")


def _make_zlib(config: dict[str, Any]) -> Codec:
    """Return gzip or zlib of the standard library."""
    window, level = zlib.MAX_WBITS + 16 * (config["id"] == "gzip"), config.get("level", 1)
    if type(level) is not int or not -1 <= level <= 9:
        raise ValueError(f"codec {config['id']}: level is {format_value(level)}: expected 0..9")

    def encode(chunk: Any) -> bytes:
        compressor = zlib.compressobj(level, wbits=window)
        return compressor.compress(_as_bytes(chunk)) + compressor.flush()

    def decode(raw: memoryview, nbytes: int) -> bytes:
        decompressor = zlib.decompressobj(window)
        chunk = decompressor.decompress(raw, nbytes + 1)
        if len(chunk) > nbytes:
            raise ValueError(f"a chunk has more than {nbytes} bytes decompressed")
        if not decompressor.eof:
            raise ValueError(f"a chunk of {len(raw)} bytes is truncated")
        return chunk

    return Codec(config["id"], None, decode, encode)


def _decompress_lz4(raw: memoryview, nbytes: int) -> Any:
    import numcodecs

    _require_size(int.from_bytes(raw[:4], "little"), nbytes)
    return numcodecs.LZ4().decode(raw)


def _decompress_blosc(raw: memoryview, nbytes: int) -> Any:
    import numcodecs

    size, stored_nbytes = (int.from_bytes(raw[offset : offset + 4], "little") for offset in (4, 12))
    # numcodecs would read out of bounds.
    if len(raw) < _BLOSC_HEADER_SIZE or stored_nbytes != len(raw):
        raise ValueError(f"a chunk of {len(raw)} bytes is truncated")
    _require_size(size, nbytes)
    return numcodecs.Blosc().decode(raw)


def _require_size(size: int, nbytes: int) -> None:
    if size != nbytes:
        raise ValueError(f"a chunk claims {size} bytes: expected {nbytes}")


def _decompress_zstd(raw: memoryview, nbytes: int) -> Any:
    """Decompress zstd frames into a buffer of the expected size, which the library never exceeds.

    It accepts less content than that, unless a smaller buffer is sufficient, too.
    """
    import numcodecs
    import numpy as np

    out = np.empty(nbytes, np.uint8)
    numcodecs.Zstd().decode(raw, out)
    if _zstd_content_size(raw) != nbytes:  # several frames, or one without a size
        try:
            numcodecs.Zstd().decode(raw, np.empty(nbytes - 1, np.uint8))
        except (ValueError, RuntimeError):
            return out
        raise ValueError(f"a chunk has less than {nbytes} bytes decompressed")
    return out


def _zstd_content_size(raw: memoryview) -> int:
    """Return the content size in the header of the first zstd frame, 0 without one."""
    flags = raw[4]
    is_single_segment = flags >> 5 & 1
    # The magic number and the flags, a window descriptor, a dictionary ID.
    start = 5 + (not is_single_segment) + (0, 1, 2, 4)[flags & 3]
    width = (is_single_segment, 2, 4, 8)[flags >> 6]
    return int.from_bytes(raw[start : start + width], "little") + 256 * (width == 2)


def _make_checksum(
    checksum: Callable[[memoryview], bytes], package: str, config: dict[str, Any]
) -> Codec:
    """Return a codec that appends a checksum of 4 bytes."""
    name = config["id"]
    if config.get("location", "end") != "end":
        raise ValueError(f"codec {name}: location is {format_value(config['location'])}")

    def decode(raw: memoryview, nbytes: int) -> memoryview:
        if len(raw) < 4 or raw[-4:] != checksum(raw[:-4]):
            raise ValueError(f"the {name} checksum of a chunk is wrong")
        return raw[:-4]

    def encode(chunk: Any) -> bytes:
        return b"".join((_as_bytes(chunk), checksum(_as_bytes(chunk))))

    return Codec(name, 4, decode, encode, package)


def _crc32c(raw: memoryview) -> bytes:
    import google_crc32c

    value: int = google_crc32c.value(bytes(raw))
    return value.to_bytes(4, "little")


def _fletcher32(raw: memoryview) -> bytes:
    from numcodecs.fletcher32 import Fletcher32

    return bytes(Fletcher32().encode(raw)[-4:])


def _make_shuffle(config: dict[str, Any]) -> Codec:
    """Return the filter that stores the first bytes of all elements, then the second and so on."""
    size = config.get("elementsize", 4)
    if type(size) is not int or size < 1:
        raise ValueError(f"codec shuffle: elementsize is {format_value(size)}")

    def decode(raw: memoryview, _: int) -> Any:
        import numpy as np

        from ndtool._kernels import interleave

        if len(raw) % size:
            raise ValueError(f"a chunk of {len(raw)} bytes is no multiple of elementsize {size}")
        result = np.empty(len(raw), np.uint8)
        interleave(raw, result, size)
        return result

    return Codec("shuffle", 0, decode)


_MAKERS: dict[str, Callable[[dict[str, Any]], Codec]] = {
    "blosc": partial(_make_numcodecs, _decompress_blosc),
    "crc32c": partial(_make_checksum, _crc32c, "google_crc32c"),
    "fletcher32": partial(_make_checksum, _fletcher32, "numcodecs"),
    "gzip": _make_zlib,
    "lz4": partial(_make_numcodecs, _decompress_lz4),
    "shuffle": _make_shuffle,
    "zlib": _make_zlib,
    "zstd": partial(_make_numcodecs, _decompress_zstd),
}
NAMES = tuple(_MAKERS)
