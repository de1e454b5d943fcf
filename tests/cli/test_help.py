"""Help pages, their examples and imports at startup."""

import os
import re
import shlex
import shutil
import subprocess
import sys

import click
import numpy as np
import pytest
from command import FIXTURES, NDTOOL, environment, ndtool, run_in_terminal
from commandlines import run_commands

from ndtool.cli import program as command_line

OPERATORS = (
    "gather-nd", "scatter-nd", "gather-elements", "scatter-elements", "gather", "scatter",
)  # fmt: skip
GROUPS = ("infer", "explain", "stats", "verify")
COMMANDS = [
    *OPERATORS, "convert", "inspect", "model", "spec", *GROUPS,
    *(f"{group} {name}" for group in GROUPS for name in OPERATORS),
]  # fmt: skip
EXAMPLE = "    ndtool "  # prefix of example lines, which are not wrapped
FOLDERS = {
    "gather-nd": "onnx-gather-nd-5",
    "scatter-nd": "onnx-scatter-nd-add",
    "gather-elements": "onnx-gather-elements-1",
    "scatter-elements": "onnx-scatter-elements-2",
    "gather": "onnx-gather-1",
    "scatter": "openvino-scatter-update-2",
}


@pytest.fixture(scope="module")
def pages():
    """Return the help of each command."""
    commands = ["", *COMMANDS]
    reports = run_commands(((*command.split(), "-h"), {}) for command in commands)
    assert {status for status, _ in reports} == {0}
    return dict(zip(commands, (text for _, text in reports), strict=True))


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_of_every_command(pages, command):
    text = pages[command]
    assert text.isascii()
    assert text.startswith(f"Usage: ndtool {command}".rstrip())
    assert max(map(len, text.splitlines())) <= 80


def help_words(command, path, width):
    """Yield the path and the sorted words of the help of a command and its subcommands."""
    context = click.Context(command, info_name=path, terminal_width=width)
    yield path, sorted(command.get_help(context).split())
    for name, make in getattr(command, "factories", {}).items():
        yield from help_words(make(), f"{path} {name}", width)


def test_no_width_breaks_a_word_of_the_help():
    program = command_line.program()
    unwrapped = dict(help_words(program, "ndtool", 500))
    for width in range(60, 121, 7):
        for path, words in help_words(program, "ndtool", width):
            assert words == unwrapped[path], (path, width)


@pytest.mark.parametrize(
    ("columns", "env", "min_width", "max_width"),
    [
        (300, {}, 110, 120),
        (0, {}, 70, 80),
        (70, {"TERM": "dumb"}, 61, 70),
        (70, {"COLUMNS": "100"}, 90, 100),
        (70, {"COLUMNS": "wide"}, 61, 70),
    ],
)
def test_help_is_as_wide_as_the_terminal(columns, env, min_width, max_width):
    completed = run_in_terminal(*NDTOOL, "scatter-nd", "--help", columns=columns, env=env)
    assert completed.status == 0
    lines = [line for line in completed.screen.splitlines() if not line.startswith(EXAMPLE)]
    assert min_width <= max(map(len, lines)) <= max_width


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in GROUPS])
def test_example_in_the_help_runs(pages, command, workdir):
    page = pages[command]
    (example,) = (line for line in page.splitlines() if line.startswith(EXAMPLE))
    name = command.split()[-1]
    folder = FIXTURES / FOLDERS.get(name, FOLDERS["gather-nd"])
    for role, abbreviation in (
        ("data",) * 2,
        ("indices", "idx"),
        ("updates", "upd"),
        ("output", "out"),
    ):
        if (folder / f"{role}.npy").exists():
            shutil.copy(folder / f"{role}.npy", f"{abbreviation}.npy")
    shutil.copy(FIXTURES / "stored.npz", workdir)
    if command == "model":
        helper = pytest.importorskip("onnx.helper")
        graph = helper.make_graph([helper.make_node("Gather", ["x", "i"], ["o"])], "g", [], [])
        (workdir / "model.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    expected = np.load("out.npy")
    completed = ndtool(*shlex.split(example)[1:])
    assert (completed.status, completed.err) == (0, "")
    if command in OPERATORS:
        assert "-o out.npy" in page
        result = np.load("out.npy")
        assert (result.dtype, result.tolist()) == (expected.dtype, expected.tolist())


def leaf_commands(group):
    """Yield a group's commands, and those of its subgroups."""
    for make in group.factories.values():
        command = make()
        if isinstance(command, click.Group):
            yield from leaf_commands(command)
        else:
            yield command


def test_every_option_has_its_variable():
    options = {
        (max(param.opts, key=len), param.envvar)
        for command in leaf_commands(command_line.program())
        for param in command.params
        if isinstance(param, click.Option) and "--help" not in param.opts
    }
    assert len(options) > 30
    for flag, variable in options:
        assert variable == "NDTOOL_" + flag.removeprefix("--").upper().replace("-", "_")
    assert "NDTOOL_JSON for --json" in ndtool("gather-nd", "-h").out.decode()


@pytest.mark.parametrize("command", OPERATORS)
def test_common_options_are_on_the_first_screen(pages, command):
    """24 lines have the usage, an example, arguments, attributes, output and common options."""
    page = pages[command]
    first = "\n".join(page.splitlines()[:24])
    for text in ("Usage:", "Example:", "Arguments:", "--output", "--out-of-bounds", "--dry-run"):
        assert text in first
    options_in_help = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", page, re.MULTILINE)
    options = {
        max(param.opts, key=len) for param in command_line.program().factories[command]().params
    }
    assert sorted(options_in_help) == sorted(name for name in options if name.startswith("--"))


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (("gather_nd", "a", "b"), "gather-nd"),
        (("ScatterND", "a", "b", "c"), "scatter-nd"),
        (("verify", "gather_elements"), "gather-elements"),
    ],
)
def test_other_spellings_are_refused_with_a_suggestion(arguments, suggestion):
    completed = ndtool(*arguments)
    assert (completed.status, completed.out) == (2, b"")
    assert f"did you mean '{suggestion}'?\n" in completed.err


def imported_modules(*arguments):
    """Return the modules that a run imports."""
    command = [sys.executable, "-X", "importtime", *NDTOOL[1:], *map(str, arguments)]
    completed = subprocess.run(command, capture_output=True, env=environment(), check=True)
    lines = re.findall(rb"^import time:[^|]*\|[^|]*\| *(\S+)$", completed.stderr, re.MULTILINE)
    return {line.decode() for line in lines}


HEAVY = {
    "numpy", "rich", "ml_dtypes", "json", "zipfile", "zlib", "tempfile", "subprocess", "shutil",
    "asyncio", "importlib.metadata", "traceback", "ndtool.inmemory.ops", "ndtool.analysis.oracle.reference",
}  # fmt: skip


@pytest.mark.usefixtures("without_coverage")
def test_help_imports_few_modules():
    modules = imported_modules("--help")
    assert "ndtool.cli.commands" in modules
    assert not modules & (
        HEAVY | {"ndtool.runs.steps", "ndtool._kernels", "ndtool.formats.locators"}
    )


@pytest.mark.usefixtures("without_coverage")
def test_a_run_between_files_imports_few_modules(tmp_path):
    for name, folder in FOLDERS.items():
        files = [FIXTURES / folder / f"{role}.npy" for role in ("data", "indices", "updates")]
        inputs = [path for path in files if path.exists()]
        flags = ("--axis", "1") if "elements" in name or name == "scatter" else ()
        modules = imported_modules(name, *inputs, *flags, "-o", tmp_path / "out.npy")
        assert "ndtool._kernels" in modules
        assert not modules & (
            HEAVY | {"ndtool.cli.styled", "ndtool.analysis.values", "ndtool.analysis.infer"}
        )


def test_runs_as_a_module_and_as_a_command(tmp_path):
    scripts = os.path.dirname(sys.executable)
    command = shutil.which("ndtool", path=scripts)
    if command is None:
        pytest.skip("the command is not installed in the folder of this Python")
    out = subprocess.check_output([command, "--version"], env=environment())
    assert out == ndtool("--version").out


def test_every_option_is_documented():
    document = FIXTURES.parent / "docs" / "cli.md"
    if not document.exists():
        pytest.skip("the documents are missing")
    text = document.read_text("utf-8")
    for command in COMMANDS:
        page = ndtool(*command.split(), "-h").out.decode()
        names = re.findall(r"--[a-z-]+|NDTOOL_[A-Z_]+", page)
        assert len(names) >= 1
        for name in names:
            assert name == "--help" or f"`{name}" in text or f", {name} " in text, name
