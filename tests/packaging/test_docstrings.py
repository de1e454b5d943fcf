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
    try:
        torch_module: Any = importlib.import_module("ndtool.torch")
    except ImportError:
        return
    for name in torch_module.__all__:
        yield f"ndtool.torch.{name}", getattr(torch_module, name)


FUNCTIONS = dict(functions())


def test_all_public_functions_are_tested() -> None:
    operators = ("gather", "scatter_nd", "tensor_scatter")
    for name in (*operators, "explain", "stats", "inspect", "model", "convert", "infer", "verify"):
        assert f"ndtool.{name}" in FUNCTIONS
    for name in operators:
        assert f"ndtool.files.{name}" in FUNCTIONS


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_docstring_is_complete(name: str) -> None:
    text = inspect.getdoc(FUNCTIONS[name]) or ""
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
    is_torch = name.startswith("ndtool.torch.")
    for parameter in inspect.signature(FUNCTIONS[name]).parameters:
        if not is_torch:  # their docstrings refer to the arguments of ndtool
            assert re.search(rf"\b{parameter}\b", text), parameter


@pytest.mark.parametrize("module", sorted(MODULES))
def test_examples_run(module: str) -> None:
    for library in {"ndtool.questions.files": ["onnx"], "ndtool.xarray": ["dask", "xarray"]}.get(
        module, []
    ):
        pytest.importorskip(library)
    results = doctest.testmod(importlib.import_module(module))
    assert results.failed == 0
    assert results.attempted
