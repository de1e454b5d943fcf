"""The mutation tests find mutants in every source."""

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1]
SOURCES = FOLDER.parent / "ndtool"
RUN = runpy.run_path(str(FOLDER / "mutants" / "run.py"), run_name="mutants")
pytestmark = pytest.mark.skipif(
    not (SOURCES / "_kernels.pyx").exists(), reason="the sources are missing"
)


def test_a_sample_has_a_mutant_of_each_file() -> None:
    files = [file for file in RUN["sources"]() if any(RUN["mutants"](file))]
    assert {path.name for path in SOURCES.glob("loops/*.pxd")} >= {
        file.removeprefix("loops/") for file in files if file.startswith("loops/")
    }
    assert {"engine/gathers.py", "rules/shapes.py", "_kernels.pyx", "loops/gathers.pxd"} < {*files}
    sample = RUN["draw_sample"](files, 100, 3)
    assert {mutant.file for mutant in sample[: len(files)]} == {*files}
    assert len(set(sample)) == 100
    assert RUN["draw_sample"](files, 100, 3) == sample != RUN["draw_sample"](files, 100, 4)


def test_the_known_mutant_changes_one_line() -> None:
    mutant = RUN["find_mutant"](*RUN["KNOWN"])
    text = (SOURCES / mutant.file).read_text()
    changed = zip(text.splitlines(), mutant.apply(text).splitlines(), strict=True)
    assert sum(before != after for before, after in changed) == 1
