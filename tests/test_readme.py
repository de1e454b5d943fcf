"""README.md: what it shows is what happens, what it lists is there."""

import doctest
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command import FIXTURES, at_terminal, environment

import ndtool
from ndtool.errors import Status

README = Path(__file__).parent.parent / "README.md"
TEXT = README.read_text("utf-8")
BLOCKS = re.findall(r"^```console\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
TITLES = re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE)
MARK = "@@@\n"


def sessions(block):
    """Return the commands of a block, and what each one shows."""
    parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def timeless(text):
    """Return a text without what differs from run to run and machine to machine."""
    return re.sub(r"in [0-9.]+ (us|ms|s), [0-9]+ threads?", "in TIME", text)


def programs(folder):
    """Return a PATH on which `ndtool` and `python` are those under test."""
    place = folder / "programs"
    place.mkdir()
    for name, command in (("ndtool", "-m ndtool "), ("python", "")):
        (place / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {command}"$@"\n')
        (place / name).chmod(0o755)
    return f"{place}:{os.environ['PATH']}"


def play(block, folder):
    """Run a block's commands at a terminal; return what each one shows."""
    shutil.copytree(FIXTURES, folder / "fixtures")
    # $? of the last command survives the mark
    lines = [f"(s=$?; printf '@@@\\n'; exit $s)\n{command}\n" for command, _ in sessions(block)]
    env = {"PATH": programs(folder), "TERM": "dumb", "PYTHONUTF8": "1"}
    ran = at_terminal("bash", "-c", "".join(lines), env=env, cwd=folder / "fixtures")
    return ran.screen.split(MARK)[1:]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: sessions(block)[-1][0][:40])
def test_sessions(block, tmp_path):
    shown = play(block, tmp_path)
    wanted = [output for _, output in sessions(block)]
    assert list(map(timeless, shown)) == list(map(timeless, wanted))


def test_every_command_is_shown():
    used = {command.split()[1] for b in BLOCKS for command, _ in sessions(b) if "ndtool" in command}
    assert used >= {
        "gather-nd", "scatter-nd", "gather-elements", "scatter-elements", "infer", "inspect",
        "spec", "verify",
    }  # fmt: skip


def test_python_example():
    (source,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    test = doctest.DocTestParser().get_doctest(source, {}, "README", str(README), 0)
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0


def section(title):
    return TEXT.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_all_statuses_are_listed():
    listed = re.findall(r"^\| ([0-9, ]+) \|", section("Exit statuses"), re.MULTILINE)
    numbers = [int(n) for cell in listed for n in cell.split(",")]
    assert sorted(numbers) == sorted(int(status) for status in Status)


def test_the_house_is_as_listed():
    cells = re.findall(r"^\| (`.*?) \|", section("The house"), re.MULTILINE)
    names = {name for cell in cells for name in re.findall("`ndtool/([^`]+)`", cell)}
    package = Path(ndtool.__file__).parent
    wings = {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}
    assert names == {"_kernels.pyx"} | wings | {path.name for path in package.glob("*.py")}


def test_a_package_index_breaks_no_link():
    targets = re.findall(
        r"\]\(([^)\s]*)|^\[[^\]]*\]: *(\S+)|(?:src|href)=[\"']?([^\"'\s>]*)", TEXT, re.M
    )
    anchors = {"#" + re.sub("[^a-z ]", "", t.lower()).replace(" ", "-") for t in TITLES}
    for target in map("".join, targets):
        assert target.startswith("https://") or target in anchors, target


def test_files_that_are_named_are_there():
    if not (README.parent / "docs").exists():
        pytest.skip("an installed ndtool has no documents")
    named = set(re.findall(r"`((?:docs|benchmarks|fixtures|tests|ndtool)/[^`]*)`", TEXT))
    assert named >= {f"docs/{path.name}" for path in README.parent.glob("docs/*.md")}
    for name in named:
        assert list(README.parent.glob(name)), name


@pytest.mark.slow
def test_demo(tmp_path):
    env = environment(PATH=programs(tmp_path), TMPDIR=str(tmp_path))
    ran = subprocess.run(
        ["bash", FIXTURES / "demo.sh"], capture_output=True, text=True, env=env, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("the same\n") == 4
    assert "wrong.npy[123456, 0] = 1000000" in ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["programs"]


if __name__ == "__main__":  # write the outputs into the README; look at them before committing
    import tempfile

    def replaced(match):
        block = match[1]
        with tempfile.TemporaryDirectory() as folder:
            shown = play(block, Path(folder))
        new = "".join(f"$ {c}\n{s}" for (c, _), s in zip(sessions(block), shown, strict=True))
        same = timeless(new) == timeless(block)
        return match[0] if same else f"```console\n{new}```"

    pattern = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    README.write_text(pattern.sub(replaced, TEXT), "utf-8")
