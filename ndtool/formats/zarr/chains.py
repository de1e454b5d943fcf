"""The codec chain of a Zarr array's chunks: allowed codecs only, each with bounded output.

The zarr package runs any installed codec, and trusts the sizes in the bytes of a chunk. ndtool
computes the maximum size of a chunk from the array's metadata, and enforces it before and after
each codec.
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
_CAST_KEYS = {  # filters that convert elements: the keys of the decoded and the encoded type
    "astype": ("decode_dtype", "encode_dtype"), "delta": ("dtype", "astype"),
    "fixedscaleoffset": ("dtype", "astype"), "quantize": ("dtype", "astype"),
}  # fmt: skip
_NUMCODECS = (*_COMPRESSORS, *_CHECKSUMS, *_CAST_KEYS, "bitround", "packbits", "shuffle")
_OBJECT_CODECS = (
    "categorize", "json2", "msgpack2", "pickle", "vlen-array", "vlen-bytes", "vlen-utf8",
    "variable_length_utf8",
)  # fmt: skip
_NUMCODECS_PREFIX = "numcodecs."
SHARDING = "sharding_indexed"
_CORE_CODECS = ("blosc", "bytes", "crc32c", "gzip", "transpose", "zstd")  # of version 3
_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
_MISSING_CHUNK = (1 << 64) - 1  # offset and length of a chunk that its shard lacks
_MAX_ELEMENT_BYTES = 1 << 20  # limited because the zarr package copies fill values
_SIZED_TYPE = re.compile(r"[<>|=]?(?:([SV])|(U)|(r))([0-9]{1,40})")  # types with an explicit size


def require_allowed(document: dict[str, Any], label: str) -> None:
    """Raise InputError if metadata have a codec that is not allowed, or too large elements.

    document: the metadata before the zarr package parses them.
    """
    nbytes = _element_nbytes(document.get("dtype")) + _element_nbytes(document.get("data_type"))
    if nbytes > _MAX_ELEMENT_BYTES:
        raise InputError(
            f"{printable(label)}: elements of {format_integer(nbytes)} bytes: at most"
            f" {_MAX_ELEMENT_BYTES} are valid"
        )
    if document.get("zarr_format") == 2:
        chain = [*_codec_list(document.get("filters"), label), document.get("compressor")]
        _require_codecs([codec for codec in chain if codec is not None], "id", _NUMCODECS, label)
        return
    codecs = _codec_list(document.get("codecs"), label)
    allowed = (*_CORE_CODECS, *(_NUMCODECS_PREFIX + name for name in _NUMCODECS))
    if [_codec_name(codec, "name") for codec in codecs] == [SHARDING]:
        configuration = codecs[0].get("configuration") if isinstance(codecs[0], dict) else None
        configuration = configuration if isinstance(configuration, dict) else {}
        _require_codecs(
            _codec_list(configuration.get("index_codecs"), label),
            "name",
            ("bytes", "crc32c"),
            label,
        )
        codecs = _codec_list(configuration.get("codecs"), label)
    elif SHARDING in (_codec_name(codec, "name") for codec in codecs):
        raise InputError(f"{printable(label)}: codec {SHARDING} with others: expected it alone")
    _require_codecs(codecs, "name", allowed, label)


def _element_nbytes(spec: object) -> int:
    """Return the element size in bytes that a type specifies, 0 if it specifies none."""
    if isinstance(spec, str) and (match := _SIZED_TYPE.fullmatch(spec)):
        _, text, raw, digits = match.groups()
        return int(digits) * (4 if text else 1) // (8 if raw else 1)
    if isinstance(spec, dict):
        length = spec.get("length_bytes")
        return sum(map(_element_nbytes, spec.values()), length if type(length) is int else 0)
    if not isinstance(spec, list):
        return 0
    if len(spec) > 1 and isinstance(spec[0], str):  # a field: name, type, optionally a shape
        sizes = spec[2] if len(spec) > 2 and isinstance(spec[2], list) else []
        return _element_nbytes(spec[1]) * prod(size for size in sizes if type(size) is int)
    return sum(map(_element_nbytes, spec))


def _codec_list(value: object, label: str) -> list[Any]:
    if value is None:
        return []  # the zarr package reports a missing list
    if not isinstance(value, list):
        raise InputError(f"{printable(label)}: codecs {format_value(value)}: expected a list")
    return value


def _codec_name(codec: Any, key: str) -> object:
    return codec.get(key) if isinstance(codec, dict) else codec


def _require_codecs(codecs: Sequence[Any], key: str, allowed: Sequence[str], label: str) -> None:
    for codec in codecs:
        if (name := _codec_name(codec, key)) in allowed:
            continue
        text = printable(name, 80) if isinstance(name, str) else format_value(name, limit=80)
        if isinstance(name, str) and name.removeprefix(_NUMCODECS_PREFIX) in _OBJECT_CODECS:
            reason = "is for variable-length elements: expected a type of fixed size"
        else:
            reason = f"is not allowed: expected one of {', '.join(sorted(allowed))}"
        raise InputError(f"{printable(label)}: codec {text} {reason}")


class Step(NamedTuple):
    """A codec from bytes to bytes.

    max_encoded: returns the maximum encoded size for a decoded size. is_fixed_size: whether every
    encoded size is the maximum. decode: takes the encoded bytes, the maximum decoded size, and
    whether every decoded size is the maximum.
    """

    name: str
    max_encoded: Callable[[int], int]
    is_fixed_size: bool
    decode: Callable[[memoryview, int, bool], Any]
    encode: Callable[[Any], Any]


class Chain:
    """The codec chain of a chunk: a permutation of its axes, then codecs of bytes, in order.

    nbytes: size of a decoded chunk. max_nbytes: maximum size of an encoded chunk. is_fixed_size:
    whether every encoded chunk has that size.
    """

    def __init__(
        self, shape: Shape, dtype: np.dtype[Any], axes: Sequence[int], steps: Iterable[Step]
    ) -> None:
        self._dtype, self._axes, self._steps = dtype, tuple(axes), tuple(steps)
        self._stored_shape = tuple(shape[axis] for axis in axes)
        self._inverse_axes = tuple(sorted(range(len(shape)), key=self._axes.__getitem__))
        self.nbytes = prod(shape) * dtype.itemsize
        sizes, are_fixed = [self.nbytes], [True]
        for step in self._steps:
            sizes.append(step.max_encoded(sizes[-1]))
            are_fixed.append(are_fixed[-1] and step.is_fixed_size)
        self._sizes, self._are_fixed = sizes, are_fixed
        self.max_nbytes, self.is_fixed_size = sizes[-1], are_fixed[-1]

    def decode(self, raw: bytes) -> np.ndarray[Any, Any]:
        """Decode a chunk; ValueError, or an exception of a codec's library, if it is damaged."""
        import numpy as np

        chunk = memoryview(raw)
        self._check_size(chunk, len(self._steps), "a chunk")
        with np.errstate(all="ignore"):  # overflow in a filter is no error
            for i in range(len(self._steps) - 1, -1, -1):
                step, size, is_exact = self._steps[i], self._sizes[i], self._are_fixed[i]
                chunk = _as_bytes(step.decode(chunk, size, is_exact))
                self._check_size(chunk, i, f"a chunk without {step.name}")
        return (
            np.frombuffer(chunk, self._dtype)
            .reshape(self._stored_shape)
            .transpose(self._inverse_axes)
        )

    def _check_size(self, chunk: memoryview, codec_count: int, subject: str) -> None:
        size, is_exact = self._sizes[codec_count], self._are_fixed[codec_count]
        if len(chunk) > size or (is_exact and len(chunk) != size):
            qualifier = "" if is_exact else "at most "
            raise ValueError(f"{subject} has {len(chunk)} bytes: expected {qualifier}{size}")

    def encode(self, array: np.ndarray[Any, Any]) -> memoryview:
        import numpy as np

        chunk: Any = np.ascontiguousarray(array.transpose(self._axes)).reshape(-1)
        for step in self._steps:
            chunk = step.encode(chunk)
        return _as_bytes(chunk)


class Sharding(NamedTuple):
    """The layout of a shard. per_shard: number of chunks along each axis.

    index_chain: the codecs of the shard's index. index_at_start: the index's location, else the
    end.
    """

    per_shard: Shape
    index_chain: Chain
    index_at_start: bool

    def index_span(self) -> tuple[int, int | None]:
        """Return the start and stop of the slice of a shard's bytes that is the index."""
        return (
            (0, self.index_chain.max_nbytes)
            if self.index_at_start
            else (-self.index_chain.max_nbytes, None)
        )

    def find(self, index: bytes, coordinates: Shape) -> tuple[int, int] | None:
        """Return the offset and size of a chunk in its shard, None if the chunk is missing."""
        offset, size = map(int, self.index_chain.decode(index)[coordinates])
        return None if (offset, size) == (_MISSING_CHUNK, _MISSING_CHUNK) else (offset, size)

    def encode(self, shard: np.ndarray[Any, Any], chain: Chain) -> bytes:
        """Encode a shard: all of its chunks, and the index."""
        import numpy as np

        chunk_shape = tuple(
            n // count for n, count in zip(shard.shape, self.per_shard, strict=True)
        )
        shard_index = np.empty((*self.per_shard, 2), "<u8")
        offset = self.index_chain.max_nbytes if self.index_at_start else 0
        encoded = []
        for coordinates in product(*map(range, self.per_shard)):
            selection = tuple(
                slice(i * n, (i + 1) * n) for i, n in zip(coordinates, chunk_shape, strict=True)
            )
            encoded.append(chain.encode(shard[selection]))
            shard_index[coordinates] = offset, len(encoded[-1])
            offset += len(encoded[-1])
        encoded.insert(
            0 if self.index_at_start else len(encoded), self.index_chain.encode(shard_index)
        )
        return b"".join(encoded)


class Layout(NamedTuple):
    """The layout of files. chain: the codecs of a chunk. sharding: None without shards."""

    chain: Chain
    sharding: Sharding | None

    def encode(self, array: np.ndarray[Any, Any]) -> bytes | memoryview:
        """Encode the elements of a file, a chunk or a shard."""
        if self.sharding is None:
            return self.chain.encode(array)
        return self.sharding.encode(array, self.chain)


def parse_layout(document: dict[str, Any], shape: Shape, dtype: np.dtype[Any]) -> Layout:
    """Return the layout of an array's files. shape, dtype: of a chunk.

    document: complete metadata, as the zarr package writes them. Raises ValueError if a codec is
    not supported.
    """
    if document["zarr_format"] == 2:
        codecs = [*(document.get("filters") or ()), document.get("compressor")]
        axes = range(len(shape))
        order = axes[::-1] if document.get("order") == "F" else axes
        steps = [_make_step(dict(codec)) for codec in codecs if codec is not None]
        return Layout(Chain(shape, dtype, order, steps), None)
    codecs = list(document["codecs"])
    if codecs[0]["name"] != SHARDING:
        return Layout(_parse_chain(codecs, shape, dtype), None)
    import numpy as np

    configuration = codecs[0]["configuration"]
    shard_shape = document["chunk_grid"]["configuration"]["chunk_shape"]
    per_shard = tuple(n // step for n, step in zip(shard_shape, shape, strict=True))
    (first_codec, *_), index_dtypes = configuration["index_codecs"], {"big": ">u8", "little": "<u8"}
    endian = (first_codec.get("configuration") or {}).get("endian", "little")
    index_chain = _parse_chain(
        configuration["index_codecs"], (*per_shard, 2), np.dtype(index_dtypes[endian])
    )
    at_start = configuration.get("index_location", "end") == "start"
    return Layout(
        _parse_chain(configuration["codecs"], shape, dtype),
        Sharding(per_shard, index_chain, at_start),
    )


def _parse_chain(codecs: Iterable[dict[str, Any]], shape: Shape, dtype: np.dtype[Any]) -> Chain:
    """Parse a version 3 chain: array-to-array, array-to-bytes, then bytes-to-bytes codecs."""
    axes = list(range(len(shape)))
    steps: list[Step] = []
    for codec in codecs:
        name, configuration = codec["name"], dict(codec.get("configuration") or {})
        if name == "transpose":
            if sorted(configuration["order"]) != sorted(axes) or steps:
                raise ValueError("codec transpose: expected an order of all axes, before filters")
            axes = [axes[axis] for axis in configuration["order"]]
        elif name == "bytes":
            # Both would apply to the output of the filter, which has another type.
            if steps and (axes != sorted(axes) or configuration.get("endian") == "big"):
                name = steps[0].name
                raise ValueError(
                    f"codec {name} is not supported with transpose or big-endian bytes"
                )
        else:
            steps.append(_make_step(_version_2_config(name, configuration)))
    return Chain(shape, dtype, axes, steps)


def _version_2_config(name: str, configuration: dict[str, Any]) -> dict[str, Any]:
    if name == "blosc":
        configuration = {**configuration, "shuffle": _SHUFFLES[configuration["shuffle"]]}
        configuration.pop("typesize", None)  # numcodecs uses the element size
    return {**configuration, "id": name.removeprefix(_NUMCODECS_PREFIX)}


def _make_step(config: dict[str, Any]) -> Step:
    """Return a step that applies a codec of the numcodecs package, with bounded output."""
    import numcodecs

    name = config["id"]
    decompress = decompressor(config)
    if decompress is not None:
        encode = numcodecs.get_codec(config).encode
        return Step(name, lambda n: n + n // 8 + (1 << 14), False, decompress, encode)
    if name in _CAST_KEYS:
        return _make_cast(name, config)
    if name not in _NUMCODECS:
        raise ValueError(f"codec {name} is not allowed")
    codec = numcodecs.get_codec(config)

    def decode(chunk: memoryview, max_nbytes: int, is_exact: bool) -> Any:
        return codec.decode(chunk)

    if name in _CHECKSUMS:
        return Step(name, lambda n: n + 4, True, decode, codec.encode)
    if name == "packbits":
        return Step(name, lambda n: 1 + -(-n // 8), True, decode, codec.encode)
    if name == "bitround":  # rounding is not reversed
        return Step(
            name, lambda n: n, True, lambda chunk, max_nbytes, is_exact: chunk, codec.encode
        )
    assert name == "shuffle", name
    if type(codec.elementsize) is not int:
        raise ValueError(f"codec shuffle: elementsize is {format_value(codec.elementsize)}")
    return Step(name, lambda n: n, True, decode, codec.encode)


def _make_cast(name: str, config: dict[str, Any]) -> Step:
    """Return a step that applies a filter, which encodes elements as another type."""
    import numcodecs
    import numpy as np

    decoded_key, encoded_key = _CAST_KEYS[name]
    decoded_dtype = np.dtype(config[decoded_key])
    encoded_dtype = np.dtype(config.get(encoded_key) or decoded_dtype)
    if decoded_dtype.kind not in "biufcmM" or encoded_dtype.kind not in "biufcmM":
        raise ValueError(f"codec {name}: expected numeric types")
    for key in ("scale", "offset", "digits"):
        if type(config.get(key, 0)) not in (int, float) or abs(config.get(key, 0)) >= 1 << 63:
            raise ValueError(
                f"codec {name}: {key} is {format_value(config[key])}: expected a number"
            )
    codec = numcodecs.get_codec(config)

    def max_encoded(n: int) -> int:
        if n % decoded_dtype.itemsize:
            raise ValueError(f"codec {name}: {n} bytes are no multiple of {decoded_dtype}")
        return n // int(decoded_dtype.itemsize) * int(encoded_dtype.itemsize)

    def decode(chunk: memoryview, max_nbytes: int, is_exact: bool) -> Any:
        if not is_exact:  # the size may not be a multiple of the element size
            raise ValueError(f"codec {name} after a compressor")
        return codec.decode(chunk)

    return Step(name, max_encoded, True, decode, codec.encode)


def _as_bytes(buffer: Any) -> memoryview:
    import numpy as np

    if isinstance(buffer, np.ndarray):
        buffer = np.ascontiguousarray(buffer).reshape(-1).view(np.uint8)
    return memoryview(buffer).cast("B")
