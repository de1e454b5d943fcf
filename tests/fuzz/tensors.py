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


def integer(choices: Choices) -> int:
    return choices.pick(NUMBERS) if choices.one_in_eight() else choices.integer(6)


def value(choices: Choices, expected: Any) -> str:
    """Return the expected value as JSON, or rarely another one."""
    return (
        choices.pick(INVALID_VALUES)
        if choices.one_in_eight() and choices.one_in_eight()
        else json.dumps(expected)
    )


def safetensors(choices: Choices) -> bytes:
    """Return an almost valid safetensors file."""
    offset, members = 0, []
    if choices.one_in_eight():
        members.append(f'"__metadata__": {value(choices, {"format": "pt"})}')
    for i in range(choices.integer(4)):
        name = choices.pick(NAMES) if choices.one_in_eight() else f"t{i}"
        kind = choices.pick(TYPES) if choices.one_in_eight() else choices.pick(TYPES[:8])
        shape = [integer(choices) for _ in range(choices.integer(4))]
        size = SIZES.get(kind, 1)
        for length in shape:
            size *= length
        stop = offset + size if size < 1 << 20 else offset + choices.integer(64)
        offsets = (
            [offset, stop] if not choices.one_in_eight() else [integer(choices), integer(choices)]
        )
        pairs = [
            f'"dtype": {value(choices, kind)}', f'"shape": {value(choices, shape)}',
            f'"data_offsets": {value(choices, offsets)}',
        ]  # fmt: skip
        if choices.one_in_eight():
            pairs.append(choices.pick((pairs[0], '"more": 1', '"": {}')))
        if choices.one_in_eight():
            del pairs[choices.integer(len(pairs))]
        members.append(f"{json.dumps(name)}: {{{', '.join(pairs)}}}")
        offset = stop
    raw = ("{" + ", ".join(members) + "}" + " " * choices.integer(9)).encode(
        "utf-8", "surrogatepass"
    )
    length = choices.pick(NUMBERS) % 2**64 if choices.one_in_eight() else len(raw)
    padding = choices.pick((-1, 1, 8)) if choices.one_in_eight() else 0
    encoded = length.to_bytes(8, "little") + raw + bytes(max(0, offset + padding))
    return damage(choices, encoded) if choices.one_in_eight() else encoded


def index(choices: Choices) -> bytes:
    """Return an almost valid index of a model in several files."""
    files = ("a.safetensors", "../a", "/etc/passwd", "", ".", "https://localhost/x", "\0")
    pairs = [f'"t{n}": {value(choices, choices.pick(files))}' for n in range(choices.integer(4))]
    text = f'{{"metadata": {value(choices, {})}, "weight_map": {{{", ".join(pairs)}}}}}'
    raw = text.encode("utf-8", "surrogatepass")
    return damage(choices, raw) if choices.one_in_eight() else raw


def varint(count: int) -> bytes:
    count %= 2**64
    raw = bytearray()
    while count > 127:
        raw.append(count & 127 | 128)
        count >>= 7
    return bytes((*raw, count))


def field(choices: Choices, key: int, content: bytes | int) -> bytes:
    """Return a field of a message, sometimes with another wire type or length."""
    if choices.one_in_eight() and choices.one_in_eight():
        key = choices.integer(40)
    if isinstance(content, int):
        return varint(key << 3) + varint(content)
    if choices.one_in_eight() and choices.one_in_eight():
        return varint(key << 3 | choices.integer(8)) + content
    length = integer(choices) if choices.one_in_eight() and choices.one_in_eight() else len(content)
    return varint(key << 3 | 2) + varint(length) + content


def tensor(choices: Choices) -> bytes:
    """Return an almost valid TensorProto."""
    kind = integer(choices) if choices.one_in_eight() else 1 + choices.integer(25)
    dims = [
        integer(choices) if choices.one_in_eight() else choices.integer(4)
        for _ in range(choices.integer(4))
    ]
    count = 1
    for size in dims:
        count *= size
    count = count if 0 <= count < 1000 else 3
    encoded = b""
    if choices.integer(2):
        encoded += b"".join(field(choices, 1, size) for size in dims)
    else:
        encoded += field(choices, 1, b"".join(map(varint, dims)))
    encoded += field(choices, 2, kind)
    if choices.integer(2):
        encoded += field(choices, 8, choices.pick(NAMES).encode())
    data_field = choices.integer(5)
    if data_field == 0:
        encoded += field(choices, 9, bytes(count * choices.pick((1, 2, 4, 8, 16))))
    elif data_field == 1:
        key = choices.pick((5, 7, 11))
        encoded += field(choices, key, b"".join(varint(integer(choices)) for _ in range(count)))
    elif data_field == 2:
        key = choices.pick((5, 7, 11))
        encoded += b"".join(field(choices, key, integer(choices)) for _ in range(min(count, 50)))
    elif data_field == 3:
        encoded += field(choices, choices.pick((4, 10, 6)), bytes(count * choices.pick((4, 8))))
    else:
        for name in ("location", "offset", "length", "checksum", "offset")[: choices.integer(6)]:
            entry = choices.pick(("x", "../x", "0", "-1", "1e3", "", "9" * 30, "/dev/zero", "."))
            pair = field(choices, 1, name.encode()) + field(choices, 2, entry.encode())
            encoded += field(choices, 13, pair)
        encoded += field(choices, 14, 1)
    if choices.one_in_eight():
        encoded += field(choices, choices.pick((3, 12, 16, 9)), choices.bytes(20))
    return encoded


def attribute(choices: Choices, depth: int) -> bytes:
    name = choices.pick((b"value", b"value_int", b"value_floats", b"then_branch", b"sparse_value"))
    encoded = field(choices, 1, name)
    value_field = choices.integer(6)
    if value_field == 0:
        return encoded + field(choices, 5, tensor(choices))
    if value_field == 1 and depth < 4:
        return encoded + field(choices, choices.pick((6, 11)), graph(choices, depth + 1))
    if value_field == 2:
        return encoded + field(choices, 3, integer(choices))
    if value_field == 3:
        return encoded + varint(2 << 3 | 5) + choices.bytes(4)
    if value_field == 4:
        return encoded + field(choices, 8, b"".join(varint(integer(choices)) for _ in range(3)))
    return encoded + field(choices, choices.pick((7, 9, 10, 22)), choices.bytes(9))


def graph(choices: Choices, depth: int = 0) -> bytes:
    encoded = b""
    for _ in range(choices.integer(3)):
        encoded += field(choices, 5, tensor(choices))
    for _ in range(choices.integer(3)):
        operator = choices.pick((b"Constant", b"GatherND", b"If", b"Scatter", b"\xff"))
        node = field(choices, 1, b"x") + field(choices, 2, choices.pick(NAMES).encode())
        node += field(choices, 4, operator)
        for _ in range(choices.integer(3)):
            node += field(choices, 5, attribute(choices, depth))
        encoded += field(choices, 1, node)
    if choices.one_in_eight():
        encoded += field(choices, 11, field(choices, 1, b"x"))
    if choices.one_in_eight():
        encoded += field(choices, 15, field(choices, 1, tensor(choices)))
    return encoded


def model(choices: Choices) -> bytes:
    """Return an almost valid model."""
    encoded = field(choices, 1, 8) + field(choices, 7, graph(choices))
    encoded += field(choices, 8, field(choices, 2, integer(choices)))
    if choices.one_in_eight():
        encoded += field(choices, 25, field(choices, 1, b"f") + field(choices, 7, graph(choices)))
    return damage(choices, encoded) if choices.one_in_eight() else encoded


def onnx(choices: Choices) -> bytes:
    """Return an almost valid tensor or model."""
    if choices.integer(2):
        return model(choices)
    encoded = tensor(choices)
    return damage(choices, encoded) if choices.one_in_eight() else encoded


def store(raw: bytes) -> dict[str, bytes]:
    """Return the names and contents of files of an almost valid Zarr store."""
    choices = Choices(raw)
    shape = [integer(choices) for _ in range(choices.integer(4))]
    chunks = [integer(choices) if choices.one_in_eight() else 2 for _ in shape]
    content = choices.bytes(64) if choices.integer(2) else bytes(choices.pick((0, 8, 16, 32)))
    if choices.integer(2):
        codecs = choices.pick((
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
            "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": choices.pick(kinds),
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
            "chunk_key_encoding": {"name": "default"}, "fill_value": 0, "codecs": codecs,
        }  # fmt: skip
        return {
            "zarr.json": metadata(choices, document),
            "/".join(["c", *("0" for _ in shape)]): content,
        }
    document = {
        "zarr_format": 2, "shape": shape, "chunks": chunks, "fill_value": choices.pick((0, None, "x")),
        "dtype": choices.pick(("<i4", ">f8", "|S3", "|O", "<U2", [["a", "<i2"]], "x", "<M8[s]")),
        "compressor": choices.pick((None, {"id": "zlib"}, {"id": "?"}, {"id": "blosc"}, 1)),
        "filters": choices.pick((None, [], [{"id": "delta", "dtype": "<i4"}], [{"id": "pickle"}])),
        "order": choices.pick(("C", "F", "K")),
    }  # fmt: skip
    return {".zarray": metadata(choices, document), ".".join("0" for _ in shape) or "0": content}


def metadata(choices: Choices, document: dict[str, Any]) -> bytes:
    """Return a document as JSON, rarely with errors."""
    pairs = [f"{json.dumps(key)}: {value(choices, item)}" for key, item in document.items()]
    if choices.one_in_eight():
        del pairs[choices.integer(len(pairs))]
    if choices.one_in_eight():
        pairs.append(choices.pick((pairs[0], '"consolidated_metadata": {}', '"more": 1')))
    raw = ("{" + ", ".join(pairs) + "}").encode("utf-8", "surrogatepass")
    return damage(choices, raw) if choices.one_in_eight() and choices.one_in_eight() else raw
