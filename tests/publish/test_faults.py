"""Failing system calls, killed processes, changing files: nothing is lost or incomplete."""

import io
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import FIXTURES, NDTOOL, environment, execute, ndtool, python, save, shell, snapshot
from limits import IS_ROOT, drop_root_capabilities, limit_resources, mount_small_disk
from memory import peak_megabytes
from npyfile import write_sparse

from ndtool.errors import OutputError
from ndtool.rules.operators import Attributes
from ndtool.runs import steps
from ndtool.runs.calls import OpenCall, Request

TORTURE = FIXTURES.parent / "tests" / "torture"
COUNT = 1 << 17
DATA = np.arange(COUNT, dtype="f4").reshape(2, -1)
IDX = np.array([[1], [0]])
UPD = np.ones_like(DATA)
PREVIOUS = b"previous content"
GATHER = ("gather-nd", "data.npy", "idx.npy", "-o", "out.npy")
SCATTER = ("scatter-nd", "data.npy", "idx.npy", "upd.npy", "-o", "out.npy", "--reduction", "add")
SIGNAL_STATUSES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}
linux = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")


@pytest.fixture(autouse=True)
def files(workdir: Path) -> None:
    save(data=DATA, idx=IDX, upd=UPD)
    Path("out.npy").write_bytes(PREVIOUS)


def is_gather_result(name: str = "out.npy", data: Any = DATA) -> bool:
    """Whether a file has the result of GATHER."""
    result = np.load(name)
    return result.dtype == data.dtype and np.array_equal(result, data[::-1])


def expected_scatter() -> Any:
    """Return the result of SCATTER."""
    result = DATA.copy()
    result[::-1] += UPD
    return result


# Failures of one system call

NOT_REACHED = 99
READ_CALLS = "open,stat,fstat,fstatvfs,pread,readv,mmap,close"
WRITE_CALLS = "pwrite,posix_fallocate,ftruncate,fsync,fchmod,link,replace,unlink"


def run_with_faults(
    calls: str, faults: str, unnamed: bool, arguments: tuple[str, ...]
) -> Iterator[Any]:
    """Yield (call, fault, number of the call, status, stderr) of every run."""
    script = str(TORTURE / "faulty.py")
    with subprocess.Popen(
        [sys.executable, script, calls, faults, str(int(unnamed)), *arguments],
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


def restore_output(before: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Restore the previous output and return the state; no other file has changed."""
    Path("out.npy").write_bytes(PREVIOUS)
    after = snapshot(workdir)
    assert {**after, "out.npy": None} == {**before, "out.npy": None}
    return after


def is_result(arguments: tuple[str, ...]) -> bool:
    expected = DATA[::-1] if arguments is GATHER else expected_scatter()
    return np.array_equal(np.load("out.npy"), expected)


# A program whose imports ignore exceptions in a registration, as imports of Cython modules do.
SCRIPT_THAT_DROPS_EXCEPTIONS = """
import collections.abc, os, signal, sys
register = collections.abc.Sequence.register
def register_without_exceptions(kind):
    try:
        os.kill(os.getpid(), signal.{name})
    except BaseException:
        pass
    return register(kind)
collections.abc.Sequence.register = register_without_exceptions
sys.argv[1:] = {arguments}
from ndtool.__main__ import program
program()
"""
SLOW_VARIANT = pytest.mark.slow(
    "calls of gathers, and of outputs in files with temporary names, may fail, too"
)
SLOW_EVERY_CALL = pytest.mark.slow(
    "each of the many calls that open, read and close files may fail"
)
tmpfile_modes = pytest.mark.parametrize(
    "unnamed", [True, pytest.param(False, marks=SLOW_VARIANT)], ids=["unnamed", "named"]
)
operators = pytest.mark.parametrize(
    "arguments", [pytest.param(GATHER, marks=SLOW_VARIANT), SCATTER], ids=["gather", "scatter"]
)


@linux
@tmpfile_modes
@operators
@pytest.mark.parametrize(
    "step", [pytest.param(1, marks=SLOW_EVERY_CALL), 5], ids=["every", "fifth"]
)
def test_a_failure_of_every_call(
    arguments: tuple[str, ...], unnamed: bool, step: int, workdir: Path
) -> None:
    before, failed_calls = snapshot(workdir), set()
    arguments_with_sync = (*arguments, "--sync")
    sampled_calls = ",".join(f"{call}/{step}" for call in ("open", "fstat", "pread", "close"))
    for call, fault, number, status, stderr in chain(
        run_with_faults(
            f"{sampled_calls},stat,fstatvfs,readv,mmap", "EIO", unnamed, arguments_with_sync
        ),
        run_with_faults(
            f"open/{step},mmap,{WRITE_CALLS}", "EIO,ENOSPC", unnamed, arguments_with_sync
        ),
    ):
        context = (call, fault, number, status, stderr)
        if status in (0, NOT_REACHED) or "may not survive a power failure" in stderr:
            assert is_result(arguments), context
            before = restore_output(before, workdir)
            continue
        failed_calls.add(call)
        assert snapshot(workdir) == before, context
        assert status in ((3, 6, 7) if fault == "EIO" else (6, 7)), context
        assert stderr.startswith("error: "), context
        assert stderr.count("\n") == 1 + ("hint: --only replaces it" in stderr), context
    assert failed_calls >= {
        "open", "pread", "mmap", "pwrite", "posix_fallocate", "fsync", "replace",
    }  # fmt: skip


@linux
@tmpfile_modes
def test_failures_after_publication(unnamed: bool, workdir: Path) -> None:
    command = NDTOOL if unnamed else NDTOOL_WITHOUT_TMPFILE
    for script, status in (
        ('"$@" >/dev/full', 7),
        ('"$@" >&-', 7),
        ('exec 3> >(:); wait $!; "$@" >&3', 141),  # the reader has ended
    ):
        Path("out.npy").write_bytes(PREVIOUS)
        completed = execute("bash", "-c", script, "bash", *command, *GATHER, "--json")
        assert completed.status == status
        assert is_gather_result()
    publication_outcomes = set()
    Path("out.npy").write_bytes(PREVIOUS)
    for _, _, number, status, stderr in run_with_faults(
        "fsync", "EIO", unnamed, (*GATHER, "--sync")
    ):
        if status != NOT_REACHED:
            assert status == 7, number
            publication_outcomes.add("may not survive a power failure" in stderr)
            assert (
                is_gather_result()
                if "may not survive" in stderr
                else Path("out.npy").read_bytes() == PREVIOUS
            )
        Path("out.npy").write_bytes(PREVIOUS)
    assert publication_outcomes == {True, False}


@pytest.mark.slow("a signal at any call leaves the previous output or the complete result")
@linux
@tmpfile_modes
@operators
def test_a_signal_at_every_call(arguments: tuple[str, ...], unnamed: bool, workdir: Path) -> None:
    before, ended_runs = snapshot(workdir), 0
    for call, _, number, status, stderr in chain(
        run_with_faults(f"{READ_CALLS},{WRITE_CALLS}", "SIGTERM", unnamed, arguments),
        run_with_faults(WRITE_CALLS, "SIGTERM+", unnamed, arguments),
    ):
        context = (call, number, status, stderr)
        assert stderr == "", context
        if status in (143, -signal.SIGTERM):  # -SIGTERM before ndtool installs handlers
            ended_runs += 1
            assert snapshot(workdir) == before, context
        else:  # too late: the file is published, or about to be
            assert status in (0, NOT_REACHED), context
            assert is_result(arguments), context
            before = restore_output(before, workdir)
    assert ended_runs > 10


SLOW_SIGNAL = pytest.mark.slow("each signal that ends a run is handled in imports")


@linux
@pytest.mark.parametrize("calls", ["import/9", pytest.param("import", marks=pytest.mark.huge)])
@pytest.mark.parametrize(
    "name",
    [
        "SIGTERM",
        *(pytest.param(name, marks=SLOW_SIGNAL) for name in SIGNAL_STATUSES if name != "SIGTERM"),
    ],
)
def test_a_signal_at_every_import(name: str, calls: str, workdir: Path) -> None:
    before, ended_runs = snapshot(workdir), 0
    for _, _, number, status, stderr in run_with_faults(calls, name, True, GATHER):
        context = (number, status, stderr)
        assert stderr == "", context
        assert status in (SIGNAL_STATUSES[name], NOT_REACHED), context
        ended_runs += status != NOT_REACHED
        before = before if status != NOT_REACHED else restore_output(before, workdir)
        assert snapshot(workdir) == before, context
    assert ended_runs > 10


@linux
def test_a_signal_in_an_import_that_drops_exceptions(workdir: Path) -> None:
    before = snapshot(workdir)
    for name, status in SIGNAL_STATUSES.items():
        completed = python(SCRIPT_THAT_DROPS_EXCEPTIONS.format(name=name, arguments=GATHER))
        assert (completed.status, completed.out, completed.err) == (status, b"", "")
        assert snapshot(workdir) == before


@pytest.mark.slow("a kill at any call leaves the previous output or the complete result")
@linux
@tmpfile_modes
@operators
def test_a_kill_at_every_call(arguments: tuple[str, ...], unnamed: bool, workdir: Path) -> None:
    before, killed_runs = snapshot(workdir), 0
    for call, _, number, status, _ in chain(
        run_with_faults(f"{READ_CALLS},{WRITE_CALLS}", "SIGKILL", unnamed, arguments),
        run_with_faults(WRITE_CALLS, "SIGKILL+", unnamed, arguments),
    ):
        context = (call, number, status)
        assert status in (-signal.SIGKILL, NOT_REACHED), context
        killed_runs += status != NOT_REACHED
        remaining = {p.name for p in workdir.iterdir()} - before.keys()
        if unnamed and remaining:  # a complete output, killed between link and replace
            assert call in ("link", "replace"), context
            os.replace(remaining.pop(), "out.npy")
        for name in remaining:
            os.unlink(name)
        if Path("out.npy").read_bytes() != PREVIOUS:
            assert is_result(arguments), context
            before = restore_output(before, workdir)
        assert snapshot(workdir) == before, context
    assert killed_runs > 10


# Files that change while a run reads them


def start_waiting_run(command: list[str]) -> tuple[subprocess.Popen[bytes], bytes]:
    """Start a run that waits for the last byte of its input; return the process and this byte."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(command, env=environment(), **pipes)
    raw = Path("upd.npy").read_bytes()
    assert process.stdin is not None
    process.stdin.write(raw[:-1])
    process.stdin.flush()  # exceeds a pipe's buffer: all other inputs are open
    return process, raw[-1:]


SCATTER_FROM_PIPE = (*SCATTER[:3], "-", "-o", "out.npy", "--reduction", "add")
NDTOOL_WITHOUT_TMPFILE = (
    sys.executable,
    "-c",
    "import os, sys; del os.O_TMPFILE; from ndtool.__main__ import main; sys.exit(main())",
)
TRUNCATED_ERROR = "error: an input was truncated or a disk failed during the run\n"


def truncate() -> None:
    os.truncate("data.npy", 100)


def modify() -> None:
    with open("data.npy", "r+b") as file:
        file.seek(1000)
        file.write(b"!")
    os.utime("data.npy", ns=(1, 1))  # another mtime at any resolution of the file system


def replace() -> None:
    save(new=DATA)
    os.replace("new.npy", "data.npy")


def extend() -> None:
    with open("data.npy", "ab") as file:
        file.write(b"more")


@linux
@tmpfile_modes
@pytest.mark.parametrize(
    ("change", "threads", "expected_text"),
    [
        (truncate, "1", TRUNCATED_ERROR),
        (truncate, "4", TRUNCATED_ERROR),
        (modify, "1", "error: data.npy changed during the run\n"),
        (replace, "4", "error: data.npy was replaced during the run\n"),
        (extend, "1", "error: data.npy changed during the run\n"),
    ],
)
def test_an_input_that_changes(
    change: Callable[[], None], expected_text: str, threads: str, unnamed: bool, workdir: Path
) -> None:
    arguments = (*SCATTER_FROM_PIPE, "--threads", threads)
    process, last_byte = start_waiting_run(
        [*(NDTOOL if unnamed else NDTOOL_WITHOUT_TMPFILE), *arguments]
    )
    change()
    before = snapshot(workdir)
    out, err = process.communicate(last_byte)
    assert (process.returncode, out, err.decode()) == (7, b"", expected_text)
    assert snapshot(workdir) == before


@linux
@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("data.npy", "scatter-nd data.npy idx.npy - -o out.npy --reduction add --json"),
        ("data.npy", "verify scatter-nd data.npy idx.npy - out.npy --reduction add"),
        ("large.npy", "scatter-elements data.npy large.npy - -o out.npy"),
    ],
)
def test_a_truncated_input(name: str, command: str, workdir: Path) -> None:
    save(large=np.zeros((2, 1 << 16), "i8"))
    np.save("out.npy", DATA)
    before = Path("out.npy").read_bytes()
    process, last_byte = start_waiting_run([*NDTOOL, *command.split()])
    os.truncate(name, 4096)
    out, err = process.communicate(last_byte)
    text = err.decode() or f"error: {json.loads(out)['message']}\n"
    assert (process.returncode, text) == (7, TRUNCATED_ERROR)
    assert Path("out.npy").read_bytes() == before


@linux
def test_an_input_may_be_unlinked_or_renamed_during_a_run(workdir: Path) -> None:
    process, last_byte = start_waiting_run([*NDTOOL, *SCATTER_FROM_PIPE])
    os.unlink("data.npy")
    os.rename("idx.npy", "moved.npy")
    out, err = process.communicate(last_byte)
    assert (process.returncode, out, err) == (0, b"", b"")
    assert is_result(SCATTER)


PROGRAM_WITHOUT_RESERVATION = """
import os, sys
from ndtool.publish import sinks
sinks.reserve = lambda fd, total, name: os.ftruncate(fd, total)
from ndtool.__main__ import main
sys.exit(main())
"""


@pytest.fixture
def small_disk(workdir: Path) -> Iterator[Path]:
    """Yield a folder with a megabyte of free space."""
    with mount_small_disk(workdir / "small") as folder:
        yield folder


def test_a_full_disk(small_disk: Path, workdir: Path) -> None:
    save(data=np.zeros((2, 1 << 17)), upd=np.zeros((2, 1 << 17)))
    output = small_disk / "out.npy"
    output.write_bytes(PREVIOUS)
    scatter = ("scatter-nd", "data.npy", "idx.npy", "upd.npy")
    for arguments in (GATHER[:3], scatter, (*scatter, "--reduction", "max")):
        for name in ("out.npy", "new.npy", "out.npz", "new.npz:x"):
            completed = ndtool(*arguments, "-o", f"small/{name}")
            assert (completed.status, completed.out) == (6, b"")
            assert f"small/{name.partition(':')[0]}: needs 209" in completed.err
            assert "bytes of disk space, 104" in completed.err
            assert os.listdir(small_disk) == ["out.npy"]
            assert output.read_bytes() == PREVIOUS
    completed = ndtool(
        *scatter, stdin=b"", env={"TMPDIR": str(small_disk)}
    )  # to a pipe: memory suffices
    assert completed.status == 0


def test_a_full_disk_for_temporary_files(small_disk: Path, workdir: Path) -> None:
    rows = np.zeros((2, 1 << 20))
    save(data=rows, upd=rows)
    raw = Path("data.npy").read_bytes()
    env = {"TMPDIR": str(small_disk)}
    completed = ndtool("gather-nd", "-", "idx.npy", "-o", "out.npy", stdin=raw, env=env)
    assert (completed.status, completed.out) == (6, b"")
    assert "no space for a temporary copy" in completed.err
    assert "TMPDIR" in completed.err
    completed = ndtool("scatter-nd", "data.npy", "idx.npy", "upd.npy", "-o", "-", env=env)
    assert (completed.status, completed.out) == (6, b"")
    assert "temporary copy of standard output: needs 16777216 bytes of disk" in completed.err
    assert os.listdir(small_disk) == []
    assert Path("out.npy").read_bytes() == PREVIOUS


def test_a_disk_that_fills_up_during_stores(small_disk: Path, workdir: Path) -> None:
    save(data=np.zeros((2, 1 << 17)), idx=np.zeros((2, 1 << 17), "i8"))
    for script in (
        PROGRAM_WITHOUT_RESERVATION,
        f"import os; del os.O_TMPFILE{PROGRAM_WITHOUT_RESERVATION}",
    ):
        completed = python(script, "gather-elements", "data.npy", "idx.npy", "-o", "small/out.npy")
        assert (completed.status, completed.out, completed.err) == (7, b"", TRUNCATED_ERROR)
        assert os.listdir(small_disk) == []


# Limits


@linux
@pytest.mark.parametrize("count", [5, 7, 10])
def test_few_descriptors_are_a_resource_error(count: int, workdir: Path) -> None:
    before = snapshot(workdir)
    completed = ndtool(*SCATTER, "--threads", "4", preexec_fn=limit_resources(NOFILE=count))
    assert "Traceback" not in completed.err
    if completed.status:
        assert completed.status == 6
        assert "Too many open files" in completed.err
        assert snapshot(workdir) == before
    else:
        assert is_result(SCATTER)
    assert completed.status == 6 or count > 7


@linux
@pytest.mark.parametrize(
    ("arguments", "megabytes"),
    [
        *(((*GATHER, "--threads", "16"), megabytes) for megabytes in (24, 96, 4096)),
        (SCATTER, 96), ((*GATHER[:3], "-o", "-"), 96),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("without_coverage")
def test_little_memory_suffices_or_is_a_resource_error(
    arguments: tuple[str, ...], megabytes: int, workdir: Path
) -> None:
    data = np.zeros((2, 1 << 22), "f4")
    data[1] = 7
    save(data=data, upd=np.ones_like(data))
    before = snapshot(workdir)
    completed = ndtool(*arguments, preexec_fn=limit_resources(AS=megabytes << 20))
    if completed.status:
        assert completed.status == 6
        assert completed.err.startswith("error: ")
        assert "Traceback" not in completed.err
        assert snapshot(workdir) == before
        assert megabytes < 4096  # each thread may reserve 72 MiB of address space
    else:
        result = np.load("out.npy" if "out.npy" in arguments else io.BytesIO(completed.out))
        assert np.array_equal(result, data + 1 if arguments == SCATTER else data[::-1])


@pytest.mark.usefixtures("without_coverage")
def test_files_that_may_not_grow(workdir: Path) -> None:
    before = snapshot(workdir)
    for arguments in (GATHER, SCATTER, (*GATHER[:-1], "new.npz")):
        completed = ndtool(*arguments, preexec_fn=limit_resources(FSIZE=100_000))
        assert (completed.status, completed.out) == (6, b"")
        assert "more than the limit on file sizes" in completed.err
        assert snapshot(workdir) == before


PROCESS_LIMIT_SCRIPT = """
import concurrent.futures.thread, os, resource, sys
from ndtool import __main__
data, out, threads, limit = sys.argv[1:]
os.umask(0)
run = ["gather-nd", data, "idx.npy", "-o", out, "--threads"]
for _ in "new", "replaced":  # import all modules while the process may read them
    assert __main__._run([*run, "1"]) == 0
os.setgroups([])
os.setgid(54321)
os.setuid(54321)
resource.setrlimit(resource.RLIMIT_NPROC, (int(limit),) * 2)
sys.exit(__main__._run([*run, threads]))
"""


@pytest.mark.skipif(not IS_ROOT, reason="only root can change to a user without processes")
@pytest.mark.parametrize(("threads", "limit"), [(2, 1), (4, 2), (16, 5)])
@pytest.mark.usefixtures("without_coverage")
def test_threads_that_cannot_be_started(threads: int, limit: int, workdir: Path) -> None:
    folder = workdir / "open"
    folder.mkdir()
    folder.chmod(0o777)
    for parent in workdir.parents:
        if parent.stat().st_uid == os.getuid() and "pytest" in str(parent):
            parent.chmod(parent.stat().st_mode | 0o011)
    workdir.chmod(0o755)
    completed = python(PROCESS_LIMIT_SCRIPT, "data.npy", "open/out.npy", threads, limit)
    assert (completed.status, completed.err) == (0, "")
    assert is_gather_result("open/out.npy")


FORK_PROGRAM = """
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_fork_after_threads() -> None:
    completed = execute(sys.executable, "-W", "ignore", "-c", FORK_PROGRAM)
    assert (completed.status, completed.err) == (0, "")


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
def test_the_output_may_be_the_data(number: int, workdir: Path) -> None:
    alias = list(aliases(workdir))[number]
    operator, updates = ("scatter-nd", ["upd.npy"]) if number % 2 else ("gather-nd", [])
    with open("data.npy", "rb") as stdin:
        completed = subprocess.run(
            [*NDTOOL, operator, "data.npy", "idx.npy", *updates, "-o", alias],
            stdin=stdin,
            capture_output=True,
            env=environment(),
            check=False,
        )
        assert (completed.returncode, completed.stderr) == (0, b"")
        assert np.array_equal(
            np.load(stdin), DATA
        )  # open descriptors refer to the previous content
    expected = DATA[::-1] if operator == "gather-nd" else UPD
    assert np.array_equal(np.load("hard.npy" if alias == "hard.npy" else "data.npy"), expected)
    assert np.array_equal(np.load("data.npy" if alias == "hard.npy" else "hard.npy"), DATA)
    assert os.path.islink("soft.npy")
    assert not [name for name in os.listdir() if "ndtool-" in name]


def test_the_output_may_be_the_data_under_a_bind_mount(workdir: Path) -> None:
    os.mkdir("other")
    command = ["mount", "--bind", str(workdir), "other"]
    if not IS_ROOT or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("the process may not mount")
    try:
        assert ndtool(*GATHER[:-1], "other/data.npy").status == 0
        assert is_gather_result("data.npy")
    finally:
        subprocess.run(["umount", "-l", "other"], check=True)


@linux
def test_standard_output_that_is_an_input_is_refused(workdir: Path) -> None:
    before = snapshot(workdir)
    for redirection in (">>data.npy", "1<>data.npy", "<data.npy 1<>data.npy"):
        name = "-" if "<d" in redirection else "data.npy"
        script = f'exec "$@" gather-nd {name} idx.npy {redirection}'
        completed = shell(script)
        assert completed.status == 7
        assert "which is an input" in completed.err
        assert snapshot(workdir) == before


def test_folders_that_permit_no_new_file(workdir: Path) -> None:
    os.mkdir("closed", 0o500)
    os.mkdir("readonly")
    Path("readonly/out.npy").write_bytes(PREVIOUS)
    os.chmod("readonly/out.npy", 0o444)
    os.chmod("readonly", 0o500)
    before = snapshot(workdir)
    for target, expected_text in (
        ("closed/out.npy", "Permission denied"),
        ("readonly/out.npy", "read-only"),
        ("missing/out.npy", "there is no folder missing"),
        ("data.npy/out.npy", "there is no folder data.npy"),
    ):
        for extra in ((), ("--dry-run",)):
            completed = ndtool(*GATHER[:-1], target, *extra, preexec_fn=drop_root_capabilities)
            assert (completed.status, completed.out) == (7, b"")
            assert expected_text in completed.err
            assert target in completed.err
            assert snapshot(workdir) == before
    completed = ndtool(*GATHER[:-1], "readonly/new.npy", preexec_fn=drop_root_capabilities)
    assert completed.status == 7
    assert snapshot(workdir) == before


@tmpfile_modes
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_the_mode_is_that_of_the_replaced_file_or_the_umask(
    mask: int, mode: int, unnamed: bool
) -> None:
    command = [*(NDTOOL if unnamed else NDTOOL_WITHOUT_TMPFILE), *GATHER[:-1]]
    for name, expected in (("new.npy", mode), ("old.npy", 0o640)):
        Path("old.npy").write_bytes(PREVIOUS)
        os.chmod("old.npy", 0o640)
        subprocess.run([*command, name], env=environment(), check=True, umask=mask)
        assert stat.S_IMODE(os.stat(name).st_mode) == expected
        assert is_gather_result(name)


# Several runs at once


@tmpfile_modes
def test_no_clobber_lets_one_of_several_runs_create_a_file(unnamed: bool, workdir: Path) -> None:
    command = [*(NDTOOL if unnamed else NDTOOL_WITHOUT_TMPFILE), *GATHER[:-1]]
    command += ["new.npy", "--no-clobber"]
    processes = [
        subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE) for _ in range(4)
    ]
    messages = [process.communicate()[1] for process in processes]
    assert sorted(process.returncode for process in processes) == [0, 7, 7, 7]
    assert sum(b"new.npy exists" in text for text in messages) == 3
    assert is_gather_result("new.npy")
    assert not [name for name in os.listdir() if "ndtool-" in name]


# Signals and kills at any time


@pytest.fixture
def long_run(workdir: Path) -> tuple[str, ...]:
    """Return the arguments of a run that copies a gigabyte, mostly from a hole in a sparse file."""
    write_sparse("large.npy", "<f4", (1 << 14, 1 << 14))
    save(idx=np.zeros((8, 1 << 14), "i8"), upd=np.ones((8, 1 << 14), "f4"))
    arguments = ("scatter-elements", "large.npy", "idx.npy", "upd.npy", "-o", "out.npy")
    return (*arguments, "--reduction", "add")


def has_opened_output(pid: int, workdir: Path) -> bool:
    """Whether a process has opened its new output."""
    folder = Path(f"/proc/{pid}/fd")
    try:
        targets = [os.readlink(folder / name) for name in os.listdir(folder)]
    except FileNotFoundError:
        return False
    temporary_files = [t for t in targets if "ndtool-" in t or "(deleted)" in t]
    return any(t.startswith(str(workdir)) for t in temporary_files)


def start(unnamed: bool, arguments: tuple[str, ...], **options: Any) -> subprocess.Popen[bytes]:
    """Start a run and wait until it has opened its new output."""
    command = [*(NDTOOL if unnamed else NDTOOL_WITHOUT_TMPFILE), *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, env=environment(), **pipes, **options)
    while not has_opened_output(process.pid, Path.cwd()):
        assert process.poll() is None
    return process


@linux
@tmpfile_modes
@pytest.mark.parametrize(("name", "status"), [("INT", 130), ("TERM", 143), ("HUP", 129)])
def test_signals_during_a_run_leave_the_previous_output(
    name: str, status: int, unnamed: bool, long_run: tuple[str, ...], workdir: Path
) -> None:
    before = {p.name: p.stat() for p in workdir.iterdir()}
    process = start(unnamed, long_run)
    process.send_signal(getattr(signal, f"SIG{name}"))
    out, err = process.communicate()
    assert (process.returncode, out, err) == (status, b"", b"")
    assert Path("out.npy").read_bytes() == PREVIOUS
    after = {p.name: p.stat() for p in workdir.iterdir()}
    assert {k: v.st_mtime_ns for k, v in after.items()} == {
        k: v.st_mtime_ns for k, v in before.items()
    }


FATAL_SIGNALS = "QUIT ILL TRAP ABRT FPE USR1 SEGV USR2 ALRM XCPU VTALRM PROF IO SYS RTMIN RTMAX"


@pytest.mark.slow("no signal that ends a process leaves a file")
@linux
@tmpfile_modes
@pytest.mark.parametrize("name", FATAL_SIGNALS.split())
def test_any_other_fatal_signal_leaves_no_file(
    name: str, unnamed: bool, long_run: tuple[str, ...], workdir: Path
) -> None:
    before = sorted(p.name for p in workdir.iterdir())
    process = start(unnamed, long_run, preexec_fn=limit_resources(CORE=0))
    number = getattr(signal, f"SIG{name}")
    process.send_signal(number)
    assert (*process.communicate(), process.returncode) == (b"", b"", -number)
    assert Path("out.npy").read_bytes() == PREVIOUS
    assert sorted(p.name for p in workdir.iterdir()) == before


@pytest.mark.slow("ignored signals, and signals that end no process, do not affect a run")
@linux
def test_ignored_and_harmless_signals_end_no_run(long_run: tuple[str, ...], workdir: Path) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)

    process = start(False, long_run, preexec_fn=ignore)
    for name in ("ALRM", "CHLD", "URG", "WINCH", "CONT", "PIPE", "XFSZ"):
        process.send_signal(getattr(signal, f"SIG{name}"))
    assert process.communicate()[1] == b""
    assert process.returncode == 0


# Memory


@pytest.mark.slow("a run on mapped files takes no private memory in proportion to their size")
@linux
@pytest.mark.parametrize("rows", [1 << 12, pytest.param(1 << 19, marks=pytest.mark.huge)])
def test_private_memory(rows: int) -> None:
    rng, columns = np.random.default_rng(0), 1 << 13
    write_sparse("data.npy", ">f4", (rows, columns))
    write_sparse("fortran.npy", "<f4", (rows, columns), True)
    pairs = np.stack([rng.integers(0, size, 1 << 22) for size in (rows, columns)], 1)
    save(pairs=pairs, ones=np.ones(1 << 22, "<f4"))
    save(down=rng.integers(0, rows, (512, columns)), down_ones=np.ones((512, columns), "<f4"))
    for command in (
        "gather-nd data.npy pairs.npy",
        "gather-nd fortran.npy pairs.npy",
        "scatter-nd data.npy pairs.npy ones.npy --reduction add",
        "gather-elements data.npy down.npy",
        "scatter-elements fortran.npy down.npy down_ones.npy --reduction max",
    ):
        assert 0 < peak_megabytes(*command.split(), "--threads", 2, "-o", "out.npy") <= 96, command


# Indices that change after validation


CALLS = (
    ("gather_nd", None, Attributes()),
    ("gather_elements", None, Attributes()),
    ("scatter_nd", "upd.npy", Attributes(reduction="add")),
    ("scatter_elements", "upd.npy", Attributes(axis=1)),
)


@pytest.mark.parametrize(("operator", "updates", "attributes"), CALLS)
def test_indices_that_change_after_validation(
    operator: str, updates: str | None, attributes: Attributes, workdir: Path
) -> None:
    valid_indices = np.ones(DATA.shape if "elements" in operator else (2, 1), int)
    save(idx=valid_indices)
    request = Request(operator, "data.npy", "idx.npy", updates, "out.npy", attributes)
    with OpenCall(request) as call, steps.prepare(call, steps.resolve_output(call)) as prepared:
        invalid_indices = memoryview((valid_indices << 40).tobytes())
        validated = prepared.validated._replace(indices=invalid_indices)
        execution = steps._execution(call, prepared.plan, validated)
        with pytest.raises(OutputError, match=r"^idx.npy changed during the run$"):
            steps.execute(prepared._replace(execution=execution))
    assert Path("out.npy").read_bytes() == PREVIOUS
