"""Validation of a model, as the onnx package's evaluator runs models that no runtime accepts."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from ndtool.analysis.modelrun import all_nodes, graphs_of, library_error
from ndtool.errors import InputError, NdtoolError, RuleError, printable
from ndtool.formats.onnx.modelproto import DOMAINS

_MAX_CHECKED = (1 << 31) - 1  # bytes of a model with its tensors; the package checks no larger ones


@contextmanager
def converted_errors(
    path: str, verb: str = "cannot run", kind: type[NdtoolError] = RuleError
) -> Iterator[None]:
    """Raise errors of ndtool for exceptions of the onnx package; verb: what the package did."""
    try:
        yield
    except NdtoolError:
        raise
    except Exception as exc:
        raise library_error(path, f"the onnx package {verb} it", exc, kind) from None


def load(path: str) -> Any:
    """Load a model with its external data."""
    onnx: Any = import_module("onnx")
    with converted_errors(path, "cannot load", InputError):
        return onnx.load(path)


def check(path: str) -> None:
    """Raise RuleError for a model with invalid structure, operators or types."""
    onnx: Any = import_module("onnx")
    checker: Any = import_module("onnx.checker")
    inference: Any = import_module("onnx.shape_inference")
    model, newest = load(path), onnx.defs.onnx_opset_version()
    for opset in model.opset_import:
        if opset.domain in DOMAINS and opset.version > newest:
            raise RuleError(
                f"{printable(path)} uses ONNX operator set {opset.version}:"
                f" the installed onnx package supports 1..{newest}"
            )
    graphs = [model.graph, *(graph for node in all_nodes(model) for graph in graphs_of(node))]
    for tensor in (tensor for graph in graphs for tensor in graph.sparse_initializer):
        name = printable(tensor.values.name)
        raise RuleError(f"{printable(path)}: {name} is sparse, which ndtool does not run")
    if model.ByteSize() > _MAX_CHECKED:
        return
    with converted_errors(path, "refuses"):
        unknown = []
        for value in (*model.graph.input, *model.graph.output):
            if value.type.HasField("tensor_type"):
                if not value.type.tensor_type.elem_type:
                    raise ValueError(f"{value.name} has no element type")
                if not value.type.tensor_type.HasField("shape"):
                    unknown.append(value.type.tensor_type)
                    value.type.tensor_type.shape.SetInParent()  # only the checker requires a shape
        checker.check_model(model, skip_opset_compatibility_check=True)  # functions' may differ
        for tensor_type in unknown:  # else their rank would be 0
            tensor_type.ClearField("shape")
        for graph in graphs:
            for value in (*graph.output, *graph.value_info):
                if value.type.HasField("tensor_type"):
                    value.type.tensor_type.ClearField("shape")  # runtimes only warn if it is wrong
        inference.infer_shapes(model, check_type=True, strict_mode=True)
