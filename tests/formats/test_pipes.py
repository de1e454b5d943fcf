"""Pipes as inputs: read once, as standard input is, under any name."""

import io
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool, save, shell, snapshot, start
from inputs import feeding

from ndtool.errors import InputError
from ndtool.formats import locators
from ndtool.formats.streams import Streams

DATA = np.arange(12.0).reshape(4, 3)
IDX = np.array([[2], [0]])
UPD = np.ones((2, 3))


@pytest.fixture(autouse=True)
def files(workdir: Path, check_files_closed: None) -> None:
    save(data=DATA, idx=IDX, upd=UPD)
    os.mkfifo("fifo")


def npy_stream(*arrays: Any) -> bytes:
    stream = io.BytesIO()
    for value in arrays:
        np.save(stream, value)
    return stream.getvalue()


SCRIPTS = (
    '"$@" gather-nd <(cat data.npy) <(cat idx.npy)',
    'cat data.npy | "$@" gather-nd /dev/stdin idx.npy',
    'cat data.npy idx.npy | "$@" gather-nd /dev/stdin /dev/stdin',
    'cat data.npy idx.npy | "$@" gather-nd - /dev/stdin',
    '"$@" gather-nd /dev/fd/5 /dev/fd/5 5< <(cat data.npy idx.npy)',
    'cat data.npy idx.npy > fifo & "$@" gather-nd fifo ./fifo',
    '"$@" gather-nd /dev/stdin idx.npy < data.npy',
    '"$@" gather-nd data.npy idx.npy | "$@" gather-nd data.npy idx.npy',
)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_pipe_is_read_as_standard_input_is(script: str, workdir: Path) -> None:
    before = snapshot(workdir)
    assert shell(f"{script} -o -")[:3] == (0, npy_stream(DATA[IDX[:, 0]]), "")
    assert snapshot(workdir) == before


def test_all_inputs_are_one_pipe() -> None:
    with feeding(npy_stream(DATA, IDX, UPD), "fifo"):
        completed = ndtool(
            "scatter-nd", "fifo", "fifo", "fifo", "-o", "out.npy", "--reduction", "add"
        )
    assert (completed.status, completed.err) == (0, "")
    expected = DATA.copy()
    expected[[2, 0]] += 1
    assert np.array_equal(np.load("out.npy"), expected)
    with feeding(npy_stream(DATA, IDX, UPD, expected), "fifo"):
        arguments = ("verify", "scatter-nd", "fifo", "fifo", "fifo", "fifo", "--reduction", "add")
        assert ndtool(*arguments).status == 0


def test_types_and_shapes_of_a_pipe() -> None:
    with feeding(npy_stream(DATA, IDX), "fifo"):
        report = ndtool("infer", "gather-nd", "fifo", "fifo", "--json").json
    assert report["output"]["shape"] == [2, 3]
    assert report["inputs"]["data"]["name"] == "fifo"
    with feeding(npy_stream(DATA, IDX), "fifo"):
        report = ndtool("inspect", "fifo", "data.npy", "fifo", "--json").json
    assert [entry["shape"] for entry in report["arrays"]] == [[4, 3], [4, 3], [2, 1]]
    assert [entry["problem"] for entry in report["arrays"]] == ["a stream", None, "a stream"]
    report = ndtool("inspect", "-", "-", "--json", stdin=npy_stream(DATA, IDX)).json
    assert [entry["shape"] for entry in report["arrays"]] == [[4, 3], [2, 1]]


def test_errors_name_the_second_array_of_a_pipe() -> None:
    with feeding(npy_stream(DATA) + b"text" * 9, "fifo"):
        completed = ndtool("gather-nd", "fifo", "fifo", "-o", "out.npy")
    assert (completed.status, completed.err[:39]) == (3, "error: fifo, array 2: not a .npy array:")


def test_a_pipe_has_no_members() -> None:
    for _ in range(2):  # without a writer, opening does not block
        with pytest.raises(InputError, match=r"^fifo is a FIFO: expected a file with arrays"):
            locators.open_source("fifo:a", Streams())
    os.mkdir("folder")
    with pytest.raises(InputError, match=r"^folder:a: No such file or directory$"):
        locators.open_source("folder:a", Streams())


def test_a_pipe_that_may_not_be_read() -> None:
    with feeding(npy_stream(DATA), os.devnull), pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "denied")))
        with pytest.raises(InputError, match=r"^fifo: denied$"):
            locators.open_source("fifo", Streams())


@pytest.mark.parametrize(
    ("command", "situation"), [("gather-nd", "no writer"), ("inspect", "silent writer")]
)
def test_ctrl_c_ends_the_wait_for_a_pipe(command: str, situation: str) -> None:
    arguments = ("fifo", "idx.npy", "-o", "out.npy") if command == "gather-nd" else ("fifo",)
    process = start(command, *arguments)
    wait_channels = ("fifo", "partner") if situation == "no writer" else ("pipe_read", "poll")
    write_fd = -1
    try:
        if situation == "silent writer":
            write_fd = os.open("fifo", os.O_WRONLY)  # blocks until the reader exits
        while not any(
            channel in Path(f"/proc/{process.pid}/wchan").read_text() for channel in wait_channels
        ):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        assert (process.returncode, out, err) == (130, b"", b"")
    finally:
        process.kill()
        if write_fd >= 0:
            os.close(write_fd)
    assert not os.path.exists("out.npy")
