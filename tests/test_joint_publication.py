"""Several outputs that are published together: all of them, or those before the first
refusal."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import environment
from npyfile import ARRAY, npy
from outputs import PROGRAM, fill, open_sink

from ndtool.errors import OutputError
from ndtool.publish import newfile
from ndtool.publish import sinks as publishing

OLD = b"old bytes"
MOST = 64  # temporary names at one time
NAMES = [f"{number}.npy" for number in range(5)]


@pytest.fixture(autouse=True)
def workdir(workdir: Path, check_files_closed: None) -> Iterator[Path]:
    yield workdir
    assert not [name for name in os.listdir(workdir) if "ndtool-" in name]


@pytest.fixture(params=["unnamed", "hidden"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "hidden":
        monkeypatch.delattr(os, "O_TMPFILE")
    return request.param


def group(names: list[str] = NAMES, **options: Any) -> list[Any]:
    """Return sinks of different arrays, complete but unpublished."""
    sinks = [open_sink(name, **options) for name in names]
    for number, out in enumerate(sinks):
        fill(out, ARRAY + number)
    return sinks


def exist(names: list[str] = NAMES) -> bool:
    return all(Path(name).read_bytes() == npy(ARRAY + i) for i, name in enumerate(names))


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("old", [False, True])
def test_all_are_there_in_order(
    way: str, old: bool, sync: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if old:
        for name in NAMES:
            Path(name).write_bytes(OLD)
    taken = []
    take = newfile.NewFile.publish
    monkeypatch.setattr(
        newfile.NewFile, "publish", lambda file: (taken.append(file.path), take(file))
    )
    sinks = group(sync=sync)
    assert not taken
    assert [Path(name).read_bytes() for name in NAMES if Path(name).exists()] == [OLD] * old * 5
    publishing.commit(*sinks)
    assert taken == NAMES
    for out in sinks:
        out.abort()
    assert exist()
    assert sorted(name for name in os.listdir() if "ndtool-" not in name) == NAMES


def test_files_of_several_formats_and_none(way: str) -> None:
    sinks = group(["a.npy", "b.npz:x", "/dev/null"])
    publishing.commit(*sinks)
    publishing.commit()
    for out in sinks:
        out.abort()
    assert exist(["a.npy"])
    with np.load("b.npz") as archive:
        assert np.array_equal(archive["x"], ARRAY + 1)


@pytest.mark.parametrize("at", [0, 2, 4])
def test_a_refused_output_ends_the_publication(way: str, at: int) -> None:
    sinks = group(clobber=False)
    Path(NAMES[at]).write_bytes(OLD)  # another process was faster
    with pytest.raises(OutputError, match=f"^{NAMES[at]} exists and may not be replaced$"):
        publishing.commit(*sinks)
    for out in sinks:
        out.abort()
    assert exist(NAMES[:at])
    assert Path(NAMES[at]).read_bytes() == OLD
    assert sorted(os.listdir()) == NAMES[: at + 1]


def test_one_that_is_not_complete_lets_none_take_its_name(way: str) -> None:
    sinks = [*group(), open_sink("/dev/null")]
    with pytest.raises(ValueError, match="only 0 of 96 bytes"):
        publishing.commit(*sinks)
    for out in sinks:
        out.abort()
    assert os.listdir() == []


def test_the_number_of_temporary_names_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "O_TMPFILE")
    names = [f"{number}.npy" for number in range(MOST)]
    for _ in range(2):
        sinks = group(names)
        assert len(os.listdir()) >= MOST
        with pytest.raises(OutputError, match=r"more files are written at once .*: at most 64"):
            open_sink("more.npy")
        for out in sinks:
            out.abort()
        assert os.listdir() == []
    sinks = group(names)
    publishing.commit(*sinks)
    assert exist(names)
    open_sink("more.npy").abort()


def test_any_number_of_files_without_a_name_replace_others() -> None:
    names = [f"{number}.npy" for number in range(MOST + 6)]
    for name in names:
        Path(name).write_bytes(OLD)
    publishing.commit(*group(names))
    assert exist(names)


CHILD = f"""{PROGRAM}
import time
from ndtool.machine import signals
if sys.argv[1] == "hidden":
    del os.O_TMPFILE
signals.install_handlers(b"lost", 2, b"")
publisher = sinks
def group(first):
    sinks = [created(str(n) + ".npy", 3) for n in range(first, first + 5)]
    for out in sinks:
        out.write(0, memoryview(b"new"))
    return sinks
if sys.argv[2] == "second":
    publisher.commit(*group(10))
held = group(0)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("turn", ["first", "second"])
@pytest.mark.parametrize("kind", ["unnamed", "hidden"])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGALRM", "SIGUSR1"])
def test_a_signal_removes_all_temporary_names(name: str, kind: str, turn: str) -> None:
    Path("0.npy").write_bytes(OLD)
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, kind, turn], stdout=subprocess.PIPE, env=environment()
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert len([n for n in os.listdir() if "ndtool-" in n]) == 5 * (kind == "hidden")
        child.send_signal(getattr(signal, name))
    number = getattr(signal, name)
    assert child.returncode == {"SIGTERM": 143, "SIGINT": 130}.get(name, -number)
    published = [f"{n}.npy" for n in range(10, 15)] if turn == "second" else []
    assert sorted(os.listdir()) == ["0.npy", *published]
    assert Path("0.npy").read_bytes() == OLD
    for one in published:
        assert np.load(one).tobytes() == b"new"
