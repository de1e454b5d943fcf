"""The metadata of arrays in Zarr stores, versions 2 and 3: element type, chunks and codecs."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ndtool.arrays.assembly import library_errors
from ndtool.arrays.source import ArrayMetadata, ChunkLayout
from ndtool.errors import DtypeError, format_value, printable, refuse
from ndtool.formats import codecs
from ndtool.formats.codecs import Chain, require_limits
from ndtool.formats.decoding import unapplied_warning
from ndtool.formats.numpytypes import from_numpy, numpy_dtype
from ndtool.formats.zarr import hierarchy
from ndtool.formats.zarr.hierarchy import Read
from ndtool.rules import dtypes, shapes
from ndtool.rules.dtypes import Dtype
from ndtool.rules.plans import Shape
from ndtool.storage.local import ZARR_METADATA

if TYPE_CHECKING:
    import numpy as np

MAX_SHARD_CHUNKS = 1 << 20  # limited because a shard's index has 16 bytes per chunk
MAX_ELEMENT_BYTES = 1 << 20
SHARDING = "sharding_indexed"
_PREFIX = "numcodecs."  # of the names of further codecs in version 3
_CORE_CODECS = ("blosc", "bytes", "crc32c", "gzip", "transpose", "zstd")  # of version 3
_ALLOWED_CODECS = (*_CORE_CODECS, *(_PREFIX + codec for codec in codecs.NAMES))
_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
_MISSING_CHUNK = (1 << 64) - 1  # offset and length of a chunk that its shard lacks
_NUMBERS = (*dtypes.REALS, "complex64", "complex128")
_LOCATIONS = ("start", "end")
# Names of types of version 3 with parameters: NumPy's letter, and bytes per unit of its size.
_SIZED_TYPES = {
    "null_terminated_bytes": ("S", 1), "fixed_length_utf32": ("U", 4), "raw_bytes": ("V", 1)
}  # fmt: skip
_TIMES = {"numpy.datetime64": "M", "numpy.timedelta64": "m"}
_FLOATS = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
# Keys of version 3; others must be declared as ones that may be ignored.
_KEYS = frozenset((
    "zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding",
    "fill_value", "codecs", "attributes", "dimension_names", "storage_transformers",
))  # fmt: skip
# Keys of configurations in the standard; a key that is not known might change values.
_CONFIGURATION_KEYS: dict[str, Collection[str]] = {
    "regular": ("chunk_shape",), "default": ("separator",), "v2": ("separator",),
    "bytes": ("endian",), "transpose": ("order",), "gzip": ("level",), "crc32c": (),
    "zstd": ("level", "checksum"),
    "blosc": ("cname", "clevel", "shuffle", "typesize", "blocksize"),
    SHARDING: ("chunk_shape", "codecs", "index_codecs", "index_location"),
}  # fmt: skip


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


class ZarrArray(NamedTuple):
    """The parsed metadata of an array at a path, `node`.

    fill: the element of missing chunks. chain: the codecs of a chunk. sharding: None without
    shards. key_prefix, separator: of the keys of chunks. warning: about attributes that are not
    applied. document: the metadata as stored.
    """

    node: str
    metadata: ArrayMetadata
    fill: Any
    chain: Chain
    sharding: Sharding | None
    key_prefix: str
    separator: str
    warning: str | None
    document: dict[str, Any]
    attributes: dict[str, Any]

    def chunk_key(self, coordinates: Shape) -> str:
        """Return the key of a chunk or shard in the store."""
        names = [self.key_prefix] if self.key_prefix else []
        names += map(str, coordinates)
        return f"{self.node}/{self.separator.join(names) or '0'}".lstrip("/")

    def require_packages(self) -> None:
        """Raise UsageError if a codec of chunks or of shards' indices needs a missing package."""
        self.chain.require_packages()
        if self.sharding is not None:
            self.sharding.index_chain.require_packages()

    def encode(self, array: np.ndarray[Any, Any]) -> bytes | memoryview:
        """Encode the elements of a file, a chunk or a shard."""
        if self.sharding is None:
            return self.chain.encode(array)
        return self.sharding.encode(array, self.chain)


def label(path: str, node: str) -> str:
    """Return the name of an array for messages."""
    return f"{path}:{node}" if node else path


def read_array(read: Read, name: str, node: str) -> ZarrArray:
    """Parse the metadata of the array at a path. name: of the array, for messages."""
    version_3_key, version_2_key, attributes_key = (
        f"{node}/{key}".lstrip("/") for key in (*ZARR_METADATA[:2], ".zattrs")
    )
    raw, version = hierarchy.read_metadata(read, version_3_key, name), 3
    if raw is None:
        raw, version = hierarchy.read_metadata(read, version_2_key, name), 2
    with library_errors(name):
        document = json.loads(raw or b"")
        if not isinstance(document, dict):
            refuse(name, "its metadata are no JSON object")
        if document.get("zarr_format") != version:
            zarr_format = format_value(document.get("zarr_format"))
            refuse(name, f"zarr_format {zarr_format}: expected {version}")
        if "fill_value" not in document:
            refuse(name, "its metadata have no fill_value")
        fields, attributes = document, document.get("attributes")
        if version == 2:
            fields = _as_version_3(document, name)
            with suppress(json.JSONDecodeError):
                attributes = json.loads(
                    hierarchy.read_metadata(read, attributes_key, name) or b"{}"
                )
        _require_known_keys(fields, name)
        shape = _sizes(fields.get("shape"), "shape", name)
        _, grid = _extension(fields, "chunk_grid", ("regular",), name)
        chunks, shards = _sizes(grid.get("chunk_shape"), "chunk_shape", name), None
        configs = _codec_configs(fields.get("codecs"), (*_ALLOWED_CODECS, SHARDING), name)
        outer, sharding = configs[0] if configs else {}, None
        if any(config["id"] == SHARDING for config in configs):
            if len(configs) > 1:
                refuse(name, f"codec {SHARDING} with others: expected it alone")
            shards, chunks = chunks, _sizes(outer.get("chunk_shape"), "chunk_shape", name)
            configs = _codec_configs(outer.get("codecs"), _ALLOWED_CODECS, name)
        element = _parse_type(fields.get("data_type"), version, name)
        if _is_big_endian(configs, name):
            element = _big_endian(element, name)
        described = (c for c in configs if version == 3 or c["id"] not in ("transpose", "bytes"))
        layout = ChunkLayout(chunks, shards, tuple(map(_describe, described)), version)
        _require_limits(element, shape, layout, name)
        kind, config = _extension(fields, "chunk_key_encoding", ("default", "v2"), name)
        separator, prefix = ("/", "c") if kind == "default" else (".", "")
        separator = _choice({"separator": separator, **config}, "separator", "./", name)
        metadata = ArrayMetadata(element, shape, "C", chunks, {"zarr_format": version}, layout)
        dtype = numpy_dtype(element)
        chain = _parse_chain(configs, chunks, dtype)
        if shards is not None:
            sharding = _parse_sharding(outer, layout, name)
        fill = _fill_value(document["fill_value"], dtype, name)
        warning = unapplied_warning(name, attributes)
        attributes = attributes if isinstance(attributes, dict) else {}
        return ZarrArray(
            node, metadata, fill, chain, sharding, prefix, separator, warning, document, attributes
        )


def _as_version_3(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Return metadata of version 2 as those of version 3, but with the element type as it is."""
    compressor, filters = document.get("compressor"), document.get("filters")
    found = [] if filters is None else _list(filters, "filters", name)
    chain: list[dict[str, Any]] = [{"name": "bytes"}]
    for config in found if compressor is None else [*found, compressor]:
        if not isinstance(config, dict):
            refuse(name, f"codec {format_value(config)}: expected a JSON object")
        settings = {key: value for key, value in config.items() if key != "id"}
        chain.append({"name": f"{_PREFIX}{config.get('id')}", "configuration": settings})
    shape = _sizes(document.get("shape"), "shape", name)
    if _choice(document, "order", ("C", "F"), name) == "F":
        order = list(range(len(shape)))[::-1]
        chain.insert(0, {"name": "transpose", "configuration": {"order": order}})
    separator = document.get("dimension_separator", ".")
    return {
        "node_type": "array", "shape": list(shape), "data_type": document.get("dtype"),
        "codecs": chain,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": document.get("chunks")}},
        "chunk_key_encoding": {"name": "v2", "configuration": {"separator": separator}},
    }  # fmt: skip


def _require_known_keys(document: dict[str, Any], name: str) -> None:
    for key in document.keys() - _KEYS:
        value = document[key]
        if not isinstance(value, dict) or value.get("must_understand") is not False:
            refuse(name, f"its metadata have the unknown key {format_value(key)}")
    if document.get("storage_transformers"):
        refuse(name, "storage transformers are not supported")
    _choice(document, "node_type", ("array",), name)


def _require_limits(dtype: Dtype, shape: Shape, layout: ChunkLayout, name: str) -> None:
    """Raise NdtoolError if an array exceeds a limit, or its chunks do not suit its shape."""
    chunks, shards = layout.chunks, layout.chunks if layout.shards is None else layout.shards
    if dtype.itemsize > MAX_ELEMENT_BYTES:
        refuse(name, f"elements of {dtype.itemsize} bytes: at most {MAX_ELEMENT_BYTES} are valid")
    if len(shape) > shapes.MAX_RANK:
        refuse(name, f"rank {len(shape)}: valid 0..{shapes.MAX_RANK}")
    require_limits(name, shape, dtype.itemsize, chunks)
    is_aligned = len(shards) == len(chunks) and 0 not in shards
    if not is_aligned or any(n % step for n, step in zip(shards, chunks, strict=True)):
        refuse(name, f"shards {list(shards)} are no multiple of chunks {list(chunks)}")
    if (count := prod(shards) // prod(chunks)) > MAX_SHARD_CHUNKS:
        refuse(name, f"a shard has {count} chunks: at most {MAX_SHARD_CHUNKS} can be in one")


def _sizes(value: object, what: str, name: str) -> Shape:
    if not isinstance(value, list) or any(type(size) is not int or size < 0 for size in value):
        refuse(name, f"{what} {format_value(value)}: expected a list of sizes")
    return tuple(value)


def _list(value: object, what: str, name: str) -> list[Any]:
    if not isinstance(value, list):
        refuse(name, f"{what} {format_value(value)}: expected a list")
    return list(value)


def _choice(fields: dict[str, Any], key: str, valid: Sequence[str], name: str) -> str:
    if (value := fields.get(key)) not in tuple(valid):
        refuse(name, f"{key} {format_value(value)}: expected {' or '.join(valid)}")
    return str(value)


def _extension(
    fields: dict[str, Any], key: str, valid: Sequence[str], name: str
) -> tuple[str, dict[str, Any]]:
    """Return the name, one of the valid ones, and the configuration of an extension point."""
    found, config = _named(fields.get(key), key, name)
    return _choice({key: found}, key, valid, name), config


def _named(value: object, what: str, name: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the configuration of an extension point of version 3."""
    if isinstance(value, str):
        return value, {}
    config = value.get("configuration") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        refuse(name, f"{what} {format_value(value, limit=80)}: expected a name")
    if not isinstance(config, dict) and config is not None:
        refuse(name, f"{what} {value['name']}: its configuration is no JSON object")
    unknown = sorted(value.keys() - {"name", "configuration", "must_understand"})
    unknown += sorted(
        (config or {}).keys() - set(_CONFIGURATION_KEYS.get(value["name"], config or {}))
    )
    if unknown:
        refuse(name, f"{what} {value['name']} has the unknown key {format_value(unknown[0])}")
    return value["name"], config or {}


# Element types


def _parse_type(spec: object, version: int, name: str) -> Dtype:
    """Return an element type, of version 3 in little-endian byte order."""
    try:
        descr = _normalize_descr(spec) if version == 2 else _data_type_descr(spec, name)
        dtype = descr if isinstance(descr, Dtype) else dtypes.from_descr(descr)
        numpy_dtype(dtype)
        return dtype
    except (DtypeError, TypeError, KeyError, IndexError, ValueError):
        kind = spec.get("name", spec) if isinstance(spec, dict) else spec
        text = printable(kind, 80) if isinstance(kind, str) else format_value(kind, limit=80)
        refuse(name, f"elements of type {text}: expected a type of fixed size")


def _normalize_descr(descr: Any) -> Any:
    if not isinstance(descr, list):
        return descr
    return [(name, _normalize_descr(kind), *map(tuple, sizes)) for name, kind, *sizes in descr]


def _data_type_descr(spec: object, name: str) -> Any:
    kind, config = _named(spec, "data_type", name)
    if kind in _NUMBERS:
        return dtypes.little_endian(kind).descr
    if kind in dtypes.EXTENSION_DTYPES and not kind.startswith(("int", "uint", "float4", "float6")):
        return dtypes.from_name(kind)
    if re.fullmatch("r[0-9]{1,9}", kind) and int(kind[1:]) % 8 == 0:
        return f"|V{int(kind[1:]) // 8}"
    if kind == "structured":
        return [
            (field, _data_type_descr(field_type, name)) for field, field_type in config["fields"]
        ]
    length, (letter, unit_nbytes) = config.get("length_bytes"), _SIZED_TYPES.get(kind, ("", 1))
    if letter and type(length) is int and length > 0 and length % unit_nbytes == 0:
        return f"<{letter}{length // unit_nbytes}"
    if kind in _TIMES:
        unit, factor = config["unit"], config.get("scale_factor", 1)
        if type(factor) is int and re.fullmatch("[A-Za-zμ]{1,7}", unit):
            unit = "" if unit == "generic" else f"[{factor if factor != 1 else ''}{unit}]"
            return f"<{_TIMES[kind]}8{unit}"
    raise ValueError("unknown type")


def _big_endian(dtype: Dtype, name: str) -> Dtype:
    if dtype.name in dtypes.EXTENSION_DTYPES and dtype.itemsize > 1:
        refuse(name, f"big-endian {dtype.name} is not supported")
    if dtype.name in dtypes.EXTENSION_DTYPES:
        return dtype
    return from_numpy(numpy_dtype(dtype).newbyteorder(">"))


def _fill_value(value: Any, dtype: Any, name: str) -> Any:
    """Return the fill value as an ndarray of rank 0."""
    import numpy as np

    fill = np.zeros((), dtype)
    try:
        if value is None or (dtype.kind in "SVUb" and type(value) in (int, float) and not value):
            return fill
        if dtype.kind in "SV":
            raw = (
                bytes(value) if isinstance(value, list) else base64.b64decode(value, validate=True)
            )
            sizes = range(dtype.itemsize + 1) if dtype.kind == "S" else (0, dtype.itemsize)
            if len(raw) not in sizes:
                raise ValueError(f"{len(raw)} bytes")
            return np.frombuffer(raw.ljust(dtype.itemsize, b"\0"), dtype).reshape(())
        with np.errstate(over="ignore"):
            fill[...] = _number(value, dtype)
    except (ValueError, TypeError, KeyError, OverflowError):
        text = format_value(value, limit=80)
        refuse(name, f"fill_value {text} is not of its type {dtype}")
    return fill


def _number(value: Any, dtype: Any) -> Any:
    """Return a fill value that NumPy converts to a type. Raises ValueError for another type."""
    import numpy as np

    kinds: dict[str, tuple[type, ...]] = {"b": (bool,), "U": (str,), "i": (int,), "u": (int,)}
    if dtype.kind == "b" and value in (0, 1):
        return bool(value)
    if dtype.kind == "c":
        part = np.dtype(f"{dtype.str[0]}f{dtype.itemsize // 2}")
        if not isinstance(value, list):
            return _number(value, part)
        real, imaginary = value
        return np.array([_number(real, part), _number(imaginary, part)], part).view(dtype)[0]
    if dtype.kind == "f" and isinstance(value, str):
        if value.startswith("0x"):
            return np.frombuffer(bytes.fromhex(value[2:]), f">f{dtype.itemsize}", count=1)[0]
        return float(_FLOATS[value])
    if dtype.kind in "mM" and value == "NaT":
        return np.array("NaT", dtype)
    if dtype.kind in "iu" and isinstance(value, float) and value.is_integer():
        return int(value)
    if type(value) not in kinds.get(dtype.kind, (int, float)):
        raise ValueError("not of this type")
    return np.array(value, np.int64).view(dtype.newbyteorder("=")) if dtype.kind in "mM" else value


# Codecs


def _codec_configs(value: object, allowed: Sequence[str], name: str) -> list[dict[str, Any]]:
    """Return the configurations of codecs as numcodecs has them, with their names as `id`."""
    configs = []
    for item in _list(value, "codecs", name):
        codec, config = _named(item, "codec", name)
        if codec not in allowed:
            names = ", ".join(sorted(allowed))
            refuse(name, f"codec {printable(codec, 80)} is not allowed: expected one of {names}")
        configs.append(flat_config({**config, "id": codec.removeprefix(_PREFIX)}))
    return configs


def _describe(config: dict[str, Any]) -> str:
    """Return a codec with its level: "zstd 3"."""
    level = config.get("level", config.get("clevel"))
    fields = (config["id"], config.get("cname"), level)
    return printable(" ".join(str(field) for field in fields if field is not None), 80)


def _is_big_endian(configs: list[dict[str, Any]], name: str) -> bool:
    to_bytes = [{"endian": "little", **config} for config in configs if config["id"] == "bytes"]
    if len(to_bytes) != 1:
        refuse(name, "expected one codec bytes")
    return _choice(to_bytes[0], "endian", ("little", "big"), name) == "big"


def _parse_chain(configs: list[dict[str, Any]], shape: Shape, dtype: Any) -> Chain:
    """Parse the codecs: permutations of axes, in version 3 one to bytes, then codecs of bytes."""
    axes, steps = list(range(len(shape))), list[codecs.Codec]()
    for config in configs:
        codec = config["id"]
        if codec == "transpose":
            order = config.get("order")
            if not isinstance(order, list) or sorted(order) != sorted(axes) or steps:
                raise ValueError("codec transpose: expected an order of all axes, before others")
            axes = [axes[axis] for axis in order]
        elif codec == "bytes":
            if steps:
                raise ValueError(f"codec {steps[0].name} before codec bytes")
        else:
            steps.append(codecs.make(config))
    return Chain(shape, dtype, axes, steps)


def flat_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a codec as version 2 and numcodecs have it."""
    if config["id"] == "blosc" and config.get("shuffle") in _SHUFFLES:
        config["shuffle"] = _SHUFFLES[config["shuffle"]]
    config.pop("typesize", None)  # numcodecs uses the element size
    return config


def _parse_sharding(config: dict[str, Any], layout: ChunkLayout, name: str) -> Sharding:
    import numpy as np

    index_configs = _codec_configs(config.get("index_codecs"), ("bytes", "crc32c"), name)
    sizes = zip(layout.file_shape, layout.chunks, strict=True)
    per_shard = tuple(n // step for n, step in sizes)
    dtype = np.dtype(">u8" if _is_big_endian(index_configs, name) else "<u8")
    index_chain = _parse_chain(index_configs, (*per_shard, 2), dtype)
    location = _choice({"index_location": "end", **config}, "index_location", _LOCATIONS, name)
    return Sharding(per_shard, index_chain, location == "start")


# Metadata of new arrays


def data_type(dtype: Dtype) -> Any:
    """Return the name of an element type in version 3; DtypeError if it has none."""
    if dtype.name in _NUMBERS:
        return dtype.name
    for name, (letter, _) in _SIZED_TYPES.items():
        if dtype.kind == letter and dtype.itemsize and dtype.name != "struct":
            return {"name": name, "configuration": {"length_bytes": dtype.itemsize}}
    for name, letter in _TIMES.items():
        if match := re.fullmatch(rf".{letter}8(?:\[([0-9]*)([A-Za-zμ]+)\])?", str(dtype.descr)):
            factor, unit = match.groups()
            settings = {"unit": unit or "generic", "scale_factor": int(factor or 1)}
            return {"name": name, "configuration": settings}
    raise DtypeError("no name")


def zero_fill(dtype: Dtype) -> Any:
    """Return the fill value of zeros in JSON."""
    kind = str(dtype.descr).lstrip("<>|=")[0]
    if kind == "V":
        return base64.b64encode(bytes(dtype.itemsize)).decode()
    zeros = {"b": False, "f": 0.0, "c": [0.0, 0.0], "S": "", "U": ""}
    return zeros.get(kind, 0)


def create_documents(
    array_path: str,
    dtype: Dtype,
    layout: ChunkLayout,
    compressor: dict[str, Any] | None,
    attributes: dict[str, Any],
    fields: dict[str, Any],
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the documents of a new array and its groups, with their keys.

    compressor: its configuration in this version. fields: of the array's document, the shape and
    others that replace default values.
    """
    parts = array_path.split("/") if array_path else []
    groups: dict[str, Any] = {
        "zarr.json": {"zarr_format": 3, "node_type": "group", "attributes": {}}
    }
    if layout.version == 2:
        groups = {".zgroup": {"zarr_format": 2}, ".zattrs": {}}
    for depth in range(len(parts)):
        for key, document in groups.items():
            yield "/".join([*parts[:depth], key]), document
    prefix, chunks = f"{array_path}/" if array_path else "", list(layout.chunks)
    if layout.version == 2:
        descr = dtype.descr
        # All chunks are written. Elements equal to a fill value would be missing ones for xarray.
        yield f"{prefix}.zarray", {
            "zarr_format": 2, "fill_value": None, "chunks": chunks, "order": "C", "filters": None,
            "dtype": descr if isinstance(descr, str) else [list(field) for field in descr],
            "dimension_separator": ".", "compressor": compressor, **fields,
        }  # fmt: skip
        yield f"{prefix}.zattrs", attributes
        return
    little: dict[str, Any] = {"name": "bytes", "configuration": {"endian": "little"}}
    big = {"name": "bytes", "configuration": {"endian": "big"}}
    to_bytes = {"|": {"name": "bytes"}, "<": little, ">": big}[dtype.order]
    chain = [to_bytes, *([] if compressor is None else [compressor])]
    if layout.shards is not None:
        sharding = {
            "chunk_shape": chunks, "codecs": chain,
            "index_codecs": [little, {"name": "crc32c"}], "index_location": "end",
        }  # fmt: skip
        chain = [{"name": SHARDING, "configuration": sharding}]
    grid = {"name": "regular", "configuration": {"chunk_shape": list(layout.file_shape)}}
    yield f"{prefix}zarr.json", {
        "zarr_format": 3, "fill_value": zero_fill(dtype), "node_type": "array",
        "data_type": data_type(dtype), "chunk_grid": grid,
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": chain, "attributes": attributes, "storage_transformers": [], **fields,
    }  # fmt: skip
