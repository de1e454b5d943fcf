"""Commands with unusual file names, streams, limits, signals and variables."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from command import NDTOOL, ndtool, python, save, shell, snapshot, start
from npyfile import npy

DATA = np.arange(12, dtype="f4").reshape(4, 3)
IDX = np.array([[3], [0]])
RUN = ("gather-nd", "data.npy", "idx.npy")


@pytest.fixture(autouse=True)
def files(workdir: Path) -> None:
    save(data=DATA, idx=IDX)


def output_is_correct(name="out.npy"):
    return np.load(name).tolist() == DATA[[3, 0]].tolist()


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *(("--batch-dims", v) for v in ("x", "1.5", "", "1_0", "٣", str(2**63))),
        *(("--threads", v) for v in ("0", "1025", "two", "")),
        ("--spec", ""),
        ("--spec", "onnx"),
        ("--dry-run=maybe", ""),
    ],
)
def test_malformed_values_are_refused(flag, value):
    completed = ndtool(*RUN, flag, value, "-o", "out.npy")
    assert (completed.status, completed.out) == (2, b"")
    assert completed.err.startswith("error: ")
    assert flag.partition("=")[0].lstrip("-").partition("-")[0] in completed.err
    assert not os.path.exists("out.npy")


def test_words_set_flags_by_environment_variables():
    true_words, false_words = ("1", "true", "YES", "on", "t", "y"), ("", "0", "false", "no", "off")
    for word, status in {**dict.fromkeys(true_words, 7), **dict.fromkeys(false_words, 0)}.items():
        save(out=IDX)
        assert ndtool(*RUN, "-o", "out.npy", env={"NDTOOL_NO_CLOBBER": word}).status == status, word
    completed = ndtool(*RUN, "-o", "out.npy", env={"NDTOOL_NO_CLOBBER": "[red]"})
    assert (completed.status, "'[red]' is not a valid boolean" in completed.err) == (2, True)
    assert ndtool(*RUN, "--no-trace", "-o", "out.npy", env={"NDTOOL_TRACE": "on"}).err == ""
    assert "rank(data)" in ndtool(*RUN, "-o", "out.npy", env={"NDTOOL_TRACE": "on"}).err


def test_unknown_names_are_usage_errors():
    completed = ndtool("scatter-nd", "data.npy", "idx.npy", "upd.npy", "--reduction", "avg")
    names = "'none', 'add', 'sub', 'mul', 'div', 'max', 'min', 'mean'"
    assert (completed.status, f"'avg' is not one of {names}" in completed.err) == (2, True)
    assert completed.err.endswith("  hint: ndtool scatter-nd --help\n")
    assert ndtool("gather-nd", "data.npy").err == (
        "error: missing argument 'INDICES'\n  hint: ndtool gather-nd --help\n"
    )
    for arguments in ((*RUN, "more.npy"), (*RUN, "--frobnicate"), (*RUN, "-o", "out.npz:")):
        assert ndtool(*arguments).status == 2
    assert "\x1b" not in ndtool("no\nsuch \x1b[31mcommand").err


@pytest.mark.parametrize(
    ("env", "spins"),
    [({}, "100"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "active"}, "None")],
    ids=["default", "spin count", "wait policy"],
)
def test_idle_threads_spin_for_a_limited_time(env, spins):
    script = "import os, ndtool; print(os.environ.get('GOMP_SPINCOUNT'))"
    completed = python(script, env={"GOMP_SPINCOUNT": None, "OMP_WAIT_POLICY": None, **env})
    assert completed.out.decode().strip() == spins


def test_suffixes_of_other_formats_are_refused(workdir):
    before = snapshot(workdir)
    for name, ending in (
        ("out[b].xls", ".xls"), ("OUT.CSV", ".CSV"), ("x.v2", ".v2"), ("out.Npy", ".Npy"),
        ("x.npz.doc:a.b", ".doc"),
    ):  # fmt: skip
        completed = ndtool(*RUN, "-o", name)
        assert (completed.status, completed.out) == (2, b"")
        message = (
            f"error: {name}: ndtool does not write {ending}: expected .npy, .npz, .safetensors, .pb"
        )
        *_, error, hint = completed.err.splitlines()
        assert error.startswith(message)
        assert ":" in name or hint == f"  hint: npy:{name} writes a .npy file of this name"
    assert "in lower case" in ndtool(*RUN, "-o", "out.NPZ").err
    assert snapshot(workdir) == before
    for name in ("out", "out.csv.npy", "v1.2", ".out", "out.", "2024-05-17"):
        assert ndtool(*RUN, "-o", name).status == 0
        assert output_is_correct(name)
    shutil.copy("out", "out.csv")  # the content of an input determines its format
    assert ndtool("gather-nd", "out.csv", "[[0]]", "-o", "out.npy").status == 0


def test_a_prefix_writes_npy_under_any_name(workdir):
    os.mkdir("d.x")
    for name in ("x.csv", "x.npz:a", "x.zarr", "d.x/y.v2"):
        assert ndtool(*RUN, "-o", f"npy:{name}").status == 0
        with open(name, "rb") as file:
            assert np.load(file).tolist() == DATA[[3, 0]].tolist()
        assert ndtool("verify", *RUN, f"npy:{name}").status == 0
    Path("npy:x").write_bytes(b"")  # an existing name is taken as it is
    assert ndtool(*RUN, "-o", "npy:x").status == 0
    assert np.load("npy:x").tolist() == DATA[[3, 0]].tolist()
    assert not os.path.exists("x")


def test_a_pipe_may_have_any_suffix(workdir):
    os.mkfifo("out.csv")
    with (
        subprocess.Popen([*NDTOOL, *RUN, "-o", "out.csv"]) as command,
        open("out.csv", "rb") as file,
    ):
        assert np.load(io.BytesIO(file.read())).tolist() == DATA[[3, 0]].tolist()
    assert command.returncode == 0


def test_an_existing_folder_takes_precedence_over_a_member(workdir):
    os.makedirs("d/x.npz:y/z.npz:w")
    np.savez("d/x.npz", a=DATA)
    before = (workdir / "d/x.npz").read_bytes()
    for name in ("d/x.npz:y/o.npy", "d/x.npz:y/z.npz:w/o.npy", str(workdir / "d/x.npz:y/o")):
        assert ndtool(*RUN, "-o", name).status == 0
        assert output_is_correct(name)
        assert ndtool("inspect", name).status == 0
    assert ndtool(*RUN, "-o", "d/x.npz:y/o.npz:m/n").status == 0
    assert np.load("d/x.npz:y/o.npz").files == ["m/n"]
    assert (workdir / "d/x.npz").read_bytes() == before
    assert ndtool(*RUN, "-o", "d/x.npz:v/o.npy").status == 0  # without such a folder it is a member
    assert np.load("d/x.npz").files == ["a", "v/o"]


def test_closed_pipes_are_silent_and_full_ones_are_reported():
    save(data=np.zeros((4, 10**6)))
    for command in ("gather-nd data.npy idx.npy -o -", "gather-nd data.npy idx.npy", "spec --json"):
        script = f'"$@" {command} | true; echo "${{PIPESTATUS[0]}}"'
        status, out, err, _ = shell(script)
        assert (status, err) == (0, "")
        assert out in ((b"141\n", b"0\n") if "spec" in command else (b"141\n",))
    assert shell('"$@" gather-nd data.npy idx.npy > /dev/full')[:3:2] == (
        7,
        "error: standard output: No space left on device\n",
    )


def test_closed_and_full_streams_give_the_documented_status(workdir):
    command = '"$@" gather-nd data.npy idx.npy'
    for script, expected in (
        (f"{command} -o out.npy >&-", 0),
        (f"{command} -o out.npy 2>&-", 0),
        (f"{command} -o out.npy <&- >&- 2>&-", 0),
        (f"{command} -o out.npy --trace 2>/dev/full", 0),
        (f"{command} >&-", 7),
        (f"{command} --json -o out.npy >/dev/full", 7),
        (f"{command} --json -o out.npy >&-", 7),
        ('"$@" --help >/dev/full', 7),
        (f"{command} -o /dev/stdout >&-", 7),
        (f"{command} -o /dev/fd/1 >&-", 7),
        (f"{command} -o /proc/self/fd/1 --dry-run >&-", 7),
        (f"{command} -o /dev/stderr 2>&-", 7),
        (f"{command} -o /dev/stdin <&-", 7),
        (f"{command} -o /dev/null <&- >&- 2>&-", 0),
        ('"$@" gather-nd /dev/stdin idx.npy -o /dev/null <&-', 3),
        ('"$@" gather-nd - idx.npy -o /dev/null <&-', 3),
        ('"$@" --version >&-', 7),
        ('"$@" gather-nd --help >/dev/full', 7),
        ('"$@" spec >/dev/full', 7),
        ('"$@" inspect data.npy >&-', 7),
        ('"$@" infer gather-nd "int8[3]" "int8[1,1]" >/dev/full', 7),
        (f"{command} --batch-dims 9 2>/dev/full", 4),
        (f"{command} --batch-dims 9 2>&-", 4),
        ('"$@" gather-nd - idx.npy -o out.npy <&-', 3),
    ):
        status, _, err, _ = shell(script)
        assert status == expected, script
        assert not re.search("Traceback|Exception|Bad file", err)
        if "out.npy" in script and status == 0:
            assert output_is_correct()
            os.unlink("out.npy")
    assert sorted(p.name for p in workdir.iterdir()) == ["data.npy", "idx.npy", "out.npy"]


UNUSUAL_NAMES = [
    "[red]",
    "[bold]x",
    "\x1b[31mred",
    "two\nlines",
    "tab\t",
    "sp ace",
    "ünï",
    b"\xff",
    "a" * 250,
]


@pytest.mark.parametrize("name", UNUSUAL_NAMES)
def test_unusual_names_are_accepted_and_escaped_in_messages(name):
    raw = os.fsencode(name)
    os.rename("data.npy", raw)
    os.rename("idx.npy", raw + b".i")
    text = os.fsdecode(raw)
    completed = ndtool("gather-nd", text, text + ".i", "-o", text + ".npy", "--trace")
    assert completed.status == 0
    assert output_is_correct(text + ".npy")
    np.save("idx.npy", IDX + 9)
    for env in ({}, {"FORCE_COLOR": "1"}):
        completed = ndtool("gather-nd", text, "idx.npy", "-o", text + ".npy", env=env)
        assert completed.status == 5
        assert "\x1b[31mred" not in completed.err
        lines = completed.err.replace("\x1b[1;31m", "").splitlines()
        assert len(lines) == 3
        escaped = {"\x1b[31mred": "\\x1b[31mred", "two\nlines": "two\\nlines", "tab\t": "tab\\t"}
        if isinstance(name, str) and len(name) < 100:
            assert escaped.get(name, name) in completed.err
        report = ndtool("gather-nd", text, "idx.npy", "--json", env=env)
        assert json.loads(report.err)["status"] == 5
    assert ndtool("inspect", text).status == 0
    assert json.loads(ndtool("inspect", text, "--json").out)["arrays"][0]["name"] == text
    assert output_is_correct(text + ".npy")


@pytest.mark.parametrize(
    "env",
    [
        {"TERM": None},
        {"COLUMNS": "x"},
        {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"NO_COLOR": "1", "FORCE_COLOR": "1"},
        {"FORCE_COLOR": "1", "COLUMNS": "1", "PYTHONIOENCODING": "ascii"},
        {"HOME": None, "PATH": "/nowhere", "TMPDIR": "/nowhere"},
        {"PYTHONWARNINGS": "error"},
    ],
    ids=lambda env: "-".join(f"{k}={v}" for k, v in env.items()),
)
def test_unusual_environments_do_not_change_the_results(env):
    os.rename("data.npy", "dätä.npy")
    arguments = ("gather-nd", "dätä.npy", "idx.npy", "-o", "out.npy")
    assert ndtool(*arguments, "--trace", env=env).status == 0
    assert output_is_correct()
    completed = ndtool(*arguments, "--batch-dims", "2", "--trace", env=env)
    assert completed.status == 4
    assert "error" in completed.err
    assert "Traceback" not in completed.err
    assert ("\x1b" in completed.err) == ("FORCE_COLOR" in env)
    completed = ndtool("inspect", "dätä.npy", env=env)
    assert completed.status == 0
    assert completed.out


def start_waiting(*arguments, **options):
    """Start a run that reads an array from standard input; return it, and the array's last bytes."""
    content = npy(np.pad(DATA, ((0, 50_000), (0, 0))))
    process = start(*arguments, **options)
    # more than a pipe holds: written when most of it is read
    process.stdin.write(content[:-4])
    process.stdin.flush()
    return process, content[-4:]


@pytest.mark.parametrize(
    ("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signals_end_a_run_silently(signum, status, workdir):
    before = snapshot(workdir)
    process, _ = start_waiting("gather-nd", "-", "idx.npy", "-o", "out.npy")
    process.send_signal(signum)
    out, err = process.communicate()
    assert (process.returncode, out, err) == (status, b"", b"")
    assert snapshot(workdir) == before


EARLY_SIGNAL = """
import os, signal, sys
from ndtool import __main__
__main__._install_signal_handlers = lambda: os.kill(os.getpid(), signal.SIGINT)
sys.exit(__main__.main())
"""


def test_an_interrupt_before_handlers_are_installed_is_silent():
    completed = python(EARLY_SIGNAL)
    assert (completed.status, completed.out, completed.err) == (130, b"", "")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGHUP])
def test_signals_that_a_parent_ignores_stay_ignored(signum):
    ignore = {"preexec_fn": lambda: signal.signal(signum, signal.SIG_IGN)}
    process, remaining = start_waiting("gather-nd", "-", "idx.npy", "-o", "out.npy", **ignore)
    process.send_signal(signum)
    _, err = process.communicate(remaining)
    assert (process.returncode, err) == (0, b"")
    assert output_is_correct()


FAILING_PROGRAM = """
import sys
from ndtool.runs import steps
def fail(*_):
    raise {error}
steps.resolve_output = fail
sys.argv[1:] = {arguments}
from ndtool.__main__ import main
sys.exit(main())
"""


def run_with_error(error, *arguments):
    completed = python(
        FAILING_PROGRAM.format(error=error, arguments=[*RUN, "-o", "out.npy", *arguments])
    )
    return completed.status, completed.out, completed.err


def test_an_unexpected_error_asks_for_a_report():
    status, out, err = run_with_error("RuntimeError('surprise')")
    assert (status, out) == (1, b"")
    assert "Traceback" in err
    assert "RuntimeError: surprise" in err
    assert "please report it with the command" in err
    status, out, err = run_with_error("RuntimeError('surprise')", "--json")
    assert (status, json.loads(out)["status"], err) == (1, 1, "")


EXIT_PROGRAM = """
import atexit, sys
class Late:
    def __del__(self):
        print("finalized")
late = Late()
atexit.register(print, "at exit")
sys.argv[1:] = {arguments}
from ndtool.__main__ import program
program()
"""


@pytest.mark.parametrize(("argument", "status"), [("--version", 0), ("--nonsense", 2)])
def test_the_process_exits_without_finalizing_the_interpreter(argument, status):
    """Functions of atexit run and buffers are flushed; the interpreter is not finalized."""
    completed = python(EXIT_PROGRAM.format(arguments=[argument]))
    assert completed.status == status
    assert completed.out.endswith(b"at exit\n")
    assert (b"ndtool" in completed.out) == (status == 0)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_output_lost_at_exit_gives_status_120():
    """Python reports it by exit status 120."""
    lost = "import os\nos.dup2(os.open('/dev/full', os.O_WRONLY), 1)\nprint('lost')"
    program = lost + EXIT_PROGRAM.format(arguments=["--nonsense"])
    assert python(program, env={"PYTHONUNBUFFERED": None}).status == 120


def test_memory_errors_and_interrupts_give_their_status():
    status, out, err = run_with_error("MemoryError")
    assert (status, out) == (6, b"")
    assert err.startswith("error: not enough memory\n")
    assert run_with_error("KeyboardInterrupt") == (130, b"", "")
    assert run_with_error("BrokenPipeError") == (141, b"", "")
    assert not os.path.exists("out.npy")
