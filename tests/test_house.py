"""The house: imports point down, wing by wing, and each library is known to one place."""

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGE = Path(find_spec("ndtool").origin).parent
# From the ground up: what stands on a floor imports from its own and from those before it.
FLOORS = (
    ("errors",),
    ("notebook",),
    ("_kernels", "loops"),
    ("endings",),
    ("rules",),
    ("engine",),
    ("tensors", "arguments", "buffers", "ops", "arrays"),
    ("runs",),
    ("analysis",),
    ("files", "onnx"),
    ("cli",),
    ("__main__",),
)
FLOOR = {name: number for number, floor in enumerate(FLOORS) for name in floor}
BESIDE = {
    frozenset((name, "arrays")) for name in ("ops", "arguments", "buffers", "tensors")
}  # on one floor, and strangers
ONLY = {
    "click": {"cli"},
    "rich": {"cli"},
    "ml_dtypes": {"analysis", "tensors"},
    "zarr": {"arrays"},
    "matplotlib": {"cli"},
}
REMOTE = {"fsspec", "aiohttp", "yarl"}  # known to one module
CLUSTER = {"distributed", "dask"}  # to two others
PURE = {"rules", "errors"}  # no NumPy, no system
ALLOWED = {
    "__future__",
    "ast",
    "collections",
    "enum",
    "functools",
    "itertools",
    "math",
    "re",
    "struct",
    "sys",
    "typing",
}
LONGEST = 400  # lines of a module


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def imported(path: Path) -> set[str]:
    """Return every module that a file imports, at its top or inside a function."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if is_module(name) else node.module for name in inside}
    return names


def is_module(name: str) -> bool:
    place = PACKAGE.parent / name.replace(".", "/")
    return place.is_dir() or place.with_suffix(".py").exists() or name == "ndtool._kernels"


def wing(name: str) -> str:
    return name.removeprefix("ndtool.").split(".")[0]


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_imports_point_down(path: Path) -> None:
    if path == PACKAGE / "__init__.py":
        return
    here = dotted(path).split(".")[0]
    assert here in FLOOR, "a new wing needs its floor here"
    for name in imported(path) - {"ndtool"}:
        if name.startswith("ndtool."):
            below = wing(name)
            assert FLOOR[below] <= FLOOR[here], f"{here} imports {below}"
            assert frozenset((here, below)) not in BESIDE, f"{here} imports {below}"
        library = name.split(".")[0]
        assert here in ONLY.get(library, {here}), f"{here} imports {library}"
        assert library not in REMOTE or dotted(path) == "arrays.remote", f"{here} imports {library}"
        ours = ("runs.cluster", "runs.local")
        assert library not in CLUSTER or dotted(path) in ours, f"{here} imports {library}"
        assert here not in PURE or library in ALLOWED | {"ndtool"}, f"{here} imports {library}"


def test_no_import_goes_in_a_circle() -> None:
    graph = {f"ndtool.{dotted(path)}": imported(path) for path in modules()}
    left = dict(graph)
    while left:
        free = [name for name, needs in left.items() if not needs & left.keys()]
        assert free, f"a circle among {sorted(left)}"
        for name in free:
            del left[name]


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_a_module_is_a_few_pages(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST
