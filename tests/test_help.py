"""Help pages, their examples, what starting up loads, and completion."""

import os
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest
from command import FIXTURES, NDTOOL, environment, ndtool

OPERATORS = ("gather-nd", "scatter-nd", "gather-elements", "scatter-elements")
COMMANDS = [
    *OPERATORS,
    "infer",
    "inspect",
    "spec",
    "verify",
    *(f"infer {name}" for name in OPERATORS),
    *(f"verify {name}" for name in OPERATORS),
]
FOLDERS = {
    "gather-nd": "onnx-gather-nd-5",
    "scatter-nd": "onnx-scatter-nd-max",
    "gather-elements": "onnx-gather-elements-1",
    "scatter-elements": "onnx-scatter-elements-2",
}


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_of_every_command(command):
    pages = [ndtool(*command.split(), flag) for flag in ("-h", "--help")]
    assert pages[0] == pages[1]
    assert (pages[0].status, pages[0].err) == (0, "")
    text = pages[0].out.decode("ascii")
    assert text.startswith(f"Usage: ndtool {command}".rstrip())
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in ("infer", "verify")])
def test_example_in_the_help_runs(command, tmp_path):
    page = ndtool(*command.split(), "-h").out.decode()
    example = page.rpartition("Example:")[2].split()
    assert example[0] == "ndtool"
    name = command.split()[-1]
    folder = FIXTURES / FOLDERS.get(name, FOLDERS["gather-nd"])
    for role, short in (("data",) * 2, ("indices", "idx"), ("updates", "upd"), ("output", "out")):
        if (folder / f"{role}.npy").exists():
            shutil.copy(folder / f"{role}.npy", tmp_path / f"{short}.npy")
    shutil.copy(FIXTURES / "stored.npz", tmp_path)
    wanted = np.load(tmp_path / "out.npy")
    arguments = shlex.split(" ".join(example[1:]))
    ran = ndtool(*arguments, cwd=tmp_path)
    assert (ran.status, ran.err) == (0, "")
    if command in OPERATORS:
        assert "-o out.npy" in page
        result = np.load(tmp_path / "out.npy")
        assert (result.dtype, result.tolist()) == (wanted.dtype, wanted.tolist())


@pytest.mark.parametrize("command", ["gather-nd", "scatter-elements", "infer scatter-nd"])
def test_every_option_has_its_variable(command):
    page = ndtool(*command.split(), "-h").out.decode()
    options = re.findall(r"^  (?:-\w, )?--([a-z-]+)", page, re.MULTILINE)
    listed = " ".join(page.split())
    for name in set(options) - {"help"}:
        assert f"env var: NDTOOL_{name.upper().replace('-', '_')}" in listed


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
    "asyncio", "importlib.metadata", "traceback", "ndtool.ops", "ndtool.reference",
}  # fmt: skip


@pytest.mark.usefixtures("unmeasured")
def test_help_loads_little():
    modules = loaded("--help")
    assert "ndtool.cli" in modules
    assert not modules & (HEAVY | {"ndtool.jobs", "ndtool._kernels", "ndtool.files"})


@pytest.mark.usefixtures("unmeasured")
def test_run_between_files_loads_little(tmp_path):
    for name, folder in FOLDERS.items():
        files = [FIXTURES / folder / f"{role}.npy" for role in ("data", "indices", "updates")]
        present = [path for path in files if path.exists()]
        flags = ("--axis", "1") if "elements" in name else ()
        modules = loaded(name, *present, *flags, "-o", tmp_path / "out.npy")
        assert "ndtool._kernels" in modules
        assert not modules & (HEAVY | {"ndtool.styled", "ndtool.values", "ndtool.infer"})


def complete(words, shell="bash"):
    env = environment(
        _NDTOOL_COMPLETE=f"{shell}_complete", COMP_WORDS=words, COMP_CWORD=str(words.count(" "))
    )
    ran = subprocess.run(NDTOOL, capture_output=True, env=env, check=False)
    return ran.stdout.decode().split()


def test_completion():
    assert complete("ndtool gather") == ["plain,gather-nd", "plain,gather-elements"]
    assert "plain,--batch-dims" in complete("ndtool gather-nd --b")
    assert complete("ndtool gather-nd da") == ["file,da"]
    assert complete("ndtool gather-nd a b -o ou") == ["file,ou"]
    reductions = complete("ndtool scatter-nd a b c --reduction m")
    assert reductions == ["plain,mul", "plain,max", "plain,min"]
    assert complete("ndtool spec scatter") == ["plain,scatter-nd", "plain,scatter-elements"]
    source = subprocess.run(
        NDTOOL, capture_output=True, env=environment(_NDTOOL_COMPLETE="bash_source"), check=False
    )
    assert b"_ndtool_completion" in source.stdout


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
    for command in OPERATORS:
        page = ndtool(command, "-h").out.decode()
        for name in re.findall(r"--[a-z-]+|NDTOOL_[A-Z_]+", page):
            assert name == "--help" or f"`{name}" in text or f", {name} " in text, name
