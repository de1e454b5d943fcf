"""Every way in and every way out: whatever holds the bytes, the result has the reference's bits."""

import io
import os
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.format import descr_to_dtype, dtype_to_descr
from strategies import Case, cases, opaque, raw
from test_properties import LIMITS, call, many, threads_used, told

import ndtool
from ndtool.analysis import reference
from ndtool.arrays import local, names, sink, storage
from ndtool.arrays.streams import Streams
from ndtool.engine import bind, scatters
from ndtool.rules import dtypes
from ndtool.rules.operators import Attributes
from ndtool.runs import jobs

INPUTS = ("data", "indices", "updates")
WAYS_IN = ("file", "file", "Fortran", "stored", "deflated", "stream")
WAYS_OUT = ("file", "archive", "stream", "held")
# What decides how bytes are kept, and values at which tiny arrays are kept in all ways.
ROOMS = {
    (local, "SMALL"): 16,
    (storage, "MEMORY"): 64,
    (sink, "MEMORY"): 64,
    (storage, "CHUNK"): 48,
    (sink, "CHUNK"): 48,
    (names, "CHUNK"): 48,
    (scatters, "WRITTEN"): 96,
    (jobs, "SCRATCH"): 256,
}


@pytest.fixture(params=["as is", "small limits"])
def limits(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test as it is, and with limits at which tiny arrays are mapped, cut and spooled."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "small limits":
            for (module, name), value in (LIMITS | ROOMS).items():
                patch.setattr(module, name, value)
        bind.bind_units.cache_clear()
        yield
    bind.bind_units.cache_clear()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")


def npy(array: np.ndarray, fortran: bool = False) -> bytes:
    """Return what np.save writes, gaps in records included."""
    stream = io.BytesIO()
    fields = {"descr": dtype_to_descr(array.dtype), "fortran_order": fortran, "shape": array.shape}
    np.lib.format.write_array_header_1_0(stream, fields)
    return stream.getvalue() + opaque(array).tobytes("F" if fortran else "C")


def put(name: str, array: np.ndarray, way: str, pipe: int) -> str:
    """Put an array where it can be read from, and return the argument that names it."""
    if way == "stream":
        os.write(pipe, npy(array))
        return "-"
    if way in ("stored", "deflated"):
        method = zipfile.ZIP_DEFLATED if way == "deflated" else zipfile.ZIP_STORED
        with zipfile.ZipFile(f"{name}.npz", "w", method) as archive:
            archive.writestr("other.npy", npy(np.arange(3)))
            archive.writestr(f"{name}.npy", npy(array))
        return f"{name}.npz:{name}"
    Path(f"{name}.npy").write_bytes(npy(array, way == "Fortran"))
    return f"{name}.npy"


@contextmanager
def standard_input() -> Iterator[int]:
    """Let files that are opened read `-` from a pipe; give the end to write to."""
    theirs, ours = os.pipe()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(names, "Stdin", partial(Streams, theirs))
            yield ours
    finally:
        os.close(theirs)
        os.close(ours)


def moved(case: Case, ways: list[str], out: str, threads: int) -> bytes:
    """Run a case from file to file; return the output as a .npy file, or the held bytes."""
    with ExitStack() as stack:
        pipe = stack.enter_context(standard_input())
        named = [
            put(name, array, way, pipe)
            for name, array, way in zip(INPUTS, case.arrays, ways, strict=False)
        ]
        target = {"file": "out.npy", "archive": "out.npz:x", "stream": "fifo", "held": None}[out]
        request = jobs.Request(
            case.operator,
            *named,
            output=target,
            attributes=Attributes(**case.arguments),
            dtype=_name(case.arrays[0].dtype),
            threads=threads,
        )
        end = None
        if out == "stream":
            end = os.open("fifo", os.O_RDONLY | os.O_NONBLOCK)
            stack.callback(os.close, end)
        job = stack.enter_context(jobs.Job(request))
        job.check()
        job.run()
        if out == "held":
            assert job.held is not None
            return bytes(job.held)
        if end is not None:
            return os.read(end, 1 << 16)
    if out == "archive":
        with zipfile.ZipFile("out.npz") as archive:
            return archive.read("x.npy")
    return Path("out.npy").read_bytes()


def _name(dtype: np.dtype) -> str | None:
    """Return what --dtype must say, as a file does not."""
    return dtype.name if dtype.name in dtypes.EXTENDED else None


def _is_turned(case: Case) -> bool:
    """Whether long doubles come in both byte orders."""
    orders = {array.dtype.str[0] for array in case.arrays if array.dtype.char in "gG"}
    return len(orders) > 1


@many
@given(
    case=cases.filter(lambda case: not _is_turned(case)),
    ways=st.lists(st.sampled_from(WAYS_IN), min_size=3, max_size=3),
    out=st.sampled_from(WAYS_OUT),
    threads=threads_used,
)
def test_any_way_in_and_out(
    limits: None, here: None, case: Case, ways: list[str], out: str, threads: int
) -> None:
    told(case)
    expected = call(reference, case)
    got = moved(case, ways, out, threads)
    if out != "held":
        kept = descr_to_dtype(dtype_to_descr(expected.dtype))
        loaded = np.load(io.BytesIO(got))
        assert (loaded.dtype, loaded.shape) == (kept, expected.shape)
        got = got[len(got) - expected.nbytes :]
    assert got == raw(expected)
    assert raw(call(ndtool, case, threads=threads)) == raw(expected)
