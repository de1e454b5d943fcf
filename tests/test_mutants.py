"""The table of equivalent mutants: each row refers to an existing line."""

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
SOURCES = FOLDER.parent / "ndtool"
TABLE = runpy.run_path(str(FOLDER / "mutants" / "run.py"), run_name="mutants")
pytestmark = pytest.mark.skipif(
    not (SOURCES / "_kernels.pyx").exists(), reason="the sources are not beside the tests"
)


def test_every_row_is_about_an_existing_line() -> None:
    assert len(TABLE["EQUIVALENT"]) > 20
    for file, part, token in TABLE["EQUIVALENT"]:
        lines = (SOURCES / file).read_text().splitlines()
        assert any(part in line and token in line for line in lines), (file, part, token)


def test_every_referenced_file_exists() -> None:
    for name in (*TABLE["SOURCES"], *TABLE["KERNELS"]):
        assert (SOURCES / name).exists(), name
    for name in TABLE["TESTS"]:
        assert (FOLDER / name).exists(), name
