"""Headers of .npy files: invalid ones are refused with a reason, valid ones round-trip."""

import io
import warnings

import numpy as np
import pytest
from hostile import HEADERS, header, shaped
from hypothesis import given
from hypothesis import strategies as st
from npyfile import npy

from ndtool.errors import InputError
from ndtool.formats import npy as headers
from ndtool.rules import dtypes


def parse(raw, available=None, name="x.npy"):
    return headers.read_header(io.BytesIO(raw).read, available, name)


def refusal(raw, available=None):
    with pytest.raises(InputError) as excinfo:
        parse(raw, available)
    message = excinfo.value.message
    assert message.startswith("x.npy: ")
    assert len(message) <= len("x.npy: ") + 300
    assert message.isprintable()
    return excinfo.value


@pytest.mark.parametrize("sizes", ["(3L, 4L)", "(3L, 4L, )", "(3, 4L)", "( 3L,4L )"])
def test_sizes_of_python_2(sizes):
    assert parse(shaped(sizes)).shape == (3, 4)
    order = f"{{'shape': {sizes}, 'descr': '<f4', 'fortran_order': False}}"
    assert parse(header(order)).shape == (3, 4)
    assert "not a Python literal" in refusal(shaped(sizes, "'<f4', 4L")).message


def test_refusals_of_other_formats_have_hints():
    assert "NumPy integers" in refusal(HEADERS["np.int64 in shape"][0]).hint
    assert ".npz" in refusal(b"PK\3\4" + bytes(40)).hint
    assert "gzip" in refusal(b"\x1f\x8b\x08" + bytes(40)).hint
    pickle_error = refusal(b"\x80\x04\x95" + bytes(40))
    assert "pickle, which is never loaded" in pickle_error.hint
    assert "allow_pickle" not in str(pickle_error)
    assert "MATLAB file" in refusal(b"MATLAB 5.0 MAT-file" + bytes(40)).hint
    assert "nccopy" in refusal(b"CDF\1" + bytes(40)).hint
    assert "text:FILE" in refusal(b'{"id": 5}\n').hint
    assert "HDF5" in refusal(b"\x89HDF\r\n\x1a\n" + bytes(40)).hint


def test_declared_lengths_are_compared_before_any_read():
    def fail_large_read(count):
        raise AssertionError(count)

    raw = header(version=(2, 0), length=2**32 - 1)
    stream = io.BytesIO(raw)
    with pytest.raises(InputError, match="claims 4294967295 bytes, only"):
        headers.read_header(
            lambda n: stream.read(n) if n < 100 else fail_large_read(n), len(raw), "x.npy"
        )


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


def test_names_in_messages_are_on_one_line():
    with pytest.raises(InputError) as excinfo:
        parse(b"", name="a\nb\x1b[31m\udcff.npy")
    assert excinfo.value.message.isprintable()


SIZES = st.integers(0, 5) | st.sampled_from([10, 4096, 10**9])
CODES = st.sampled_from((
    "?", "b", "h", "i", "l", "q", "B", "H", "I", "L", "Q", "e", "f", "d", "g", "F", "D", "S1", "S7",
    "U1", "U5", "V1", "V2", "M8[ns]", "m8[25s]", "M8", ">i4", ">f8", ">U3",
))  # fmt: skip


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
