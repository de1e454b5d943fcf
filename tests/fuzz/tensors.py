"""Almost valid tensor files from bytes: safetensors and its index, ONNX, Zarr metadata."""

import json
from typing import Any

from recipes import NAMES, NUMBERS, Choices, damage

TYPES = (
    "F32", "BF16", "I64", "BOOL", "U8", "F8_E4M3", "C64", "F4", "F6_E2M3", "F64", "X", "", "f32",
)  # fmt: skip
INVALID_VALUES = (
    "null", "true", "-1", "1.5", "1e3", '"x"', "[]", "{}", "[[[[", "00", "0x1", "NaN", '"\\ud800"',
    '"\\u0000"', "[0, 4]", '{"a": {}}', "18446744073709551616", "\x00", '"', "1" * 5000,
)  # fmt: skip
SIZES = {"F32": 4, "BF16": 2, "I64": 8, "BOOL": 1, "U8": 1, "F8_E4M3": 1, "C64": 8, "F64": 8}


def integer(choose: Choices) -> int:
    return choose.option(NUMBERS) if choose.rarely() else choose.below(6)


def value(choose: Choices, expected: Any) -> str:
    """Return the expected value as JSON, or rarely another one."""
    return (
        choose.option(INVALID_VALUES)
        if choose.rarely() and choose.rarely()
        else json.dumps(expected)
    )


def safetensors(choose: Choices) -> bytes:
    """Return an almost valid safetensors file."""
    offset, members = 0, []
    if choose.rarely():
        members.append(f'"__metadata__": {value(choose, {"format": "pt"})}')
    for i in range(choose.below(4)):
        name = choose.option(NAMES) if choose.rarely() else f"t{i}"
        kind = choose.option(TYPES) if choose.rarely() else choose.option(TYPES[:8])
        shape = [integer(choose) for _ in range(choose.below(4))]
        size = SIZES.get(kind, 1)
        for length in shape:
            size *= length
        stop = offset + size if size < 1 << 20 else offset + choose.below(64)
        offsets = [offset, stop] if not choose.rarely() else [integer(choose), integer(choose)]
        pairs = [
            f'"dtype": {value(choose, kind)}', f'"shape": {value(choose, shape)}',
            f'"data_offsets": {value(choose, offsets)}',
        ]  # fmt: skip
        if choose.rarely():
            pairs.append(choose.option((pairs[0], '"more": 1', '"": {}')))
        if choose.rarely():
            del pairs[choose.below(len(pairs))]
        members.append(f"{json.dumps(name)}: {{{', '.join(pairs)}}}")
        offset = stop
    raw = ("{" + ", ".join(members) + "}" + " " * choose.below(9)).encode("utf-8", "surrogatepass")
    length = choose.option(NUMBERS) % 2**64 if choose.rarely() else len(raw)
    padding = choose.option((-1, 1, 8)) if choose.rarely() else 0
    encoded = length.to_bytes(8, "little") + raw + bytes(max(0, offset + padding))
    return damage(choose, encoded) if choose.rarely() else encoded


def index(choose: Choices) -> bytes:
    """Return an almost valid index of a model in several files."""
    files = ("a.safetensors", "../a", "/etc/passwd", "", ".", "https://localhost/x", "\0")
    pairs = [f'"t{n}": {value(choose, choose.option(files))}' for n in range(choose.below(4))]
    text = f'{{"metadata": {value(choose, {})}, "weight_map": {{{", ".join(pairs)}}}}}'
    raw = text.encode("utf-8", "surrogatepass")
    return damage(choose, raw) if choose.rarely() else raw


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
    length = integer(choose) if choose.rarely() and choose.rarely() else len(content)
    return varint(key << 3 | 2) + varint(length) + content


def tensor(choose: Choices) -> bytes:
    """Return an almost valid TensorProto."""
    kind = integer(choose) if choose.rarely() else 1 + choose.below(25)
    dims = [integer(choose) if choose.rarely() else choose.below(4) for _ in range(choose.below(4))]
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
        encoded += field(choose, 8, choose.option(NAMES).encode())
    data_field = choose.below(5)
    if data_field == 0:
        encoded += field(choose, 9, bytes(count * choose.option((1, 2, 4, 8, 16))))
    elif data_field == 1:
        key = choose.option((5, 7, 11))
        encoded += field(choose, key, b"".join(varint(integer(choose)) for _ in range(count)))
    elif data_field == 2:
        key = choose.option((5, 7, 11))
        encoded += b"".join(field(choose, key, integer(choose)) for _ in range(min(count, 50)))
    elif data_field == 3:
        encoded += field(choose, choose.option((4, 10, 6)), bytes(count * choose.option((4, 8))))
    else:
        for name in ("location", "offset", "length", "checksum", "offset")[: choose.below(6)]:
            entry = choose.option(("x", "../x", "0", "-1", "1e3", "", "9" * 30, "/dev/zero", "."))
            pair = field(choose, 1, name.encode()) + field(choose, 2, entry.encode())
            encoded += field(choose, 13, pair)
        encoded += field(choose, 14, 1)
    if choose.rarely():
        encoded += field(choose, choose.option((3, 12, 16, 9)), choose.bytes(20))
    return encoded


def attribute(choose: Choices, depth: int) -> bytes:
    name = choose.option((b"value", b"value_int", b"value_floats", b"then_branch", b"sparse_value"))
    encoded = field(choose, 1, name)
    value_field = choose.below(6)
    if value_field == 0:
        return encoded + field(choose, 5, tensor(choose))
    if value_field == 1 and depth < 4:
        return encoded + field(choose, choose.option((6, 11)), graph(choose, depth + 1))
    if value_field == 2:
        return encoded + field(choose, 3, integer(choose))
    if value_field == 3:
        return encoded + varint(2 << 3 | 5) + choose.bytes(4)
    if value_field == 4:
        return encoded + field(choose, 8, b"".join(varint(integer(choose)) for _ in range(3)))
    return encoded + field(choose, choose.option((7, 9, 10, 22)), choose.bytes(9))


def graph(choose: Choices, depth: int = 0) -> bytes:
    encoded = b""
    for _ in range(choose.below(3)):
        encoded += field(choose, 5, tensor(choose))
    for _ in range(choose.below(3)):
        operator = choose.option((b"Constant", b"GatherND", b"If", b"Scatter", b"\xff"))
        node = field(choose, 1, b"x") + field(choose, 2, choose.option(NAMES).encode())
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
    encoded += field(choose, 8, field(choose, 2, integer(choose)))
    if choose.rarely():
        encoded += field(choose, 25, field(choose, 1, b"f") + field(choose, 7, graph(choose)))
    return damage(choose, encoded) if choose.rarely() else encoded


def onnx(choose: Choices) -> bytes:
    """Return an almost valid tensor or model."""
    if choose.below(2):
        return model(choose)
    encoded = tensor(choose)
    return damage(choose, encoded) if choose.rarely() else encoded


def store(raw: bytes) -> dict[str, bytes]:
    """Return the names and contents of files of an almost valid Zarr store."""
    choose = Choices(raw)
    shape = [integer(choose) for _ in range(choose.below(4))]
    chunks = [integer(choose) if choose.rarely() else 2 for _ in shape]
    content = choose.bytes(64) if choose.below(2) else bytes(choose.option((0, 8, 16, 32)))
    if choose.below(2):
        codecs = choose.option((
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
            "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": choose.option(kinds),
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
            "chunk_key_encoding": {"name": "default"}, "fill_value": 0, "codecs": codecs,
        }  # fmt: skip
        return {
            "zarr.json": metadata(choose, document),
            "/".join(["c", *("0" for _ in shape)]): content,
        }
    document = {
        "zarr_format": 2, "shape": shape, "chunks": chunks, "fill_value": choose.option((0, None, "x")),
        "dtype": choose.option(("<i4", ">f8", "|S3", "|O", "<U2", [["a", "<i2"]], "x", "<M8[s]")),
        "compressor": choose.option((None, {"id": "zlib"}, {"id": "?"}, {"id": "blosc"}, 1)),
        "filters": choose.option((None, [], [{"id": "delta", "dtype": "<i4"}], [{"id": "pickle"}])),
        "order": choose.option(("C", "F", "K")),
    }  # fmt: skip
    return {".zarray": metadata(choose, document), ".".join("0" for _ in shape) or "0": content}


def metadata(choose: Choices, document: dict[str, Any]) -> bytes:
    """Return a document as JSON, rarely with errors."""
    pairs = [f"{json.dumps(key)}: {value(choose, item)}" for key, item in document.items()]
    if choose.rarely():
        del pairs[choose.below(len(pairs))]
    if choose.rarely():
        pairs.append(choose.option((pairs[0], '"consolidated_metadata": {}', '"more": 1')))
    raw = ("{" + ", ".join(pairs) + "}").encode("utf-8", "surrogatepass")
    return damage(choose, raw) if choose.rarely() and choose.rarely() else raw
