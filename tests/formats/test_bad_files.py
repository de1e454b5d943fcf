"""Invalid, inconsistent and malicious files on the command line.

Each is refused with one sentence that names the file and the error, and nothing
changes.
"""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from command import Completed, ndtool, save, snapshot
from commandlines import run_commands
from hostile import ARCHIVES, CUT, HEADERS, shaped, zip_bomb
from limits import ADDRESS_SPACE, drop_root_capabilities, limit_resources
from npyfile import ARRAY as DATA

IDX = np.array([[1], [0]])


@pytest.fixture(autouse=True)
def files(workdir: Path) -> None:
    save(idx=IDX, old=DATA)
    os.rename("old.npy", "out.npy")


def run(*arguments: object, **options: object) -> Completed:
    """Run with 4 GiB of address space, so that memory for a false size cannot be allocated."""
    return ndtool(*arguments, **{"addresses": ADDRESS_SPACE, **options})


def check_refused(completed: Completed, name: str, reason: str, status: int = 3) -> None:
    """Check that a run failed with one sentence about a file, and wrote nothing to stdout."""
    assert (completed.status, completed.out) == (status, b""), completed.err
    error = completed.err.splitlines()[0]
    assert error.startswith("error: ")
    assert name in error
    assert re.search(reason, completed.err), completed.err
    assert "Traceback" not in completed.err
    assert "allow_pickle" not in completed.err
    assert max(map(len, completed.err.splitlines())) < 500
    assert len(completed.err.splitlines()) < 20


FILES = HEADERS | CUT
FILES |= {
    name: (raw, reason)
    for name, (raw, member, reason) in ARCHIVES.items()
    if not member and reason != ": "
}


def test_bad_npy_files_are_refused(workdir: Path) -> None:
    calls = []
    for number, (content, _) in enumerate(FILES.values()):
        Path(f"bad{number}.npy").write_bytes(content)
        calls.append((("gather-nd", f"bad{number}.npy", "idx.npy", "-o", "out.npy"), {}))
    before, limit = snapshot(workdir), limit_resources(AS=ADDRESS_SPACE)
    reports = run_commands(calls, preexec_fn=limit)
    for (words, _), (_, reason), (status, text) in zip(calls, FILES.values(), reports, strict=True):
        check_refused(Completed(status, b"", text), words[1], reason)
    assert snapshot(workdir) == before


COMMANDS = {
    "indices": ("gather-nd", "out.npy", "bad.npy", "-o", "out.npy"),
    "updates": ("scatter-nd", "out.npy", "idx.npy", "bad.npy", "-o", "out.npy"),
    "elements": ("scatter-elements", "bad.npy", "idx.npy", "out.npy", "-o", "out.npy"),
    "inspect": ("inspect", "bad.npy"),
    "infer": ("infer", "gather-nd", "bad.npy", "idx.npy"),
    "verify": ("verify", "gather-nd", "bad.npy", "idx.npy", "out.npy"),
    "pipe": ("gather-nd", "-", "idx.npy", "-o", "out.npy"),
}


@pytest.mark.parametrize("row", ["claims 4 TiB", "pickled objects"])
@pytest.mark.parametrize("command", COMMANDS)
def test_bad_npy_files_are_refused_by_every_command(row: str, command: str, workdir: Path) -> None:
    content, reason = FILES[row]
    Path("bad.npy").write_bytes(content)
    before = snapshot(workdir)
    is_piped = command == "pipe"
    completed = run(*COMMANDS[command], stdin=content if is_piped else b"")
    check_refused(completed, "standard input" if is_piped else "bad.npy", reason)
    assert snapshot(workdir) == before


def test_false_sizes_on_a_pipe_take_no_memory(workdir: Path) -> None:
    before = snapshot(workdir)
    for row in (
        "a header of 4 GiB",
        "a header of 20 kB",
        "claims 4 TiB",
        "text of length 0",
        "elements of 2**31 - 1 bytes",
    ):
        completed = run("gather-nd", "-", "idx.npy", "-o", "out.npy", stdin=FILES[row][0])
        check_refused(completed, "standard input", "")
    assert snapshot(workdir) == before


def gather_rows(data: object, **options: object) -> np.ndarray:
    """Return the result of a gather of both rows of `data`, in reverse order."""
    completed = run("gather-nd", data, "idx.npy", "-o", "out.npy", **options)
    assert (completed.status, completed.out, completed.err) == (0, b"", "")
    return np.load("out.npy")


STRUCTURED = np.zeros((2, 3), [("a", "<f4"), ("b", ">i2", (2,))])
STRUCTURED["a"] = np.arange(6).reshape(2, 3)
COPY_ONLY_TYPES = {
    "records": STRUCTURED,
    "void of 8 bytes": np.arange(6, dtype="<i8").reshape(2, 3).view("V8"),
    "datetimes": np.arange(6).reshape(2, 3).astype("<M8[ns]"),
    "timedeltas": np.arange(6).reshape(2, 3).astype("<m8[s]"),
    "long doubles": np.arange(6).reshape(2, 3).astype(np.longdouble),
    "text": np.array([["a", "bc"], ["d", ""]], "<U2"),
    "bfloat16 as V2": np.arange(6, dtype="<u2").reshape(2, 3).view("V2"),
}


@pytest.mark.parametrize("row", COPY_ONLY_TYPES)
def test_types_without_arithmetic_are_copied(row: str, workdir: Path) -> None:
    array = COPY_ONLY_TYPES[row]
    save(data=array, upd=array)
    result = gather_rows("data.npy")
    assert result.dtype == array.dtype
    assert result.tobytes() == array[::-1].tobytes()
    before = snapshot(workdir)
    scatter = ("scatter-nd", "data.npy", "idx.npy", "upd.npy", "-o", "out.npy", "--reduction")
    for reduction in ("add", "max"):
        completed = run(*scatter, reduction)
        check_refused(completed, "", "reduction", 4)
        assert "data.npy" in completed.err
        assert ("--dtype bfloat16" in completed.err) == (row == "bfloat16 as V2")
        assert snapshot(workdir) == before
    if row == "bfloat16 as V2":
        pytest.importorskip("ml_dtypes")
        assert run(*scatter, "add", "--dtype", "bfloat16").status == 0


def test_bytes_of_bools_other_than_0_and_1_are_copied() -> None:
    Path("bool.npy").write_bytes(shaped("(2, 2)", "'|b1'") + bytes([2, 0, 255, 1]))
    assert gather_rows("bool.npy").tobytes() == bytes([255, 1, 2, 0])
    scatter = ("scatter-nd", "bool.npy", "idx.npy", "bool.npy", "-o", "out.npy")
    assert run(*scatter, "--reduction", "max").status == 0
    assert np.load("out.npy").view("u1").tolist() == [[1, 1], [1, 1]]


def test_a_file_without_read_permission_is_refused(workdir: Path) -> None:
    save(data=DATA)
    before = snapshot(workdir)
    os.chmod("data.npy", 0)
    completed = run(
        "gather-nd", "data.npy", "idx.npy", "-o", "out.npy", preexec_fn=drop_root_capabilities
    )
    check_refused(completed, "data.npy", "Permission denied")
    os.chmod("data.npy", 0o600)
    assert snapshot(workdir) == before


# Archives


def test_a_bomb_beyond_the_limit_is_refused(workdir: Path) -> None:
    Path("bad.npz").write_bytes(zip_bomb(4080 << 20))
    completed = run("gather-nd", "bad.npz", "idx.npy", "-o", "out.npy")
    check_refused(completed, "bad.npz:a", "valid up to 1073741824", 6)
