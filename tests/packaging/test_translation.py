"""docs/translation.md: each line gives the same array in the library and in ndtool."""

import importlib
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ndtool

PAGE = Path(__file__).parents[2] / "docs" / "translation.md"
LINE = re.compile(r"\| `(.+?)` \| `(.+?)` \|")
CASES = 10
# The module of each section, and the names that its calls use.
LIBRARIES = {
    "NumPy": ("numpy", "np"), "PyTorch": ("torch", "torch"), "TensorFlow": ("tensorflow", "tf"),
    "JAX": ("jax", "jax"), "OpenVINO": ("openvino", ""), "pandas": ("pandas", "pd"),
    "Polars": ("polars", "pl"),
}  # fmt: skip


def lines() -> Iterator[Any]:
    for section in PAGE.read_text().split("\n## ")[1:]:
        library = section.partition("\n")[0]
        for library_call, ndtool_call in LINE.findall(section):
            yield pytest.param(library, library_call, ndtool_call, id=f"{library}: {library_call}")


def arrays(seed: int, distinct: bool) -> dict[str, np.ndarray]:
    """Return the arrays of the page: whole numbers, so that sums are exact."""
    rng = np.random.default_rng(seed)

    def numbers(*shape: int) -> np.ndarray:
        return rng.integers(-9, 10, shape).astype("f4")

    def ids(below: int, *shape: int) -> np.ndarray:
        if not distinct:
            return rng.integers(0, below, shape)
        return rng.permuted(np.broadcast_to(np.arange(below)[:, None], (below, 4)), axis=0)[:2]

    rows = rng.permutation(5)[:3] if distinct else ids(5, 3)
    columns = rng.permutation(4)[:3] if distinct else ids(4, 3)
    return {
        "x": numbers(5, 4), "ids": rows, "ids4": columns, "rows": numbers(3, 4),
        "columns": numbers(5, 3), "tuples": np.stack([rows, columns], 1), "values": numbers(3),
        "indices": ids(5, 2, 4) if distinct else rng.integers(0, 4, (2, 4)), "updates": numbers(2, 4),
    }  # fmt: skip


def converter(library: str, module: Any) -> Any:
    """Return what makes an array of the library's type."""
    if library == "PyTorch":
        return lambda array: module.from_numpy(array.copy())
    if library == "JAX":
        return importlib.import_module("jax.numpy").asarray
    return np.copy


def names(library: str, module: Any) -> dict[str, Any]:
    """Return what the calls of a library name."""
    namespace = {"np": np, LIBRARIES[library][1]: module}
    if library == "JAX":
        namespace["jnp"] = importlib.import_module("jax.numpy")
    if library == "OpenVINO":
        namespace["ov"] = importlib.import_module("openvino.opset15")
        namespace["run"] = lambda node: module.compile_model(module.Model([node], []), "CPU")([])[0]
    return namespace


def evaluate(source: str, known: dict[str, Any]) -> Any:
    """Return the value of an expression, or x as a statement leaves it."""
    try:
        code = compile(source, source, "eval")
    except SyntaxError:
        exec(source, known)  # an assignment
        return known["x"]
    value = eval(code, known)
    return known["x"] if value is None else value


@pytest.mark.parametrize(("library", "other_call", "ndtool_call"), list(lines()))
def test_a_call_and_its_translation_have_one_result(
    library: str, other_call: str, ndtool_call: str
) -> None:
    module = pytest.importorskip(LIBRARIES[library][0])
    namespace, convert = names(library, module), converter(library, module)
    # Only where the last update wins in both may an element have several.
    reduces = '"' in ndtool_call.partition("(")[2] or "gather" in ndtool_call
    distinct = not reduces and library not in ("NumPy", "pandas")
    for seed in range(CASES):
        inputs = arrays(seed, distinct)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            their = np.asarray(
                evaluate(other_call, {**namespace, **{n: convert(a) for n, a in inputs.items()}})
            )
        our = np.asarray(evaluate(ndtool_call, {"np": np, "ndtool": ndtool, **inputs}))
        assert our.shape == their.shape
        np.testing.assert_array_equal(our, their)


def test_every_library_of_the_page_is_tried() -> None:
    examples = {case.values[0] for case in lines()}
    assert examples == set(LIBRARIES)
    assert sum(1 for _ in lines()) >= 80
