"""The sdist and the wheel are reproducible and complete, and contain no other files."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import pytest

import ndtool

ROOT = Path(__file__).parents[2]
if not (ROOT / "setup.py").exists():
    pytest.skip("an installed ndtool has no setup.py", allow_module_level=True)
if find_spec("setuptools") is None:
    pytest.skip("setuptools builds the sdist", allow_module_level=True)

SOURCES = (
    "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "licenses",
    "CHANGELOG.md", "ndtool",
    "docs",
)  # fmt: skip
EPOCH = "1700000000"


def build_sdist(folder: Path, umask: int, mtime: int) -> Path:
    """Build an sdist from a copy of the sources with a umask and a modification time."""
    for name in SOURCES:
        source, copy = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(
                source, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so", "_kernels.c")
            )
        elif source.exists():
            shutil.copyfile(source, copy)
    manual = folder / "share/man/man1/ndtool.1"
    manual.parent.mkdir(parents=True)
    manual.write_text("a manual page\n")
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(0o666 & ~umask)
        os.utime(file, (mtime, mtime))
    completed = subprocess.run(
        [sys.executable, "setup.py", "-q", "sdist"],
        cwd=folder,
        env=os.environ | {"SOURCE_DATE_EPOCH": EPOCH, "PYTHONPATH": ""},
        umask=umask,
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0, completed.stderr
    (archive,) = (folder / "dist").iterdir()
    return archive


def test_two_sdists_have_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    first = build_sdist(tmp_path / "first", 0o022, 1_600_000_000)
    second = build_sdist(tmp_path / "second", 0o077, 1_650_000_000)
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as archive:
        members = archive.getmembers()
    names = {str(PurePosixPath(*PurePosixPath(m.name).parts[1:])) for m in members}
    assert names >= {"LICENSE", "ndtool/_kernels.pyx", "share/man/man1/ndtool.1", "PKG-INFO"}
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members} == {
        (int(EPOCH), 0, 0, "", "")
    }


def test_the_recipe_and_the_citation_have_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    recipe = ROOT / "recipe/recipe.yaml"
    if not recipe.exists():
        pytest.skip("an sdist has no recipe")
    text = recipe.read_text("utf-8")
    for requirement in project["dependencies"]:
        assert f"    - {requirement.replace('>=', ' >=')}\n" in text
    assert f'  version: "{ndtool.__version__}"\n' in text
    assert f'  python_min: "{project["requires-python"].removeprefix(">=")}"\n' in text
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {ndtool.__version__}\n" in citation


@pytest.fixture
def wheel() -> ZipFile:
    wheels = sorted((ROOT / "dist").glob("*.whl"))
    if not wheels:
        pytest.skip("`make wheel` builds the wheel")
    return ZipFile(wheels[-1])


def test_the_wheel_has_the_package_and_its_data_files(wheel: ZipFile) -> None:
    names = wheel.namelist()
    folders = {name.split("/")[0] for name in names}
    (info,) = (folder for folder in folders if folder.endswith(".dist-info"))
    data = info.replace(".dist-info", ".data")
    assert folders <= {"ndtool", "ndtool.libs", info, data}
    shared = {name.removeprefix(f"{data}/data/share/") for name in names if name.startswith(data)}
    assert shared >= {
        "man/man1/ndtool.1",
        "man/man1/ndtool-gather-nd.1",
        "bash-completion/completions/ndtool",
        "zsh/site-functions/_ndtool",
        "fish/vendor_completions.d/ndtool.fish",
    }
    kernels = [name for name in names if name.startswith("ndtool/_kernels.") and ".so" in name]
    abi = wheel.read(f"{info}/WHEEL").decode()
    assert len(kernels) == 1
    if "Tag: cp311-abi3" in abi:
        assert kernels == ["ndtool/_kernels.abi3.so"]
    assert {f"{info}/licenses/LICENSE", f"{info}/licenses/licenses/README.txt"} <= set(names)
    assert not [name for name in names if name.endswith((".c", ".pyx", ".pyc"))]


def test_the_bill_of_materials_lists_cython(wheel: ZipFile) -> None:
    (name,) = (
        path for path in wheel.namelist() if path.endswith(".dist-info/sboms/ndtool.cdx.json")
    )
    bill = json.loads(wheel.read(name))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    version = bill["metadata"]["component"]["version"]
    assert f"ndtool-{version}.dist-info" in name
    (cython,) = bill["components"]
    assert cython["purl"] == f"pkg:pypi/cython@{cython['version']}"
    assert cython["version"].startswith("3.")
