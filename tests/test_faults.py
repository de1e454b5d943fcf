"""Failing system calls, killed processes, changing files: nothing is lost or incomplete."""

import errno
import importlib
import io
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from command import FIXTURES, NDTOOL, environment, execute, ndtool, python, save, state
from limits import ROOT, disk_of_a_megabyte, limited, without_overrides
from npyfile import sparse
from outputs import checked

from ndtool import __main__ as program
from ndtool.arrays.source import Source
from ndtool.cli import program as command_line
from ndtool.engine import bind, check, tuning
from ndtool.errors import OutputError, ResourceError
from ndtool.formats import locators
from ndtool.machine import signals
from ndtool.rules import dtypes, inference, shapes
from ndtool.rules.operators import Attributes
from ndtool.runs import steps
from ndtool.runs.calls import OpenCall
from ndtool.runs.request import Request
from ndtool.storage import local

TORTURE = FIXTURES.parent / "tests" / "torture"
COUNT = 1 << 17
DATA = np.arange(COUNT, dtype="f4").reshape(2, -1)
IDX = np.array([[1], [0]])
UPD = np.ones_like(DATA)
OLD = b"previous content"
GATHER = ("gather-nd", "data.npy", "idx.npy", "-o", "out.npy")
SCATTER = ("scatter-nd", "data.npy", "idx.npy", "upd.npy", "-o", "out.npy", "--reduction", "add")
TERMFIRST = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}
linux = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")


@pytest.fixture(autouse=True)
def workdir(workdir: Path) -> Path:
    save(data=DATA, idx=IDX, upd=UPD)
    Path("out.npy").write_bytes(OLD)
    return workdir


def right(name: str = "out.npy", data: Any = DATA) -> bool:
    """Whether a file has the result of GATHER."""
    result = np.load(name)
    return result.dtype == data.dtype and np.array_equal(result, data[::-1])


def added() -> Any:
    """Return the result of SCATTER."""
    result = DATA.copy()
    result[::-1] += UPD
    return result


# One system call fails

UNREACHED = 99
READING = "open,stat,fstat,fstatvfs,pread,readv,mmap,close"
WRITING = "pwrite,posix_fallocate,ftruncate,fsync,fchmod,link,replace,unlink"


def faulty(calls: str, wrongs: str, unnamed: bool, run: tuple[str, ...]) -> Iterator[Any]:
    """Yield (call, wrong, number, status, stderr) after every run."""
    script = str(TORTURE / "faulty.py")
    with subprocess.Popen(
        [sys.executable, script, calls, wrongs, str(int(unnamed)), *run],
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


def put_back(before: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Restore the old output and return the new state; nothing else has changed."""
    Path("out.npy").write_bytes(OLD)
    now = state(workdir)
    assert {**now, "out.npy": None} == {**before, "out.npy": None}
    return now


def is_result(run: tuple[str, ...]) -> bool:
    wanted = DATA[::-1] if run is GATHER else added()
    return np.array_equal(np.load("out.npy"), wanted)


# An extension whose import ignores exceptions of a registration, as Cython's do.
DROPPING = """
import collections.abc, os, signal, sys
register = collections.abc.Sequence.register
def dropping(kind):
    try:
        os.kill(os.getpid(), signal.{name})
    except BaseException:
        pass
    return register(kind)
collections.abc.Sequence.register = dropping
sys.argv[1:] = {arguments}
from ndtool.__main__ import program
program()
"""
ALSO = pytest.mark.slow("each call of gathers, and of outputs in hidden files, may fail, too")
EVERY = pytest.mark.slow("each of the many calls that open, read and close files may fail")
methods = pytest.mark.parametrize(
    "unnamed", [True, pytest.param(False, marks=ALSO)], ids=["unnamed", "hidden"]
)
runs = pytest.mark.parametrize(
    "run", [pytest.param(GATHER, marks=ALSO), SCATTER], ids=["gather", "scatter"]
)


@linux
@methods
@runs
@pytest.mark.parametrize("step", [pytest.param(1, marks=EVERY), 5], ids=["every", "fifth"])
def test_every_call_that_fails(
    run: tuple[str, ...], unnamed: bool, step: int, workdir: Path
) -> None:
    before, reached = state(workdir), set()
    run_to_disk = (*run, "--sync")
    often = ",".join(f"{call}/{step}" for call in ("open", "fstat", "pread", "close"))
    for call, wrong, number, status, expected_text in chain(
        faulty(f"{often},stat,fstatvfs,readv,mmap", "EIO", unnamed, run_to_disk),
        faulty(f"open/{step},mmap,{WRITING}", "EIO,ENOSPC", unnamed, run_to_disk),
    ):
        where = (call, wrong, number, status, expected_text)
        if status in (0, UNREACHED) or "may not survive a power failure" in expected_text:
            assert is_result(run), where
            before = put_back(before, workdir)
            continue
        reached.add(call)
        assert state(workdir) == before, where
        assert status in ((3, 6, 7) if wrong == "EIO" else (6, 7)), where
        assert expected_text.startswith("error: "), where
        assert expected_text.count("\n") == 1 + ("hint: --only replaces it" in expected_text), where
    assert reached >= {"open", "pread", "mmap", "pwrite", "posix_fallocate", "fsync", "replace"}


@linux
@methods
def test_failures_after_publication(unnamed: bool, workdir: Path) -> None:
    command = NDTOOL if unnamed else HIDDEN
    for script, status in (
        ('"$@" >/dev/full', 7),
        ('"$@" >&-', 7),
        ('set -o pipefail; { sleep 0.5; "$@"; } | :', 141),
    ):
        Path("out.npy").write_bytes(OLD)
        ran = execute("bash", "-c", script, "bash", *command, *GATHER, "--json")
        assert ran.status == status
        assert right()
    ends = set()
    Path("out.npy").write_bytes(OLD)
    for _, _, number, status, expected_text in faulty("fsync", "EIO", unnamed, (*GATHER, "--sync")):
        if status != UNREACHED:
            assert status == 7, number
            ends.add("may not survive a power failure" in expected_text)
            assert (
                right()
                if "may not survive" in expected_text
                else Path("out.npy").read_bytes() == OLD
            )
        Path("out.npy").write_bytes(OLD)
    assert ends == {True, False}


@pytest.mark.slow("a signal at any call leaves the old output or the new")
@linux
@methods
@runs
def test_a_signal_at_every_call(run: tuple[str, ...], unnamed: bool, workdir: Path) -> None:
    before, ended = state(workdir), 0
    for call, _, number, status, expected_text in chain(
        faulty(f"{READING},{WRITING}", "SIGTERM", unnamed, run),
        faulty(WRITING, "SIGTERM+", unnamed, run),
    ):
        where = (call, number, status, expected_text)
        assert expected_text == "", where
        if status in (143, -signal.SIGTERM):  # the latter before ndtool installs handlers
            ended += 1
            assert state(workdir) == before, where
        else:  # too late: the file is published, or about to be
            assert status in (0, UNREACHED), where
            assert is_result(run), where
            before = put_back(before, workdir)
    assert ended > 10


EACH = pytest.mark.slow("each signal that ends a run is handled in imports")


@linux
@pytest.mark.parametrize("calls", ["import/9", pytest.param("import", marks=pytest.mark.huge)])
@pytest.mark.parametrize(
    "name",
    ["SIGTERM", *(pytest.param(name, marks=EACH) for name in TERMFIRST if name != "SIGTERM")],
)
def test_a_signal_at_every_import(name: str, calls: str, workdir: Path) -> None:
    before, ended = state(workdir), 0
    for _, _, number, status, expected_text in faulty(calls, name, True, GATHER):
        where = (number, status, expected_text)
        assert expected_text == "", where
        assert status in (TERMFIRST[name], UNREACHED), where
        ended += status != UNREACHED
        before = before if status != UNREACHED else put_back(before, workdir)
        assert state(workdir) == before, where
    assert ended > 10


@pytest.mark.slow("zarr and its libraries drop no signal while they are imported")
@linux
@pytest.mark.parametrize("name", TERMFIRST)
def test_a_signal_at_imports_of_a_run_that_writes_a_store(name: str, workdir: Path) -> None:
    pytest.importorskip("zarr", exc_type=ImportError)
    before, ended = sorted(os.listdir()), 0
    run = (*GATHER[:4], "out.zarr", "--chunks", "1,65536")
    for _, _, number, status, expected_text in faulty("import/60", name, True, run):
        where = (number, status, expected_text)
        assert expected_text == "", where
        if status == UNREACHED:
            break
        assert status == TERMFIRST[name], where
        assert sorted(os.listdir()) == before, where
        ended += 1
    assert ended > 5


@linux
def test_a_signal_in_an_import_that_drops_exceptions(workdir: Path) -> None:
    before = state(workdir)
    for name, status in TERMFIRST.items():
        ran = python(DROPPING.format(name=name, arguments=GATHER))
        assert (ran.status, ran.out, ran.err) == (status, b"", "")
        assert state(workdir) == before


@pytest.mark.slow("a kill at any call leaves the old output or the new")
@linux
@methods
@runs
def test_death_at_every_call(run: tuple[str, ...], unnamed: bool, workdir: Path) -> None:
    before, killed = state(workdir), 0
    for call, _, number, status, _ in chain(
        faulty(f"{READING},{WRITING}", "SIGKILL", unnamed, run),
        faulty(WRITING, "SIGKILL+", unnamed, run),
    ):
        where = (call, number, status)
        assert status in (-signal.SIGKILL, UNREACHED), where
        killed += status != UNREACHED
        remaining = {p.name for p in workdir.iterdir()} - before.keys()
        if unnamed and remaining:  # complete, between the two calls that replace a file
            assert call in ("link", "replace"), where
            os.replace(remaining.pop(), "out.npy")
        for name in remaining:
            os.unlink(name)
        if Path("out.npy").read_bytes() != OLD:
            assert is_result(run), where
            before = put_back(before, workdir)
        assert state(workdir) == before, where
    assert killed > 10


# Files that change while a run reads them


def waiting_for(command: list[str]) -> tuple[subprocess.Popen[bytes], bytes]:
    """Start a run that reads its last input from standard input; return it and that input."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(command, env=environment(), **pipes)
    raw = Path("upd.npy").read_bytes()
    assert process.stdin is not None
    process.stdin.write(raw[:-1])
    process.stdin.flush()  # exceeds a pipe's buffer: all other inputs are open
    return process, raw[-1:]


PIPED = ("scatter-nd", "data.npy", "idx.npy", "-", "-o", "out.npy", "--reduction", "add")
HIDDEN = (
    sys.executable,
    "-c",
    "import os, sys; del os.O_TMPFILE; from ndtool.__main__ import main; sys.exit(main())",
)
LOST = "error: an input was truncated or a disk failed during the run\n"


def truncate() -> None:
    os.truncate("data.npy", 100)


def modify() -> None:
    with open("data.npy", "r+b") as file:
        file.seek(1000)
        file.write(b"!")
    os.utime("data.npy", ns=(1, 1))  # a later mtime, whatever the file system's resolution


def replace() -> None:
    save(new=DATA)
    os.replace("new.npy", "data.npy")


def extend() -> None:
    with open("data.npy", "ab") as file:
        file.write(b"more")


@linux
@methods
@pytest.mark.parametrize("threads", ["1", "4"])
@pytest.mark.parametrize(
    ("change", "expected_text"),
    [
        (truncate, LOST),
        (modify, "error: data.npy changed during the run\n"),
        (replace, "error: data.npy was replaced during the run\n"),
        (extend, "error: data.npy changed during the run\n"),
    ],
)
def test_an_input_that_changes(
    change: Callable[[], None], expected_text: str, threads: str, unnamed: bool, workdir: Path
) -> None:
    run = (*PIPED, "--threads", threads)
    process, rest = waiting_for([*(NDTOOL if unnamed else HIDDEN), *run])
    change()
    before = state(workdir)
    out, err = process.communicate(rest)
    assert (process.returncode, out, err.decode()) == (7, b"", expected_text)
    assert state(workdir) == before


@linux
def test_a_truncated_input_in_json(workdir: Path) -> None:
    process, rest = waiting_for([*NDTOOL, *PIPED, "--json"])
    truncate()
    out, err = process.communicate(rest)
    assert (process.returncode, err) == (7, b"")
    assert json.loads(out)["status"] == 7
    assert Path("out.npy").read_bytes() == OLD


@linux
def test_verify_of_a_truncated_input(workdir: Path) -> None:
    assert ndtool(*SCATTER).status == 0
    run = ("verify", "scatter-nd", "data.npy", "idx.npy", "-", "out.npy", "--reduction", "add")
    process, rest = waiting_for([*NDTOOL, *run])
    truncate()
    out, err = process.communicate(rest)
    assert (process.returncode, out, err.decode()) == (7, b"", LOST)


@linux
@pytest.mark.parametrize("closed", [False, True])
def test_a_lost_page_in_json(closed: bool) -> None:
    program = """
import mmap, os, sys
from ndtool.machine import signals
from ndtool.cli.reporter import Reporter
reporter = Reporter()
reporter.json = True
signals.install_handlers(*reporter.final_messages())
with open("lost", "w+b") as file:
    file.truncate(4096)
    pages = mmap.mmap(file.fileno(), 4096)
    file.truncate(0)
    if sys.argv[1] == "True":
        os.close(1)
    pages[0]
"""
    ran = python(program, closed)
    expected_text, other = (ran.err.encode(), ran.out) if closed else (ran.out, ran.err.encode())
    assert (ran.status, other) == (7, b"")
    assert json.loads(expected_text)["message"] == LOST.removeprefix("error: ").strip()


@linux
def test_an_input_that_loses_its_name(workdir: Path) -> None:
    process, rest = waiting_for([*NDTOOL, *PIPED])
    os.unlink("data.npy")
    os.rename("idx.npy", "moved.npy")
    out, err = process.communicate(rest)
    assert (process.returncode, out, err) == (0, b"", b"")
    assert is_result(SCATTER)


@linux
def test_truncated_indices(workdir: Path) -> None:
    save(large=np.zeros((2, 1 << 16), "i8"))
    run = ("scatter-elements", "data.npy", "large.npy", "-", "-o", "out.npy")
    process, rest = waiting_for([*NDTOOL, *run])
    os.truncate("large.npy", 4096)
    out, err = process.communicate(rest)
    assert (process.returncode, out, err.decode()) == (7, b"", LOST)
    assert Path("out.npy").read_bytes() == OLD


FULL_MAP = """
import os, sys
from ndtool.publish import sinks
sinks.reserve = lambda fd, total, name: os.ftruncate(fd, total)
from ndtool.__main__ import main
sys.exit(main())
"""


@pytest.fixture
def small_disk(workdir: Path) -> Iterator[Path]:
    """Yield a folder with a megabyte of free space."""
    with disk_of_a_megabyte(workdir / "small") as folder:
        yield folder


def test_a_full_disk(small_disk: Path, workdir: Path) -> None:
    save(data=np.zeros((2, 1 << 17)), upd=np.zeros((2, 1 << 17)))
    old = small_disk / "out.npy"
    old.write_bytes(OLD)
    scatter = ("scatter-nd", "data.npy", "idx.npy", "upd.npy")
    for run in (GATHER[:3], scatter, (*scatter, "--reduction", "max")):
        for name in ("out.npy", "new.npy", "out.npz", "new.npz:x"):
            ran = ndtool(*run, "-o", f"small/{name}")
            assert (ran.status, ran.out) == (6, b"")
            assert f"small/{name.partition(':')[0]}: needs 209" in ran.err
            assert "bytes of disk space, 104" in ran.err
            assert os.listdir(small_disk) == ["out.npy"]
            assert old.read_bytes() == OLD
    ran = ndtool(*scatter, stdin=b"", env={"TMPDIR": str(small_disk)})  # to a pipe: memory suffices
    assert ran.status == 0


def test_a_full_disk_for_temporary_files(small_disk: Path, workdir: Path) -> None:
    rows = np.zeros((2, 1 << 20))
    save(data=rows, upd=rows)
    raw = Path("data.npy").read_bytes()
    small = {"TMPDIR": str(small_disk)}
    ran = ndtool("gather-nd", "-", "idx.npy", "-o", "out.npy", stdin=raw, env=small)
    assert (ran.status, ran.out) == (6, b"")
    assert "no space for a temporary copy" in ran.err
    assert "TMPDIR" in ran.err
    ran = ndtool("scatter-nd", "data.npy", "idx.npy", "upd.npy", "-o", "-", env=small)
    assert (ran.status, ran.out) == (6, b"")
    assert "temporary copy of standard output: needs 16777216 bytes of disk" in ran.err
    assert os.listdir(small_disk) == []
    assert Path("out.npy").read_bytes() == OLD


def test_a_disk_that_fills_up_during_stores(small_disk: Path, workdir: Path) -> None:
    save(data=np.zeros((2, 1 << 17)), idx=np.zeros((2, 1 << 17), "i8"))
    for script in (FULL_MAP, f"import os; del os.O_TMPFILE{FULL_MAP}"):
        ran = python(script, "gather-elements", "data.npy", "idx.npy", "-o", "small/out.npy")
        assert (ran.status, ran.out, ran.err) == (7, b"", LOST)
        assert os.listdir(small_disk) == []


# Limits


@linux
@pytest.mark.parametrize("count", [5, 7, 9, 10, 12])
def test_few_descriptors(count: int, workdir: Path) -> None:
    before = state(workdir)
    ran = ndtool(*SCATTER, "--threads", "4", preexec_fn=limited(NOFILE=count))
    assert "Traceback" not in ran.err
    if ran.status:
        assert ran.status == 6
        assert "Too many open files" in ran.err
        assert state(workdir) == before
    else:
        assert is_result(SCATTER)
    assert ran.status == 6 or count > 7


@linux
@pytest.mark.parametrize("megabytes", [24, 48, 64, 96, 128, 4096])
@pytest.mark.parametrize(
    "run",
    [(*GATHER, "--threads", "16"), SCATTER, (*GATHER[:3], "-o", "-")],
    ids=["gather", "scatter", "to a pipe"],
)
@pytest.mark.usefixtures("unmeasured")
def test_little_memory(run: tuple[str, ...], megabytes: int, workdir: Path) -> None:
    data = np.zeros((2, 1 << 22), "f4")
    data[1] = 7
    save(data=data, upd=np.ones_like(data))
    before = state(workdir)
    ran = ndtool(*run, preexec_fn=limited(AS=megabytes << 20))
    if ran.status:
        assert ran.status == 6
        assert ran.err.startswith("error: ")
        assert "Traceback" not in ran.err
        assert state(workdir) == before
        assert megabytes < 4096  # each thread may reserve 72 MiB of address space
    else:
        result = np.load("out.npy" if "out.npy" in run else io.BytesIO(ran.out))
        assert np.array_equal(result, data + 1 if run == SCATTER else data[::-1])


def test_an_import_that_ends_without_a_reason_lacks_memory(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPython's imports raise SystemError now and then if they get no memory."""
    words = "error return without exception set"
    Path("unreadable.py").write_text(f"raise SystemError({words!r})\n")
    monkeypatch.syspath_prepend(workdir)
    with pytest.raises(SystemError) as caught:
        importlib.import_module("unreadable")
    assert isinstance(program._resource_error(caught.value), ResourceError)
    assert program._resource_error(SystemError(words)) is None  # a bug


def test_files_that_may_not_grow(workdir: Path) -> None:
    before = state(workdir)
    for run in (GATHER, SCATTER, (*GATHER[:-1], "new.npz")):
        ran = ndtool(*run, preexec_fn=limited(FSIZE=100_000))
        assert (ran.status, ran.out) == (6, b"")
        assert "more than the limit on file sizes" in ran.err
        assert state(workdir) == before


@linux
@pytest.mark.parametrize("size", ["1000000G", "16k", "none", "-1"])
def test_stacks_that_openmp_cannot_have(size: str) -> None:
    ran = ndtool(*GATHER, "--threads", "4", env={"OMP_STACKSIZE": size, "GOMP_STACKSIZE": size})
    assert (ran.status, ran.err) == (0, "")
    assert right()


@linux
def test_stacks_that_no_thread_can_have() -> None:
    ran = ndtool(*GATHER, "--threads", "4", preexec_fn=limited(STACK=1 << 50))
    assert (ran.status, ran.err) == (0, "")
    assert right()


FEW_PROCESSES = """
import concurrent.futures.thread, os, resource, sys
from ndtool import __main__
data, out, started, limit = sys.argv[1:]
os.umask(0)
run = ["gather-nd", data, "idx.npy", "-o", out, "--threads"]
for _ in "new", "replaced":  # whatever is imported must be, before the rights go
    assert __main__._run([*run, "1"]) == 0
os.setgroups([])
os.setgid(54321)
os.setuid(54321)
resource.setrlimit(resource.RLIMIT_NPROC, (int(limit),) * 2)
sys.exit(__main__._run([*run, started]))
"""


@pytest.mark.skipif(not ROOT, reason="root is needed to become someone without processes")
@pytest.mark.parametrize(("threads", "limit"), [(2, 1), (4, 1), (4, 2), (4, 4), (16, 5)])
@pytest.mark.usefixtures("unmeasured")
def test_threads_that_cannot_be_started(threads: int, limit: int, workdir: Path) -> None:
    folder = workdir / "open"
    folder.mkdir()
    folder.chmod(0o777)
    for parent in workdir.parents:
        if parent.stat().st_uid == os.getuid() and "pytest" in str(parent):
            parent.chmod(parent.stat().st_mode | 0o011)
    workdir.chmod(0o755)
    ran = python(FEW_PROCESSES, "data.npy", "open/out.npy", threads, limit)
    assert (ran.status, ran.err) == (0, "")
    assert right("open/out.npy")


FORKED = """
import os
import numpy as np, ndtool
rng = np.random.default_rng(1)
data, idx = rng.integers(0, 99, 1 << 20), rng.integers(0, 1 << 20, (1 << 20, 1))
def results():
    gathered = ndtool.gather_nd(data, idx, threads=4)
    return gathered, ndtool.scatter_nd(data, idx, data, reduction="add", threads=4)
before = results()
child = os.fork()
after = results()
assert all(map(np.array_equal, before, after))
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_after_threads() -> None:
    ran = execute(sys.executable, "-W", "ignore", "-c", FORKED)
    assert (ran.status, ran.err) == (0, "")


# File names


def aliases(workdir: Path) -> Iterator[str]:
    os.mkdir("sub")
    os.symlink("data.npy", "soft.npy")
    os.symlink(workdir / "soft.npy", "sub/softer.npy")
    os.link("data.npy", "hard.npy")
    yield from ("data.npy", "./sub/../data.npy", str(workdir / "data.npy"))
    yield from ("soft.npy", "sub/softer.npy", "hard.npy", "/proc/self/fd/0")


@linux
@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("operator", ["gather-nd", "scatter-nd"])
def test_the_output_is_the_data(operator: str, number: int, workdir: Path) -> None:
    alias = list(aliases(workdir))[number]
    more = ["upd.npy"] if operator == "scatter-nd" else []
    with open("data.npy", "rb") as stdin:
        ran = subprocess.run(
            [*NDTOOL, operator, "data.npy", "idx.npy", *more, "-o", alias],
            stdin=stdin,
            capture_output=True,
            env=environment(),
            check=False,
        )
        assert (ran.returncode, ran.stderr) == (0, b"")
        assert np.array_equal(np.load(stdin), DATA)  # open descriptors refer to the old content
    wanted = DATA[::-1] if operator == "gather-nd" else UPD
    assert np.array_equal(np.load("hard.npy" if alias == "hard.npy" else "data.npy"), wanted)
    assert np.array_equal(np.load("data.npy" if alias == "hard.npy" else "hard.npy"), DATA)
    assert os.path.islink("soft.npy")
    assert sorted(p.name for p in workdir.iterdir()) == [
        "data.npy", "hard.npy", "idx.npy", "out.npy", "soft.npy", "sub", "upd.npy",
    ]  # fmt: skip


def test_the_output_is_the_data_under_a_bind_mount(workdir: Path) -> None:
    os.mkdir("other")
    command = ["mount", "--bind", str(workdir), "other"]
    if not ROOT or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount")
    try:
        assert ndtool(*GATHER[:-1], "other/data.npy").status == 0
        assert right("data.npy")
    finally:
        subprocess.run(["umount", "-l", "other"], check=True)


@linux
def test_standard_output_is_an_input(workdir: Path) -> None:
    before = state(workdir)
    for redirected in (">>data.npy", "1<>data.npy", "<data.npy 1<>data.npy"):
        name = "-" if "<d" in redirected else "data.npy"
        script = f'exec "$@" gather-nd {name} idx.npy {redirected}'
        ran = execute("bash", "-c", script, "bash", *NDTOOL)
        assert ran.status == 7
        assert "which is an input" in ran.err
        assert state(workdir) == before


def test_folders_that_take_no_file(workdir: Path) -> None:
    os.mkdir("closed", 0o500)
    os.mkdir("kept")
    Path("kept/out.npy").write_bytes(OLD)
    os.chmod("kept/out.npy", 0o444)
    os.chmod("kept", 0o500)
    before = state(workdir)
    for target, expected_text in (
        ("closed/out.npy", "Permission denied"),
        ("kept/out.npy", "read-only"),
        ("missing/out.npy", "there is no folder missing"),
        ("data.npy/out.npy", "there is no folder data.npy"),
    ):
        for more in ((), ("--dry-run",)):
            ran = ndtool(*GATHER[:-1], target, *more, preexec_fn=without_overrides)
            assert (ran.status, ran.out) == (7, b"")
            assert expected_text in ran.err
            assert target in ran.err
            assert state(workdir) == before
    ran = ndtool(*GATHER[:-1], "kept/new.npy", preexec_fn=without_overrides)
    assert ran.status == 7
    assert state(workdir) == before


@methods
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0, 0o666)])
def test_mode(mask: int, mode: int, unnamed: bool) -> None:
    command = [*(NDTOOL if unnamed else HIDDEN), *GATHER[:-1]]
    for name, wanted in (("new.npy", mode), ("old.npy", 0o640)):
        Path("old.npy").write_bytes(OLD)
        os.chmod("old.npy", 0o640)
        subprocess.run([*command, name], env=environment(), check=True, umask=mask)
        assert stat.S_IMODE(os.stat(name).st_mode) == wanted
        assert right(name)


# Several runs at once


def test_four_at_once(workdir: Path) -> None:
    runs = [
        subprocess.Popen(
            [*NDTOOL, *SCATTER[:4], "-o", f"{n}.npy", *SCATTER[-2:], "--threads", "4"],
            env=environment(),
        )
        for n in range(4)
    ]
    assert [run.wait() for run in runs] == [0] * 4
    assert len({Path(f"{n}.npy").read_bytes() for n in range(4)}) == 1
    assert np.array_equal(np.load("0.npy"), added())


@methods
def test_only_one_may_make_a_file(unnamed: bool, workdir: Path) -> None:
    command = [*(NDTOOL if unnamed else HIDDEN), *GATHER[:-1], "new.npy", "--no-clobber"]
    runs = [subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE) for _ in range(4)]
    expected_text = [run.communicate()[1] for run in runs]
    assert sorted(run.returncode for run in runs) == [0, 7, 7, 7]
    assert sum(b"new.npy exists" in text for text in expected_text) == 3
    assert right("new.npy")
    assert not [name for name in os.listdir() if "ndtool-" in name]


# Signals and kills at any time


@pytest.fixture
def long_run(workdir: Path) -> tuple[str, ...]:
    """Return a run that copies a gigabyte, mostly from a hole in a sparse file."""
    sparse("large.npy", "<f4", (1 << 14, 1 << 14))
    save(idx=np.zeros((8, 1 << 14), "i8"), upd=np.ones((8, 1 << 14), "f4"))
    run = ("scatter-elements", "large.npy", "idx.npy", "upd.npy", "-o", "out.npy")
    return (*run, "--reduction", "add")


def at_work(pid: int, workdir: Path) -> bool:
    """Whether a process has opened its new output."""
    folder = Path(f"/proc/{pid}/fd")
    try:
        targets = [os.readlink(folder / name) for name in os.listdir(folder)]
    except FileNotFoundError:
        return False
    hidden = [t for t in targets if "ndtool-" in t or "(deleted)" in t]
    return any(t.startswith(str(workdir)) for t in hidden)


@linux
@methods
@pytest.mark.parametrize(("name", "status"), [("INT", 130), ("TERM", 143), ("HUP", 129)])
def test_signals_during_the_work(
    name: str, status: int, unnamed: bool, long_run: tuple[str, ...], workdir: Path
) -> None:
    before = {p.name: p.stat() for p in workdir.iterdir()}
    process = subprocess.Popen(
        [*(NDTOOL if unnamed else HIDDEN), *long_run],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while not at_work(process.pid, workdir):
        assert process.poll() is None
    process.send_signal(getattr(signal, f"SIG{name}"))
    out, err = process.communicate()
    assert (process.returncode, out, err) == (status, b"", b"")
    assert Path("out.npy").read_bytes() == OLD
    after = {p.name: p.stat() for p in workdir.iterdir()}
    assert {k: v.st_mtime_ns for k, v in after.items()} == {
        k: v.st_mtime_ns for k, v in before.items()
    }


DEADLY = "QUIT ILL TRAP ABRT FPE USR1 SEGV USR2 ALRM XCPU VTALRM PROF IO SYS RTMIN RTMAX"


@pytest.mark.slow("each signal that ends a process leaves nothing")
@linux
@methods
@pytest.mark.parametrize("name", DEADLY.split())
def test_death_of_any_other_signal_leaves_nothing(
    name: str, unnamed: bool, long_run: tuple[str, ...], workdir: Path
) -> None:
    before = sorted(p.name for p in workdir.iterdir())
    process = subprocess.Popen(
        [*(NDTOOL if unnamed else HIDDEN), *long_run],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=limited(CORE=0),
    )
    while not at_work(process.pid, workdir):
        assert process.poll() is None
    number = getattr(signal, f"SIG{name}")
    process.send_signal(number)
    assert (*process.communicate(), process.returncode) == (b"", b"", -number)
    assert Path("out.npy").read_bytes() == OLD
    assert sorted(p.name for p in workdir.iterdir()) == before


@pytest.mark.slow("ignored signals, and those that end no process, leave a run unharmed")
@linux
def test_signals_that_the_parent_ignores_or_that_harm_nobody(
    long_run: tuple[str, ...], workdir: Path
) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)

    process = subprocess.Popen(
        [*HIDDEN, *long_run], env=environment(), stderr=subprocess.PIPE, preexec_fn=ignore
    )
    while not at_work(process.pid, workdir):
        assert process.poll() is None
    for name in ("ALRM", "CHLD", "URG", "WINCH", "CONT", "PIPE", "XFSZ"):
        process.send_signal(getattr(signal, f"SIG{name}"))
    assert process.communicate()[1] == b""
    assert process.returncode == 0


@pytest.fixture
def append_only(workdir: Path) -> Iterator[Callable[[str], None]]:
    """Yield a function that makes a folder or file append-only."""
    made: list[str] = []

    def make(name: str) -> None:
        made.append(name)
        if shutil.which("chattr") is None or execute("chattr", "+a", name).status:
            pytest.skip("nothing can be made append-only here")

    yield make
    for name in made:
        subprocess.run(["chattr", "-a", name], check=True)


@linux
@methods
def test_folders_where_no_name_can_be_removed(
    unnamed: bool, append_only: Callable[[str], None], workdir: Path
) -> None:
    os.mkdir("grows")
    Path("grows/old.npy").write_bytes(OLD)
    append_only("grows")
    before = state(workdir)
    command = [*(NDTOOL if unnamed else HIDDEN), *GATHER[:-1]]
    for more in ((), ("--dry-run", "--no-trace")):
        ran = execute(*command, "grows/old.npy", *more)
        assert (ran.status, ran.out) == (7, b"")
        assert ran.err.startswith("error: grows/old.npy: it cannot be replaced: Operation")
        assert state(workdir) == before
    ran = execute(*command, "grows/new.npy")
    assert sorted(os.listdir("grows")) == (["new.npy", "old.npy"] if unnamed else ["old.npy"])
    if unnamed:
        assert (ran.status, ran.err, right("grows/new.npy")) == (0, "", True)
    else:
        assert (ran.status, ran.out) == (7, b"")
        assert "grows/new.npy: files in its folder cannot be removed" in ran.err


@linux
@methods
def test_files_that_may_only_grow_are_refused_before_any_work(
    unnamed: bool, append_only: Callable[[str], None], workdir: Path
) -> None:
    append_only("out.npy")
    before = state(workdir)
    for more in ((), ("--dry-run", "--no-trace")):
        ran = execute(*(NDTOOL if unnamed else HIDDEN), *GATHER, *more)
        assert (ran.status, ran.out) == (7, b"")
        assert ran.err.startswith("error: out.npy: it cannot be replaced: Operation")
        assert state(workdir) == before


@pytest.mark.skipif(not ROOT, reason="root is needed to give files away")
@pytest.mark.parametrize("user", [0, 54321, 12345])
def test_a_file_of_another_in_a_sticky_folder(
    user: int, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkdir("shared")
    os.chmod("shared", 0o1777)
    Path("shared/old.npy").write_bytes(OLD)
    for name in ("shared", "shared/old.npy"):
        os.chown(name, 54321, 54321)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    if user in (0, 54321):
        checked("shared/old.npy")
    else:
        with pytest.raises(OutputError, match=r"^shared/old.npy: it cannot be replaced: Operat"):
            checked("shared/old.npy")


def tortured(script: str, *arguments: object) -> Any:
    """Return the output of a script in tests/torture."""
    ran = execute(sys.executable, TORTURE / script, *arguments)
    assert ran.err == ""
    return ran.json


@pytest.mark.slow("kills at any moment, not only at calls, leave whole outputs")
@linux
def test_death_at_random_times() -> None:
    found = tortured("kill.py", 100)
    assert found["killed"] > 0
    assert found["killed"] + found["done"] == 100
    assert found["torn"] + found["inputs"] + found["left"] == 0, found


@pytest.mark.slow("runs at once, signalled or on a failing server, leave whole outputs")
@linux
@pytest.mark.parametrize(("kind", "count"), [("s3", 2), ("signals", 38), ("urls", 3)])
def test_hammers(kind: str, count: int) -> None:
    found = tortured("hammer.py", kind, str(count))
    assert found.pop("wrong") == [], found


@linux
@pytest.mark.huge
def test_the_kernel_fails_any_call() -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    found = tortured("syscalls.py", 11)
    assert found["runs"] > 100
    assert found["wrong"] == []


# Memory


@pytest.mark.slow("a run on mapped files takes no memory of its own by their size")
@linux
@pytest.mark.parametrize("name", ["small", pytest.param("large", marks=pytest.mark.huge)])
def test_private_memory(name: str) -> None:
    for run, megabytes in tortured("memory.py", name).items():
        assert 0 < megabytes <= 96, run


def test_parts_that_no_buffer_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    save(data=rng.random(1 << 19), idx=rng.integers(0, 1 << 19, (1 << 18, 1)))
    save(upd=rng.random(1 << 18))
    monkeypatch.setattr(tuning, "SORTED_OUTPUT", 0)
    monkeypatch.setattr(tuning, "LOCAL_FRACTION", 2)
    for largest in (tuning.MAX_PARTITION, 1):
        monkeypatch.setattr(tuning, "MAX_PARTITION", largest)
        request = Request(
            "scatter_nd",
            "data.npy",
            "idx.npy",
            "upd.npy",
            f"{largest}.npy",
            Attributes(reduction="add"),
        )
        with OpenCall(request) as call:
            steps.run(call)
    assert Path("1.npy").read_bytes() == Path(f"{1 << 22}.npy").read_bytes()


# Indices that change after validation


CHANGED = (
    ("gather_nd", None, Attributes()),
    ("gather_elements", None, Attributes()),
    ("scatter_nd", "upd.npy", Attributes(reduction="add")),
    ("scatter_elements", "upd.npy", Attributes(axis=1)),
)


@pytest.mark.parametrize(("operator", "updates", "attributes"), CHANGED)
def test_indices_that_change_after_the_check(
    operator: str, updates: str | None, attributes: Attributes, workdir: Path
) -> None:
    good = np.ones(DATA.shape if "elements" in operator else (2, 1), int)
    save(idx=good)
    request = Request(operator, "data.npy", "idx.npy", updates, "out.npy", attributes)
    with OpenCall(request) as call, steps.prepare(call, steps.resolve_output(call)) as ready:
        bad = memoryview((good << 40).tobytes())
        changed = ready.validated._replace(indices=bad)
        execution = steps._execution(call, ready.plan, changed)
        with pytest.raises(OutputError, match=r"^idx.npy changed during the run$"):
            steps.execute(ready._replace(execution=execution))
    assert Path("out.npy").read_bytes() == OLD


@pytest.mark.parametrize("fortran", [False, True])
def test_data_that_are_not_in_memory(
    fortran: bool, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local.ByteRange, "cached_fraction", lambda _: 0.0)
    save(data=np.asfortranarray(DATA) if fortran else DATA)
    with OpenCall(Request("gather_nd", "data.npy", "idx.npy", output="out.npy")) as call:
        steps.run(call)
    assert right()


def test_indices_that_become_valid_again() -> None:
    plan = shapes.gather_nd((3,), (2, 1), 0)[1]
    index = bind.bind_indices(np.array([0, 2]).tobytes(), dtypes.from_code("<i8"))
    error = check.locate_bounds_error(plan, index, True)
    assert isinstance(error, OutputError)
    assert error.message == "indices changed during the run"


@pytest.mark.parametrize("wrong", [KeyboardInterrupt, MemoryError, OutputError])
def test_a_job_that_cannot_begin_closes_its_files(
    wrong: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    open_source = locators.open_source

    def opening(*given: object, **named: object) -> Source:
        opened.append(open_source(*given, **named))
        return opened[-1]

    monkeypatch.setattr(locators, "open_source", opening)
    monkeypatch.setattr(inference, "infer", Mock(side_effect=wrong("so")))
    with pytest.raises(wrong, match=r"^so$"):
        OpenCall(Request("gather_nd", "data.npy", "idx.npy"))
    assert len(opened) == 2
    for source in opened:
        with pytest.raises(ValueError, match="released"):
            bytes(source.load().buffer)


def test_a_limit_that_is_met_anywhere(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        command_line, "run", Mock(side_effect=OSError(errno.EMFILE, "Too many", "lib.so"))
    )
    assert program._run([]) == 6
    assert capfd.readouterr() == ("", "error: lib.so: Too many\n")


def test_signals_that_a_system_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    listened = []
    monkeypatch.setattr(
        signals,
        "signal",
        SimpleNamespace(
            SIGINT=2, SIGTERM=15, SIGALRM=14, SIGCHLD=17, valid_signals=lambda: {2, 14, 15, 17}
        ),
    )
    monkeypatch.setattr(signals._kernels, "install_handler", lambda *words: listened.append(words))
    signals.install_handlers(b"lost", 1, b"stopped")
    assert listened == [(2, 130, 2, b"stopped"), (15, 143, 2, b"stopped"), (14, -1, 2, b"")]


PROMISES = FIXTURES.parent / "docs" / "reliability.md"


@pytest.mark.skipif(not PROMISES.exists(), reason="the docs are not here")
def test_every_guarantee_refers_to_a_test() -> None:
    text = PROMISES.read_text()
    named = re.findall(r"`(test_\w+\.py)::(\w+)`", text)
    assert len(named) > 40
    for file, name in named:
        assert f"\ndef {name}(" in (FIXTURES.parent / "tests" / file).read_text(), (file, name)
