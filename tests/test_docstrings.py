"""help() stands alone: shapes, dtypes, errors, the standard, and an example that runs."""

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import pytest

import ndtool

MODULES = ("ndtool.inmemory.ops", "ndtool.inmemory.tensorscatter", "ndtool.files", "ndtool.questions.calls",
           "ndtool.questions.files", "ndtool.questions.filechecks")  # fmt: skip
NO_STANDARD = {"inspect", "convert"}  # no operator takes part


def functions() -> Iterator[tuple[str, FunctionType]]:
    """Yield the public functions, with their names."""
    for name in ndtool.__all__:
        if isinstance(function := getattr(ndtool, name), FunctionType):
            yield f"ndtool.{name}", function
    for name, function in vars(ndtool.files).items():
        public = not name.startswith("_") and isinstance(function, FunctionType)
        if public and function.__module__ in ("ndtool.files", "ndtool.questions.filechecks"):
            yield f"ndtool.files.{name}", function
    try:
        integrated: Any = importlib.import_module("ndtool.torch")
    except ImportError:
        return
    for name in integrated.__all__:
        yield f"ndtool.torch.{name}", getattr(integrated, name)


FUNCTIONS = dict(functions())


def test_the_public_functions_are_found() -> None:
    operators = ("gather", "scatter_nd", "tensor_scatter")
    for name in (*operators, "explain", "stats", "inspect", "model", "convert", "infer", "verify"):
        assert f"ndtool.{name}" in FUNCTIONS
    for name in (*operators, "infer", "verify"):
        assert f"ndtool.files.{name}" in FUNCTIONS


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_of_a_function_stands_alone(name: str) -> None:
    text = inspect.getdoc(FUNCTIONS[name]) or ""
    first, _, rest = text.partition("\n")
    assert first.endswith(".")
    assert rest.startswith("\n"), "the first line is a sentence of its own"
    assert re.search("Returns|the result", text)
    assert re.search("Error", text)
    assert "\n>>> " in text
    assert re.search("dtype|tensor|any format", text)
    assert not re.search(r"\bSee\b|\bas (in ndtool|in gather|in scatter|there)\b", text)
    if name.rpartition(".")[2] not in NO_STANDARD:
        assert re.search("ONNX|OpenVINO", text)
    of_tensors = name.startswith("ndtool.torch.")
    for parameter in inspect.signature(FUNCTIONS[name]).parameters:
        if not of_tensors:  # which have the arguments of ndtool's, as they say
            assert re.search(rf"\b{parameter}\b", text), parameter


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module: str) -> None:
    if module == "ndtool.questions.files":
        pytest.importorskip("onnx")
    found = doctest.testmod(importlib.import_module(module))
    assert found.failed == 0
    assert found.attempted
