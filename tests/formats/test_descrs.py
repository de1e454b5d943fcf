"""Element types in headers: parsed as NumPy parses them."""

import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import event, example, given
from numpy.lib.format import descr_to_dtype, dtype_to_descr
from strategies import descrs, many

import ndtool
from ndtool.analysis import infer
from ndtool.errors import DtypeError, InputError, NdtoolError, RuleError
from ndtool.formats import npy
from ndtool.rules import dtypes
from ndtool.rules.operators import Attributes
from ndtool.runs import steps
from ndtool.runs.calls import OpenCall, Request

I4 = "<i4"
# Descriptions that NumPy reads and ndtool refuses, each with the reason.
NOT_PORTABLE = "no writer uses it, and it is another type on another machine"
ONLY_NUMPY = {
    "a name": ("float32", NOT_PORTABLE),
    "a letter": ("d", NOT_PORTABLE),
    "a letter with an order": ("<l", NOT_PORTABLE),
    "a missing size": ("S", NOT_PORTABLE),
    "a list in a string": ("f4,i4", NOT_PORTABLE),
    "a shape in a string": ("4i4", NOT_PORTABLE),
    "S by its former letter": ("a5", "NumPy has deprecated it"),
    "zeros before a size": ("<f04", NOT_PORTABLE),
    "zeros before a count": ("<M8[025s]", NOT_PORTABLE),
    "a sign": ("i+4", "a size is digits"),
    "a space": ("S 5", "a size is digits"),
    "a fraction of a unit": ("M8[s/2]", "NumPy writes M8[500ms]"),
    "0 of a unit": ("M8[0s]", "NumPy divides by it: a comparison of types ends the process"),
    "no unit, in words": ("M8[generic]", "NumPy writes M8"),
    "micro": ("M8[μs]", "NumPy writes M8[us]"),
    "a field as a list": ([["a", I4]], "NumPy unpacks any sequence of two items"),
    "a field as a string": (["ab"], "NumPy unpacks it as a field named a of type b"),
    "a set of fields": ({("a", I4)}, "a set has no order"),
    "two types for the same bytes": (
        [("a", (I4, [("x", "<i2"), ("y", "<i2")]))],
        "NumPy reads it as a union",
    ),
    "a shape as a list": ([("a", I4, [2])], "a list is a record; NumPy tries that first"),
    "None for a shape": ([("a", "<i8", None)], "NumPy takes None for a type of 8 bytes"),
    "three items": ([("a", (I4, 2, 3))], "NumPy ignores the third"),
    "a subarray that is no field": ((I4, (2,)), "the array would have more axes than its shape"),
    "a tuple that is no field": ((I4, ()), "as above, even without axes"),
    "a number as title": ([((5, "a"), I4)], "a title is text"),
    "a field of 0 bytes with a shape": ([("a", "|S0", 5)], "NumPy takes 5 as the size of the text"),
    "a record without fields with a shape": (
        [("a", [], 5), ("b", I4)],
        "printing 2^31 empty records never ends",
    ),
    "objects as padding": ([("", ("|O", 1))], "NumPy drops the type of nameless fields"),
    "axes beyond 64 bits": ([("a", I4, (0, *(2**31 - 1,) * 3)), ("b", I4)], "no stride fits"),
}
# Prefixes of the errors for drawn descriptions that NumPy reads and ndtool refuses.
MESSAGE_PREFIXES = ("a field of 0 bytes has a shape", "Python objects are never read")


def numpy_reads(descr: Any) -> np.dtype | None:
    """Return the type that NumPy reads, None if it refuses or files cannot have the type."""
    try:
        dtype = descr_to_dtype(descr)
    except (TypeError, ValueError):
        return None
    return None if dtype.hasobject or not dtype.itemsize else dtype


def ndtool_reads(descr: Any) -> dtypes.Dtype | DtypeError:
    try:
        return dtypes.from_descr(descr)
    except DtypeError as error:
        event(error.message.partition(":")[0][:40])
        return error


@pytest.mark.slow("random type descriptions are read as NumPy reads them")
@many
@given(descrs)
@example("|i4")
@example("=f8")
@example("|U3")
@example("|M8[s]")
@example("M8[1s]")
@example([("f1", "|i1"), ("", "|V3"), ("b", I4)])
@example([("", "|V3"), ("f1", "|i1"), ("", "|V3"), ("", "|V2")])
@example([("", "|V3")])
@example([("", I4), ("", "|V3")])
@example([("", I4, (2,)), ("a", I4)])
@example([("", [("x", I4)]), ("a", I4)])
@example([("c", ("<f8", (5,)), (2,))])
@example([("c", (("<f8", 5), (2,)), 3)])
@example([("a", I4, 2), ("b", I4, (1,)), ("c", I4, ()), ("d", I4, 1)])
@example([("a", "|S0"), ("b", [("x", "<U0")]), ("c", I4)])
@example([(("a", "b"), I4), ("a", I4)])
@example([("a", I4), (("a", "b"), I4)])
@example([(("a", "a"), I4)])
@example([(("t", "a"), I4), (("t", "b"), I4)])
@example([((None, "a"), I4)])
@example([((None, ""), "|V3")])
@example([("a", "|i1", (0, 2**31 - 1, 2**31 - 1)), ("b", I4)])
@example([("a", "|i1", 2**31 - 1), ("b", "|i1")])
@example([("a", "|i1", (1,) * 64)])
@example([("a", "|i1", (1,) * 65)])
@example([("a", "|i1", 2**5000)])
def test_a_descr_is_parsed_as_by_numpy(descr: Any) -> None:
    expected, actual = numpy_reads(descr), ndtool_reads(descr)
    if isinstance(actual, DtypeError):
        assert expected is None or actual.message.startswith(MESSAGE_PREFIXES)
        return
    assert expected is not None
    assert actual.itemsize == expected.itemsize
    assert actual.descr == dtype_to_descr(expected)  # as NumPy writes it
    if expected.names is None:
        assert actual == dtypes.from_numpy(expected)


@pytest.mark.slow("random record types keep their bytes")
@many
@given(descrs)
@example("|i4")
@example([("f1", "|i1"), ("", "|V3"), ("b", "|i4")])
@example([("c", ("<f8", (5,)), (2,))])
def test_elements_of_any_type_are_copied_from_file_to_file(tmp_path: Path, descr: Any) -> None:
    dtype = numpy_reads(descr)
    if dtype is None or dtype.itemsize > 1000 or isinstance(ndtool_reads(descr), DtypeError):
        return
    data, indices, out = (str(tmp_path / name) for name in ("data.npy", "idx.npy", "out.npy"))
    content = np.random.default_rng(dtype.itemsize).bytes(5 * dtype.itemsize)
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': (5,)}}".encode()
    with open(data, "wb") as file:
        file.write(npy.MAGIC + b"\3\0" + len(text).to_bytes(4, "little") + text + content)
    np.save(indices, [[4], [0], [-2]])
    with OpenCall(Request("gather_nd", data, indices, output=out)) as call:
        steps.run(call)
    expected = [content[i * dtype.itemsize :][: dtype.itemsize] for i in (4, 0, 3)]
    with open(out, "rb") as file:
        assert file.read()[-3 * dtype.itemsize :] == b"".join(expected)
    assert np.load(data).dtype == dtype
    assert np.load(out).dtype == descr_to_dtype(dtype_to_descr(dtype))


@pytest.mark.parametrize(("descr", "reason"), ONLY_NUMPY.values(), ids=ONLY_NUMPY)
@pytest.mark.filterwarnings("ignore:Data type alias")
def test_types_that_only_numpy_reads_are_refused(descr: Any, reason: str) -> None:
    assert isinstance(descr_to_dtype(descr), np.dtype), reason
    with pytest.raises(DtypeError):
        dtypes.from_descr(descr)


@pytest.mark.parametrize("code", ["<f12", "<f16", ">c24", ">c32"])
def test_long_doubles_of_another_machine_are_read(code: str) -> None:
    dtype = dtypes.from_descr(code)
    assert (dtype.itemsize, dtype.order) == (int(code[2:]), code[0])


@pytest.mark.parametrize("order", ["|", "=", ""])
@pytest.mark.parametrize("code", ["i4", "f8", "c16", "u2", "U3", "M8[s]"])
def test_an_unspecified_byte_order_is_native(order: str, code: str) -> None:
    assert dtypes.from_code(order + code) == dtypes.from_code(dtypes.NATIVE + code)


@pytest.mark.parametrize("order", ["|", "=", ""])
@pytest.mark.parametrize("reduction", ["none", "add"])
def test_updates_of_data_without_a_byte_order_are_converted(
    tmp_path: Path, order: str, reduction: str
) -> None:
    names = [str(tmp_path / f"{name}.npy") for name in ("data", "idx", "upd", "out")]
    values = np.array([1, 2, 3], dtypes.NATIVE + "i4")
    text = f"{{'descr': '{order}i4', 'fortran_order': False, 'shape': (3,)}}".encode()
    with open(names[0], "wb") as file:
        file.write(npy.MAGIC + b"\1\0" + len(text).to_bytes(2, "little") + text)
        file.write(values.tobytes())
    np.save(names[1], [[1]])
    np.save(names[2], np.array([7], values.dtype.newbyteorder()))
    request = Request("scatter_nd", *names, attributes=Attributes(reduction=reduction))
    with OpenCall(request) as call:
        steps.run(call)
    assert np.load(names[3]).tolist() == [1, 9 if reduction == "add" else 7, 3]


@pytest.mark.parametrize(
    "name",
    ["float٣٢", "int٨", "float032", "uint08", "float12", "float-32", "bool8", "complex32", "int"]
    + [word + "3" * 5000 for word in ("float", "int", "U", "datetime64", "timedelta64[", "V", "")],
)
def test_unknown_type_names_are_refused(name: str) -> None:
    with pytest.raises(DtypeError, match="is not an element type"):
        dtypes.from_name(name)
    with pytest.raises(NdtoolError):
        infer.infer("gather_nd", {"data": f"{name}[3]", "indices": "int64[1,1]"})
    with pytest.raises(DtypeError):
        dtypes.view_as(dtypes.from_name("V2"), name)


def test_every_type_has_the_name_of_numpy() -> None:
    for dtype in map(np.dtype, "?bhilqBHILQefdgFDG"):
        assert dtypes.from_name(dtype.name) == dtypes.from_numpy(dtype)
    for name in ("datetime64", "datetime64[25s]", "timedelta64[ns]"):
        assert dtypes.from_name(name).name == name == np.dtype(name).name
    assert dtypes.from_code("<M8[1s]").name == "datetime64[s]"


# Extension types of other packages

EXTENSION_TYPES = [np.dtype(t) for t in vars(ml_dtypes).values() if isinstance(t, type)]
EXTENSION_TYPES = [dtype for dtype in EXTENSION_TYPES if dtype.isbuiltin == 2]


@pytest.mark.parametrize("dtype", EXTENSION_TYPES, ids=str)
def test_an_extension_type_keeps_its_name(dtype: np.dtype) -> None:
    data = np.arange(3).astype(dtype)
    scattered = ndtool.scatter_nd(data, [[0]], data[2:])
    assert (scattered.dtype, scattered.tolist()) == (dtype, data[[2, 1, 2]].tolist())
    assert ndtool.gather_nd(data, [[2]]).tolist() == data[2:].tolist()
    with pytest.raises(DtypeError, match="expected an integer dtype"):
        ndtool.gather_nd(data, data[None, :1])
    if dtype.name != "bfloat16":
        with pytest.raises(DtypeError, match=f"not defined for data of {dtype.name}: only none"):
            ndtool.scatter_nd(data, [[0]], data[2:], "add")
    for update_type in (
        *EXTENSION_TYPES,
        np.dtype(f"V{dtype.itemsize}"),
        np.dtype(f"u{dtype.itemsize}"),
    ):
        if update_type != dtype:
            with pytest.raises(DtypeError, match=f"it must be data's, {dtype.name}"):
                ndtool.scatter_nd(data, [[0]], np.zeros(1, update_type))


@pytest.mark.parametrize("reduction", ["none", "add"])
@pytest.mark.parametrize("byte_orders", ["<>", "><", ">>"])
def test_bfloat16_in_the_other_byte_order_keeps_its_values(
    byte_orders: str, reduction: str
) -> None:
    native = np.dtype(ml_dtypes.bfloat16)
    data, updates = (np.array([1, 2]).astype(native.newbyteorder(order)) for order in byte_orders)
    result = ndtool.scatter_nd(data, [[1]], updates[:1], reduction)
    assert result.dtype == data.dtype
    assert result.astype(float).tolist() == [1, 3 if reduction == "add" else 1]


def test_records_of_other_alignment_are_the_same_type() -> None:
    packed = np.dtype({"names": ["a", "b"], "formats": ["i1", "<i4"], "offsets": [0, 4]})
    aligned = np.dtype([("a", "i1"), ("b", "<i4")], align=True)
    updated = ndtool.scatter_nd(np.zeros(2, packed), [[1]], np.ones(1, aligned))
    assert updated["b"].tolist() == [0, 1]


# Numbers of any length, if Python limits the number of digits


@pytest.fixture
def limited_digits() -> Iterator[None]:
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    yield
    sys.set_int_max_str_digits(limit)


@pytest.mark.parametrize("size", ["0x" + "f" * 16, "0x" + "f" * 700, "0x" + "f" * 8000])
@pytest.mark.parametrize("template", ["{}", "({},)", "[{}]", "(({},),)", "({}.0, {})", "-{}"])
@pytest.mark.usefixtures("limited_digits")
def test_headers_with_long_numbers_are_refused(size: str, template: str) -> None:
    literal = template.replace("{}", size)
    for key in ("shape", "fortran_order", "descr"):
        fields = {"descr": "'<f4'", "fortran_order": "False", "shape": "(3,)", key: literal}
        text = "{" + ", ".join(f"'{k}': {v}" for k, v in fields.items()) + "}"
        check_refused(text)
    check_refused(f"{{'descr': [('a', '<i4', {literal})], 'fortran_order': False, 'shape': ()}}")
    check_refused(f"{{'descr': [({literal}, '<i4')], 'fortran_order': False, 'shape': ()}}")


def check_refused(text: str) -> None:
    raw = npy.MAGIC + b"\1\0" + len(text).to_bytes(2, "little") + text.encode()
    with pytest.raises(InputError, match=r"^x\.npy: .{10,300}$"):
        npy.read_header(io.BytesIO(raw).read, len(raw), "x.npy")


@pytest.mark.usefixtures("limited_digits")
def test_inference_with_the_largest_axes_is_reported() -> None:
    max_size = 2**63 - 1
    shape = f"[{','.join([str(max_size)] * 63)},1]"
    with pytest.raises(RuleError, match=r"would have about 10\^\d+ elements: at most"):
        infer.infer("gather_elements", {"data": f"int8{shape}", "indices": f"int64{shape}"})
    inference = infer.infer(
        "scatter_nd",
        {"data": "int8[3]", "indices": f"int64{shape}", "updates": f"int8{shape[:-3]}]"},
    )
    assert re.fullmatch(r"about 10\^\d+ index tuples", inference.trace[-2].result)
    assert inference.to_dict()["trace"]


@pytest.mark.usefixtures("limited_digits")
def test_attributes_with_many_digits_are_refused() -> None:
    data, indices = np.zeros(3), np.zeros(3, int)
    for value in (10**5000, -(10**5000)):
        for call in (ndtool.gather_elements, ndtool.gather_nd):
            with pytest.raises(RuleError, match=r"is about -?10\^4999|is about -?10\^5000"):
                call(data, indices, value)
