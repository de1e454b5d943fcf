"""Help pages, their examples, imports at startup, and completion."""

import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time

import click
import numpy as np
import pytest
from command import FIXTURES, NDTOOL, environment, ndtool, run_in_terminal

from ndtool.cli import program as command_line

OPERATORS = (
    "gather-nd", "scatter-nd", "gather-elements", "scatter-elements", "gather", "scatter",
)  # fmt: skip
COMMANDS = [
    *OPERATORS,
    "convert",
    "infer",
    "explain",
    "stats",
    "inspect",
    "model",
    "spec",
    "verify",
    *(f"infer {name}" for name in OPERATORS),
    *(f"explain {name}" for name in OPERATORS),
    *(f"stats {name}" for name in OPERATORS),
    *(f"verify {name}" for name in OPERATORS),
]
GROUPS = ("infer", "explain", "stats", "verify")
EXAMPLE = "    ndtool "  # prefix of example lines, which are not wrapped
FOLDERS = {
    "gather-nd": "onnx-gather-nd-5",
    "scatter-nd": "onnx-scatter-nd-max",
    "gather-elements": "onnx-gather-elements-1",
    "scatter-elements": "onnx-scatter-elements-2",
    "gather": "onnx-gather-1",
    "scatter": "openvino-scatter-update-2",
}


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_of_every_command(command):
    outputs = [ndtool(*command.split(), flag) for flag in ("-h", "--help")]
    assert outputs[0] == outputs[1]
    assert (outputs[0].status, outputs[0].err) == (0, "")
    text = outputs[0].out.decode("ascii")
    assert text.startswith(f"Usage: ndtool {command}".rstrip())
    assert max(map(len, text.splitlines())) <= 80


def help_words(command, path, width):
    """Yield the path and the sorted words of the help of a command and its subcommands."""
    context = click.Context(command, info_name=path, terminal_width=width)
    yield path, sorted(command.get_help(context).split())
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from help_words(subcommand, f"{path} {name}", width)


def test_no_width_breaks_a_word_of_the_help():
    program = command_line.program()
    unwrapped = dict(help_words(program, "ndtool", 500))
    for width in range(60, 121):
        for path, words in help_words(program, "ndtool", width):
            assert words == unwrapped[path], (path, width)


@pytest.mark.parametrize(
    ("columns", "env", "min_width", "max_width"),
    [
        (100, {}, 90, 100),
        (300, {}, 110, 120),
        (20, {}, 50, 60),
        (0, {}, 70, 80),
        (70, {"TERM": "dumb"}, 61, 70),
        (70, {"COLUMNS": "100"}, 90, 100),
        (70, {"COLUMNS": "wide"}, 61, 70),
        (70, {"COLUMNS": ""}, 61, 70),
    ],
)
def test_help_is_as_wide_as_the_terminal(columns, env, min_width, max_width):
    completed = run_in_terminal(*NDTOOL, "scatter-nd", "--help", columns=columns, env=env)
    assert completed.status == 0
    lines = [line for line in completed.screen.splitlines() if not line.startswith(EXAMPLE)]
    assert min_width <= max(map(len, lines)) <= max_width


def test_help_without_a_terminal_has_a_fixed_width():
    assert ndtool("-h", env={"COLUMNS": "120"}) == ndtool("-h")


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in GROUPS])
def test_example_in_the_help_runs(command, tmp_path):
    page = ndtool(*command.split(), "-h").out.decode()
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
            shutil.copy(folder / f"{role}.npy", tmp_path / f"{abbreviation}.npy")
    shutil.copy(FIXTURES / "stored.npz", tmp_path)
    if command == "model":
        helper = pytest.importorskip("onnx.helper")
        graph = helper.make_graph([helper.make_node("Gather", ["x", "i"], ["o"])], "g", [], [])
        (tmp_path / "model.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    expected = np.load(tmp_path / "out.npy")
    completed = ndtool(*shlex.split(example)[1:], cwd=tmp_path)
    assert (completed.status, completed.err) == (0, "")
    if command in OPERATORS:
        assert "-o out.npy" in page
        result = np.load(tmp_path / "out.npy")
        assert (result.dtype, result.tolist()) == (expected.dtype, expected.tolist())


def leaf_commands(group):
    """Yield a group's commands, and those of its subgroups."""
    for command in group.commands.values():
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
def test_common_options_are_on_the_first_screen(command):
    """24 lines have the usage, an example, arguments, attributes, output and common options."""
    page = ndtool(command, "-h").out.decode()
    first = "\n".join(page.splitlines()[:24])
    for expected_text in (
        "Usage:",
        "Example:",
        "Arguments:",
        "--output",
        "--out-of-bounds",
        "--dry-run",
    ):
        assert expected_text in first
    options_in_help = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", page, re.MULTILINE)
    options = {
        max(param.opts, key=len) for param in command_line.program().commands[command].params
    }
    assert sorted(options_in_help) == sorted(name for name in options if name.startswith("--"))


def test_no_arguments_show_the_help():
    assert ndtool() == ndtool("--help")


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


def test_version():
    import ndtool as package

    completed = ndtool("--version")
    assert (completed.status, completed.out.decode()) == (0, f"ndtool {package.__version__}\n")


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


def complete(typed, shell="bash", current_word=None, cwd=None):
    env = {
        "COMP_WORDS": typed,
        "COMP_CWORD": str(typed.count(" ") if current_word is None else current_word),
    }
    completed = ndtool(env={"_NDTOOL_COMPLETE": f"{shell}_complete", **env}, cwd=cwd)
    assert (completed.status, completed.err) == (0, "")
    return completed.out.decode().split()


def test_completion_of_commands_and_options():
    gathers = ["plain,gather-nd", "plain,gather-elements", "plain,gather"]
    assert complete("ndtool gather") == gathers
    assert "plain,--batch-dims" in complete("ndtool gather-nd --b")
    reductions = complete("ndtool scatter-nd a b c --reduction m")
    assert reductions == ["plain,mul", "plain,max", "plain,min", "plain,mean"]
    assert complete("ndtool spec scatter") == [
        "plain,scatter-nd", "plain,scatter-elements", "plain,scatter",
    ]  # fmt: skip
    assert complete("") == complete("ndtool ")
    assert complete("ndtool 'gather") == complete("ndtool gather")
    assert "plain,--axis" in complete("ndtool gather-elements --threads x --a")
    assert "plain,bfloat16" in complete("ndtool gather-nd --dtype bf")
    assert "plain,openvino:15" in complete("ndtool gather-nd --spec op")
    assert "plain,18" in complete("ndtool gather-nd --spec onnx : 1", current_word=5)
    assert "plain,16" in complete("ndtool gather-nd --spec onnx :", current_word=4)


@pytest.fixture
def arrays(tmp_path):
    """Create a folder of arrays and other files."""
    np.save(tmp_path / "data.npy", np.arange(3))
    np.save(tmp_path / ".hidden.npy", np.arange(3))
    np.savez(tmp_path / "many.npz", first=np.arange(2), found=np.arange(2), other=np.arange(2))
    (tmp_path / "datasheet.pdf").write_text("no array")
    (tmp_path / "dates").mkdir()
    return tmp_path


def test_completion_of_files_that_can_be_arrays(arrays):
    assert complete("ndtool gather-nd da", cwd=arrays) == ["path,data.npy", "path,dates/"]
    assert complete("ndtool gather-nd a b -o da", cwd=arrays) == ["path,data.npy", "path,dates/"]
    assert complete("ndtool gather-nd .h", cwd=arrays) == ["path,.hidden.npy"]
    assert complete("ndtool gather-nd nowhere/x", cwd=arrays) == []


def test_completion_of_members(arrays):
    members = ["many.npz:first", "many.npz:found"]
    typed = "ndtool gather-nd many.npz:f"
    assert complete(typed, "zsh", cwd=arrays) == members
    assert complete(typed, "fish", current_word="many.npz:f", cwd=arrays) == members
    # bash splits words at colons by default
    assert complete("ndtool gather-nd many.npz : f", current_word=4, cwd=arrays) == [
        "plain,first", "plain,found",
    ]  # fmt: skip
    assert complete("ndtool gather-nd many.npz :", current_word=3, cwd=arrays) == [
        "plain,first", "plain,found", "plain,other",
    ]  # fmt: skip
    assert complete("ndtool gather-nd many.npz:f", cwd=arrays) == [f"plain,{m}" for m in members]
    assert len(complete("ndtool gather-nd many.npz", cwd=arrays)) == 4


def install_completion(shell, folder):
    """Write our command and its completion to a folder; return the shell's path."""
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    (folder / "two words.npy").write_bytes((folder / "data.npy").read_bytes())
    command = folder / "ndtool"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m ndtool "$@"\n')
    command.chmod(0o755)
    source = ndtool(env={"_NDTOOL_COMPLETE": f"{shell}_source"}).out
    (folder / "source").write_bytes(source)
    return path


def shell_environment(folder):
    return environment(PATH=f"{folder}:{os.environ['PATH']}", HOME=str(folder), TERM="dumb")


def test_fish_completes_words(arrays):
    fish = install_completion("fish", arrays)
    (arrays / "a,b.npy").write_bytes((arrays / "data.npy").read_bytes())
    script = "source source\n"
    for typed in ("tw", "many.npz:f", "data.npy many.npz:o", "a", "--batch"):
        script += f"complete -C 'ndtool gather-nd {typed}'\n"
    out = subprocess.check_output(
        [fish, "-N", "-c", script], env=shell_environment(arrays), cwd=arrays
    )
    completions = [line.partition("\t")[0] for line in out.decode().splitlines()]
    assert completions == [
        "two words.npy", "many.npz:first", "many.npz:found", "many.npz:other", "a,b.npy",
        "--batch-dims",
    ]  # fmt: skip


ZSH_SCRIPT = """
autoload -U compinit; compinit -u -D; source ./source
report() { print -r -- "$BUFFER|" >| report; BUFFER= }
zle -N report; bindkey '^X' report
"""


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("ndtool gather-nd many.npz:ot", "ndtool gather-nd many.npz:other |"),
        ("ndtool gather-nd data.npy many.npz:fi", "ndtool gather-nd data.npy many.npz:first |"),
        ("ndtool gather-nd dates", "ndtool gather-nd dates/|"),
        ("ndtool gather-nd tw", "ndtool gather-nd two\\ words.npy |"),
        ("ndtool scatter-e", "ndtool scatter-elements |"),
        ("ndtool gather-nd --batch", "ndtool gather-nd --batch-dims |"),
    ],
)
def test_zsh_completes_words(arrays, typed, line):
    zsh = install_completion("zsh", arrays)
    (arrays / ".zshrc").write_text(ZSH_SCRIPT)
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [zsh, "-d", "-i"], stdin=terminal, stdout=terminal, stderr=terminal, cwd=arrays,
        env={**shell_environment(arrays), "ZDOTDIR": str(arrays)}, start_new_session=True,
    ) as child:  # fmt: skip
        reader = threading.Thread(target=read_until_closed, args=(controller,))
        reader.start()
        os.write(controller, f"{typed}\t\x18".encode())  # printed when the shell is ready
        while not (arrays / "report").exists() or not (arrays / "report").read_text():
            assert child.poll() is None
            time.sleep(0.02)
        child.kill()
    os.close(terminal)
    reader.join()
    os.close(controller)
    assert (arrays / "report").read_text() == f"{line}\n"


def read_until_closed(fd):
    """Read a terminal's output until all processes have closed it."""
    try:
        while os.read(fd, 1 << 16):
            pass
    except OSError:
        pass


def test_bash_completes_words(arrays):
    bash, command = install_completion("bash", arrays), arrays / "ndtool"
    script = ndtool(env={"_NDTOOL_COMPLETE": "bash_source"}).out.decode()
    for words in (("tw",), ("many.npz", ":", "f")):
        script += f"""
            COMP_WORDS=(ndtool gather-nd {" ".join(words)}); COMP_CWORD={1 + len(words)}
            _ndtool_completion {shlex.quote(str(command))} 2> /dev/null
            printf "%s\\n" "${{COMPREPLY[@]}}"
        """
    out = subprocess.check_output([bash, "--norc", "-c", script], env=environment(), cwd=arrays)
    assert out.decode().split("\n") == ["two words.npy", "first", "found", ""]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_requirements_of_shell_completion(shell):
    completed = ndtool(env={"_NDTOOL_COMPLETE": f"{shell}_source"})
    assert completed.status == 0
    assert b"_ndtool_completion" in completed.out
    assert f"{shell}_complete".encode() in completed.out


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"_NDTOOL_COMPLETE": "bash_complete"}, "expected COMP_WORDS and COMP_CWORD"),
        ({"_NDTOOL_COMPLETE": "fish_complete", "COMP_WORDS": "ndtool"}, "expected COMP_WORDS"),
        *(
            (
                {"_NDTOOL_COMPLETE": "zsh_complete", "COMP_WORDS": "ndtool", "COMP_CWORD": number},
                "expected COMP_WORDS and COMP_CWORD",
            )
            for number in ("x", "", "1.5", "9" * 5000)
        ),
        *(
            ({"_NDTOOL_COMPLETE": value}, "expected SHELL_source or SHELL_complete")
            for value in ("1", "bash", "bash_", "_complete", "csh_source", "bash_\x1b[31m")
        ),
    ],
)
def test_invalid_completion_variables_are_refused(env, message):
    completed = ndtool("gather-nd", env=env)
    assert (completed.status, completed.out) == (2, b"")
    assert completed.err.startswith("error: _NDTOOL_COMPLETE is ")
    assert message in completed.err
    assert completed.err.count("\n") == 1
    assert "\x1b" not in completed.err


def test_an_empty_variable_requests_no_completion():
    assert ndtool("--version", env={"_NDTOOL_COMPLETE": ""}) == ndtool("--version")


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
