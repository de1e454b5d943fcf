"""Output on a terminal: traces, previews, progress, colours; without a terminal, none of these."""

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from command import NDTOOL, ndtool, run_in_terminal, save, snapshot
from npyfile import npy_with_header

DATA = np.arange(12, dtype="f4").reshape(4, 3)
IDX = np.array([[3], [0]])
RUN = (*NDTOOL, "gather-nd", "data.npy", "idx.npy")
DUMB_TERMINAL = {"TERM": "dumb"}
WRITTEN_MESSAGE = r"wrote out.npy: float32\[2,3\], 24 bytes in [0-9.]+ (us|ms|s), [0-9]+ threads?\n"


@pytest.fixture(autouse=True)
def files(workdir: Path) -> None:
    save(data=DATA, idx=IDX)


def strip_escapes(screen):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen)


def test_a_terminal_shows_the_trace_and_the_written_file():
    completed = run_in_terminal(*RUN, "-o", "out.npy", "--trace")
    assert completed.status == 0
    lines = strip_escapes(completed.screen).splitlines()
    assert lines[0] == "gather_nd: data float32[4,3], indices int64[2,1], batch_dims 0"
    assert lines[1].split() == ["rule", "with", "result"]
    assert re.fullmatch(WRITTEN_MESSAGE, lines[-1] + "\n")
    assert max(map(len, lines)) <= 80
    assert "\x1b[32mok" in completed.screen
    assert strip_escapes(run_in_terminal(*RUN, "-o", "out.npy", "-q").screen) == ""
    without_trace = run_in_terminal(*RUN, "-o", "out.npy", "--no-trace")
    assert re.fullmatch(WRITTEN_MESSAGE, without_trace.screen)
    dry_run = run_in_terminal(*RUN, "-o", "new.npy", "--no-trace", "--dry-run")
    message, *plan = dry_run.screen.splitlines()
    assert message == "dry run: float32[2,3], 24 bytes; nothing was written"
    assert plan[0].startswith("plan: direct; 40 bytes read, 24 bytes written")
    assert not os.path.exists("new.npy")


@pytest.mark.parametrize(("columns", "max_lines"), [(20, 4), (80, 4), (200, 3)])
def test_the_summary_fits_in_a_few_lines(columns, max_lines):
    save(upd=np.ones((2, 3), "f4"))
    scatter = (*NDTOOL, "scatter-nd", "data.npy", "idx.npy", "upd.npy", "--reduction", "add")
    for command in (RUN, scatter, (*NDTOOL, "gather", "data.npy", "idx.npy")):
        summary = strip_escapes(run_in_terminal(*command, columns=columns, stdout=False).screen)
        assert 0 < summary.count("\n") <= max_lines
        assert max(map(len, summary.splitlines())) <= columns
        assert summary.startswith(command[len(NDTOOL)].replace("-", "_") + ":")
        assert "output" in summary
        assert run_in_terminal(*command, "--no-trace", columns=columns, stdout=False).screen == ""
    lines = strip_escapes(run_in_terminal(*RUN, stdout=False).screen).splitlines()
    assert lines == [
        "gather_nd: data float32[4,3], indices int64[2,1], batch_dims 0",
        "output.shape = indices.shape[:-1] + data.shape[b+k:] = [2] + [3]",
        "output float32[2,3], 24 bytes",
    ]


def test_verbose_prints_the_plan():
    command = ("gather-nd", "data.npy", "[[3], [0]]", "-o", "out.npy", "-v", "--threads", "2")
    assert ndtool(*command).err == (
        re.search("plan: direct; .*\n", ndtool(*command).err)[0]
        + "executor: 1 of 2 threads, at most one for each MiB of output\n"
    )
    assert ndtool(*command[:-3], "--verbose", "--dry-run").err.count("plan: ") == 1
    assert ndtool(*command, "-q").err == ""
    assert json.loads(ndtool(*command, "--json").out)["plan"]["way"] == "direct"


def test_a_preview_is_printed_without_an_output(workdir):
    before = snapshot(workdir)
    completed = run_in_terminal(*RUN, "-q")
    assert completed.status == 0
    assert completed.screen == "float32[2,3]\n[[ 9. 10. 11.]\n [ 0.  1.  2.]]\n"
    assert snapshot(workdir) == before


@pytest.mark.parametrize(
    ("array", "preview"),
    [
        (np.array(["[red]\x1b[31m"]), "[['[red]\\x1b[31m']"),
        (np.zeros(1, "V1000"), "elements of 1000 bytes are not shown"),
        (np.array(1.5), "float64[2]\n[1.5 1.5]"),
    ],
    ids=lambda value: str(getattr(value, "dtype", "")),
)
def test_previews_show_every_kind_of_array(array, preview):
    save(data=array[np.newaxis], idx=np.array([[0], [0]]))
    completed = run_in_terminal(*RUN, "-q")
    assert completed.status == 0
    assert preview in completed.screen
    assert len(completed.screen) < 10_000
    assert "\x1b[31m" not in completed.screen


def test_a_type_of_other_machines_is_copied_but_not_printed():
    header = "{'descr': '<f12', 'fortran_order': False, 'shape': (2,)}".ljust(117) + "\n"
    Path("data.npy").write_bytes(npy_with_header(header, b"a" * 12 + b"b" * 12))
    save(idx=np.array([[1]]))
    completed = run_in_terminal(*RUN, "-q")
    assert completed.status == 2
    assert "float96 is not one of NumPy's types on this machine" in completed.screen
    assert "Traceback" not in completed.screen
    assert run_in_terminal(*RUN, "-q", "-o", "out.npy").status == 0
    with open("out.npy", "rb") as file:
        assert file.read().endswith(b"\n" + b"b" * 12)
    verified = run_in_terminal(*NDTOOL, "verify", "gather-nd", "data.npy", "idx.npy", "out.npy")
    assert verified.status == 2
    assert "float96 is not" in verified.screen


def test_data_go_to_a_pipe_and_messages_to_the_terminal():
    completed = run_in_terminal(*RUN, stdout=False)
    assert completed.out.startswith(b"\x93NUMPY")
    assert "output.shape = indices.shape[:-1]" in completed.screen
    assert "wrote" not in completed.screen
    quiet = run_in_terminal(*RUN, stderr=False)
    assert quiet.err == ""
    assert quiet.screen.startswith("float32[2,3]\n")


def test_binary_data_are_not_read_from_or_written_to_a_terminal():
    completed = run_in_terminal(*RUN, "-o", "-")
    assert completed.status == 2
    assert "standard output is a terminal" in completed.screen
    completed = run_in_terminal(*NDTOOL, "gather-nd", "-", "idx.npy", "-o", "out.npy")
    assert completed.status == 2
    assert "standard input: it is a terminal" in completed.screen


def test_json_replaces_other_output():
    completed = run_in_terminal(*RUN, "-o", "out.npy", "--json")
    assert completed.screen.startswith('{"version": ')
    assert completed.screen.count("\n") == 1
    assert run_in_terminal(*RUN, "--json").screen.count("\n") == 1
    completed = run_in_terminal(*RUN, "--json", "--batch-dims", "7")
    assert completed.screen.startswith('{"error": "RuleError"')


def test_a_broken_rule_is_shown_in_its_trace():
    completed = run_in_terminal(*RUN, "--batch-dims", "2")
    assert completed.status == 4
    assert "\x1b[1;31mbroken" in completed.screen
    assert "\x1b[1;31merror: " in completed.screen
    screen = strip_escapes(completed.screen)
    assert screen.index("0 <= 2 < min(2, 2)") < screen.index("error: batch_dims is 2")
    assert "broken" not in run_in_terminal(*RUN, "--batch-dims", "2", "-q").screen


@pytest.mark.parametrize(
    "env", [{"TERM": "dumb"}, {"NO_COLOR": "1"}, {"TERM": "dumb", "FORCE_COLOR": "1"}], ids=str
)
def test_colours_are_disabled_by_the_environment(env):
    for options in (("-o", "out.npy"), ("--batch-dims", "2")):
        completed = run_in_terminal(*RUN, *options, env=env)
        assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", completed.screen)
    assert "\x1b" not in run_in_terminal(*RUN, "--batch-dims", "2", env=DUMB_TERMINAL).screen


@pytest.mark.parametrize("columns", [30, 80])
def test_tables_do_not_break_names(columns):
    os.rename("data.npy", "a-rather-long-name-of-an-array.npy")
    infer = ("infer", "gather-nd", "float32[8,128,64,1000000]", "int64[8,5,3]", "--batch-dims", "1")
    for arguments in (("spec",), ("inspect", "a-rather-long-name-of-an-array.npy"), infer):
        screen = strip_escapes(run_in_terminal(*NDTOOL, *arguments, columns=columns).screen)
        plain = run_in_terminal(*NDTOOL, *arguments, stdout=False).out.decode()
        assert sorted(re.sub("─+", "", screen).split()) == sorted(plain.split())
        longest = max(map(len, plain.split()))
        if columns >= 80 and longest < 30:
            assert max(map(len, screen.splitlines())) <= columns


OUT_OF_BOUNDS = np.array([[3], [-4], [4_294_967_295], [3]])
COMMANDS = {
    "trace": ("gather-nd", "data.npy", "idx.npy", "-o", "out.npy", "--trace"),
    "details": ("gather-nd", "data.npy", "idx.npy", "-o", "out.npy", "--no-trace", "-v"),
    "plan": ("gather-nd", "data.npy", "idx.npy", "--dry-run", "--no-trace"),
    "error": ("gather-nd", "data.npy", "far.npy", "--no-trace"),
    "warning": ("gather-nd", "data.npy", "far.npy", "--no-trace", "--out-of-bounds", "clip"),
    "explanation": (
        *("explain", "gather-nd", "data.npy", "far.npy", "--out-of-bounds", "clip"),
        *("--at", "2,0", "--from", "3,1"),
    ),
    "statistics": ("stats", "gather-nd", "data.npy", "far.npy"),
    "assumption": ("infer", "gather-nd", "f4[batches,64]", "i4[groups,5,1]", "--batch-dims", "1"),
}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_lines_are_folded_at_spaces(arguments):
    save(far=OUT_OF_BOUNDS)
    screen = strip_escapes(run_in_terminal(*NDTOOL, *arguments, columns=72).screen)
    assert max(map(len, screen.splitlines())) <= 72
    narrow = strip_escapes(run_in_terminal(*NDTOOL, *arguments, env={"COLUMNS": "60"}).screen)
    assert max(map(len, narrow.splitlines())) <= 60
    unfolded = run_in_terminal(*NDTOOL, *arguments, columns=1000).screen
    ignored = r"[━─]+|[0-9.]+ (us|ms)"  # bars, rules, duration
    assert sorted(re.sub(ignored, "", screen).split()) == sorted(
        re.sub(ignored, "", strip_escapes(unfolded)).split()
    )


SLOW_PROGRESS_SCRIPT = """
import itertools, sys, types
from ndtool.cli import console
from ndtool.cli.reporter import Reporter
calls = itertools.count()
console.time = types.SimpleNamespace(perf_counter=lambda: 0.6 * next(calls))
reporter = Reporter()
with reporter.progress() as progress:
    progress.begin("sweep")
    report = progress.callback(4_000_000_000)
    for i in range(4):
        report(i / 4)
        assert ("rich" in sys.modules) == (i > 0)
console.write_stderr("end")
"""


def test_a_progress_bar_appears_late_and_is_erased():
    completed = run_in_terminal(sys.executable, "-c", SLOW_PROGRESS_SCRIPT)
    assert completed.status == 0, completed.screen
    assert " 25% sweep, 1 GB of 4 GB, 1.67 GB/s, 2 s left" in strip_escapes(completed.screen)
    assert completed.screen.endswith("\r\x1b[Kend")
    dumb = run_in_terminal(
        sys.executable, "-c", SLOW_PROGRESS_SCRIPT.replace("(i > 0)", "False"), env=DUMB_TERMINAL
    )
    assert (dumb.status, dumb.screen) == (0, "end")
    redirected = run_in_terminal(
        sys.executable, "-c", SLOW_PROGRESS_SCRIPT.replace("(i > 0)", "False"), stderr=False
    )
    assert (redirected.status, redirected.err) == (0, "end")


@pytest.mark.parametrize("columns", [20, 80])
def test_a_progress_bar_is_one_line(columns):
    screen = strip_escapes(
        run_in_terminal(sys.executable, "-c", SLOW_PROGRESS_SCRIPT, columns=columns).screen
    )
    lines = screen.removesuffix("\r\x1b[Kend").split("\r")
    assert len(lines) > 2
    assert all(len(line.removesuffix("\x1b[K").rstrip()) <= columns for line in lines)
    assert "\n" not in screen
