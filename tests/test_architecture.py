"""The architecture: packages in layers, imports that point down, restricted libraries."""

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

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
    ("arrays", "nulls"),
    ("tensors",),
    ("publish", "arguments", "buffers"),
    ("formats", "inmemory"),
    ("ops",),
    ("tensorscatter",),
    ("runs",),
    ("analysis",),
    ("options",),
    ("files", "onnx"),
    ("cli",),
    ("__main__",),
)
LAYER = {name: number for number, layer in enumerate(LAYERS) for name in layer}
# Modules of arrays in memory import nothing of arrays outside it.
IN_MEMORY = {"nulls", "tensors", "arguments", "buffers", "inmemory", "ops", "tensorscatter"}
OUTSIDE = {"storage", "arrays", "publish", "formats"}
# Libraries beyond the standard one, and the modules, or their packages, that import them.
LIBRARIES = {
    "click": ("cli",),
    "rich": ("cli",),
    "matplotlib": ("cli.pictures",),
    "ml_dtypes": ("analysis", "tensors"),
    "zarr": ("formats.zarr",),
    "pyarrow": ("formats.arrow", "formats.text.arrowcsv"),
    "numcodecs": ("formats.zarr",),
    "h5py": ("formats.hdf5",),
    "hdf5plugin": ("formats.hdf5",),
    "fsspec": ("storage.remote", "storage.requests", "storage.s3", "storage.signing"),
    "aiohttp": ("storage.http",),
    "yarl": ("storage.http",),
    "dask": ("runs.executors",),
    "distributed": ("runs.executors",),
}
# Imports of the pure packages: no NumPy, nothing of the system.
PURE = ("rules", "errors")
PURE_LIBRARIES = {
    "__future__", "ast", "collections", "enum", "functools", "itertools", "math", "re",
    "struct", "sys", "typing",
}  # fmt: skip
LONGEST = 400  # lines of a module


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
        there = inside[0]
        same_layer = there != layer_of_importer and LAYER[there] == LAYER[layer_of_importer]
        if LAYER[there] > LAYER[layer_of_importer] or same_layer:
            yield f"{name} imports {needed}: {layer_of_importer} is not above {there}"
        if layer_of_importer in IN_MEMORY and there in OUTSIDE:
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
    left = dict(graph)
    while left:
        free = [name for name, needs in left.items() if not needs & left.keys()]
        assert free, f"a circle among {sorted(left)}"
        for name in free:
            del left[name]
    long = [
        name for name, path in modules().items() if len(path.read_text().splitlines()) > LONGEST
    ]
    assert not long
