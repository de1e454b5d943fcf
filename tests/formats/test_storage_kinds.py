"""All kinds of inputs and outputs: wherever the bytes are, the result has the reference's bits."""

import errno
import io
import os
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inputs import open_input, piped
from numpy.lib.format import descr_to_dtype, dtype_to_descr
from strategies import Case, call, cases, many, note_attributes, raw_bytes, threads_used, void_view

import ndtool
from ndtool.analysis.oracle import reference
from ndtool.formats.streams import Streams
from ndtool.publish import sinks
from ndtool.rules import dtypes
from ndtool.rules.operators import Attributes
from ndtool.runs import calls, steps
from ndtool.runs.calls import OpenCall, Request
from ndtool.storage import descriptors

INPUTS = ("data", "indices", "updates")
WAYS_IN = ("file", "file", "Fortran", "stored", "deflated", "stream")
WAYS_OUT = ("file", "archive", "stream", "no shared maps")


def npy(array: np.ndarray, fortran: bool = False) -> bytes:
    """Return the bytes that np.save writes, padding in records included."""
    stream = io.BytesIO()
    fields = {"descr": dtype_to_descr(array.dtype), "fortran_order": fortran, "shape": array.shape}
    np.lib.format.write_array_header_1_0(stream, fields)
    return stream.getvalue() + void_view(array).tobytes("F" if fortran else "C")


def put(name: str, array: np.ndarray, kind: str) -> str:
    """Store an array as an input, and return its argument."""
    if kind == "stream":
        return "-"
    if kind in ("stored", "deflated"):
        method = zipfile.ZIP_DEFLATED if kind == "deflated" else zipfile.ZIP_STORED
        with zipfile.ZipFile(f"{name}.npz", "w", method) as archive:
            archive.writestr("other.npy", npy(np.arange(3)))
            archive.writestr(f"{name}.npy", npy(array))
        return f"{name}.npz:{name}"
    Path(f"{name}.npy").write_bytes(npy(array, kind == "Fortran"))
    return f"{name}.npy"


@contextmanager
def standard_input(content: bytes) -> Iterator[None]:
    """Let a source opened as `-` read `content` from a pipe."""
    with piped(content) as fd, pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "Streams", partial(Streams, fd))
        yield


@contextmanager
def pipe_content(received: list[bytes]) -> Iterator[str]:
    """Yield the name of a pipe, all of which is received at the end."""
    read_end, write_end = os.pipe()

    def drain() -> None:
        with open(read_end, "rb") as end:
            received.append(end.read())

    drainer = Thread(target=drain)
    drainer.start()
    try:
        yield f"/dev/fd/{write_end}"
    finally:
        os.close(write_end)
        drainer.join()


@contextmanager
def no_shared_maps() -> Iterator[None]:
    """Refuse a writable map of the output, which is tried first, as some file systems do."""
    mapped, refusals = descriptors.map_bytes, [errno.ENODEV]

    def refusing(*arguments: Any, writable: bool = False) -> memoryview:
        if writable and refusals:
            code = refusals.pop()
            raise OSError(code, os.strerror(code))
        return mapped(*arguments, writable=writable)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sinks, "map_bytes", refusing)
        yield


def run_on_files(case: Case, methods: list[str], out: str, threads: int) -> bytes:
    """Run a case on files; return the output as a .npy file."""
    input_files = [*zip(INPUTS, case.arrays, methods, strict=False)]
    received: list[bytes] = []
    with ExitStack() as stack:
        streamed = [npy(array) for _, array, kind in input_files if kind == "stream"]
        stack.enter_context(standard_input(b"".join(streamed)))
        pipe = stack.enter_context(pipe_content(received))
        request = Request(
            case.operator,
            *(put(*input_file) for input_file in input_files),
            output={"archive": "out.npz:x", "stream": pipe}.get(out, "out.npy"),
            attributes=Attributes(**case.arguments),
            dtype=_name(case.arrays[0].dtype),
            threads=threads,
        )
        if out == "no shared maps":
            stack.enter_context(no_shared_maps())
        with OpenCall(request) as call:
            steps.run(call)
    if out == "stream":
        return received[0]
    if out == "archive":
        with zipfile.ZipFile("out.npz") as archive:
            return archive.read("x.npy")
    return Path("out.npy").read_bytes()


def _name(dtype: np.dtype) -> str | None:
    """Return the value of --dtype for types that a file lacks."""
    return dtype.name if dtype.name in dtypes.EXTENSION_DTYPES else None


@many
@given(
    case=cases,
    methods=st.lists(st.sampled_from(WAYS_IN), min_size=3, max_size=3),
    out=st.sampled_from(WAYS_OUT),
    threads=threads_used,
)
def test_all_kinds_of_inputs_and_outputs(
    small_thresholds: None, workdir: None, case: Case, methods: list[str], out: str, threads: int
) -> None:
    note_attributes(case)
    expected = call(reference, case)
    actual = run_on_files(case, methods, out, threads)
    dtype = descr_to_dtype(dtype_to_descr(expected.dtype))
    loaded = np.load(io.BytesIO(actual))
    assert (loaded.dtype, loaded.shape) == (dtype, expected.shape)
    assert actual[len(actual) - expected.nbytes :] == raw_bytes(expected)
    assert raw_bytes(call(ndtool, case, threads=threads)) == raw_bytes(expected)


def change_in_place(path: str) -> None:
    with open(path, "r+b") as file:
        file.write(b"\x93NUMPY")
    os.utime(path, ns=(0, 0))


def replace_file(path: str) -> None:
    np.save("new.npy", np.arange(3))
    os.replace("new.npy", path)


def replace_chunk(path: str) -> None:
    Path(path, "c/0").write_bytes(b"other bytes")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("x.npy", change_in_place),
        ("x.npy", replace_file),
        ("memory://x.npy", None),
        ("x.zarr", replace_chunk),
    ],
)
def test_a_fingerprint_is_of_the_current_bytes(workdir: Path, name: str, change: Any) -> None:
    """Whoever publishes compares it with the one of the start, even if another process read."""
    if name.endswith("zarr"):
        pytest.importorskip("zarr", exc_type=ImportError)
    if change is None:
        fsspec = pytest.importorskip("fsspec")
        change = lambda url: fsspec.filesystem("memory").pipe(url, npy(np.arange(4)))  # noqa: E731
        change(name)
    else:
        ndtool.convert(np.arange(3), name)
    with open_input(name) as source:
        before = source.fingerprint()
        assert source.fingerprint() == before
        assert before is not None
        change(name)
        assert source.fingerprint() != before
