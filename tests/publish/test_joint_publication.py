"""Several outputs published together: all of them, or those before the first refused one."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import environment
from npyfile import ARRAY, npy
from outputs import CREATE_OUTPUT_SCRIPT, fill, open_sink

from ndtool.errors import OutputError
from ndtool.publish import sinks as publishing

PREVIOUS = b"old bytes"
NAMES = [f"{number}.npy" for number in range(5)]


pytestmark = pytest.mark.usefixtures("clean_workdir", "check_files_closed")


def create_sinks(names: list[str] = NAMES, **options: Any) -> list[Any]:
    """Return sinks of different arrays, complete but unpublished."""
    sinks = [open_sink(name, **options) for name in names]
    for number, out in enumerate(sinks):
        fill(out, ARRAY + number)
    return sinks


def are_published(names: list[str] = NAMES) -> bool:
    return all(Path(name).read_bytes() == npy(ARRAY + i) for i, name in enumerate(names))


@pytest.mark.parametrize("position", [0, 2, 4])
def test_a_refused_output_ends_the_publication(tmpfile_mode: str, position: int) -> None:
    sinks = create_sinks(clobber=False)
    Path(NAMES[position]).write_bytes(PREVIOUS)  # another process was faster
    with pytest.raises(OutputError, match=f"^{NAMES[position]} exists and may not be replaced$"):
        publishing.commit(*sinks)
    for out in sinks:
        out.abort()
    assert are_published(NAMES[:position])
    assert Path(NAMES[position]).read_bytes() == PREVIOUS
    assert sorted(os.listdir()) == NAMES[: position + 1]


def test_no_output_is_published_if_one_is_incomplete(tmpfile_mode: str) -> None:
    sinks = [*create_sinks(), open_sink("/dev/null")]
    with pytest.raises(ValueError, match="only 0 of 96 bytes"):
        publishing.commit(*sinks)
    for out in sinks:
        out.abort()
    assert os.listdir() == []


CHILD_PROGRAM = f"""{CREATE_OUTPUT_SCRIPT}
import time
from ndtool.machine import signals
if sys.argv[1] == "named":
    del os.O_TMPFILE
signals.install_handlers(b"lost", 2, b"")
publisher = sinks
def create_sinks(first):
    sinks = [created(str(n) + ".npy", 3) for n in range(first, first + 5)]
    for out in sinks:
        out.write(0, memoryview(b"new"))
    return sinks
if sys.argv[2] == "second":
    publisher.commit(*create_sinks(10))
unpublished = create_sinks(0)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("name", "kind", "group"),
    [
        ("SIGTERM", "named", "first"),
        ("SIGINT", "unnamed", "second"),
        ("SIGALRM", "named", "second"),
    ],
)
def test_a_signal_removes_all_temporary_names(name: str, kind: str, group: str) -> None:
    Path("0.npy").write_bytes(PREVIOUS)
    with subprocess.Popen(
        [sys.executable, "-c", CHILD_PROGRAM, kind, group],
        stdout=subprocess.PIPE,
        env=environment(),
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert len([n for n in os.listdir() if "ndtool-" in n]) == 5 * (kind == "named")
        child.send_signal(getattr(signal, name))
    signal_number = getattr(signal, name)
    assert child.returncode == {"SIGTERM": 143, "SIGINT": 130}.get(name, -signal_number)
    published = [f"{n}.npy" for n in range(10, 15)] if group == "second" else []
    assert sorted(os.listdir()) == ["0.npy", *published]
    assert Path("0.npy").read_bytes() == PREVIOUS
    for path in published:
        assert np.load(path).tobytes() == b"new"
