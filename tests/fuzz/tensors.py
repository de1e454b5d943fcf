"""Almost valid tensor files from bytes: safetensors and its index, ONNX, Zarr metadata."""

import json
from typing import Any

from recipes import NAMES, NUMBERS, Choices, damaged

TYPES = (
    "F32", "BF16", "I64", "BOOL", "U8", "F8_E4M3", "C64", "F4", "F6_E2M3", "F64", "X", "", "f32",
)  # fmt: skip
ODD = (
    "null", "true", "-1", "1.5", "1e3", '"x"', "[]", "{}", "[[[[", "00", "0x1", "NaN", '"\\ud800"',
    '"\\u0000"', "[0, 4]", '{"a": {}}', "18446744073709551616", "\x00", '"', "1" * 5000,
)  # fmt: skip
SIZES = {"F32": 4, "BF16": 2, "I64": 8, "BOOL": 1, "U8": 1, "F8_E4M3": 1, "C64": 8, "F64": 8}


def number(choose: Choices) -> int:
    return choose.of(NUMBERS) if choose.rarely() else choose.below(6)


def value(choose: Choices, right: Any) -> str:
    """Return a JSON value, sometimes another than the expected one."""
    return choose.of(ODD) if choose.rarely() and choose.rarely() else json.dumps(right)


def safetensors(choose: Choices) -> bytes:
    """Return an almost valid safetensors file."""
    at, parts = 0, []
    if choose.rarely():
        parts.append(f'"__metadata__": {value(choose, {"format": "pt"})}')
    for order in range(choose.below(4)):
        name = choose.of(NAMES) if choose.rarely() else f"t{order}"
        kind = choose.of(TYPES) if choose.rarely() else choose.of(TYPES[:8])
        shape = [number(choose) for _ in range(choose.below(4))]
        size = SIZES.get(kind, 1)
        for length in shape:
            size *= length
        stop = at + size if size < 1 << 20 else at + choose.below(64)
        position = [at, stop] if not choose.rarely() else [number(choose), number(choose)]
        pairs = [
            f'"dtype": {value(choose, kind)}', f'"shape": {value(choose, shape)}',
            f'"data_offsets": {value(choose, position)}',
        ]  # fmt: skip
        if choose.rarely():
            pairs.append(choose.of((pairs[0], '"more": 1', '"": {}')))
        if choose.rarely():
            del pairs[choose.below(len(pairs))]
        parts.append(f"{json.dumps(name)}: {{{', '.join(pairs)}}}")
        at = stop
    raw = ("{" + ", ".join(parts) + "}" + " " * choose.below(9)).encode("utf-8", "surrogatepass")
    length = choose.of(NUMBERS) % 2**64 if choose.rarely() else len(raw)
    extra = choose.of((-1, 1, 8)) if choose.rarely() else 0
    encoded = length.to_bytes(8, "little") + raw + bytes(max(0, at + extra))
    return damaged(choose, encoded) if choose.rarely() else encoded


def index(choose: Choices) -> bytes:
    """Return an almost valid index of a model in several files."""
    files = ("a.safetensors", "../a", "/etc/passwd", "", ".", "https://localhost/x", "\0")
    pairs = [f'"t{n}": {value(choose, choose.of(files))}' for n in range(choose.below(4))]
    text = f'{{"metadata": {value(choose, {})}, "weight_map": {{{", ".join(pairs)}}}}}'
    raw = text.encode("utf-8", "surrogatepass")
    return damaged(choose, raw) if choose.rarely() else raw


def varint(count: int) -> bytes:
    count %= 2**64
    raw = bytearray()
    while count > 127:
        raw.append(count & 127 | 128)
        count >>= 7
    return bytes((*raw, count))


def field(choose: Choices, key: int, content: bytes | int) -> bytes:
    """Return a field of a message, sometimes with another wire type or length."""
    if choose.rarely() and choose.rarely():
        key = choose.below(40)
    if isinstance(content, int):
        return varint(key << 3) + varint(content)
    if choose.rarely() and choose.rarely():
        return varint(key << 3 | choose.below(8)) + content
    length = number(choose) if choose.rarely() and choose.rarely() else len(content)
    return varint(key << 3 | 2) + varint(length) + content


def tensor(choose: Choices) -> bytes:
    """Return an almost valid TensorProto."""
    kind = number(choose) if choose.rarely() else 1 + choose.below(25)
    dims = [number(choose) if choose.rarely() else choose.below(4) for _ in range(choose.below(4))]
    count = 1
    for size in dims:
        count *= size
    count = count if 0 <= count < 1000 else 3
    encoded = b""
    if choose.below(2):
        encoded += b"".join(field(choose, 1, size) for size in dims)
    else:
        encoded += field(choose, 1, b"".join(map(varint, dims)))
    encoded += field(choose, 2, kind)
    if choose.below(2):
        encoded += field(choose, 8, choose.of(NAMES).encode())
    form = choose.below(5)
    if form == 0:
        encoded += field(choose, 9, bytes(count * choose.of((1, 2, 4, 8, 16))))
    elif form == 1:
        key = choose.of((5, 7, 11))
        encoded += field(choose, key, b"".join(varint(number(choose)) for _ in range(count)))
    elif form == 2:
        key = choose.of((5, 7, 11))
        encoded += b"".join(field(choose, key, number(choose)) for _ in range(min(count, 50)))
    elif form == 3:
        encoded += field(choose, choose.of((4, 10, 6)), bytes(count * choose.of((4, 8))))
    else:
        for name in ("location", "offset", "length", "checksum", "offset")[: choose.below(6)]:
            document = choose.of(("x", "../x", "0", "-1", "1e3", "", "9" * 30, "/dev/zero", "."))
            pair = field(choose, 1, name.encode()) + field(choose, 2, document.encode())
            encoded += field(choose, 13, pair)
        encoded += field(choose, 14, 1)
    if choose.rarely():
        encoded += field(choose, choose.of((3, 12, 16, 9)), choose.bytes(20))
    return encoded


def attribute(choose: Choices, depth: int) -> bytes:
    name = choose.of((b"value", b"value_int", b"value_floats", b"then_branch", b"sparse_value"))
    encoded = field(choose, 1, name)
    form = choose.below(6)
    if form == 0:
        return encoded + field(choose, 5, tensor(choose))
    if form == 1 and depth < 4:
        return encoded + field(choose, choose.of((6, 11)), graph(choose, depth + 1))
    if form == 2:
        return encoded + field(choose, 3, number(choose))
    if form == 3:
        return encoded + varint(2 << 3 | 5) + choose.bytes(4)
    if form == 4:
        return encoded + field(choose, 8, b"".join(varint(number(choose)) for _ in range(3)))
    return encoded + field(choose, choose.of((7, 9, 10, 22)), choose.bytes(9))


def graph(choose: Choices, depth: int = 0) -> bytes:
    encoded = b""
    for _ in range(choose.below(3)):
        encoded += field(choose, 5, tensor(choose))
    for _ in range(choose.below(3)):
        operator = choose.of((b"Constant", b"GatherND", b"If", b"Scatter", b"\xff"))
        node = field(choose, 1, b"x") + field(choose, 2, choose.of(NAMES).encode())
        node += field(choose, 4, operator)
        for _ in range(choose.below(3)):
            node += field(choose, 5, attribute(choose, depth))
        encoded += field(choose, 1, node)
    if choose.rarely():
        encoded += field(choose, 11, field(choose, 1, b"x"))
    if choose.rarely():
        encoded += field(choose, 15, field(choose, 1, tensor(choose)))
    return encoded


def model(choose: Choices) -> bytes:
    """Return an almost valid model."""
    encoded = field(choose, 1, 8) + field(choose, 7, graph(choose))
    encoded += field(choose, 8, field(choose, 2, number(choose)))
    if choose.rarely():
        encoded += field(choose, 25, field(choose, 1, b"f") + field(choose, 7, graph(choose)))
    return damaged(choose, encoded) if choose.rarely() else encoded


def onnx(choose: Choices) -> bytes:
    """Return an almost valid tensor or model."""
    if choose.below(2):
        return model(choose)
    encoded = tensor(choose)
    return damaged(choose, encoded) if choose.rarely() else encoded


def store(raw: bytes) -> dict[str, bytes]:
    """Return the files of an almost valid Zarr store, by their names."""
    choose = Choices(raw)
    shape = [number(choose) for _ in range(choose.below(4))]
    chunks = [number(choose) if choose.rarely() else 2 for _ in shape]
    content = choose.bytes(64) if choose.below(2) else bytes(choose.of((0, 8, 16, 32)))
    if choose.below(2):
        codecs = choose.of((
            [{"name": "bytes", "configuration": {"endian": "little"}}],
            [{"name": "bytes"}], [{"name": "bytes"}, {"name": "zstd"}], [], [{"name": "?"}],
            [{"name": "bytes"}, {"name": "blosc", "configuration": {"cname": "lz4"}}],
            [{"name": "bytes"}, {"name": "crc32c"}],
            [{"name": "sharding_indexed", "configuration": {
                "chunk_shape": [1 for _ in shape], "codecs": [{"name": "bytes"}],
                "index_codecs": [{"name": "bytes"}, {"name": "crc32c"}]}}],
        ))  # fmt: skip
        kinds = ("int32", "bool", "float64", "uint8", "string", "r16", {"name": "?"}, "bfloat16")
        document = {
            "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": choose.of(kinds),
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
            "chunk_key_encoding": {"name": "default"}, "fill_value": 0, "codecs": codecs,
        }  # fmt: skip
        return {
            "zarr.json": metadata(choose, document),
            "/".join(["c", *("0" for _ in shape)]): content,
        }
    document = {
        "zarr_format": 2, "shape": shape, "chunks": chunks, "fill_value": choose.of((0, None, "x")),
        "dtype": choose.of(("<i4", ">f8", "|S3", "|O", "<U2", [["a", "<i2"]], "x", "<M8[s]")),
        "compressor": choose.of((None, {"id": "zlib"}, {"id": "?"}, {"id": "blosc"}, 1)),
        "filters": choose.of((None, [], [{"id": "delta", "dtype": "<i4"}], [{"id": "pickle"}])),
        "order": choose.of(("C", "F", "K")),
    }  # fmt: skip
    return {".zarray": metadata(choose, document), ".".join("0" for _ in shape) or "0": content}


def metadata(choose: Choices, document: dict[str, Any]) -> bytes:
    """Return metadata with possible errors."""
    pairs = [f"{json.dumps(key)}: {value(choose, one)}" for key, one in document.items()]
    if choose.rarely():
        del pairs[choose.below(len(pairs))]
    if choose.rarely():
        pairs.append(choose.of((pairs[0], '"consolidated_metadata": {}', '"more": 1')))
    raw = ("{" + ", ".join(pairs) + "}").encode("utf-8", "surrogatepass")
    return damaged(choose, raw) if choose.rarely() and choose.rarely() else raw
