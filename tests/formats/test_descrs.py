"""Element types in headers: parsed as NumPy parses them."""

import io
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from npyfile import npy_with_header
from numpy.lib.format import descr_to_dtype, dtype_to_descr

import ndtool
from ndtool.analysis import infer
from ndtool.errors import DtypeError, InputError, NdtoolError, RuleError
from ndtool.formats import npy
from ndtool.rules import dtypes

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
LARGEST = 2**31 - 1
READ = (
    "|i4", "=f8", "|U3", "|M8[s]", "M8[1s]", [("f1", "|i1"), ("", "|V3"), ("b", I4)], [("", "|V3")],
    [("", "|V3"), ("f1", "|i1"), ("", "|V3"), ("", "|V2")], [("", I4), ("", "|V3")],
    [("", I4, (2,)), ("a", I4)], [("", [("x", I4)]), ("a", I4)], [("c", ("<f8", (5,)), (2,))],
    [("c", (("<f8", 5), (2,)), 3)], [("a", I4, 2), ("b", I4, (1,)), ("c", I4, ()), ("d", I4, 1)],
    [("a", "|S0"), ("b", [("x", "<U0")]), ("c", I4)], [(("t", "a"), I4), (("u", "b"), I4)],
    [((None, "a"), I4)], [((None, ""), "|V3")], [("a", "|i1", (0, LARGEST, LARGEST)), ("b", I4)],
    [("a", "|i1", (1,) * 64)],
)  # fmt: skip
REFUSED = (
    [(("a", "b"), I4), ("a", I4)], [("a", I4), (("a", "b"), I4)], [(("a", "a"), I4)],
    [(("t", "a"), I4), (("t", "b"), I4)], [("a", "|i1", LARGEST), ("b", "|i1")],
    [("a", "|i1", (1,) * 65)], [("a", "|i1", 2**5000)], [("a",)], [("a", I4, 1, 1)], [(5, I4)],
    "<x4", "i4 ", "U-1", "", "<f5", "<i3", "M8[2147483648s]", [("a", I4, -1)], [("a", I4, 2.0)],
)  # fmt: skip


@pytest.mark.parametrize("descr", READ, ids=str)
def test_a_descr_is_parsed_as_by_numpy(descr: Any, workdir: Path) -> None:
    expected, actual = descr_to_dtype(descr), dtypes.from_descr(descr)
    assert actual.itemsize == expected.itemsize
    assert actual.descr == dtype_to_descr(expected)  # as NumPy writes it
    if expected.names is None:
        assert actual == dtypes.from_numpy(expected)
    if 0 < expected.itemsize < 1000:
        content = np.random.default_rng(expected.itemsize).bytes(3 * expected.itemsize)
        text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': (3,)}}"
        Path("data.npy").write_bytes(npy_with_header(text, content, (3, 0)))
        ndtool.files.gather("data.npy", [2, 0, 1], out="out.npy")
        rows = [content[i * expected.itemsize :][: expected.itemsize] for i in (2, 0, 1)]
        assert Path("out.npy").read_bytes().endswith(b"".join(rows))
        assert np.load("out.npy").dtype == descr_to_dtype(dtype_to_descr(expected))


@pytest.mark.parametrize("descr", REFUSED, ids=lambda descr: str(descr)[:40])
def test_a_descr_is_refused_as_by_numpy(descr: Any) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError, SyntaxError)):
        np.zeros(1, descr_to_dtype(descr))
    with pytest.raises(DtypeError):
        dtypes.from_descr(descr)


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
def test_updates_of_data_without_a_byte_order_are_converted(workdir: Path, order: str) -> None:
    text = f"{{'descr': '{order}i4', 'fortran_order': False, 'shape': (3,)}}"
    values = np.array([1, 2, 3], dtypes.NATIVE + "i4")
    Path("data.npy").write_bytes(npy_with_header(text, values.tobytes()))
    updates = np.array([7], values.dtype.newbyteorder())
    result = ndtool.files.scatter_nd("data.npy", [[1]], updates, "add").array
    assert result.tolist() == [1, 9, 3]


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


def test_records_of_other_alignment_are_the_same_type() -> None:
    packed = np.dtype({"names": ["a", "b"], "formats": ["i1", "<i4"], "offsets": [0, 4]})
    aligned = np.dtype([("a", "i1"), ("b", "<i4")], align=True)
    updated = ndtool.scatter_nd(np.zeros(2, packed), [[1]], np.ones(1, aligned))
    assert updated["b"].tolist() == [0, 1]


def test_numbers_beyond_the_digits_that_python_converts_are_refused() -> None:
    size, limit = "0x" + "f" * 8000, sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        for template in ("{}", "({},)", "[{}]", "(({},),)", "({}.0, {})", "-{}"):
            text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {template.replace('{}', size)}}}"
            with pytest.raises(InputError, match=r"^x\.npy: .{10,300}$"):
                npy.read_header(io.BytesIO(npy_with_header(text)).read, None, "x.npy")
        for value in (10**5000, -(10**5000)):
            with pytest.raises(RuleError, match=r"is about -?10\^(4999|5000)"):
                ndtool.gather_elements(np.zeros(3), np.zeros(3, int), value)
    finally:
        sys.set_int_max_str_digits(limit)
