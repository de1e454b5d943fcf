"""The workflows: actions pinned by hash, few permissions, and only targets that the Makefile has."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
if not WORKFLOWS:
    pytest.skip("an sdist has no workflows", allow_module_level=True)
PINNED = re.compile(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.stem)
def text(request: pytest.FixtureRequest) -> str:
    return request.param.read_text("utf-8")


def test_actions_are_pinned(text: str) -> None:
    used = re.findall(r"uses: (.+)", text)
    assert used
    assert [u for u in used if not u.startswith("./") and not PINNED.fullmatch(u)] == []


def test_permissions_are_read_only_unless_a_job_needs_more(text: str) -> None:
    assert "\npermissions:\n  contents: read\n" in text
    assert text.count("persist-credentials: false") == text.count("uses: actions/checkout@")


def test_targets_are_in_the_makefile(text: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    called = re.findall(r"run: make ([a-z-]+)", text) + re.findall(r"target: ([a-z-]+)", text)
    listed = re.findall(r"target: \[(.+)\]", text)
    called += [name for names in listed for name in names.split(", ")]
    assert set(called) <= targets
    assert re.findall(r"run: (?!make |echo |gh |\||brew )(.+)", text) == []


def test_actionlint() -> None:
    linter = shutil.which("actionlint")
    if linter is None:
        pytest.skip("actionlint is not installed: `make lint-workflows` installs it")
    result = subprocess.run([linter, *WORKFLOWS], capture_output=True, text=True, cwd=ROOT)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")
