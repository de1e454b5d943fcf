"""`verify`: every bit is compared, in bounded memory, with a progress bar."""

import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool, save, snapshot

from ndtool.analysis import verify
from ndtool.analysis.oracle import blocks
from ndtool.errors import BoundsError, OutputError
from ndtool.rules.operators import Attributes
from ndtool.runs.calls import Request

DATA = np.arange(12, dtype="f4").reshape(4, 3)

pytestmark = pytest.mark.usefixtures("workdir")


def i8(*values: Any) -> np.ndarray:
    return np.array(values, "i8")


def test_verify_reports_the_first_difference():
    data = DATA.copy()
    save(data=data, idx=i8([3], [1]))
    command = ("verify", "gather-nd", "data.npy", "idx.npy", "out.npy")
    save(out=data[[3, 1]])
    assert ndtool(*command).status == 0
    assert ndtool(*command, "--json").json["verified"] is True
    wrong = data[[3, 1]]
    wrong[0, 2], wrong[1, 1] = -0.0, 7
    save(out=wrong)
    completed = ndtool(*command)
    assert (completed.status, completed.out) == (8, b"")
    assert completed.err == (
        "error: out.npy differs from gather_nd in 2 of 6 elements\n"
        "  --> out.npy[0, 2] = -0.0 (bytes 00000080)\n"
        "      gather_nd gives 11.0 (bytes 00003041)\n"
        "ulps apart  elements\n"
        f"same bits   4         {'━' * 40}\n"
        "1           0\n"
        "2..4        0\n"
        "5..64       0\n"
        f">64         2         {'━' * 20}\n"
        "largest difference: [0, 2] is -0.0, not 11.0: 1093664769 ulps apart\n"
    )
    assert completed.err.startswith(ndtool(*command, "-q").err)
    assert ndtool(*command, "-q").err.count("\n") == 3
    assert ndtool(*command, "--json").json["status"] == 8
    save(out=wrong[:, :2])
    assert "has shape [2,2]: gather_nd gives [2,3]" in ndtool(*command).err
    save(out=wrong.astype("f8"))
    assert "has dtype float64: gather_nd gives float32" in ndtool(*command).err
    save(out=wrong.astype(">f4"))
    assert ndtool(*command).status == 8
    save(idx=i8([4], [1]))
    completed = ndtool(*command)
    assert completed.status == 5
    assert "idx.npy[0, 0] = 4" in completed.err
    save(idx=i8([0, 0, 0]))
    assert ndtool(*command).status == 4


def save_scatter(count: int, size: int) -> Request:
    """Save `count` updates of `size` elements and their result; return the arguments of verify."""
    rng = np.random.default_rng(0)
    data, idx, upd = np.zeros(size), rng.integers(0, size, (count, 1)), rng.random(count)
    out = data.copy()
    np.add.at(out, idx[:, 0], upd)
    save(data=data, idx=idx, upd=upd, out=out)
    return Request(
        "scatter_nd", "data.npy", "idx.npy", "upd.npy", "out.npy", Attributes(reduction="add")
    )


def test_memory_is_independent_of_the_size_of_inputs(workdir: Path) -> None:
    request = save_scatter(50_000, 2_000_000)
    before = snapshot(workdir)
    tracemalloc.start()
    try:
        with verify.open_call(request) as call:
            comparison = verify.verify(call).comparison
        assert comparison is not None
        assert comparison.description == "float64[2000000]"
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert snapshot(workdir) == before


@pytest.mark.parametrize("name", ["data.npy", "idx.npy", "out.npy"])
def test_an_input_that_changes_during_the_run_is_an_error(name: str) -> None:
    request = save_scatter(10 * blocks.TUPLES, 10 * blocks.BLOCK_BYTES // 8)

    def corrupt(fraction: float) -> None:
        if fraction > 0.5 and os.stat(name).st_mtime_ns:
            with open(name, "r+b") as file:
                file.seek(-8, os.SEEK_END)
                file.write(b"\x7f" * 8)
            os.utime(name, ns=(0, 0))

    with (
        verify.open_call(request) as call,
        pytest.raises(OutputError, match=f"^{name} changed during the run$"),
    ):
        verify.verify(call, corrupt)


def test_a_wrong_index_is_reported_before_a_wrong_output() -> None:
    request = save_scatter(3 * blocks.TUPLES, 10)
    bad = np.load("idx.npy")
    bad[-2:] = 10
    save(idx=bad, out=np.zeros(1))
    with verify.open_call(request) as call, pytest.raises(BoundsError) as excinfo:
        verify.verify(call)
    assert excinfo.value.position == (len(bad) - 2,)
    assert (excinfo.value.count, excinfo.value.total) == (2, len(bad))
