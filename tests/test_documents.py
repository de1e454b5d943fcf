"""README.md and docs/: the output of their examples, and the existence of what they list."""

import doctest
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import bucket
import pytest
from command import FIXTURES, at_terminal, environment, execute

import ndtool
from ndtool.cli.program import program
from ndtool.errors import Status

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCUMENTS = [README, *sorted(ROOT.glob("docs/*.md"))]
SESSION = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PYTHON = re.compile(r"^```pycon\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)\s]*)\)")
MARK = "@@@\n"
REQUIRED = {"model .* --inputs": "onnx", r"\.zarr\b": "zarr", r"\.h5\b": "h5py"}  # by a session
documented = pytest.mark.skipif(
    not (ROOT / "docs").exists(), reason="the documents are not next to the tests"
)


def commands(block):
    """Return the commands of a session, and the output of each."""
    parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def timeless(text):
    """Return a text without durations and sizes that vary between runs and machines."""
    text = re.sub(r"in [0-9.]+ (us|ms|s)(,\s+[0-9]+\s+threads?)?", "in TIME", text)
    return re.sub(r"memory [0-9.]+ MB", "memory MORE OR LESS", text)


def programs(folder):
    """Return a PATH with the `ndtool` and `python` under test."""
    position = folder / "programs"
    position.mkdir()
    for name, command in (("ndtool", "-m ndtool "), ("python", "")):
        (position / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {command}"$@"\n')
        (position / name).chmod(0o755)
    return f"{position}:{os.environ['PATH']}"


def play(block, folder):
    """Run a block's commands on a terminal, in the fixtures; return the output of each."""
    shutil.copytree(FIXTURES, folder / "fixtures")
    # preserves $? of the last command
    lines = [f"(s=$?; printf '@@@\\n'; exit $s)\n{command}\n" for command, _ in commands(block)]
    env = {"PATH": programs(folder), "TERM": "dumb", "PYTHONUTF8": "1"}
    ran = at_terminal("bash", "-c", "".join(lines), env=env, cwd=folder / "fixtures")
    return ran.screen.split(MARK)[1:]


def stock(server):
    """Put the objects of the documents' examples into the bucket."""
    server.put("table.npy", (FIXTURES / "cookbook/table.npy").read_bytes())


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, id=f"{path.stem}: {commands(block)[-1][0][:40]}")
        for path in DOCUMENTS
        for block in SESSION.findall(path.read_text("utf-8"))
    ],
)
def test_sessions(block, tmp_path, request):
    for words, package in REQUIRED.items():
        if re.search(words, block):
            pytest.importorskip(package)
    if "s3://" in block:
        stock(request.getfixturevalue("s3"))
    shown = play(block, tmp_path)
    wanted = [output for _, output in commands(block)]
    assert list(map(timeless, shown)) == list(map(timeless, wanted))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        pytest.param(path, "".join(blocks), id=path.stem)
        for path in DOCUMENTS
        if (blocks := PYTHON.findall(path.read_text("utf-8")))
    ],
)
def test_python_examples(path, source, tmp_path, monkeypatch):
    for name in ("dask", "xarray"):
        if re.search(rf"import .*\b{name}\b", source):
            pytest.importorskip(name, exc_type=ImportError)
    shutil.copytree(FIXTURES, tmp_path / "fixtures")
    monkeypatch.chdir(tmp_path / "fixtures")
    test = doctest.DocTestParser().get_doctest(source, {}, path.stem, str(path), 0)
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0


def test_one_example_of_each_command(tmp_path):
    (script,) = SHELL.findall(README.read_text("utf-8"))
    shown = re.findall("^ndtool ([a-z-]+)", script, re.MULTILINE)
    assert sorted(shown) == sorted(program().commands)
    folder = tmp_path / "cookbook"
    shutil.copytree(FIXTURES / "cookbook", folder)
    env = environment(PATH=programs(tmp_path))
    ran = subprocess.run(
        ["bash", "-e", "-c", script], cwd=folder, env=env, capture_output=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


@documented
def test_all_statuses_are_listed():
    text = (ROOT / "docs/statuses.md").read_text("utf-8")
    listed = re.findall(r"^([0-9, ]+)\n: ", text, re.MULTILINE)
    numbers = [int(n) for cell in listed for n in cell.split(",")]
    assert sorted(numbers) == sorted(int(status) for status in Status)


@documented
def test_the_architecture_lists_every_package():
    layers = (ROOT / "docs/architecture.md").read_text("utf-8").partition("Outside the package")[0]
    cells = re.findall(r"^\| (`.*?) \|", layers, re.MULTILINE)
    names = {name for cell in cells for name in re.findall("`([^`]+)`", cell)}
    package = Path(ndtool.__file__).parent
    modules = {path.name for path in package.glob("*.py")} - {"__init__.py"}
    packages = {f"{path.parent.relative_to(package)}/" for path in package.rglob("__init__.py")}
    known = ("arrow", "hdf5", "npz", "onnx", "safetensors", "text", "zarr")
    own_packages = {f"formats/{name}/" for name in known}
    assert names == {"_kernels.pyx"} | modules | packages - own_packages - {"./"}


def test_a_package_index_breaks_no_link():
    text = PICTURE.sub("", README.read_text("utf-8"))  # an index shows its description instead
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    targets = re.findall(
        r"\]\(([^)\s]*)|^\[[^\]]*\]: *(\S+)|(?:src|href)=[\"']?([^\"'\s>]*)", text, re.M
    )
    anchors = {"#" + re.sub("[^a-z ]", "", t.lower()).replace(" ", "-") for t in titles}
    for target in map("".join, targets):
        assert target.startswith("https://") or target in anchors, target


@documented
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_pictures_exist(path):
    for description, name in PICTURE.findall(path.read_text("utf-8")):
        assert description
        assert (path.parent / name).is_file(), name


@documented
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_referenced_files_exist(path):
    named = re.findall(
        r"`((?:docs|benchmarks|fixtures|tests|ndtool)/[^`\s]*)`", path.read_text("utf-8")
    )
    for name in named:
        assert list(ROOT.glob(name)), name


@documented
def test_every_document_is_in_the_site():
    index = (ROOT / "docs/index.md").read_text("utf-8").splitlines()
    names = {path.stem for path in ROOT.glob("docs/*.md")}
    assert names - {"index"} <= set(index)


@documented
@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="b.html#here">', ""),
        ('<a href="b.html"><a href="#top"><p id="top"><a href="https://x.y/z">', ""),
        ('<img src="data:image/png;base64,">', ""),
        ('<a href="c.html">', "a.html: c.html does not exist\n"),
        ('<a href="b.html#nowhere">', "a.html: b.html#nowhere has no such anchor\n"),
        ('<a href="#nowhere">', "a.html: #nowhere has no such anchor\n"),
        ('<link href="https://x.y/z.css">', "a.html: loads https://x.y/z.css\n"),
        ('<script src="//x.y/z.js">', "a.html: loads //x.y/z.js\n"),
    ],
)
def test_a_site_is_checked(body, fault, tmp_path):
    (tmp_path / "a.html").write_text(body)
    (tmp_path / "b.html").write_text('<h1 id="here">')
    ran = execute(sys.executable, ROOT / "docs/check.py", tmp_path)
    assert (ran.status, ran.out.decode(), ran.err) == (bool(fault), fault, "")


@documented
@pytest.mark.parametrize(
    ("terms", "lacking"),
    [
        ('{"pad":[0],"parquet":1,"include_self":0,"index_add":2,"duckdb":3}', ""),
        ('{"pad":[1],"parquet":1,"include_self":0,"duckdb":3}', "padding index_add"),
    ],
)
def test_words_that_the_search_must_find(terms, lacking, tmp_path):
    names = '["operators","formats","translation","choosing"]'
    index = f'Search.setIndex({{"docnames":{names},"terms":{terms},"titleterms":{{}}}})'
    (tmp_path / "searchindex.js").write_text(index)
    ran = execute(sys.executable, ROOT / "docs/check.py", tmp_path)
    missing = re.findall("^search: ([a-z_]+) is not found", ran.out.decode(), re.MULTILINE)
    assert (ran.status, " ".join(missing)) == (bool(lacking), lacking)


@documented
def test_allowed_codecs_are_listed():
    from ndtool.formats.zarr import chains

    text = (ROOT / "docs/formats.md").read_text("utf-8")
    listed = re.findall(r"^\| (?:Compressors|\w+ codecs|Shards) \| (.*) \|$", text, re.MULTILINE)
    names = {name for cell in listed for name in re.findall("`([a-z0-9_]+)`", cell)}
    assert names == {*chains._NUMCODECS, *chains._CORE_CODECS, chains.SHARDING}
    assert "pickle" not in names


@pytest.mark.slow("the demonstration of the README runs")
def test_demo(tmp_path):
    env = environment(PATH=programs(tmp_path), TMPDIR=str(tmp_path))
    ran = subprocess.run(
        ["bash", FIXTURES / "demo.sh"], capture_output=True, text=True, env=env, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("the same\n") == 4
    assert "wrong.npy[123456, 0] = 1000000" in ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["programs"]


if __name__ == "__main__":  # write the actual output into the documents; review it before a commit
    import tempfile

    def replaced(match):
        block = match[1]
        with tempfile.TemporaryDirectory() as folder:
            shown = play(block, Path(folder))
        new = "".join(f"$ {c}\n{s}" for (c, _), s in zip(commands(block), shown, strict=True))
        same = timeless(new) == timeless(block)
        return match[0] if same else f"```console\n{new}```"

    with bucket.serving() as server:
        stock(server)
        for name, value in bucket.settings(server.endpoint).items():
            os.environ.update({name: value} if value else {})
        for path in [Path(name) for name in sys.argv[1:]] or DOCUMENTS:
            path.write_text(SESSION.sub(replaced, path.read_text("utf-8")), "utf-8")
