"""The architecture: packages in layers, imports that point down, restricted libraries."""

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

PACKAGE = Path(find_spec("ndtool").origin).parent
# From the bottom: a package or module imports from its own layer and from lower ones. Packages
# in one layer do not import each other.
LAYERS = (
    ("redaction",),
    ("errors",),
    ("notebook",),
    ("rules",),
    ("signatures",),
    ("_kernels", "loops"),
    ("machine",),
    ("engine", "storage"),
    ("arrays", "inmemory"),
    ("publish",),
    ("formats",),
    ("outofcore",),
    ("runs",),
    ("analysis",),
    ("options",),
    ("questions",),
    ("files", "onnx", "dask", "torch"),
    ("xarray",),
    ("cli",),
    ("__main__",),
)
LAYER_INDEX = {name: index for index, layer in enumerate(LAYERS) for name in layer}
# Modules for arrays in memory do not import those for arrays in files.
IN_MEMORY = {"inmemory", "torch"}
OUTSIDE_MEMORY = {"storage", "arrays", "publish", "formats"}
# Third-party libraries, and the modules or packages that may import them.
LIBRARIES = {
    "click": ("cli",),
    "rich": ("cli", "notebook"),
    "ml_dtypes": ("analysis", "inmemory.tensors"),
    "pyarrow": ("formats.arrow", "formats.text"),
    "google_crc32c": ("formats.codecs",),
    "numcodecs": ("formats.codecs",),
    "h5py": ("formats.hdf5",),
    "hdf5plugin": ("formats.hdf5",),
    "fsspec": ("storage.objects",),
    "aiohttp": ("storage.objects",),
    "yarl": ("storage.objects",),
    "dask": ("outofcore.localcluster", "dask", "xarray"),
    "xarray": ("xarray",),
    "distributed": ("outofcore.cluster", "outofcore.localcluster"),
    "torch": ("torch", "inmemory.gradients", "analysis.engines"),
}
# Imports of the pure packages: no NumPy, no system calls.
PURE = ("rules", "errors")
PURE_LIBRARIES = {
    "__future__", "ast", "collections", "enum", "fractions", "functools", "itertools", "math", "re",
    "struct", "sys", "typing",
}  # fmt: skip


def modules() -> dict[str, Path]:
    """Return all modules by their names in the package."""
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
                member = f"{node.module}.{alias.name}"
                names.add(member if is_module(member) else node.module)
    return names


def is_module(name: str) -> bool:
    path = PACKAGE.parent / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists() or name == "ndtool._kernels"


def belongs_to(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def violations(name: str, imported: str) -> Iterator[str]:
    """Yield the violations in the import of one module by another."""
    layer_of_importer, (package, *path) = name.split(".")[0], imported.split(".")
    if package == "ndtool" and path:
        layer = path[0]
        same_layer = (
            layer != layer_of_importer and LAYER_INDEX[layer] == LAYER_INDEX[layer_of_importer]
        )
        if LAYER_INDEX[layer] > LAYER_INDEX[layer_of_importer] or same_layer:
            yield f"{name} imports {imported}: {layer_of_importer} is not above {layer}"
        if layer_of_importer in IN_MEMORY and layer in OUTSIDE_MEMORY:
            yield f"{name} imports {imported}: modules for arrays in memory import none for files"
    if not belongs_to(name, LIBRARIES.get(package, (layer_of_importer,))):
        yield f"{name} imports {package}: only {', '.join(LIBRARIES[package])} may"
    if belongs_to(name, PURE) and package not in PURE_LIBRARIES | {"ndtool"}:
        yield f"{name} imports {package}: it is pure"


def test_imports_point_down_and_libraries_are_restricted() -> None:
    all_violations = []
    for name, path in modules().items():
        if name == "__init__":
            continue
        assert name.split(".")[0] in LAYER_INDEX, f"{name}: a new package needs its layer here"
        all_violations += [
            violation for imported in imports(path) for violation in violations(name, imported)
        ]
    assert not all_violations, "\n".join(sorted(all_violations))


def test_imports_have_no_cycle() -> None:
    graph = {f"ndtool.{name}": imports(path) for name, path in modules().items()}
    remaining = dict(graph)
    while remaining:
        independent = [
            name for name, imported in remaining.items() if not imported & remaining.keys()
        ]
        assert independent, f"an import cycle among {sorted(remaining)}"
        for name in independent:
            del remaining[name]
