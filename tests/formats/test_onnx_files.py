"""ONNX tensors and models as files: of the onnx package, malformed ones, and ndtool's outputs."""

import os
import tracemalloc
import warnings
from contextlib import closing
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool, save
from later import later
from messages import external_tensor, field, fixed_field, message, model, packed_field, pair, tensor
from outputs import list_preserved_members, open_sink
from outputs import save as write

from ndtool import files
from ndtool.arrays.source import ContiguousSource
from ndtool.errors import InputError, NdtoolError, OutputError, UsageError
from ndtool.formats import locators
from ndtool.formats.streams import Streams

onnx = later("onnx")
helper, numpy_helper, TensorProto = onnx.helper, onnx.numpy_helper, onnx.TensorProto

ARRAY = np.arange(6, dtype="<f4").reshape(2, 3)
MAX_MEMORY = 4 << 20  # bytes to read a message, whatever sizes it declares
TYPES = sorted(set(TensorProto.DataType.keys()) - {"UNDEFINED", "STRING"})


pytestmark = pytest.mark.usefixtures("clean_workdir", "check_files_closed")


def load(argument: str) -> tuple[str, tuple[int, ...], bytes]:
    """Return the name of the type, the shape and the bytes of an argument's array."""
    with closing(locators.open_source(argument, Streams(-1))) as source:
        contents = source.load()
        (entry,) = locators.describe(argument)
        assert (entry.metadata, entry.warning) == (source.metadata, source.warning)
        return source.metadata.dtype.name, source.metadata.shape, bytes(contents)


def load_bytes(raw: bytes, name: str = "x.pb") -> tuple[str, tuple[int, ...], bytes]:
    Path(name).write_bytes(raw)
    return load(name)


def refusal(raw: bytes, name: str = "x.pb", member: str = "") -> str:
    Path(name).write_bytes(raw)
    with pytest.raises(NdtoolError) as excinfo:
        load(name + member)
    return str(excinfo.value)


# Tensors


def random_values(code: int, shape: tuple[int, ...]) -> Any:
    """Return an array of a type with random valid bits."""
    dtype, rng = np.dtype(helper.tensor_dtype_to_np_dtype(code)), np.random.default_rng(code)
    bits = {"4": 4, "6": 6, "2": 2}.get(dtype.name.partition("_")[0].lstrip("uintfloa"), 8)
    if dtype.kind == "b":
        bits = 1
    raw = rng.integers(0, 1 << bits, prod(shape) * dtype.itemsize, "u1")
    return raw.view(dtype).reshape(shape)


@pytest.mark.parametrize("title", TYPES)
def test_types_in_raw_data_and_in_typed_fields(title: str) -> None:
    code = TensorProto.DataType.Value(title)
    for shape in ((), (0, 3), (5,), (3, 7), (2, 3, 5)):
        array = random_values(code, shape)
        raw = numpy_helper.from_array(array, "t")
        flat = array.flatten()
        numbers = helper.make_tensor(
            "t", code, shape, flat.tolist() if flat.dtype.isbuiltin == 1 else flat
        )
        for proto in (raw, numbers):
            name, loaded_shape, result = load_bytes(proto.SerializeToString())
            expected = numpy_helper.to_array(proto)
            assert (name, loaded_shape) == (expected.dtype.name, shape)
            assert result == expected.tobytes()
    (entry,) = locators.describe("x.pb")
    assert entry.metadata is not None
    assert entry.metadata.notes["onnx_type"] == title


def test_raw_data_and_fixed_numbers_are_mapped() -> None:
    array = np.arange(50_000, dtype="<f4")
    for title, raw in (
        ("raw_data", tensor(array)),
        ("float_data", message((1, 50_000), (2, 1), (4, array.tobytes()))),
    ):
        Path("x.pb").write_bytes(raw)
        with closing(locators.open_source("x.pb", Streams(-1))) as source:
            assert isinstance(source, ContiguousSource)
            assert (source.is_mapped, source.position) == (True, raw.index(array.tobytes()))
            assert source.metadata.notes["field"] == title


def test_numbers_are_packed_in_one_field() -> None:
    header = message((1, 6), (2, 7))
    numbers = [1, -2, 300, 2**63 - 1, -(2**63), 0]
    expected = ("int64", (6,), np.array(numbers).tobytes())
    assert load_bytes(header + packed_field(7, numbers)) == expected
    assert load_bytes(message((1, 1), (2, 7), (7, 300)))[2] == np.int64(300).tobytes()
    assert load_bytes(field(1, b"\x02\x03") + message((2, 1), (9, ARRAY.tobytes())))[1] == (2, 3)
    floats = b"".join(fixed_field(4, value.tobytes()) for value in ARRAY.ravel())
    for raw in (
        header + packed_field(7, numbers[:2]) + packed_field(7, numbers[2:]),
        header + b"".join(field(7, number) for number in numbers),
        message((1, 6), (2, 1)) + floats,
    ):
        assert "_data appears twice: valid once" in refusal(raw)


def test_numbers_are_decoded_across_blocks() -> None:
    array = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 300_000)
    array[::3] >>= 50
    raw = helper.make_tensor("t", TensorProto.INT64, [300_000], array).SerializeToString()
    assert len(raw) > 2 << 20
    assert load_bytes(raw) == ("int64", (300_000,), array.tobytes())
    values = np.random.default_rng(1).integers(0, 64, 2_000_003, "u1")
    proto = numpy_helper.from_array(values.view(helper.tensor_dtype_to_np_dtype(28)))
    assert load_bytes(proto.SerializeToString())[2] == values.tobytes()


DIMS = message((1, 2), (1, 3))
FLOAT_TYPE = message((2, 1))
RAW_DATA = field(9, ARRAY.tobytes())
INVALID_TENSORS = {
    "nothing": (b"", "no data_type"),
    "no type": (DIMS + RAW_DATA, "no data_type"),
    "type 0": (DIMS + field(2, 0) + RAW_DATA, "data_type is 0: valid 1..28 without 8"),
    "type 99": (DIMS + field(2, 99) + RAW_DATA, "data_type is 99"),
    "negative type": (DIMS + field(2, -1) + RAW_DATA, "data_type is -1"),
    "strings": (field(1, 1) + field(2, 8) + field(6, "a"), "the elements are strings"),
    "segment": (DIMS + FLOAT_TYPE + field(3, b"") + RAW_DATA, "one segment of a tensor"),
    "no data": (DIMS + FLOAT_TYPE, "expected 24 bytes of raw_data for FLOAT[2, 3], found 0"),
    "too little": (DIMS + FLOAT_TYPE + field(9, b"123"), "found 3"),
    "too much": (DIMS + FLOAT_TYPE + field(9, bytes(25)), "found 25"),
    "negative size": (field(1, -1) + FLOAT_TYPE + RAW_DATA, "dims[0] is -1: expected 0..9223372036854775807"),
    "huge size": (field(1, 1 << 62) + FLOAT_TYPE, "valid up to"),
    "huge sizes around a zero": (field(1, 0) + field(1, 1 << 40) * 2 + FLOAT_TYPE, "valid up to"),
    "many axes": (field(1, 1) * 65 + FLOAT_TYPE, "dims has more than 64 entries"),
    "many packed axes": (packed_field(1, [1] * 65) + FLOAT_TYPE, "dims has more than 64 entries"),
    "a list of axes without end": (field(1, bytes(10_000)) + FLOAT_TYPE, "not a list of up to 64"),
    "two types": (DIMS + FLOAT_TYPE * 2 + RAW_DATA, "twice: valid once"),
    "two names": (DIMS + FLOAT_TYPE + field(8, "a") * 2 + RAW_DATA, "twice: valid once"),
    "two raw_data": (DIMS + FLOAT_TYPE + RAW_DATA * 2, "raw_data appears twice"),
    "empty raw and numbers": (DIMS + FLOAT_TYPE + field(9, b"") + field(4, bytes(24)), "in one field"),
    "a key of 6 bytes": (DIMS + FLOAT_TYPE + b"\xca\x80\x80\x80\x80\0\x18" + bytes(24), "up to 5"),
    "a length of 6 bytes": (DIMS + FLOAT_TYPE + b"\x4a\x98\x80\x80\x80\x80\0" + bytes(24), "up to 5"),
    "raw and numbers": (DIMS + FLOAT_TYPE + RAW_DATA + field(4, bytes(24)), "in one field"),
    "numbers of another type": (DIMS + FLOAT_TYPE + packed_field(7, range(6)), "valid in raw_data, float_data"),
    "few numbers": (DIMS + FLOAT_TYPE + field(4, bytes(20)), "expected 6 values of 4 bytes in float_data"),
    "bytes of an incomplete value": (DIMS + FLOAT_TYPE + field(4, bytes(23)), "expected 6 values of 4 bytes"),
    "numbers of the wrong kind": (DIMS + FLOAT_TYPE + field(4, 5), "float_data has values of the wrong"),
    "few varints": (DIMS + field(2, 7) + packed_field(7, range(5)), "expected 6 values in int64_data"),
    "fewer varints than their bytes": (
        DIMS + field(2, 7) + packed_field(7, [300] * 5), "expected 6 values in int64_data, found 5"
    ),
    "many varints": (DIMS + field(2, 7) + packed_field(7, range(7)), "expected 6 values in int64_data, found 7"),
    "a varint of 11 bytes": (
        field(1, 1) + field(2, 7) + field(7, b"\xff" * 10), "a varint is truncated"
    ),
    "a varint of 65 bits": (field(1, 1) + field(2, 7) + field(7, b"\xff" * 9 + b"\x02"), "64 bits"),
    "a varint without end": (field(1, 2) + field(2, 7) + field(7, b"\xff" * 11 + b"\x01"), "64 bits"),
    "int8 of 9 bits": (
        field(1, 2) + field(2, 3) + packed_field(5, [1, 128]),
        "int32_data[1] is 128: valid -128..127 for INT8",
    ),
    "bool of 2": (field(1, 1) + field(2, 9) + packed_field(5, [2]), "is 2: valid 0..1 for BOOL"),
    "bfloat16 of 17 bits": (field(1, 1) + field(2, 16) + packed_field(5, [1 << 16]), "valid 0..65535"),
    "uint32 of 33 bits": (field(1, 1) + field(2, 12) + packed_field(11, [1 << 32]), "valid 0..4294967295"),
    "unknown location": (DIMS + FLOAT_TYPE + field(14, 2), "data_location is 2: valid 0 (DEFAULT), 1"),
    "a type that is a text": (DIMS + field(2, "1") + RAW_DATA, "wrong wire type"),
    "a group": (DIMS + FLOAT_TYPE + b"\x7b", "field 15 begins or ends a group"),
    "field 0": (b"\x02\x00", "a field has the number 0"),
    "wire type 7": (DIMS + b"\x17", "has the wire type 7"),
    "a length beyond the end": (DIMS + FLOAT_TYPE + b"\x4a\x7f123", "claims 127 bytes, only 3 remain"),
    "a length of 35 bits": (DIMS + FLOAT_TYPE + b"\x4a" + b"\xff" * 4 + b"\x7f1", "only 1 remain"),
    "a truncated key": (DIMS + FLOAT_TYPE + b"\xff", "truncated"),
    "a long name": (DIMS + FLOAT_TYPE + field(8, "a" * 65537) + RAW_DATA, "not a string of up to 65536 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("case", INVALID_TENSORS.values(), ids=INVALID_TENSORS)
def test_invalid_tensors_are_refused(case: tuple[bytes, str]) -> None:
    raw, expected_text = case
    tracemalloc.start()
    text = refusal(raw)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert text.startswith("x.pb: ")
    assert expected_text in text
    assert "\n" not in text
    assert peak < MAX_MEMORY


def test_the_file_is_one_tensor() -> None:
    Path("x.pb").write_bytes(tensor(ARRAY, "weights"))
    assert load("x.pb:weights")[2] == ARRAY.tobytes()
    with pytest.raises(InputError, match="the file is one tensor, called 'weights'"):
        load("x.pb:other")
    assert "the file is one tensor, without a name" in refusal(tensor(ARRAY, ""), member=":a")


# Recognition of formats


def test_content_is_recognized_under_any_name() -> None:
    assert load_bytes(tensor(ARRAY), "weights")[2] == ARRAY.tobytes()
    assert load_bytes(tensor(ARRAY), "x.npz")[2] == ARRAY.tobytes()
    assert load_bytes(model(tensor(ARRAY)), "net")[2] == ARRAY.tobytes()
    assert load_bytes(model(tensor(ARRAY)), "net.pb")[2] == ARRAY.tobytes()
    np.save("x.npy", ARRAY)
    os.rename("x.npy", "x.pb")
    assert load("x.pb")[2] == ARRAY.tobytes()
    brace = np.array([0, 5, ord("{")], "u1")
    assert (
        load_bytes(tensor(brace, "")[:-3] + brace.tobytes())[2] == brace.tobytes()
    )  # as in safetensors


@pytest.mark.parametrize(
    "raw", [b"", b"\x08", b"hello\n", b"\n\x02hi", tensor(ARRAY) + field(99, b"")]
)
def test_other_content_is_no_tensor(raw: bytes) -> None:
    assert ".npy" in refusal(raw, "data.bin")


# Damaged files


def onnx_result(raw: bytes, kind: Any) -> Any:
    """Return the onnx package's result for a message, None if it refuses it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            proto = kind.FromString(raw)
            if kind is onnx.ModelProto:
                (proto,) = [
                    initializer
                    for initializer in proto.graph.initializer
                    if initializer.name == "a"
                ]
            return numpy_helper.to_array(proto)
    except Exception:
        return None


def test_any_changed_byte_of_a_header() -> None:
    for kind, raw, argument in (
        (TensorProto, tensor(ARRAY), "x.pb"),
        (
            TensorProto,
            message((1, 2), (1, 3), (2, 6)) + packed_field(5, [1, -2, 3, 300, 5, 6]),
            "x.pb",
        ),
        (onnx.ModelProto, model(tensor(ARRAY)), "x.onnx:a"),
    ):
        content = bytearray(raw)
        for position in range(len(content) - 24):
            for change in (1, 2, 4, 8, 0x10, 0x80, 0xFF):
                content[position] ^= change
                Path(argument.partition(":")[0]).write_bytes(content)
                content[position] ^= change
                status = 0
                try:
                    _, shape, result = load(argument)
                except NdtoolError as exc:
                    status = exc.status
                    continue
                finally:
                    assert status in (0, 2, 3, 6), (position, change)
                expected = onnx_result(Path(argument.partition(":")[0]).read_bytes(), kind)
                assert expected is not None, (position, change)
                assert (shape, result) == (expected.shape, expected.tobytes()), (position, change)


# Models


def constant(output: str, **attributes: Any) -> Any:
    return helper.make_node("Constant", [], [output], **attributes)


def example_model() -> Any:
    """Return a model with tensors in all possible positions."""
    info = helper.make_tensor_value_info
    weight = numpy_helper.from_array(np.arange(60, dtype="f4").reshape(10, 6), "embed.weight")
    idx = numpy_helper.from_array(np.array([[3], [5]]), "idx")
    numbers = helper.make_tensor("numbers", TensorProto.INT64, [3], [1, -2, 300])
    then_branch = helper.make_graph(
        [helper.make_node("GatherND", ["embed.weight", "ti"], ["to"], name="gn")], "then", [],
        [info("to", 1, None)], initializer=[numpy_helper.from_array(np.array([[1]]), "ti")],
    )  # fmt: skip
    else_branch = helper.make_graph(
        [constant("ec", value=numpy_helper.from_array(ARRAY, "inner"))], "else", [],
        [info("ec", 1, None)],
    )  # fmt: skip
    nodes = [
        helper.make_node("Gather", ["embed.weight", "idx"], ["g"], axis=0),
        helper.make_node("If", ["c"], ["o"], name="cond", then_branch=then_branch, else_branch=else_branch),
        constant("one", value_float=1.5), constant("many", value_floats=[1.0, 2.5]),
        constant("int", value_int=-7), constant("ints", value_ints=[1, -2, 300]),
        constant("none", value_ints=[1]), constant("text", value_string="hi"),
        helper.make_node("ScatterND", ["embed.weight", "idx", "g"], ["s"], name="sc", reduction="add"),
        helper.make_node("Gather", ["x", "y"], ["z"], domain="other"),
        helper.make_node("Fn", ["g"], ["fo"], domain="my"),
    ]  # fmt: skip
    nodes[6].attribute[0].ClearField("ints")
    function = helper.make_function(
        "my", "Fn", ["x"], ["y"],
        [constant("k", value_ints=[4]), helper.make_node("GatherElements", ["x", "k"], ["y"], axis=-1)],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(np.float32([1]), "sparse"),
        numpy_helper.from_array(np.array([3])),
        [9],
    )
    graph = helper.make_graph(
        nodes, "main", [info("c", TensorProto.BOOL, [])], [info("o", 1, None)],
        initializer=[weight, idx, numbers, helper.make_tensor("str", TensorProto.STRING, [1], [b"x"])],
        sparse_initializer=[sparse],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("my", 1)]
    return helper.make_model(graph, functions=[function], opset_imports=opsets)


TENSORS = {
    "embed.weight": np.arange(60, dtype="f4").reshape(10, 6),
    "idx": np.array([[3], [5]]),
    "numbers": np.array([1, -2, 300]),
    "cond/then_branch/ti": np.array([[1]]),
    "cond/else_branch/ec": ARRAY,
    "one": np.float32(1.5),
    "many": np.float32([1.0, 2.5]),
    "int": np.int64(-7),
    "ints": np.array([1, -2, 300]),
    "none": np.zeros(0, "i8"),
    "my.Fn/k": np.array([4]),
}
UNREADABLE = {"text": "strings", "str": "strings", "sparse": "it is sparse"}


@pytest.mark.parametrize("location", ["inside", "outside", "each outside"])
def test_all_tensors_of_a_model(location: str) -> None:
    if location == "inside":
        onnx.save(example_model(), "m.onnx")
    else:
        onnx.save_model(
            example_model(), "m.onnx", save_as_external_data=True, size_threshold=0, location="m.bin",
            all_tensors_to_one_file=location == "outside", convert_attribute=True,
        )  # fmt: skip
    for name, array in TENSORS.items():
        assert load(f"m.onnx:{name}") == (array.dtype.name, array.shape, array.tobytes())
    entries = {entry.member: entry for entry in locators.describe("m.onnx")}
    assert entries.keys() == TENSORS.keys() | UNREADABLE.keys()
    for name, reason in UNREADABLE.items():
        assert reason in entries[name].problem
        assert reason in refusal(Path("m.onnx").read_bytes(), "m.onnx", f":{name}")
    position = entries["embed.weight"].position
    metadata = entries["embed.weight"].metadata
    assert position is not None
    assert metadata is not None
    file = metadata.notes.get("file", "m.onnx")
    assert (file == "m.onnx") == (location == "inside")
    assert Path(file).read_bytes()[position:][:240] == TENSORS["embed.weight"].tobytes()


def test_names_that_have_no_value() -> None:
    onnx.save(example_model(), "m.onnx")
    for name, reason in (
        ("c", "is an input of the graph, and has no value"),
        ("g", "is computed by a node, and has no value"),
        ("cond/then_branch/to", "is computed by a node"),
        ("nothing", "is no tensor of the model: expected one of these\n  --> "),
    ):
        with pytest.raises(InputError, match=r"m.onnx: ") as excinfo:
            load(f"m.onnx:{name}")
        assert f"{name} {reason}" in str(excinfo.value)
    with pytest.raises(InputError) as excinfo:
        load("m.onnx:ti")
    assert excinfo.value.places == ("cond/then_branch/ti: int64[1,1]",)
    with pytest.raises(UsageError, match="the model has 14 tensors: name one of them") as excinfo:
        load("m.onnx")
    assert excinfo.value.places[-1] == "and 4 more"
    assert excinfo.value.hint == "for example m.onnx:cond/else_branch/ec"
    assert "is more than one tensor" in refusal(model(tensor(ARRAY), tensor(ARRAY)), "t.onnx", ":a")
    assert "no initializers" in refusal(model(), "t.onnx")
    assert "it has no graph" in refusal(message((1, 10)), "t.onnx")
    assert load_only_tensor() == ARRAY.tobytes()


def load_only_tensor() -> bytes:
    return load_bytes(model(tensor(ARRAY, "only")), "o.onnx")[2]


def test_unusual_constants() -> None:
    def constant_node(*attributes: bytes) -> bytes:
        return message((2, "k"), (4, "Constant")) + b"".join(
            field(5, attribute) for attribute in attributes
        )

    for attribute, expected_text in (
        (message((1, "value_int"), (3, 1), (7, b"1234")), "several values"),
        (message((1, "value_int"), (3, 1), (3, 2)), "value_int has several values"),
        (message((1, "value_int"), (21, "x")), "refers to an attribute of the function"),
        (message((1, "value")), "the constant has no value"),
        (message((1, "value"), (22, b"")), "it is sparse"),
        (message((1, "value_int"), (3, "abc")), "wrong wire type"),
        (message((1, "value_float")) + fixed_field(2, bytes(8)), "wrong wire type"),
        (message((1, "value_floats"), (7, b"12345")), "expected a multiple of 4"),
        (message((1, "value_ints"), (8, b"\xff")), "truncated"),
        (message((1, "value"), (5, tensor(ARRAY)), (5, tensor(ARRAY))), "several values"),
        (message((1, "value"), (5, tensor(ARRAY)), (3, 1)), "several values"),
        (message((1, "value_int"), (5, tensor(ARRAY))), "its attribute value_int is not supported"),
        (message((1, "value_int"), (3, 1), (20, 1)), "its attribute value_int is not supported"),
        (message((1, "other"), (3, 1)), "its attribute other is not supported: valid value, "),
        (message((1, "value_ints"), (99, 5)), "has no value"),
    ):
        assert expected_text in refusal(model(nodes=[constant_node(attribute)]), "m.onnx", ":k")
    two_values = [message((1, "value_int"), (3, number)) for number in (1, 2)]
    assert "more than one tensor" in refusal(
        model(nodes=[constant_node(*two_values)]), "m.onnx", ":k"
    )
    ints = message((1, "value_ints"), (8, 5), (8, 6))
    assert load_bytes(model(nodes=[constant_node(ints)]), "m.onnx")[2] == np.array([5, 6]).tobytes()


def nested_model(depth: int) -> bytes:
    graph = field(5, tensor(ARRAY))
    for _ in range(depth):
        node = message((3, "n"), (4, "If"), (5, message((1, "b"), (6, graph))))
        graph = field(1, node)
    return message((1, 10), (7, graph))


def test_nesting_of_graphs_is_limited() -> None:
    assert load_bytes(nested_model(31), "m.onnx")[2] == ARRAY.tobytes()
    Path("m.onnx").write_bytes(nested_model(31))
    assert load("m.onnx:" + "n/b/" * 31 + "a")[2] == ARRAY.tobytes()
    assert "more than 32 deep" in refusal(nested_model(32), "m.onnx")
    assert "more than 32 deep" in refusal(nested_model(5000), "m.onnx")


def test_graphs_in_a_list_are_numbered() -> None:
    graphs = [(11, field(5, tensor(ARRAY + i))) for i in range(2)]
    node = message((2, "out"), (4, "Case"), (5, message((1, "cases"), *graphs)))
    Path("m.onnx").write_bytes(model(nodes=[node]))
    assert load("m.onnx:out/cases/1/a")[2] == (ARRAY + 1).tobytes()


def test_messages_beyond_2_gib_take_no_memory() -> None:
    size = 3 << 30
    tensor_header = message((1, size // 4), (2, 1), (8, "big")) + b"\x4a" + b"\x80\x80\x80\x80\x0c"
    small_tensor = field(5, tensor(np.array([[-1], [-2]]), "idx"))

    def field_header(number: int, count: int) -> bytes:
        return field(number, b"")[:-1] + field(1, count)[1:]

    large_tensor = field_header(5, len(tensor_header) + size) + tensor_header
    model_start = (
        message((1, 10))
        + field_header(7, len(large_tensor) + size + len(small_tensor))
        + large_tensor
    )
    with open("m.onnx", "wb") as file:
        file.write(model_start)
        file.truncate(len(model_start) + size)
        file.seek(0, os.SEEK_END)
        file.write(small_tensor)
        file.seek(len(model_start) + size - 8)
        file.write(np.float32([5, 7]).tobytes())
    tracemalloc.start()
    assert [entry.member for entry in locators.describe("m.onnx")] == ["big", "idx"]
    files.gather_nd("m.onnx:big", "m.onnx:idx", out="out.npy")
    assert tracemalloc.get_traced_memory()[1] < MAX_MEMORY
    tracemalloc.stop()
    assert np.load("out.npy").tolist() == [7, 5]


# External data


def test_external_data_have_an_offset_and_length() -> None:
    os.mkdir("sub")
    Path("sub/w.bin").write_bytes(b"1234" + ARRAY.tobytes() + b"more")
    entries = {"location": "sub/w.bin", "offset": "4", "length": "24"}
    assert load_bytes(external_tensor((2, 3), **entries)) == ("float32", (2, 3), ARRAY.tobytes())
    Path("w.bin").write_bytes(ARRAY.tobytes())
    assert load_bytes(external_tensor((2, 3), location="w.bin"))[2] == ARRAY.tobytes()
    assert load_bytes(external_tensor((12,), code=22, location="w.bin", length="6", checksum="?"))[
        1
    ] == (12,)
    os.symlink("w.bin", "link")
    assert load_bytes(external_tensor((2, 3), location="link"))[2] == ARRAY.tobytes()


@pytest.mark.parametrize("length", [{}, {"length": "0"}, {"length": "24"}])
def test_the_length_of_external_data_follows_from_the_shape(length: dict[str, str]) -> None:
    Path("w.bin").write_bytes(ARRAY.tobytes() + (ARRAY + 1).tobytes() + b"more")
    first = external_tensor((2, 3), location="w.bin", **length)
    assert load_bytes(first)[2] == ARRAY.tobytes()
    second = external_tensor((2, 3), location="w.bin", offset="24", **length)
    assert load_bytes(second)[2] == (ARRAY + 1).tobytes()


def test_a_cache_of_links_to_a_model_and_its_data() -> None:
    os.makedirs("cache/blobs")
    os.makedirs("cache/snapshots/1")
    Path("cache/blobs/aa").write_bytes(model(external_tensor((2, 3), location="w.bin")))
    Path("cache/blobs/bb").write_bytes(ARRAY.tobytes())
    os.symlink("../../blobs/aa", "cache/snapshots/1/m.onnx")
    os.symlink("../../blobs/bb", "cache/snapshots/1/w.bin")
    assert load("cache/snapshots/1/m.onnx:a")[2] == ARRAY.tobytes()


def test_a_local_model_refers_to_no_url(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(ARRAY.tobytes())
    for url in (f"file://{tmp_path}/w.bin", "http://127.0.0.1:1/w.bin"):
        assert OUTSIDE_FOLDER in refusal(external_tensor((2, 3), location=url))


OUTSIDE_FOLDER = "expected a relative path inside the model's folder"


@pytest.mark.parametrize(
    ("entries", "expected_text"),
    [
        ({}, OUTSIDE_FOLDER),
        ({"location": ""}, OUTSIDE_FOLDER),
        ({"location": "/etc/passwd"}, OUTSIDE_FOLDER),
        ({"location": "../secret"}, OUTSIDE_FOLDER),
        ({"location": "sub/../../secret"}, OUTSIDE_FOLDER),
        ({"location": ".."}, OUTSIDE_FOLDER),
        ({"location": "a\0b"}, OUTSIDE_FOLDER),
        ({"location": "link"}, "a link out of the model's folder"),
        ({"location": "folder/secret"}, "a link out of the model's folder"),
        ({"location": "nothing"}, "No such file"),
        ({"location": "sub"}, "is a directory"),
        ({"location": "fifo"}, "is a FIFO"),
        ({"location": "w.bin", "offset": "-1"}, "the offset of its data is '-1'"),
        ({"location": "w.bin", "offset": "1e3"}, "the offset of its data is '1e3'"),
        ({"location": "w.bin", "offset": "9" * 30}, "expected a number of bytes"),
        ({"location": "w.bin", "length": "0x18"}, "the length of its data is '0x18'"),
        ({"location": "w.bin", "offset": "4"}, "its 24 bytes at offset 4 exceed"),
        ({"location": "w.bin", "offset": "4", "length": "24"}, "which has 24"),
        ({"location": "w.bin", "offset": "99", "length": "0"}, "which has 24"),
        ({"location": "w.bin", "length": "23"}, "found 23"),
        ({"location": "w" * 5000}, "external_data has more than 4096 characters"),
    ],
)
def test_external_data_that_are_refused(entries: dict[str, str], expected_text: str) -> None:
    os.makedirs("model/sub")
    Path("secret").write_bytes(ARRAY.tobytes())
    os.symlink("../secret", "model/link")
    os.symlink("..", "model/folder")
    os.mkfifo("model/fifo")
    Path("model/w.bin").write_bytes(ARRAY.tobytes())
    for path, raw, member in (
        ("model/x.pb", external_tensor((2, 3), **entries), ""),
        ("model/m.onnx", model(external_tensor((2, 3), **entries)), ":a"),
    ):
        text = refusal(raw, path, member)
        assert expected_text in text
        assert "secret'" in text or ARRAY.tobytes().decode("latin-1") not in text


def test_external_data_with_many_entries_or_raw_data_are_refused() -> None:
    raw = b"".join(field(13, message((1, str(number)))) for number in range(20_000))
    assert "external_data has more than 4096" in refusal(raw + message((2, 1), (14, 1)))
    raw = external_tensor((2, 3), location="w.bin")
    assert "in external_data and in raw_data" in refusal(raw + RAW_DATA)
    duplicate = raw + field(13, pair("location", "v.bin"))
    assert "external_data has location twice" in refusal(duplicate)


def test_external_data_that_change_during_a_run() -> None:
    Path("w.bin").write_bytes(ARRAY.tobytes())
    Path("x.pb").write_bytes(external_tensor((2, 3), location="w.bin"))
    for path in ("w.bin", "x.pb"):
        with closing(locators.open_source("x.pb", Streams(-1))) as source:
            fd = os.open(path, os.O_RDONLY)
            assert source.is_same_file(fd)
            os.close(fd)
            source.require_unchanged()
            os.utime(path, ns=(1, 1))
            with pytest.raises(OutputError, match="changed during the run"):
                source.require_unchanged()


# Outputs


@pytest.mark.parametrize("target", ["out.pb", "out.pb:my.name", "out.pb:dätä"])
def test_names_and_alignment_of_written_tensors(target: str) -> None:
    for shape in ((), (0, 3), (300,), (1,) * 20):
        array = np.ones(shape, ">f4")
        write(target, array, "items")
        proto = onnx.load_tensor("out.pb")
        assert proto.name == (target.partition(":")[2] or "output")
        assert np.array_equal(numpy_helper.to_array(proto), array)
        (entry,) = locators.describe("out.pb")
        assert entry.position is None or entry.position % 64 == 0
        assert entry.warning is None


def test_types_beyond_numpy_are_preserved() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz"):
        array = np.arange(1, 7, dtype="u1").repeat(2).view("u2").astype("u2")[:6]
        array = (array if name == "bfloat16" else array.astype("u1")).view(getattr(ml_dtypes, name))
        Path("x.pb").write_bytes(numpy_helper.from_array(array, "x").SerializeToString())
        save(idx=np.array([[4], [1]]))
        completed = ndtool("gather-nd", "x.pb", "idx.npy", "-o", "out.pb")
        assert (completed.status, completed.err) == (0, "")
        result = numpy_helper.to_array(onnx.load_tensor("out.pb"))
        assert (result.dtype, result.tobytes()) == (array.dtype, array[[4, 1]].tobytes())


def test_a_message_has_a_limit_and_models_are_not_written() -> None:
    with pytest.raises(OutputError, match="valid up to 2147483647"):
        open_sink("out.pb", np.broadcast_to(np.float64(0), (1 << 28,)))
    with pytest.raises(UsageError, match="the name has 65537 bytes: valid up to 65536"):
        list_preserved_members("out.pb:" + "n" * 65537)
    for check in (open_sink, list_preserved_members):
        with pytest.raises(UsageError, match=r"m.onnx:? ?.*models are read, not written"):
            check("m.onnx")
    assert os.listdir() == []


# Runs


def test_files_of_the_onnx_package() -> None:
    tensor_count, folder = (
        0,
        Path(onnx.load_tensor.__code__.co_filename).parent / "backend/test/data",
    )
    for path in sorted(folder.rglob("*.pb")):
        try:
            proto = onnx.load_tensor(str(path))
            expected = numpy_helper.to_array(proto)
        except Exception:
            continue  # a sequence, or another message
        if proto.data_type == TensorProto.STRING:
            continue
        assert load(str(path)) == (expected.dtype.name, expected.shape, expected.tobytes())
        tensor_count += 1
    assert tensor_count > 100
    for path in sorted(folder.rglob("model.onnx")):
        members = {entry.member for entry in locators.describe(str(path))}
        graph = onnx.load(str(path)).graph
        for proto in graph.initializer:
            assert proto.name in members
        for proto in graph.initializer[:3]:
            expected = numpy_helper.to_array(proto)
            loaded = load(f"{path}:{proto.name}")
            assert loaded == (expected.dtype.name, expected.shape, expected.tobytes())


# The output of inspect


def test_inspect_shows_nodes_and_offsets_of_tensors() -> None:
    onnx.save_model(
        example_model(), "m.onnx", save_as_external_data=True, size_threshold=0, location="m.bin"
    )
    report = ndtool("inspect", "m.onnx", "--json").json
    arrays = {entry["member"]: entry for entry in report["arrays"]}
    weight = arrays["embed.weight"]
    expected = {
        "name": "m.onnx:embed.weight", "dtype": "float32", "shape": [10, 6], "order": "C",
        "chunks": None, "bytes": 240, "kind": "initializer", "onnx_type": "FLOAT",
        "field": "external_data", "file": "m.bin", "mappable": True,
    }  # fmt: skip
    assert {key: weight[key] for key in expected} == expected
    raw = Path("m.bin").read_bytes()[weight["offset"] :]
    assert raw.startswith(TENSORS["embed.weight"].tobytes())
    assert arrays["ints"]["problem"] == "in an attribute"
    assert report["nodes"][0] == {
        "model": "m.onnx", "node": "g", "operator": "gather", "title": "Gather", "version": 18,
        "attributes": {"axis": 0}, "inputs": ["embed.weight", "idx"], "output": "g",
    }  # fmt: skip
    assert [(node["node"], node["version"], node["attributes"]) for node in report["nodes"][1:]] == [
        ("cond/then_branch/gn", 18, {}), ("sc", 18, {"reduction": "add"}), ("my.Fn/y", 17, {"axis": -1}),
    ]  # fmt: skip
    lines = ndtool("inspect", "m.onnx").out.decode().splitlines()
    columns = "name array order bytes kind onnx field offset file mappable"
    assert lines[0].split() == columns.split()
    node = "m.onnx:sc ScatterND onnx:18 reduction add embed.weight, idx, g s"
    assert lines[-2].split() == node.split()
    assert ndtool("inspect", "m.onnx:idx", "--json").json["nodes"] == []


def test_the_number_of_tensors_of_a_model_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    from ndtool.formats import onnx as format_of_models

    monkeypatch.setattr(format_of_models, "MAX_TENSORS", 3)
    Path("m.onnx").write_bytes(model(*(tensor(ARRAY, str(i)) for i in range(4))))
    with pytest.raises(InputError, match="it has more than 3 tensors"):
        locators.describe("m.onnx")
