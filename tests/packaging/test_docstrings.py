"""Docstrings are complete: shapes, dtypes, errors, the standard, and an example that runs."""

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import ndtool
from ndtool.rules.operators import OPERATORS

PACKAGE = Path(ndtool.__file__).parent
WITH_EXAMPLES = [path for path in PACKAGE.rglob("*.py") if "    >>> " in path.read_text("utf-8")]
MODULES = {"ndtool.signatures", "ndtool.files"} | {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in WITH_EXAMPLES
}
NO_STANDARD = {"inspect", "convert"}  # not about an operator


def functions() -> Iterator[tuple[str, FunctionType]]:
    """Yield the public functions, with their names."""
    for name in ndtool.__all__:
        if isinstance(function := getattr(ndtool, name), FunctionType):
            yield f"ndtool.{name}", function
    for name, function in vars(ndtool.files).items():
        is_public = not name.startswith("_") and isinstance(function, FunctionType)
        if is_public and function.__module__ == "ndtool.files":
            yield f"ndtool.files.{name}", function


FUNCTIONS = dict(functions())
OF_TORCH = [f"ndtool.torch.{name}" for name in OPERATORS if name != "tensor_scatter"]


def function_of(name: str) -> Any:
    if name not in OF_TORCH:
        return FUNCTIONS[name]
    pytest.importorskip("torch")
    return getattr(importlib.import_module("ndtool.torch"), name.rpartition(".")[2])


def test_all_public_functions_are_tested() -> None:
    operators = ("gather", "scatter_nd", "tensor_scatter")
    for name in (*operators, "explain", "stats", "inspect", "model", "convert", "infer", "verify"):
        assert f"ndtool.{name}" in FUNCTIONS
    for name in operators:
        assert f"ndtool.files.{name}" in FUNCTIONS


@pytest.mark.parametrize("name", [*FUNCTIONS, *OF_TORCH])
def test_a_docstring_is_complete(name: str) -> None:
    function = function_of(name)
    text = inspect.getdoc(function) or ""
    first, _, remaining = text.partition("\n")
    assert first.endswith(".")
    assert remaining.startswith("\n"), "the first line is a complete sentence"
    assert re.search("Returns|the result", text)
    assert re.search("Error", text)
    assert "\n>>> " in text
    assert re.search("dtype|tensor|any format", text)
    assert not re.search(r"\bSee\b|\bas (in ndtool|in gather|in scatter|there)\b", text)
    if name.rpartition(".")[2] not in NO_STANDARD:
        assert re.search("ONNX|OpenVINO", text)
    for parameter in inspect.signature(function).parameters:
        if name not in OF_TORCH:  # their docstrings refer to the arguments of ndtool
            assert re.search(rf"\b{parameter}\b", text), parameter


@pytest.mark.parametrize("module", sorted(MODULES))
def test_examples_run(module: str) -> None:
    for library in {"ndtool.questions": ["onnx"], "ndtool.xarray": ["dask", "xarray"]}.get(
        module, []
    ):
        pytest.importorskip(library)
    results = doctest.testmod(importlib.import_module(module))
    assert results.failed == 0
    assert results.attempted
