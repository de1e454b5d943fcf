"""Systems that fail, processes that die, files that change: nothing is lost and nothing torn."""

import errno
import json
import os
import random
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import FIXTURES, NDTOOL, Ran, environment, ndtool, save, state
from limits import ROOT, limited, without_overrides

TORTURE = FIXTURES.parent / "tests" / "torture"
COUNT = 1 << 17
DATA = np.arange(COUNT, dtype="f4").reshape(2, -1)
IDX = np.array([[1], [0]])
UPD = np.ones_like(DATA)
OLD = b"what was there before"
GATHER = ("gather-nd", "data.npy", "idx.npy", "-o", "out.npy")
SCATTER = ("scatter-nd", "data.npy", "idx.npy", "upd.npy", "-o", "out.npy", "--reduction", "add")
TERMFIRST = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}
linux = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(data=DATA, idx=IDX, upd=UPD)
    Path("out.npy").write_bytes(OLD)
    return tmp_path


def right(name: str = "out.npy", data: Any = DATA) -> bool:
    """Whether a file holds what GATHER gives."""
    result = np.load(name)
    return result.dtype == data.dtype and np.array_equal(result, data[::-1])


def added() -> Any:
    """Return what SCATTER gives."""
    result = DATA.copy()
    result[::-1] += UPD
    return result


# One call goes wrong

UNREACHED = 99
CALLS = (
    "open,stat,fstat,fstatvfs,pread,readv,mmap,"
    "pwrite,posix_fallocate,ftruncate,fsync,fchmod,link,replace,close,unlink"
)


def faulty(wrongs: str, nameless: bool, *arguments: str) -> Iterator[tuple[Any, ...]]:
    """Yield (call, wrong, number, status, stderr) after every run."""
    script = str(TORTURE / "faulty.py")
    with subprocess.Popen(
        [sys.executable, script, CALLS, wrongs, str(int(nameless)), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            yield tuple(json.loads(line))
            print(file=process.stdin, flush=True)
    assert process.returncode == 0


def put_back(before: dict[str, Any], here: Path) -> dict[str, Any]:
    """Put the old output back and return the new state; nothing else has changed."""
    Path("out.npy").write_bytes(OLD)
    now = state(here)
    assert {**now, "out.npy": None} == {**before, "out.npy": None}
    return now


def is_result(run: tuple[str, ...]) -> bool:
    wanted = DATA[::-1] if run is GATHER else added()
    return np.array_equal(np.load("out.npy"), wanted)


ways = pytest.mark.parametrize("nameless", [True, False], ids=["nameless", "hidden"])
runs = pytest.mark.parametrize("run", [GATHER, SCATTER], ids=["gather", "scatter"])


@linux
@ways
@runs
def test_every_call_that_fails(run: tuple[str, ...], nameless: bool, here: Path) -> None:
    before, reached = state(here), set()
    for call, wrong, number, status, said in faulty("EIO,ENOSPC", nameless, *run, "--sync"):
        where = (call, wrong, number, status, said)
        if status in (0, UNREACHED) or "may not survive a power cut" in said:
            assert is_result(run), where
            before = put_back(before, here)
            continue
        reached.add(call)
        assert state(here) == before, where
        assert status in ((3, 6, 7) if wrong == "EIO" else (6, 7)), where
        assert said.startswith("error: "), where
        assert said.count("\n") == 1, where
    assert reached >= {"open", "pread", "mmap", "pwrite", "posix_fallocate", "fsync", "replace"}


@linux
@ways
@runs
@pytest.mark.parametrize("when", ["SIGTERM", "SIGTERM+"], ids=["before", "after"])
def test_a_signal_at_every_call(
    run: tuple[str, ...], nameless: bool, when: str, here: Path
) -> None:
    before, ended = state(here), 0
    for call, _, number, status, said in faulty(when, nameless, *run):
        where = (call, number, status, said)
        assert said == "", where
        if status in (143, -signal.SIGTERM):  # the latter before ndtool listens
            ended += 1
            assert state(here) == before, where
        else:  # too late: the new file has its name, or is about to get it
            assert status in (0, UNREACHED), where
            assert is_result(run), where
            before = put_back(before, here)
    assert ended > 10


@linux
@ways
@runs
def test_death_at_every_call(run: tuple[str, ...], nameless: bool, here: Path) -> None:
    before = state(here)
    for call, _, number, status, _ in faulty("SIGKILL,SIGKILL+", nameless, *run):
        where = (call, number, status)
        assert status in (-signal.SIGKILL, UNREACHED), where
        left = {p.name for p in here.iterdir()} - before.keys()
        if nameless and left:  # between the two calls that replace a file, and whole
            assert call in ("link", "replace"), where
            os.replace(left.pop(), "out.npy")
        for name in left:
            os.unlink(name)
        if Path("out.npy").read_bytes() != OLD:
            assert is_result(run), where
            before = put_back(before, here)
        assert state(here) == before, where
