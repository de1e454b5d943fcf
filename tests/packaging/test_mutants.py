"""The mutation tests find mutants in every source, and lines that do not compile."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import schemata

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


def test_lines_that_do_not_compile(tmp_path: Path) -> None:
    generated = tmp_path / "_kernels.c"
    generated.write_text('\n/* "ndtool/loops/a.pxd":7\n * x = 1\n */\n  wrong;\n')
    log = (
        "warning: ndtool/loops/a.pxd:3:4: Unreachable code\n"
        "ndtool/loops/b.pxd:49:31: Operation not allowed without gil\n"
        "ndtool/_kernels.c:5:3: error: unknown type\nndtool/_kernels.c:5:3: warning: unused\n"
    )
    locations = list(RUN["error_locations"](log, generated))
    assert locations == [("loops/b.pxd", 49), ("loops/a.pxd", 7)]


SOURCE = """
def f(a, b):
    c = max(a,
            b - 1)  # a comment
    if c < 3 and a > 1:
        c += 1
    return c"""


def test_mutants_are_selected_by_their_numbers() -> None:
    mutants = {1: (3, 8, "max", "min"), 2: (4, 14, "-", "+"), 3: (5, 13, "and", "or")}
    text, origins, inserted = schemata.insert_mutants(SOURCE, mutants)
    lines = text.removesuffix(schemata.SELECTOR).splitlines()
    assert inserted == {*mutants}
    assert [[*origins[i]] for i, line in enumerate(lines) if "a comment" in line] == [[3, 4]] * 3
    results = []
    for number in range(4):
        namespace: dict[str, Any] = {"ndtool_mutant": number}
        exec("\n".join(lines), namespace)
        results.append(namespace["f"](1, 3))
    assert results == [2, 1, 4, 3]
