"""Tables of the mutation tests: they name existing files and lines, and every kernel source."""

import runpy
from itertools import chain
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1]
SOURCES = FOLDER.parent / "ndtool"
TABLE = runpy.run_path(str(FOLDER / "mutants" / "run.py"), run_name="mutants")
pytestmark = pytest.mark.skipif(
    not (SOURCES / "_kernels.pyx").exists(), reason="the sources are missing"
)


def test_each_equivalent_mutant_is_in_an_existing_line() -> None:
    assert len(TABLE["EQUIVALENT"]) > 20
    for file, text, token in TABLE["EQUIVALENT"]:
        lines = (SOURCES / file).read_text().splitlines()
        assert any(text in line and token in line for line in lines), (file, text, token)


def test_every_referenced_file_exists() -> None:
    for name in (*TABLE["SOURCES"], *TABLE["KERNELS"]):
        assert (SOURCES / name).exists(), name
    assert {*TABLE["FILE_TESTS"]} <= {*TABLE["SOURCES"], *TABLE["KERNELS"]}
    for name in {*TABLE["TESTS"], *chain(*TABLE["FILE_TESTS"].values())}:
        assert (FOLDER / name).exists(), name


def test_every_file_of_kernels_has_mutants() -> None:
    files = {path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("*.p[yx][xid]")}
    files -= {name for name in files if name.endswith(".pyi")}
    reasons = TABLE["WITHOUT_MUTANTS"]
    assert all(reasons.values())
    assert files == {*TABLE["KERNELS"], *reasons}
    assert not {*TABLE["KERNELS"]} & {*reasons}
    for name in TABLE["KERNELS"]:
        assert any(TABLE["mutants"](name)), name


def test_a_sample_has_a_mutant_of_each_file() -> None:
    files = [file for file in (*TABLE["SOURCES"], *TABLE["KERNELS"]) if any(TABLE["mutants"](file))]
    sample = TABLE["draw_sample"](files, 100, 3)
    assert {mutant.file for mutant in sample[: len(files)]} == {*files}
    assert len(set(sample)) == 100
    assert TABLE["draw_sample"](files, 100, 3) == sample != TABLE["draw_sample"](files, 100, 4)


def test_mutants_with_a_known_outcome_exist() -> None:
    for row in (*TABLE["KNOWN_KILLED"], *TABLE["KNOWN_EQUIVALENT"]):
        mutant = TABLE["find_mutant"](*row)
        assert mutant.apply((SOURCES / mutant.file).read_text()).count("\n") > 10


def test_lines_that_do_not_compile(tmp_path: Path) -> None:
    generated = tmp_path / "_kernels.c"
    generated.write_text('\n/* "ndtool/loops/a.pxd":7\n * x = 1\n */\n  wrong;\n')
    log = (
        "warning: ndtool/loops/a.pxd:3:4: Unreachable code\n"
        "ndtool/loops/b.pxd:49:31: Operation not allowed without gil\n"
        "ndtool/_kernels.c:5:3: error: unknown type\nndtool/_kernels.c:5:3: warning: unused\n"
    )
    locations = list(TABLE["error_locations"](log, generated))
    assert locations == [("loops/b.pxd", 49), ("loops/a.pxd", 7)]
