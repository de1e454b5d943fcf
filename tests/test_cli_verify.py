"""`verify`: every bit is compared, in bounded memory, with a progress bar."""

import os
import runpy
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import FIXTURES, at_terminal, ndtool, save, state

from ndtool.analysis import verify
from ndtool.analysis.oracle import blocks
from ndtool.errors import BoundsError, DifferenceError, OutputError
from ndtool.rules.operators import Attributes
from ndtool.runs.request import Request

COUNTING = np.arange(12, dtype="f4").reshape(4, 3)

pytestmark = pytest.mark.usefixtures("workdir")


def i8(*values: Any) -> np.ndarray:
    return np.array(values, "i8")


EXAMPLES = runpy.run_path(str(FIXTURES / "examples.py"))["EXAMPLES"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_verify_on_the_standards_examples(example):
    files = [FIXTURES / example.name / f"{r}.npy" for r in ("data", "indices", "updates", "output")]
    present = [path for path in files if path.exists()]
    flags = [x for k, v in example.attributes.items() for x in (f"--{k.replace('_', '-')}", v)]
    ran = ndtool("verify", example.operator.replace("_", "-"), *present, *flags)
    assert (ran.status, ran.out, ran.err) == (0, b"", "")


def test_verify_finds_the_first_difference():
    data = COUNTING.copy()
    save(data=data, idx=i8([3], [1]))
    run = ("verify", "gather-nd", "data.npy", "idx.npy", "out.npy")
    save(out=data[[3, 1]])
    assert ndtool(*run).status == 0
    assert ndtool(*run, "--json").json["verified"] is True
    wrong = data[[3, 1]]
    wrong[0, 2], wrong[1, 1] = -0.0, 7
    save(out=wrong)
    ran = ndtool(*run)
    assert (ran.status, ran.out) == (8, b"")
    assert ran.err == (
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
    assert ran.err.startswith(ndtool(*run, "-q").err)
    assert ndtool(*run, "-q").err.count("\n") == 3
    assert ndtool(*run, "--json").json["status"] == 8
    save(out=wrong[:, :2])
    assert "has shape [2,2]: gather_nd gives [2,3]" in ndtool(*run).err
    save(out=wrong.astype("f8"))
    assert "has dtype <f8: gather_nd gives <f4" in ndtool(*run).err
    save(out=wrong.astype(">f4"))
    assert ndtool(*run).status == 8
    save(idx=i8([4], [1]))
    ran = ndtool(*run)
    assert ran.status == 5
    assert "idx.npy[0, 0] = 4" in ran.err
    save(idx=i8([0, 0, 0]))
    assert ndtool(*run).status == 4


def test_verify_sees_a_zero_of_the_other_sign():
    save(data=np.zeros(2), idx=i8([0], [1]), out=np.array([0.0, -0.0]))
    ran = ndtool("verify", "gather-nd", "data.npy", "idx.npy", "out.npy")
    assert ran.status == 8
    assert "out.npy[1] = -0.0" in ran.err


def scattered(count: int, size: int) -> Request:
    """Save `count` updates of `size` elements and their result; return the arguments of verify."""
    rng = np.random.default_rng(0)
    data, idx, upd = np.zeros(size), rng.integers(0, size, (count, 1)), rng.random(count)
    out = data.copy()
    np.add.at(out, idx[:, 0], upd)
    save(data=data, idx=idx, upd=upd, out=out)
    return Request(
        "scatter_nd", "data.npy", "idx.npy", "upd.npy", "out.npy", Attributes(reduction="add")
    )


def test_memory_depends_on_no_size(workdir: Path) -> None:
    request = scattered(100_000, 4_000_000)
    before = state(workdir)
    tracemalloc.start()
    try:
        assert verify.verify(request).described == "float64[4000000]"
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert state(workdir) == before


def test_the_share_that_is_done_grows_to_the_whole() -> None:
    shares: list[float] = []
    verify.verify(scattered(3 * blocks.TUPLES, 3 * blocks.BLOCK_BYTES // 8), shares.append)
    assert len(shares) == 4 * 3  # check, copy, walk, compare: three blocks each
    assert shares == sorted(shares)
    assert shares[-1] == 1


IMPATIENT = """
import sys
from ndtool.cli import console
from ndtool.__main__ import main
console._INITIAL_DELAY = 0
sys.exit(main())
"""


def test_a_terminal_shows_a_bar_that_goes_away() -> None:
    scattered(10, 10)
    run = ("verify", "scatter-nd", "data.npy", "idx.npy", "upd.npy", "out.npy")
    ran = at_terminal(sys.executable, "-c", IMPATIENT, *run, "--reduction", "add")
    assert ran.status == 0
    assert "%" in ran.screen
    assert ran.screen.endswith("\r\x1b[Kverified out.npy: float64[10], bit for bit\n")
    quiet = at_terminal(sys.executable, "-c", IMPATIENT, *run, "--reduction", "add", "-q")
    assert (quiet.status, quiet.screen) == (0, "")


@pytest.mark.parametrize("fortran", [False, True])
def test_differences_of_all_blocks_are_counted(
    fortran: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 16)
    wrong = np.arange(35.0).reshape(5, 7)
    wrong[1, 3] = wrong[1, 4] = wrong[4, 6] = -1
    order = "F" if fortran else "C"
    save(data=np.arange(35.0).reshape(5, 7), idx=np.arange(5)[:, None])
    save(out=np.asarray(wrong, order=order))
    with pytest.raises(DifferenceError) as caught:
        verify.verify(Request("gather_nd", "data.npy", "idx.npy", output="out.npy"))
    assert caught.value.message == "out.npy differs from gather_nd in 3 of 35 elements"
    assert caught.value.places[0].startswith("out.npy[1, 3] = -1.0 ")


@pytest.mark.parametrize("out", [np.zeros((9, 1)), np.zeros(10, "f4")], ids=["shape", "type"])
def test_an_unsupported_output_is_refused_first(out: np.ndarray) -> None:
    request = scattered(10 * blocks.TUPLES, 10)
    save(out=out)
    shares: list[float] = []
    with pytest.raises(DifferenceError, match="scatter_nd gives"):
        verify.verify(request, shares.append)
    assert shares[-1] == pytest.approx(0.09)  # the indices were validated


@pytest.mark.parametrize("name", ["data.npy", "idx.npy", "upd.npy", "out.npy"])
def test_an_input_that_changes_during_the_work(name: str) -> None:
    request = scattered(10 * blocks.TUPLES, 10 * blocks.BLOCK_BYTES // 8)

    def corrupt(share: float) -> None:
        if share > 0.5 and os.stat(name).st_mtime_ns:
            with open(name, "r+b") as file:
                file.seek(-8, os.SEEK_END)
                file.write(b"\x7f" * 8)
            os.utime(name, ns=(0, 0))

    with pytest.raises(OutputError, match=f"^{name} changed during the run$"):
        verify.verify(request, corrupt)


def test_a_wrong_index_comes_before_a_wrong_output() -> None:
    request = scattered(3 * blocks.TUPLES, 10)
    bad = np.load("idx.npy")
    bad[-2:] = 10
    save(idx=bad, out=np.zeros(1))
    with pytest.raises(BoundsError) as caught:
        verify.verify(request)
    assert caught.value.position == (len(bad) - 2,)
    assert (caught.value.count, caught.value.total) == (2, len(bad))
