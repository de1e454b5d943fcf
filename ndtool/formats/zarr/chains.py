"""The codec chain of a Zarr array's chunks: allowed codecs only, each with bounded output.

The zarr package runs any installed codec, and trusts the sizes in the bytes of a chunk. Here the
metadata of the array determine the maximum size of a chunk, which is enforced before and after each
codec.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ndtool.errors import InputError, format_integer, format_value, printable
from ndtool.formats.zarr.decompress import decompressor
from ndtool.rules.plans import Shape

if TYPE_CHECKING:
    import numpy as np

_COMPRESSORS = ("blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd")
_CHECKSUMS = ("adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3")
_CASTS = {  # configuration keys of the decoded and the encoded type
    "astype": ("decode_dtype", "encode_dtype"), "delta": ("dtype", "astype"),
    "fixedscaleoffset": ("dtype", "astype"), "quantize": ("dtype", "astype"),
}  # fmt: skip
_NUMCODECS = (*_COMPRESSORS, *_CHECKSUMS, *_CASTS, "bitround", "packbits", "shuffle")
_OBJECTS = (
    "categorize", "json2", "msgpack2", "pickle", "vlen-array", "vlen-bytes", "vlen-utf8",
    "variable_length_utf8",
)  # fmt: skip
_PREFIX = "numcodecs."
SHARDING = "sharding_indexed"
_CORE = ("blosc", "bytes", "crc32c", "gzip", "transpose", "zstd")  # the core codecs of version 3
_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
_ABSENT = (1 << 64) - 1  # offset and length of a chunk that its shard lacks
_ELEMENT = 1 << 20  # maximum bytes of an element: the zarr package copies fill values
_SIZED = re.compile(r"[<>|=]?(?:([SV])|(U)|(r))([0-9]{1,40})")  # types with an explicit size


def allow(document: dict[str, Any], label: str) -> None:
    """Raise InputError if metadata name a codec that is not allowed, or declare huge elements.

    They are validated before the zarr package parses them.
    """
    nbytes = _element_nbytes(document.get("dtype")) + _element_nbytes(document.get("data_type"))
    if nbytes > _ELEMENT:
        raise InputError(
            f"{printable(label)}: elements of {format_integer(nbytes)} bytes: at most {_ELEMENT}"
            " are valid"
        )
    if document.get("zarr_format") == 2:
        chain = [*_codec_list(document.get("filters"), label), document.get("compressor")]
        _allow([codec for codec in chain if codec is not None], "id", _NUMCODECS, label)
        return
    codecs = _codec_list(document.get("codecs"), label)
    allowed = (*_CORE, *(_PREFIX + name for name in _NUMCODECS))
    if [_name(codec, "name") for codec in codecs] == [SHARDING]:
        settings = codecs[0].get("configuration") if isinstance(codecs[0], dict) else None
        settings = settings if isinstance(settings, dict) else {}
        _allow(_codec_list(settings.get("index_codecs"), label), "name", ("bytes", "crc32c"), label)
        codecs = _codec_list(settings.get("codecs"), label)
    elif SHARDING in (_name(codec, "name") for codec in codecs):
        raise InputError(f"{printable(label)}: codec {SHARDING} with others: expected it alone")
    _allow(codecs, "name", allowed, label)


def _element_nbytes(spec: object) -> int:
    """Return the element size in bytes that a type declares, 0 if it declares none."""
    if isinstance(spec, str) and (match := _SIZED.fullmatch(spec)):
        _, text, raw, digits = match.groups()
        return int(digits) * (4 if text else 1) // (8 if raw else 1)
    if isinstance(spec, dict):
        length = spec.get("length_bytes")
        return sum(map(_element_nbytes, spec.values()), length if type(length) is int else 0)
    if not isinstance(spec, list):
        return 0
    if len(spec) > 1 and isinstance(spec[0], str):  # a field: name, type, perhaps a shape
        sizes = spec[2] if len(spec) > 2 and isinstance(spec[2], list) else []
        return _element_nbytes(spec[1]) * prod(size for size in sizes if type(size) is int)
    return sum(map(_element_nbytes, spec))


def _codec_list(value: object, label: str) -> list[Any]:
    if value is None:
        return []  # the zarr package reports a missing list
    if not isinstance(value, list):
        raise InputError(f"{printable(label)}: codecs {format_value(value)}: expected a list")
    return value


def _name(codec: Any, key: str) -> object:
    return codec.get(key) if isinstance(codec, dict) else codec


def _allow(codecs: Sequence[Any], key: str, allowed: Sequence[str], label: str) -> None:
    for codec in codecs:
        if (name := _name(codec, key)) in allowed:
            continue
        text = printable(name, 80) if isinstance(name, str) else format_value(name, limit=80)
        if isinstance(name, str) and name.removeprefix(_PREFIX) in _OBJECTS:
            what = "is for variable-length elements: expected a type of fixed size"
        else:
            what = f"is not allowed: expected one of {', '.join(sorted(allowed))}"
        raise InputError(f"{printable(label)}: codec {text} {what}")


class Step(NamedTuple):
    """A codec from bytes to bytes.

    bound: returns the maximum encoded size for a decoded size. fixed: whether every encoded size is
    the maximum. decode: takes bytes, the maximum decoded size, and whether that size is exact.
    """

    name: str
    bound: Callable[[int], int]
    fixed: bool
    decode: Callable[[memoryview, int, bool], Any]
    encode: Callable[[Any], Any]


class Chain:
    """The codec chain of a chunk: a permutation of its axes, then codecs of bytes, in order.

    nbytes: size of a decoded chunk. max_nbytes: maximum size of an encoded chunk. fixed: whether
    every encoded chunk has that size.
    """

    def __init__(
        self, shape: Shape, dtype: np.dtype[Any], axes: Sequence[int], steps: Iterable[Step]
    ) -> None:
        self._dtype, self._axes, self._steps = dtype, tuple(axes), tuple(steps)
        self._stored = tuple(shape[axis] for axis in axes)
        self._inverse = tuple(sorted(range(len(shape)), key=self._axes.__getitem__))
        self.nbytes = prod(shape) * dtype.itemsize
        sizes, fixed = [self.nbytes], [True]
        for step in self._steps:
            sizes.append(step.bound(sizes[-1]))
            fixed.append(fixed[-1] and step.fixed)
        self._sizes, self._fixed = sizes, fixed
        self.max_nbytes, self.fixed = sizes[-1], fixed[-1]

    def decode(self, raw: bytes) -> np.ndarray[Any, Any]:
        """Decode a chunk; ValueError, or an exception of a codec's library, if it is damaged."""
        import numpy as np

        chunk = memoryview(raw)
        self._require(chunk, len(self._steps), "a chunk")
        with np.errstate(all="ignore"):  # overflow in a filter is no error
            for i in range(len(self._steps) - 1, -1, -1):
                step, size, exact = self._steps[i], self._sizes[i], self._fixed[i]
                chunk = _as_bytes(step.decode(chunk, size, exact))
                self._require(chunk, i, f"a chunk without {step.name}")
        return np.frombuffer(chunk, self._dtype).reshape(self._stored).transpose(self._inverse)

    def _require(self, chunk: memoryview, codec_count: int, subject: str) -> None:
        size, exact = self._sizes[codec_count], self._fixed[codec_count]
        if len(chunk) > size or (exact and len(chunk) != size):
            qualifier = "" if exact else "at most "
            raise ValueError(f"{subject} has {len(chunk)} bytes: expected {qualifier}{size}")

    def encode(self, array: np.ndarray[Any, Any]) -> memoryview:
        import numpy as np

        chunk: Any = np.ascontiguousarray(array.transpose(self._axes)).reshape(-1)
        for step in self._steps:
            chunk = step.encode(chunk)
        return _as_bytes(chunk)


class Sharding(NamedTuple):
    """The layout of a shard. per_shard: chunks along each axis. codecs: the chain of its index."""

    per_shard: Shape
    codecs: Chain
    at_start: bool

    def index_span(self) -> tuple[int, int | None]:
        """Return start and stop of the index in a shard, as those of a slice."""
        return (0, self.codecs.max_nbytes) if self.at_start else (-self.codecs.max_nbytes, None)

    def find(self, index: bytes, at: Shape) -> tuple[int, int] | None:
        """Return offset and size of a chunk in its shard, None if the chunk is missing."""
        offset, size = map(int, self.codecs.decode(index)[at])
        return None if (offset, size) == (_ABSENT, _ABSENT) else (offset, size)

    def encode(self, shard: np.ndarray[Any, Any], chain: Chain) -> bytes:
        """Encode a shard with all its chunks."""
        import numpy as np

        sizes = tuple(n // count for n, count in zip(shard.shape, self.per_shard, strict=True))
        shard_index = np.empty((*self.per_shard, 2), "<u8")
        offset = self.codecs.max_nbytes if self.at_start else 0
        encoded = []
        for at in product(*map(range, self.per_shard)):
            box = tuple(slice(i * n, (i + 1) * n) for i, n in zip(at, sizes, strict=True))
            encoded.append(chain.encode(shard[box]))
            shard_index[at] = offset, len(encoded[-1])
            offset += len(encoded[-1])
        encoded.insert(0 if self.at_start else len(encoded), self.codecs.encode(shard_index))
        return b"".join(encoded)


class Layout(NamedTuple):
    """The layout of an array's files. chain: of a chunk. sharding: None if each file is a chunk."""

    chain: Chain
    sharding: Sharding | None

    def encode(self, array: np.ndarray[Any, Any]) -> bytes | memoryview:
        """Encode a complete file: a chunk or a shard."""
        if self.sharding is None:
            return self.chain.encode(array)
        return self.sharding.encode(array, self.chain)


def layout(document: dict[str, Any], shape: Shape, dtype: np.dtype[Any]) -> Layout:
    """Return the layout of an array's files; shape, dtype: of a chunk.

    document: complete metadata, as the zarr package writes them. Raises ValueError.
    """
    if document["zarr_format"] == 2:
        codecs = [*(document.get("filters") or ()), document.get("compressor")]
        axes = range(len(shape))
        order = axes[::-1] if document.get("order") == "F" else axes
        steps = [_step(dict(codec)) for codec in codecs if codec is not None]
        return Layout(Chain(shape, dtype, order, steps), None)
    codecs = list(document["codecs"])
    if codecs[0]["name"] != SHARDING:
        return Layout(_chain(codecs, shape, dtype), None)
    import numpy as np

    settings = codecs[0]["configuration"]
    shard_shape = document["chunk_grid"]["configuration"]["chunk_shape"]
    per_shard = tuple(n // step for n, step in zip(shard_shape, shape, strict=True))
    (chain, *_), orders = settings["index_codecs"], {"big": ">u8", "little": "<u8"}
    endian = (chain.get("configuration") or {}).get("endian", "little")
    index = _chain(settings["index_codecs"], (*per_shard, 2), np.dtype(orders[endian]))
    at_start = settings.get("index_location", "end") == "start"
    return Layout(_chain(settings["codecs"], shape, dtype), Sharding(per_shard, index, at_start))


def _chain(codecs: Iterable[dict[str, Any]], shape: Shape, dtype: np.dtype[Any]) -> Chain:
    """Parse a version 3 chain: array-to-array, array-to-bytes, then bytes-to-bytes codecs."""
    axes = list(range(len(shape)))
    steps: list[Step] = []
    for codec in codecs:
        name, settings = codec["name"], dict(codec.get("configuration") or {})
        if name == "transpose":
            if sorted(settings["order"]) != sorted(axes) or steps:
                raise ValueError("codec transpose: expected an order of all axes, before filters")
            axes = [axes[axis] for axis in settings["order"]]
        elif name == "bytes":
            # Axes and byte order would apply to a filter's output, which has another type.
            if steps and (axes != sorted(axes) or settings.get("endian") == "big"):
                name = steps[0].name
                raise ValueError(
                    f"codec {name} is not supported with transpose or big-endian bytes"
                )
        else:
            steps.append(_step(_as_version_2(name, settings)))
    return Chain(shape, dtype, axes, steps)


def _as_version_2(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    if name == "blosc":
        settings = {**settings, "shuffle": _SHUFFLES[settings["shuffle"]]}
        settings.pop("typesize", None)  # numcodecs uses the element size
    return {**settings, "id": name.removeprefix(_PREFIX)}


def _step(config: dict[str, Any]) -> Step:
    """Return a codec of the numcodecs package with bounded output."""
    import numcodecs

    name = config["id"]
    decompress = decompressor(config)
    if decompress is not None:
        encode = numcodecs.get_codec(config).encode
        return Step(name, lambda n: n + n // 8 + (1 << 14), False, decompress, encode)
    if name in _CASTS:
        return _cast(name, config)
    if name not in _NUMCODECS:
        raise ValueError(f"codec {name} is not allowed")
    codec = numcodecs.get_codec(config)

    def decode(chunk: memoryview, max_nbytes: int, exact: bool) -> Any:
        return codec.decode(chunk)

    if name in _CHECKSUMS:
        return Step(name, lambda n: n + 4, True, decode, codec.encode)
    if name == "packbits":
        return Step(name, lambda n: 1 + -(-n // 8), True, decode, codec.encode)
    if name == "bitround":  # rounding is not reversed
        return Step(name, lambda n: n, True, lambda chunk, max_nbytes, exact: chunk, codec.encode)
    assert name == "shuffle", name
    if type(codec.elementsize) is not int:
        raise ValueError(f"codec shuffle: elementsize is {format_value(codec.elementsize)}")
    return Step(name, lambda n: n, True, decode, codec.encode)


def _cast(name: str, config: dict[str, Any]) -> Step:
    """Return a filter that stores elements in another type."""
    import numcodecs
    import numpy as np

    decoded, encoded = _CASTS[name]
    inner = np.dtype(config[decoded])
    outer = np.dtype(config.get(encoded) or inner)
    if inner.kind not in "biufcmM" or outer.kind not in "biufcmM":
        raise ValueError(f"codec {name}: expected numeric types")
    for key in ("scale", "offset", "digits"):
        if type(config.get(key, 0)) not in (int, float) or abs(config.get(key, 0)) >= 1 << 63:
            raise ValueError(
                f"codec {name}: {key} is {format_value(config[key])}: expected a number"
            )
    codec = numcodecs.get_codec(config)

    def bound(n: int) -> int:
        if n % inner.itemsize:
            raise ValueError(f"codec {name}: {n} bytes are no multiple of {inner}")
        return n // int(inner.itemsize) * int(outer.itemsize)

    def decode(chunk: memoryview, max_nbytes: int, exact: bool) -> Any:
        if not exact:  # after a compressor, the size may be no multiple of the type's
            raise ValueError(f"codec {name} after a compressor")
        return codec.decode(chunk)

    return Step(name, bound, True, decode, codec.encode)


def _as_bytes(buffer: Any) -> memoryview:
    import numpy as np

    if isinstance(buffer, np.ndarray):
        buffer = np.ascontiguousarray(buffer).reshape(-1).view(np.uint8)
    return memoryview(buffer).cast("B")
