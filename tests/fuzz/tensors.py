"""Almost valid tensor files from bytes: safetensors and its index, ONNX, Zarr metadata.

A valid file of the format is drawn; then some of its JSON values, or its bytes, are replaced.
"""

import json
import re
from typing import Any

import numpy as np
from messages import external_tensor, field, message, model, packed_field, pair, tensor
from recipes import NAMES, NUMBERS, Choices, damage

INVALID_VALUES = (
    "null", "true", "-1", "1.5", "1e3", '"x"', "[]", "{}", "[[[[", "00", "0x1", "NaN", '"\\ud800"',
    '"\\u0000"', "[0, 4]", '{"a": {}}', "18446744073709551616", "\x00", '"', "1" * 5000, "2", "64",
    '"F16"', '"a"', '"../a"', '"/etc/passwd"', '"https://localhost/x"', '"<M8[s]"', '"|O"', '"zstd"',
)  # fmt: skip
VALUE = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d+|null|\[\]|\{\}')
ARRAYS = tuple(
    np.arange(2 * size, dtype=code).reshape(2, size)
    for size, code in ((3, "<f4"), (0, "<i8"), (1, "u1"))
)
EXTERNAL = external_tensor((2, 3), location="x", offset="0", length="24")
NODES = (
    message((2, "k"), (4, "Constant"), (5, message((1, "value"), (5, tensor(ARRAYS[0]))))),
    message((2, "k"), (4, "Constant"), (5, message((1, "value_ints"), (8, 1), (8, 2)))),
    message((3, "n"), (4, "If"), (5, message((1, "b"), (6, field(5, tensor(ARRAYS[0])))))),
    message((1, "x"), (1, "i"), (2, "g"), (4, "GatherND"), (5, message((1, "batch_dims"), (3, 1)))),
)
V3: dict[str, Any] = {
    "zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "int32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
    "chunk_key_encoding": {"name": "default"}, "fill_value": 0,
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
}  # fmt: skip
SHARDS = {"chunk_shape": [1], "codecs": [{"name": "bytes"}], "index_codecs": [{"name": "bytes"}, {"name": "crc32c"}]}  # fmt: skip
STORES = (
    (".zarray", {"zarr_format": 2, "shape": [4], "chunks": [2], "fill_value": 0, "dtype": "<i4",
                 "compressor": {"id": "zlib"}, "filters": [{"id": "shuffle"}], "order": "C"}),
    ("zarr.json", V3),
    ("zarr.json", {**V3, "codecs": [{"name": "sharding_indexed", "configuration": SHARDS}]}),
    ("zarr.json", {**V3, "codecs": [{"name": "bytes"}, {"name": "blosc", "configuration": {"cname": "lz4"}}]}),
)  # fmt: skip


def changed(choices: Choices, text: bytes) -> bytes:
    """Return JSON with some of its values replaced, and rarely damaged."""
    for _ in range(choices.integer(3)):
        spans = [match.span() for match in VALUE.finditer(text)]
        start, stop = choices.pick(tuple(spans) or ((0, 0),))
        new = choices.pick(INVALID_VALUES).encode("utf-8", "surrogatepass")
        text = text[:start] + new + text[stop:]
    return damage(choices, text) if choices.one_in_eight() else text


def safetensors(choices: Choices) -> bytes:
    """Return an almost valid safetensors file."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for number in range(choices.integer(4)):
        array = choices.pick(ARRAYS)
        offsets = [len(data), len(data) + array.nbytes]
        code = {"f": "F32", "i": "I64", "u": "U8"}[array.dtype.kind]
        entry: Any = {"dtype": code, "shape": array.shape, "data_offsets": offsets}
        header[choices.pick(NAMES) if choices.one_in_eight() else f"t{number}"] = entry
        data += array.tobytes()
    raw = changed(choices, json.dumps(header).encode())
    length = choices.pick(NUMBERS) % 2**64 if choices.one_in_eight() else len(raw)
    encoded = length.to_bytes(8, "little") + raw + data
    return damage(choices, encoded) if choices.one_in_eight() else encoded


def index(choices: Choices) -> bytes:
    """Return an almost valid index of a model in several files."""
    names = {f"t{number}": "a.safetensors" for number in range(choices.integer(4))}
    return changed(choices, json.dumps({"metadata": {}, "weight_map": names}).encode())


def onnx(choices: Choices) -> bytes:
    """Return an almost valid tensor or model."""
    numbers = packed_field(7, [choices.pick(NUMBERS) for _ in range(choices.integer(4))])
    raw = choices.pick((*map(tensor, ARRAYS), EXTERNAL, message((1, 2), (2, 7)) + numbers))
    if choices.integer(2):
        entry = message((8, "a"), (13, pair("location", choices.pick(NAMES).partition("\x1b")[0])))
        raw = model(raw, entry, nodes=[choices.pick(NODES) for _ in range(choices.integer(4))])
    for _ in range(choices.integer(4)):
        position = choices.integer(len(raw))
        raw = raw[:position] + bytes([choices.integer(256)]) + raw[position + 1 :]
    return damage(choices, raw) if choices.one_in_eight() else raw


def store(raw: bytes) -> dict[str, bytes]:
    """Return the names and contents of files of an almost valid Zarr store."""
    choices = Choices(raw)
    name, document = choices.pick(STORES)
    chunk = choices.bytes(64) if choices.integer(2) else bytes(choices.pick((0, 8, 16, 32)))
    metadata = changed(choices, json.dumps(document).encode())
    return {name: metadata, "0" if name == ".zarray" else "c/0": chunk}
