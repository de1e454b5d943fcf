"""The architecture: packages in layers, imports that point down, restricted libraries."""

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from ndtool.rules.operators import OPERATORS

PACKAGE = Path(find_spec("ndtool").origin).parent
# From the bottom: a package or module imports from its own layer and from lower ones. Packages
# in one layer do not import each other.
LAYERS = (
    ("redaction", "literals"),
    ("errors",),
    ("rules",),
    ("notebook",),
    ("_kernels", "loops"),
    ("machine",),
    ("engine", "storage"),
    ("arrays", "inmemory"),
    ("publish", "chunkwise"),
    ("formats",),
    ("runs",),
    ("analysis",),
    ("options",),
    ("questions",),
    ("files", "onnx", "dask", "torch"),
    ("xarray",),
    ("cli",),
    ("__main__",),
)
LAYER = {name: number for number, layer in enumerate(LAYERS) for name in layer}
# Modules of arrays in memory import nothing of arrays outside it.
IN_MEMORY = {"inmemory", "torch"}
OUTSIDE = {"storage", "arrays", "publish", "formats"}
# Libraries beyond the standard one, and the modules, or their packages, that import them.
LIBRARIES = {
    "click": ("cli",),
    "rich": ("cli", "notebook"),
    "matplotlib": ("cli.pictures",),
    "ml_dtypes": ("analysis", "inmemory.tensors"),
    "zarr": ("formats.zarr",),
    "pyarrow": ("formats.arrow", "formats.text.arrowcsv"),
    "numcodecs": ("formats.zarr",),
    "h5py": ("formats.hdf5",),
    "hdf5plugin": ("formats.hdf5",),
    "fsspec": ("storage.remote", "storage.requests", "storage.s3", "storage.signing"),
    "aiohttp": ("storage.http",),
    "yarl": ("storage.http",),
    "dask": ("runs.executors", "dask", "xarray"),
    "xarray": ("xarray",),
    "distributed": ("runs.executors",),
    "torch": ("torch", "inmemory.gradients", "analysis.engines"),
}
# Imports of the pure packages: no NumPy, nothing of the system.
PURE = ("rules", "errors")
PURE_LIBRARIES = {
    "__future__", "ast", "collections", "enum", "functools", "itertools", "math", "re",
    "struct", "sys", "typing",
}  # fmt: skip
LONGEST = 400  # lines of a module
MOST = 10  # parameters of a function


def modules() -> dict[str, Path]:
    """Return all modules by their names within the package."""
    paths = {path.relative_to(PACKAGE).with_suffix(""): path for path in PACKAGE.rglob("*.py")}
    return {".".join(name.parts).removesuffix(".__init__"): path for name, path in paths.items()}


def imports(path: Path) -> set[str]:
    """Return every module that a file imports, at its top or inside a function."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                names.add(inside if is_module(inside) else node.module)
    return names


def is_module(name: str) -> bool:
    path = PACKAGE.parent / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists() or name == "ndtool._kernels"


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def faults(name: str, needed: str) -> Iterator[str]:
    """Yield the violations in the import of one module by another."""
    layer_of_importer, (library, *inside) = name.split(".")[0], needed.split(".")
    if library == "ndtool" and inside:
        layer = inside[0]
        same_layer = layer != layer_of_importer and LAYER[layer] == LAYER[layer_of_importer]
        if LAYER[layer] > LAYER[layer_of_importer] or same_layer:
            yield f"{name} imports {needed}: {layer_of_importer} is not above {layer}"
        if layer_of_importer in IN_MEMORY and layer in OUTSIDE:
            yield f"{name} imports {needed}: arrays in memory do without arrays outside"
    if not within(name, LIBRARIES.get(library, (layer_of_importer,))):
        yield f"{name} imports {library}: only {', '.join(LIBRARIES[library])} may"
    if within(name, PURE) and library not in PURE_LIBRARIES | {"ndtool"}:
        yield f"{name} imports {library}: it is pure"


def test_imports_point_down_and_libraries_are_known_to_few() -> None:
    found = []
    for name, path in modules().items():
        if name == "__init__":
            continue
        assert name.split(".")[0] in LAYER, f"{name}: a new package needs its layer here"
        found += [fault for needed in imports(path) for fault in faults(name, needed)]
    assert not found, "\n".join(sorted(found))


def test_no_import_goes_in_a_circle_and_modules_are_short() -> None:
    graph = {f"ndtool.{name}": imports(path) for name, path in modules().items()}
    remaining = dict(graph)
    while remaining:
        free = [name for name, needs in remaining.items() if not needs & remaining.keys()]
        assert free, f"a circle among {sorted(remaining)}"
        for name in free:
            del remaining[name]
    long = [
        name for name, path in modules().items() if len(path.read_text().splitlines()) > LONGEST
    ]
    assert not long


def parameters(path: Path) -> Iterator[tuple[str, int]]:
    """Yield each function of a Cython source, and how many parameters it has."""
    text = re.sub(r"#.*", "", path.read_text())
    for found in re.finditer(r"^ *(?:cdef|def)\b[^\n(=:]*?(\w+) *(?:\"\w+\")?\(", text, re.M):
        depth, count, filled = 1, 0, False
        for character in text[found.end() :]:
            depth += (character in "([{") - (character in ")]}")
            if depth == 0:
                break
            if character == "," and depth == 1:
                count, filled = count + filled, False
            else:
                filled |= not character.isspace()
        yield found[1], count + filled


def test_functions_have_at_most_ten_parameters() -> None:
    """But public functions of which each keyword is documented, and the operators' twins."""
    long = []
    for path in sorted(PACKAGE.rglob("*.p[yx]*")):
        if path.suffix in (".pyx", ".pxd", ".pxi"):
            long += [f"{path.name}: {name}" for name, count in parameters(path) if count > MOST]
        elif path.suffix == ".py":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef) and node.name not in (*OPERATORS, "convert"):
                    given = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
                    count = sum(one.arg not in ("self", "cls") for one in given)
                    long += [f"{path.name}: {node.name}"] * (count > MOST)
    assert not long


def test_kernels_are_short_and_loops_say_what_they_are_for() -> None:
    kernels = PACKAGE / "_kernels.pyx"
    if not kernels.exists():
        pytest.skip("an installed package has no sources of its kernels")
    assert len(kernels.read_text().splitlines()) < 600
    for path in PACKAGE.rglob("*.pxd"):
        lines = [line for line in path.read_text().splitlines() if not line.startswith("# cython:")]
        assert all(line.startswith("# ") for line in lines[:2]), path
