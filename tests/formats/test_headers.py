"""Headers of .npy files: invalid ones are refused with a reason, valid ones round-trip."""

import io
import warnings

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from npyfile import npy, npy_with_header
from strategies import EXAMPLES

from ndtool.errors import InputError
from ndtool.formats import npy as headers
from ndtool.rules import dtypes

VALID_HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }"


def header(text=VALID_HEADER, version=(1, 0), length=None):
    return npy_with_header(text, b"", version, length)


def header_with_shape(shape, descr="'<f4'"):
    return header(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}")


def parse(raw, available=None, name="x.npy"):
    return headers.read_header(io.BytesIO(raw).read, available, name)


def refusal(raw, available=None):
    with pytest.raises(InputError) as excinfo:
        parse(raw, available)
    message = excinfo.value.message
    assert message.startswith("x.npy: ")
    assert len(message) <= len("x.npy: ") + 200
    assert message.isprintable()
    return excinfo.value


INVALID_HEADERS = {
    "nothing": (b"", "expected a .npy array"),
    "only the magic": (headers.MAGIC, "found 6"),
    "half of the magic": (headers.MAGIC[:3], "found 3"),
    "truncated after the version": (headers.MAGIC + b"\1\0", "header length"),
    "half a length": (headers.MAGIC + b"\1\0\1", "header length"),
    "text": (b"1.0 2.0 3.0\n" * 20, "not a .npy array"),
    "version 9.0": (header(version=(9, 0)), "version 9.0: valid 1.0, 2.0, 3.0"),
    "version 1.1": (header(version=(1, 1)), "version 1.1"),
    "a header past the end": (header(length=400), "truncated: expected 400"),
    "a header of 4 GiB": (header(version=(2, 0), length=2**32 - 1), "4294967295 bytes: valid"),
    "a header of no bytes": (header(""), "not a Python literal"),
    "a list": (header("[1, 2]"), "not a dictionary"),
    "a set": (header("{1, 2}"), "not a dictionary"),
    "code": (header("__import__('os').system('touch /tmp/ndtool-ran')"), "not a dictionary"),
    "code in shape": (header_with_shape("(print('run'),)"), "not a Python literal"),
    "a comprehension": (header("{k: 1 for k in 'ab'}"), "not a dictionary"),
    "a dictionary unpacked": (header("{**{'descr': '<f4'}}"), "key that is not a string"),
    "3000 parentheses": (header("(" * 3000), "not a Python literal"),
    "90 brackets in shape": (header_with_shape("[" * 90 + "]" * 90), "shape is"),
    "9000 minus signs in shape": (
        header_with_shape("(" + "-" * 9000 + "1,)"),
        "not a Python literal",
    ),
    "4500 sums in shape": (header_with_shape("(" + "1+" * 4500 + "1,)"), "not a Python literal"),
    "a header of 20 kB": (header(VALID_HEADER + " " * 20_000), "valid up to 10000"),
    "no fortran_order": (header("{'descr': '<f4', 'shape': (3,)}"), "has the keys"),
    "a key too many": (header(VALID_HEADER[:-1] + "'x': 1}"), "has the keys"),
    "a key of bytes": (header(VALID_HEADER.replace("'shape'", "b'shape'")), "not a string"),
    "shape twice": (header(VALID_HEADER[:-1] + "'shape': (3, 4)}"), "'shape' 2 times"),
    "a descr of two types": (header_with_shape("(3,)", "',f4'"), "not an element type"),
    "no closing brace": (header(VALID_HEADER[:-1]), "not a Python literal"),
    "a NUL after the header": (header(VALID_HEADER + "\0"), "not a Python literal"),
    "a NUL in descr": (header_with_shape("(3,)", "'<f4\0'"), "x.npy: "),
    "a negative size": (header_with_shape("(-1,)"), "shape[0] is -1: expected a size"),
    "two negative sizes": (header_with_shape("(-3, -4)"), "shape[0] is -3"),
    "a float in shape": (header_with_shape("(3.0, 4)"), "shape[0] is 3.0"),
    "a shape that is a list": (header_with_shape("[3, 4]"), "expected a tuple"),
    "a complex number in shape": (header_with_shape("(1+2j,)"), "shape[0] is (1+2j)"),
    "a shape that is a number": (header_with_shape("(3)"), "expected a tuple"),
    "a bool in shape": (header_with_shape("(True, 4)"), "shape[0] is True"),
    "np.int64 in shape": (header_with_shape("(np.int64(3),)"), "not a Python literal"),
    "a size of 10**30": (header_with_shape(f"({10**30},)"), "shape[0] is 1000000"),
    "a size of 5000 digits": (header_with_shape("(" + "9" * 5000 + ",)"), "x.npy: "),
    "2**32 times 2**32": (
        header_with_shape("(4294967296, 4294967296)"),
        "float32[4294967296,42949",
    ),
    "bytes that wrap to 4": (
        header_with_shape("(4611686018427387905, 4)", "'|u1'"),
        "valid up to 9223372036854",
    ),
    "huge sizes and one of 0": (
        header_with_shape("(0, 4611686018427387904, 4611686018427387904)"),
        "size 0 counted as 1",
    ),
    "65 axes": (header_with_shape("(" + "1, " * 65 + ")"), "65 axes: valid up to 64"),
    "fortran_order is a word": (
        header(VALID_HEADER.replace("False", "'no'")),
        "fortran_order is 'no'",
    ),
    "fortran_order is 1": (header(VALID_HEADER.replace("False", "1")), "fortran_order is 1"),
    "objects": (header_with_shape("(3,)", "'|O'"), "Python objects are never read"),
    "a record with objects": (
        header_with_shape("(3,)", "[('a', '<f4'), ('b', '|O')]"),
        "objects are never",
    ),
    "bytes of length 0": (header_with_shape("(1099511627776,)", "'|S0'"), "0 bytes per element"),
    "text of length 0": (
        header_with_shape("(4611686018427387904,)", "'<U0'"),
        "0 bytes per element",
    ),
    "void of length 0": (header_with_shape("(3,)", "'|V0'"), "0 bytes per element"),
    "a record without fields": (header_with_shape("(3,)", "[]"), "x.npy: "),
    "descr is a number": (header_with_shape("(3,)", "5"), "x.npy: "),
    "not UTF-8": (header(VALID_HEADER.replace("<f4", "\xff"), version=(3, 0)), "not UTF-8"),
}


@pytest.mark.parametrize(("raw", "reason"), INVALID_HEADERS.values(), ids=INVALID_HEADERS)
@pytest.mark.filterwarnings("error")
def test_invalid_headers_are_refused(raw, reason):
    assert reason in refusal(raw).message
    refusal(raw + bytes(100), len(raw) + 100) if len(raw) > 12 else refusal(raw, len(raw))


@pytest.mark.parametrize("sizes", ["(3L, 4L)", "(3L, 4L, )", "(3, 4L)", "( 3L,4L )"])
def test_sizes_of_python_2(sizes):
    assert parse(header_with_shape(sizes)).shape == (3, 4)
    order = f"{{'shape': {sizes}, 'descr': '<f4', 'fortran_order': False}}"
    assert parse(header(order)).shape == (3, 4)
    assert "not a Python literal" in refusal(header_with_shape(sizes, "'<f4', 4L")).message


def test_refusals_of_other_formats_have_hints():
    assert "NumPy integers" in refusal(INVALID_HEADERS["np.int64 in shape"][0]).hint
    assert ".npz" in refusal(b"PK\3\4" + bytes(40)).hint
    assert "gzip" in refusal(b"\x1f\x8b\x08" + bytes(40)).hint
    pickle_error = refusal(b"\x80\x04\x95" + bytes(40))
    assert "pickle, which is never loaded" in pickle_error.hint
    assert "allow_pickle" not in str(pickle_error)
    assert "scipy.io.loadmat" in refusal(b"MATLAB 5.0 MAT-file" + bytes(40)).hint
    assert "nccopy" in refusal(b"CDF\1" + bytes(40)).hint
    assert "text:FILE" in refusal(b'{"id": 5}\n').hint


@pytest.mark.parametrize("missing", [1, 24, 48])
def test_less_data_than_the_header_declares(missing):
    raw = header()
    error = refusal(raw + bytes(48 - missing), len(raw) + 48 - missing)
    assert f"expected 48 bytes of data after the header, found {48 - missing}" in error.message
    assert parse(raw, len(raw) + 48).shape == (3, 4)


def test_declared_lengths_are_compared_before_any_read():
    def fail_large_read(count):
        raise AssertionError(count)

    raw = header(version=(2, 0), length=2**32 - 1)
    stream = io.BytesIO(raw)
    with pytest.raises(InputError, match="claims 4294967295 bytes, only"):
        headers.read_header(
            lambda n: stream.read(n) if n < 100 else fail_large_read(n), len(raw), "x.npy"
        )
    refusal(header_with_shape("(1099511627776,)"), 224)
    assert "6442450941" in refusal(header_with_shape("(3,)", "'|S2147483647'"), 224).message


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_versions(version):
    result = parse(header(version=version))
    assert result.version == version
    assert result.offset == len(header(version=version))
    assert (result.shape, result.fortran, result.dtype.name, result.nbytes) == (
        (3, 4),
        False,
        "float32",
        48,
    )


def test_rank_64():
    assert len(parse(header_with_shape("(" + "1, " * 64 + ")")).shape) == 64
    assert headers._parse_simple(VALID_HEADER.replace("3, 4", "1, " * 63 + "1"))[2] == (1,) * 64


def test_a_record_with_many_fields():
    dtype = np.dtype([(f"field_{i:03}", "<f8") for i in range(300)])
    raw = npy(np.zeros(3, dtype))
    result = parse(raw, len(raw))
    assert (result.dtype.name, result.dtype.itemsize) == ("struct", 2400)


def test_names_in_messages_are_on_one_line():
    with pytest.raises(InputError) as excinfo:
        parse(b"", name="a\nb\x1b[31m\udcff.npy")
    assert excinfo.value.message.isprintable()


SIZES = st.integers(0, 5) | st.sampled_from([10, 4096, 10**9])
CODES = st.sampled_from(
    [
        "?",
        "b",
        "h",
        "i",
        "l",
        "q",
        "B",
        "H",
        "I",
        "L",
        "Q",
        "e",
        "f",
        "d",
        "g",
        "F",
        "D",
        "S1",
        "S7",
        "U1",
        "U5",
        "V1",
        "V2",
        "M8[ns]",
        "m8[25s]",
        "M8",
        ">i4",
        ">f8",
        ">U3",
    ]
)


@given(code=CODES, shape=st.lists(st.integers(0, 3), max_size=6))
def test_encoded_headers_equal_those_of_numpy(code, shape):
    array = np.zeros(shape, code)
    raw = npy(array)
    dtype = dtypes.from_numpy(array.dtype) if array.dtype.kind != "V" else dtypes.from_code(code)
    assert headers.encode(dtype, array.shape) == raw[: len(raw) - array.nbytes]
    result = parse(raw, len(raw))
    assert (result.shape, result.dtype.itemsize) == (array.shape, array.itemsize)
    assert result.offset % 64 == 0
    assert headers.encode(result.dtype, result.shape) == raw[: result.offset]


@given(shape=st.lists(SIZES, min_size=1, max_size=32))
def test_encode_long_shapes(shape):
    raw = headers.encode(dtypes.from_code("<f4"), tuple(shape))
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": "<f4", "fortran_order": False, "shape": tuple(shape)}
    )
    assert raw == stream.getvalue()


@pytest.mark.parametrize(
    "names", [["a", "b"], ["\xe9"], ["\u2203", "x"], ["n" * 40_000, "m" * 30_000]]
)
def test_encode_records(names):
    dtype = np.dtype([(name, "<f4") for name in names])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        raw = npy(np.zeros((2, 3), dtype))
    expected = raw[: len(raw) - 6 * dtype.itemsize]
    assert headers.encode(dtypes.from_descr(dtype.descr), (2, 3)) == expected


@pytest.mark.parametrize("order", "CF")
def test_fortran(order):
    assert parse(npy(np.zeros((3, 4), order=order))).fortran == (order == "F")


# The fast parser may fail, but its result must equal that of the complete parser.
TOKENS = st.sampled_from(
    [
        "{",
        "}",
        "'descr'",
        "descr",
        "': '",
        "', '",
        "<f4",
        "|b1",
        "'",
        '"',
        "\\",
        ",",
        ", ",
        " ",
        "fortran_order",
        "': ",
        "True",
        "False",
        "0",
        "1",
        "00",
        "-1",
        "(",
        ")",
        "), }",
        "3,",
        "'shape': (",
        "\n",
        "\t",
        "\xa0",
        "٣",
        "(3, 4)",
        "(5,)",
        "()",
        "#",
        "9" * 19,
        "\x00",
    ]
)
MUTATED_HEADERS = st.builds(
    lambda start, length, token: VALID_HEADER[:start] + token + VALID_HEADER[start + length :],
    st.integers(0, len(VALID_HEADER)),
    st.integers(0, 4),
    TOKENS | st.text(max_size=3),
)


@settings(max_examples=2 * EXAMPLES)
@given(text=MUTATED_HEADERS | st.lists(TOKENS, max_size=12).map("".join))
@example(VALID_HEADER)
@example(VALID_HEADER + "  \n")
@example(VALID_HEADER.replace("(3, 4)", "()"))
@example(VALID_HEADER.replace("(3, 4)", "(3, 4,)"))
@example(VALID_HEADER.replace("(3, 4)", "(3,)"))
@example(VALID_HEADER.replace("(3, 4)", "(3)"))
@example(VALID_HEADER.replace("(3, 4)", "(3, 04)"))
@example(VALID_HEADER.replace("<f4", "<f4', 'x': '1"))
@example(VALID_HEADER.replace("<f4", "\\x3cf4"))
def test_the_fast_parser_is_no_more_lenient(text):
    simple_result = headers._parse_simple(text)
    if simple_result is not None:
        assert headers._parse_literal(text, "x.npy") == simple_result


def test_the_fast_parser_accepts_numpys_headers():
    for shape in [(), (0,), (5,), (3, 4), (1, 2, 3)]:
        raw = headers.encode(dtypes.from_code("<f4"), shape)
        assert headers._parse_simple(raw[10:].decode()) == ("<f4", False, shape)


@settings(max_examples=EXAMPLES)
@given(raw=st.binary(max_size=80), version=st.sampled_from([(1, 0), (2, 0), (3, 0)]))
def test_random_bytes_raise_only_input_errors(raw, version):
    text = raw.decode("latin-1")
    for content in (
        raw,
        header(text, version),
        header(VALID_HEADER[:30] + text + VALID_HEADER[30:], version),
    ):
        try:
            parse(content, len(content))
        except InputError:
            pass
