"""The gallery: a drawing of every example in the standards."""

import subprocess
import sys
from pathlib import Path

import pytest
from command import FIXTURES, environment
from test_html_report import Page

GALLERY = FIXTURES.parent / "docs" / "gallery.py"


@pytest.mark.skipif(not GALLERY.exists(), reason="the docs folder is missing")
def test_every_example_has_a_page(tmp_path: Path) -> None:
    completed = subprocess.run(
        [sys.executable, GALLERY, tmp_path], env=environment(), capture_output=True, check=True
    )
    pages = sorted(tmp_path.iterdir())
    assert sorted(path.stem for path in pages) == sorted(
        folder.name for folder in FIXTURES.iterdir() if (folder / "indices.npy").exists()
    )
    assert (len(completed.stdout.splitlines()), completed.stderr) == (len(pages), b"")
    for path in pages:
        page = Page(str(path))
        assert f"-o output.npy --html {path.name}" in page.visible_text
        assert page.grid("output")["values"]
