"""README.md and docs/: their examples print what they show, and the files they list exist."""

import doctest
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest
from command import FIXTURES, NDTOOL, environment, run_in_terminal

import ndtool
from ndtool.cli.program import program
from ndtool.errors import Status

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCUMENTS = [README, *sorted(ROOT.glob("docs/*.md"))]
SESSION = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PYTHON = re.compile(r"^```pycon\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)\s]*)\)")
SYNTAX = re.compile("[|<>&;$`]")  # of bash
REQUIRED = {
    "model .* --inputs": "onnxruntime",
    r"\.zarr\b": "zarr",
    r"\.h5\b": "h5py",
}  # packages that a session needs
needs_docs = pytest.mark.skipif(
    not (ROOT / "docs").exists(), reason="the documents are not next to the tests"
)


def commands(block):
    """Return the commands of a session, and the output of each."""
    fields = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)[1:]
    return list(zip(fields[::2], fields[1::2], strict=True))


def mask_times(text):
    """Return a text without durations and sizes that vary between runs and machines."""
    text = re.sub(r"in [0-9.]+ (us|ms|s)(,\s+[0-9]+\s+threads?)?", "in TIME", text)
    return re.sub(r"memory [0-9.]+ MB", "memory SIZE", text)


def install_programs(folder):
    """Write scripts that run the `ndtool` and `python` under test; return a PATH with them."""
    directory = folder / "programs"
    directory.mkdir()
    for name, command in (("ndtool", "-m ndtool "), ("python", "")):
        (directory / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {command}"$@"\n')
        (directory / name).chmod(0o755)
    return f"{directory}:{os.environ['PATH']}"


def run_command(command, env, status=0):
    """Run a command of a session on a terminal; status: of the one before it, which $? is."""
    words = shlex.split(command)
    if words[0] == "ndtool" and not SYNTAX.search(command):
        return run_in_terminal(*NDTOOL, *words[1:], env={"TERM": "dumb"})
    return run_in_terminal("bash", "-c", f"(exit {status})\n{command}", env=env)


def run_session(block, folder):
    """Run a block's commands in the fixtures; return the output of each."""
    shutil.copytree(FIXTURES, folder / "fixtures")
    env = {"PATH": install_programs(folder), "TERM": "dumb", "PYTHONUTF8": "1"}
    outputs, status = [], 0
    with chdir(folder / "fixtures"):
        for command, _ in commands(block):
            if command.startswith("cd "):
                os.chdir(command[3:])
                outputs.append("")
            else:
                completed = run_command(command, env, status)
                outputs.append(completed.screen)
                status = completed.status
    return outputs


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, id=f"{path.stem}: {commands(block)[-1][0][:40]}")
        for path in DOCUMENTS
        for block in SESSION.findall(path.read_text("utf-8"))
    ],
)
def test_sessions_print_what_the_documents_show(block, tmp_path):
    for pattern, package in REQUIRED.items():
        if re.search(pattern, block):
            pytest.importorskip(package)
    outputs = run_session(block, tmp_path)
    expected = [output for _, output in commands(block)]
    assert list(map(mask_times, outputs)) == list(map(mask_times, expected))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        pytest.param(path, "".join(blocks), id=path.stem)
        for path in DOCUMENTS
        if (blocks := PYTHON.findall(path.read_text("utf-8")))
    ],
)
def test_python_examples_run(path, source, tmp_path, monkeypatch):
    for name in ("dask", "xarray"):
        if re.search(rf"import .*\b{name}\b", source):
            pytest.importorskip(name, exc_type=ImportError)
    shutil.copytree(FIXTURES, tmp_path / "fixtures")
    monkeypatch.chdir(tmp_path / "fixtures")
    test = doctest.DocTestParser().get_doctest(source, {}, path.stem, str(path), 0)
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0


def test_the_readme_has_one_example_of_each_command(tmp_path):
    (script,) = SHELL.findall(README.read_text("utf-8"))
    names = re.findall("^ndtool ([a-z-]+)", script, re.MULTILINE)
    assert sorted(names) == sorted(program().factories)
    shutil.copytree(FIXTURES / "cookbook", tmp_path / "cookbook")
    with chdir(tmp_path / "cookbook"):
        for command in re.findall("^ndtool .*", script, re.MULTILINE):
            completed = run_command(command, {})
            assert completed.status == 0, completed


@needs_docs
def test_all_statuses_are_listed():
    text = (ROOT / "docs/statuses.md").read_text("utf-8")
    cells = re.findall(r"^([0-9, ]+)\n: ", text, re.MULTILINE)
    statuses = [int(n) for cell in cells for n in cell.split(",")]
    assert sorted(statuses) == sorted(int(status) for status in Status)


@needs_docs
def test_the_architecture_lists_every_package():
    layers = (ROOT / "docs/architecture.md").read_text("utf-8").partition("Outside the package")[0]
    cells = re.findall(r"^\| (`.*?) \|", layers, re.MULTILINE)
    names = {name for cell in cells for name in re.findall("`([^`]+)`", cell)}
    package = Path(ndtool.__file__).parent
    modules = {path.name for path in package.glob("*.py")} - {"__init__.py"}
    packages = {f"{path.parent.relative_to(package)}/" for path in package.rglob("__init__.py")}
    format_names = ("arrow", "hdf5", "npz", "onnx", "safetensors", "text", "zarr")
    format_packages = {f"formats/{name}/" for name in format_names}
    assert names == {"_kernels.pyx"} | modules | packages - format_packages - {"./"}


def test_links_of_the_readme_work_in_a_package_index():
    text = PICTURE.sub("", README.read_text("utf-8"))  # an index shows its description instead
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    targets = re.findall(
        r"\]\(([^)\s]*)|^\[[^\]]*\]: *(\S+)|(?:src|href)=[\"']?([^\"'\s>]*)", text, re.M
    )
    anchors = {"#" + re.sub("[^a-z ]", "", t.lower()).replace(" ", "-") for t in titles}
    for target in map("".join, targets):
        assert target.startswith("https://") or target in anchors, target


@needs_docs
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_pictures_exist_and_are_described(path):
    for description, name in PICTURE.findall(path.read_text("utf-8")):
        assert description
        assert (path.parent / name).is_file(), name


@needs_docs
@pytest.mark.parametrize("path", [*DOCUMENTS, ROOT / "CONTRIBUTING.md"], ids=lambda path: path.stem)
def test_referenced_files_exist(path):
    packages = [folder.parent.name for folder in ROOT.glob("ndtool/*/__init__.py")]
    folders = "|".join(["docs", "benchmarks", "fixtures", "tests", "ndtool", "loops", *packages])
    for name in re.findall(rf"`((?:{folders})/[^`\s]*)`", path.read_text("utf-8")):
        assert [*ROOT.glob(name), *ROOT.glob(f"ndtool/{name}")], name


@needs_docs
def test_every_document_is_in_the_site():
    index = (ROOT / "docs/index.md").read_text("utf-8").splitlines()
    names = {path.stem for path in ROOT.glob("docs/*.md")}
    assert names - {"index"} <= set(index)


@needs_docs
def test_allowed_codecs_are_listed():
    from ndtool.formats import codecs
    from ndtool.formats.zarr import metadata

    text = (ROOT / "docs/formats.md").read_text("utf-8")
    cells = re.findall(r"^\| (?:Compressors|\w+ codecs|Shards) \| (.*) \|$", text, re.MULTILINE)
    names = {name for cell in cells for name in re.findall("`([a-z0-9_]+)`", cell)}
    assert names == {*codecs.NAMES, *metadata._CORE_CODECS, metadata.SHARDING}
    assert "pickle" not in names


@pytest.mark.slow("the demonstration of the README runs")
def test_the_demonstration_runs(tmp_path):
    env = environment(PATH=install_programs(tmp_path), TMPDIR=str(tmp_path))
    completed = subprocess.run(
        ["bash", FIXTURES / "demo.sh"], capture_output=True, text=True, env=env, check=False
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.count("the same\n") == 4
    assert "wrong.npy[123456, 0] = 1000000" in completed.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["programs"]


if (
    __name__ == "__main__"
):  # replace the outputs in the documents by the actual ones; review them before a commit
    import tempfile

    def replace_output(match):
        block = match[1]
        with tempfile.TemporaryDirectory() as folder:
            outputs = run_session(block, Path(folder))
        updated = "".join(
            f"$ {command}\n{output}"
            for (command, _), output in zip(commands(block), outputs, strict=True)
        )
        is_unchanged = mask_times(updated) == mask_times(block)
        return match[0] if is_unchanged else f"```console\n{updated}```"

    for path in [Path(name) for name in sys.argv[1:]] or DOCUMENTS:
        path.write_text(SESSION.sub(replace_output, path.read_text("utf-8")), "utf-8")
