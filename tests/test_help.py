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
EXAMPLE = "    ndtool "  # a line that is never wrapped
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
    pages = [ndtool(*command.split(), flag) for flag in ("-h", "--help")]
    assert pages[0] == pages[1]
    assert (pages[0].status, pages[0].err) == (0, "")
    text = pages[0].out.decode("ascii")
    assert text.startswith(f"Usage: ndtool {command}".rstrip())
    assert max(map(len, text.splitlines())) <= 80


def pages(command, path, width):
    """Yield the help of a command and of its subcommands, as words."""
    context = click.Context(command, info_name=path, terminal_width=width)
    yield path, sorted(command.get_help(context).split())
    for name, below in getattr(command, "commands", {}).items():
        yield from pages(below, f"{path} {name}", width)


def test_no_width_breaks_a_word_of_the_help():
    program = command_line.program()
    wide = dict(pages(program, "ndtool", 500))
    for width in range(60, 121):
        for path, words in pages(program, "ndtool", width):
            assert words == wide[path], (path, width)


@pytest.mark.parametrize(
    ("columns", "env", "least", "most"),
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
def test_help_is_as_wide_as_the_terminal(columns, env, least, most):
    ran = run_in_terminal(*NDTOOL, "scatter-nd", "--help", columns=columns, env=env)
    assert ran.status == 0
    lines = [line for line in ran.screen.splitlines() if not line.startswith(EXAMPLE)]
    assert least <= max(map(len, lines)) <= most


def test_help_away_from_a_terminal_is_always_the_same():
    assert ndtool("-h", env={"COLUMNS": "120"}) == ndtool("-h")


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in GROUPS])
def test_example_in_the_help_runs(command, tmp_path):
    page = ndtool(*command.split(), "-h").out.decode()
    (example,) = (line for line in page.splitlines() if line.startswith(EXAMPLE))
    name = command.split()[-1]
    folder = FIXTURES / FOLDERS.get(name, FOLDERS["gather-nd"])
    for role, short in (("data",) * 2, ("indices", "idx"), ("updates", "upd"), ("output", "out")):
        if (folder / f"{role}.npy").exists():
            shutil.copy(folder / f"{role}.npy", tmp_path / f"{short}.npy")
    shutil.copy(FIXTURES / "stored.npz", tmp_path)
    if command == "model":
        helper = pytest.importorskip("onnx.helper")
        graph = helper.make_graph([helper.make_node("Gather", ["x", "i"], ["o"])], "g", [], [])
        (tmp_path / "model.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    wanted = np.load(tmp_path / "out.npy")
    ran = ndtool(*shlex.split(example)[1:], cwd=tmp_path)
    assert (ran.status, ran.err) == (0, "")
    if command in OPERATORS:
        assert "-o out.npy" in page
        result = np.load(tmp_path / "out.npy")
        assert (result.dtype, result.tolist()) == (wanted.dtype, wanted.tolist())


def commands_below(group):
    """Yield a group's commands, and those of its subgroups."""
    for command in group.commands.values():
        if isinstance(command, click.Group):
            yield from commands_below(command)
        else:
            yield command


def test_every_option_has_its_variable():
    options = {
        (max(param.opts, key=len), param.envvar)
        for command in commands_below(command_line.program())
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
    for words in ("Usage:", "Example:", "Arguments:", "--output", "--out-of-bounds", "--dry-run"):
        assert words in first
    listed = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", page, re.MULTILINE)
    given = {max(param.opts, key=len) for param in command_line.program().commands[command].params}
    assert sorted(listed) == sorted(name for name in given if name.startswith("--"))


def test_no_arguments_show_the_help():
    assert ndtool() == ndtool("--help")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("gather_nd", "a", "b"), "gather-nd"),
        (("ScatterND", "a", "b", "c"), "scatter-nd"),
        (("verify", "gather_elements"), "gather-elements"),
    ],
)
def test_other_names_are_understood_but_not_taken(arguments, meant):
    ran = ndtool(*arguments)
    assert (ran.status, ran.out) == (2, b"")
    assert f"did you mean '{meant}'?\n" in ran.err


def test_version():
    import ndtool as package

    ran = ndtool("--version")
    assert (ran.status, ran.out.decode()) == (0, f"ndtool {package.__version__}\n")


def loaded(*arguments):
    """Return the modules that a run imports."""
    command = [sys.executable, "-X", "importtime", *NDTOOL[1:], *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, env=environment(), check=True)
    lines = re.findall(rb"^import time:[^|]*\|[^|]*\| *(\S+)$", ran.stderr, re.MULTILINE)
    return {line.decode() for line in lines}


HEAVY = {
    "numpy", "rich", "ml_dtypes", "json", "zipfile", "zlib", "tempfile", "subprocess", "shutil",
    "asyncio", "importlib.metadata", "traceback", "ndtool.inmemory.ops", "ndtool.analysis.oracle.reference",
}  # fmt: skip


@pytest.mark.usefixtures("without_coverage")
def test_help_loads_little():
    modules = loaded("--help")
    assert "ndtool.cli.commands" in modules
    assert not modules & (
        HEAVY | {"ndtool.runs.steps", "ndtool._kernels", "ndtool.formats.locators"}
    )


@pytest.mark.usefixtures("without_coverage")
def test_run_between_files_loads_little(tmp_path):
    for name, folder in FOLDERS.items():
        files = [FIXTURES / folder / f"{role}.npy" for role in ("data", "indices", "updates")]
        present = [path for path in files if path.exists()]
        flags = ("--axis", "1") if "elements" in name or name == "scatter" else ()
        modules = loaded(name, *present, *flags, "-o", tmp_path / "out.npy")
        assert "ndtool._kernels" in modules
        assert not modules & (
            HEAVY
            | {
                "ndtool.cli.commands.commands.styled",
                "ndtool.analysis.values",
                "ndtool.analysis.infer",
            }
        )


def complete(words, shell="bash", number=None, cwd=None):
    env = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ") if number is None else number)}
    ran = ndtool(env={"_NDTOOL_COMPLETE": f"{shell}_complete", **env}, cwd=cwd)
    assert (ran.status, ran.err) == (0, "")
    return ran.out.decode().split()


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
    assert "plain,18" in complete("ndtool gather-nd --spec onnx : 1", number=5)
    assert "plain,16" in complete("ndtool gather-nd --spec onnx :", number=4)


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
    assert complete(typed, "fish", number="many.npz:f", cwd=arrays) == members
    # bash splits words at colons by default
    assert complete("ndtool gather-nd many.npz : f", number=4, cwd=arrays) == [
        "plain,first", "plain,found",
    ]  # fmt: skip
    assert complete("ndtool gather-nd many.npz :", number=3, cwd=arrays) == [
        "plain,first", "plain,found", "plain,other",
    ]  # fmt: skip
    assert complete("ndtool gather-nd many.npz:f", cwd=arrays) == [f"plain,{m}" for m in members]
    assert len(complete("ndtool gather-nd many.npz", cwd=arrays)) == 4


def installed(shell, folder):
    """Return a shell's path, with our command and its completion in a folder."""
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"there is no {shell} here")
    (folder / "two words.npy").write_bytes((folder / "data.npy").read_bytes())
    command = folder / "ndtool"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m ndtool "$@"\n')
    command.chmod(0o755)
    source = ndtool(env={"_NDTOOL_COMPLETE": f"{shell}_source"}).out
    (folder / "source").write_bytes(source)
    return path


def found_by(folder):
    return environment(PATH=f"{folder}:{os.environ['PATH']}", HOME=str(folder), TERM="dumb")


def test_fish_takes_what_is_offered(arrays):
    fish = installed("fish", arrays)
    (arrays / "a,b.npy").write_bytes((arrays / "data.npy").read_bytes())
    script = "source source\n"
    for typed in ("tw", "many.npz:f", "data.npy many.npz:o", "a", "--batch"):
        script += f"complete -C 'ndtool gather-nd {typed}'\n"
    out = subprocess.check_output([fish, "-N", "-c", script], env=found_by(arrays), cwd=arrays)
    words = [line.partition("\t")[0] for line in out.decode().splitlines()]
    assert words == [
        "two words.npy", "many.npz:first", "many.npz:found", "many.npz:other", "a,b.npy",
        "--batch-dims",
    ]  # fmt: skip


ZSH = """
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
def test_zsh_takes_what_is_offered(arrays, typed, line):
    zsh = installed("zsh", arrays)
    (arrays / ".zshrc").write_text(ZSH)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [zsh, "-d", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, cwd=arrays,
        env={**found_by(arrays), "ZDOTDIR": str(arrays)}, start_new_session=True,
    ) as child:  # fmt: skip
        drain = threading.Thread(target=received, args=(ours,))
        drain.start()
        os.write(ours, f"{typed}\t\x18".encode())  # printed when the shell is ready
        while not (arrays / "report").exists() or not (arrays / "report").read_text():
            assert child.poll() is None
            time.sleep(0.02)
        child.kill()
    os.close(theirs)
    drain.join()
    os.close(ours)
    assert (arrays / "report").read_text() == f"{line}\n"


def received(fd):
    """Read a terminal's output until all processes have closed it."""
    try:
        while os.read(fd, 1 << 16):
            pass
    except OSError:
        pass


def test_bash_takes_what_is_offered(arrays):
    bash, command = installed("bash", arrays), arrays / "ndtool"
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
    ran = ndtool(env={"_NDTOOL_COMPLETE": f"{shell}_source"})
    assert ran.status == 0
    assert b"_ndtool_completion" in ran.out
    assert f"{shell}_complete".encode() in ran.out


@pytest.mark.parametrize(
    ("env", "words"),
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
            ({"_NDTOOL_COMPLETE": wrong}, "expected SHELL_source or SHELL_complete")
            for wrong in ("1", "bash", "bash_", "_complete", "csh_source", "bash_\x1b[31m")
        ),
    ],
)
def test_completion_of_unknown_shells(env, words):
    ran = ndtool("gather-nd", env=env)
    assert (ran.status, ran.out) == (2, b"")
    assert ran.err.startswith("error: _NDTOOL_COMPLETE is ")
    assert words in ran.err
    assert ran.err.count("\n") == 1
    assert "\x1b" not in ran.err


def test_an_empty_variable_requests_no_completion():
    assert ndtool("--version", env={"_NDTOOL_COMPLETE": ""}) == ndtool("--version")


def test_runs_as_a_module_and_as_a_command(tmp_path):
    scripts = os.path.dirname(sys.executable)
    command = shutil.which("ndtool", path=scripts)
    if command is None:
        pytest.skip("the command is not installed beside this Python")
    out = subprocess.check_output([command, "--version"], env=environment())
    assert out == ndtool("--version").out


def test_every_option_is_documented():
    document = FIXTURES.parent / "docs" / "cli.md"
    if not document.exists():
        pytest.skip("the documents are not beside the tests")
    text = document.read_text("utf-8")
    for command in COMMANDS:
        page = ndtool(*command.split(), "-h").out.decode()
        names = re.findall(r"--[a-z-]+|NDTOOL_[A-Z_]+", page)
        assert len(names) >= 1
        for name in names:
            assert name == "--help" or f"`{name}" in text or f", {name} " in text, name
