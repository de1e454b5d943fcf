"""The house: imports point down, and what starts without NumPy stays so."""

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGE = Path(find_spec("ndtool").origin).parent
# From the ground up: a module may import only what stands before it.
FLOORS = (
    ("errors", "_kernels"),
    ("dtypes", "shapes", "threads", "crew", "storage", "endings"),
    ("specs", "layouts", "headers", "newfile"),
    ("archives", "archive_writer", "sources", "engine", "reference"),
    ("files", "targets", "outputs", "scatters"),
    ("ops", "jobs"),
    ("infer", "verify", "values", "records"),
    ("styled",),
    ("report",),
    ("options",),
    ("cli",),
    ("__main__",),
)
FLOOR = {name: number for number, floor in enumerate(FLOORS) for name in floor}
ONLY = {"click": {"cli", "options", "__main__"}, "rich": {"styled", "report"}}


def modules() -> list[Path]:
    return sorted(p for p in PACKAGE.glob("*.py") if p.stem != "__init__")


def imported(path: Path) -> set[str]:
    """Return every module that a file imports, at its top or inside a function."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "ndtool":
            names |= {f"ndtool.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
    return names


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.stem)
def test_imports_point_down(path: Path) -> None:
    assert path.stem in FLOOR, "a new module needs its floor here"
    for name in imported(path):
        if name.startswith("ndtool."):
            below = name.removeprefix("ndtool.")
            if below == "__version__":
                continue
            assert FLOOR[below] <= FLOOR[path.stem], f"{path.stem} imports {below}"
        for library, allowed in ONLY.items():
            if name.split(".")[0] == library:
                assert path.stem in allowed, f"{path.stem} imports {library}"


def test_no_import_goes_in_a_circle() -> None:
    graph = {path.stem: {n[7:] for n in imported(path) if n[:7] == "ndtool."} for path in modules()}
    left = dict(graph)
    while left:
        free = [name for name, needs in left.items() if not needs & left.keys()]
        assert free, f"a circle among {sorted(left)}"
        for name in free:
            del left[name]
