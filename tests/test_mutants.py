"""The tables of the mutation tests: no file of kernels is left out, and each row is about a line."""

import runpy
from itertools import chain
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
SOURCES = FOLDER.parent / "ndtool"
TABLE = runpy.run_path(str(FOLDER / "mutants" / "run.py"), run_name="mutants")
pytestmark = pytest.mark.skipif(
    not (SOURCES / "_kernels.pyx").exists(), reason="the sources are not next to the tests"
)


def test_every_row_is_about_an_existing_line() -> None:
    assert len(TABLE["EQUIVALENT"]) > 20
    for file, part, token in TABLE["EQUIVALENT"]:
        lines = (SOURCES / file).read_text().splitlines()
        assert any(part in line and token in line for line in lines), (file, part, token)


def test_every_referenced_file_exists() -> None:
    for name in (*TABLE["SOURCES"], *TABLE["KERNELS"]):
        assert (SOURCES / name).exists(), name
    assert {*TABLE["OWN"]} <= {*TABLE["SOURCES"], *TABLE["KERNELS"]}
    for name in {*TABLE["TESTS"], *chain(*TABLE["OWN"].values())}:
        assert (FOLDER / name).exists(), name


def test_every_file_of_kernels_has_mutants() -> None:
    files = {path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("*.p[yx][xid]")}
    files -= {name for name in files if name.endswith(".pyi")}
    reasons = TABLE["WITHOUT_VALUES"]
    assert all(reasons.values())
    assert files == {*TABLE["KERNELS"], *reasons}
    assert not {*TABLE["KERNELS"]} & {*reasons}
    for name in TABLE["KERNELS"]:
        assert any(TABLE["mutants"](name)), name


def test_a_sample_has_a_mutant_of_each_file() -> None:
    files = [one for one in (*TABLE["SOURCES"], *TABLE["KERNELS"]) if any(TABLE["mutants"](one))]
    chosen = TABLE["drawn"](files, 100, 3)
    assert {one.file for one in chosen[: len(files)]} == {*files}
    assert len(set(chosen)) == 100
    assert TABLE["drawn"](files, 100, 3) == chosen != TABLE["drawn"](files, 100, 4)


def test_mutants_with_a_known_fate_exist() -> None:
    for row in (*TABLE["FATAL"], *TABLE["HARMLESS"]):
        mutant = TABLE["find"](*row)
        assert mutant.apply((SOURCES / mutant.file).read_text()).count("\n") > 10


def test_lines_that_do_not_compile(tmp_path: Path) -> None:
    generated = tmp_path / "_kernels.c"
    generated.write_text('\n/* "ndtool/loops/a.pxd":7\n * x = 1\n */\n  wrong;\n')
    log = (
        "warning: ndtool/loops/a.pxd:3:4: Unreachable code\n"
        "ndtool/loops/b.pxd:49:31: Operation not allowed without gil\n"
        "ndtool/_kernels.c:5:3: error: unknown type\nndtool/_kernels.c:5:3: warning: unused\n"
    )
    found = list(TABLE["erroneous"](log, generated))
    assert found == [("loops/b.pxd", 49), ("loops/a.pxd", 7)]
