"""Validation of a model, as the onnx package's evaluator runs models that no runtime accepts."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from typing import Any

from ndtool.analysis.modelrun import MEMORY_MESSAGES
from ndtool.errors import NdtoolError, ResourceError, RuleError, library_message, printable
from ndtool.formats.onnx import tensorproto
from ndtool.formats.onnx.modelproto import DOMAINS
from ndtool.formats.onnx.tensordata import Folder
from ndtool.formats.onnx.wire import Message
from ndtool.storage import locations

_MAX_MESSAGE = 500  # characters of a message of the package
_MAX_LOADED = 1 << 16  # bytes of a tensor whose values shape inference reads


@contextmanager
def converted_errors(path: str, verb: str = "cannot run") -> Iterator[None]:
    """Raise errors of ndtool for exceptions of the onnx package; verb: what the package did."""
    try:
        yield
    except NdtoolError:
        raise
    except Exception as exc:
        reason = library_message(exc, _MAX_MESSAGE)
        if isinstance(exc, MemoryError) or any(text in reason for text in MEMORY_MESSAGES):
            raise ResourceError(f"{printable(path)}: not enough memory: {reason}") from None
        raise RuleError(f"{printable(path)}: the onnx package {verb} it: {reason}") from None


def check(path: str) -> None:
    """Raise RuleError for a model with invalid structure, operators or types."""
    onnx: Any = import_module("onnx")
    checker: Any = import_module("onnx.checker")
    inference: Any = import_module("onnx.shape_inference")
    with converted_errors(path, "refuses"):
        model = onnx.load(path, load_external_data=False)
        _check_version(path, model, onnx.defs.onnx_opset_version())
        _complete_shapes(model)
        checker.check_model(model, skip_opset_compatibility_check=True)  # functions' may differ
        model = onnx.load(path, load_external_data=False)
        for graph in (model.graph, *_subgraphs(_nodes(model))):
            for value in (*graph.output, *graph.value_info):
                if value.type.HasField("tensor_type"):
                    value.type.tensor_type.ClearField("shape")  # runtimes only warn if it is wrong
        _load_small_tensors(path, model)
        inference.infer_shapes(model, check_type=True, strict_mode=True)


def _check_version(path: str, model: Any, newest: int) -> None:
    for opset in model.opset_import:
        if opset.domain in DOMAINS and opset.version > newest:
            raise RuleError(
                f"{printable(path)} uses ONNX operator set {opset.version}:"
                f" the installed onnx package supports 1..{newest}"
            )


def _complete_shapes(model: Any) -> None:
    """Add shapes of inputs and outputs that only the checker requires.

    Tensors with external data become empty, as the checker would read files of the current
    directory.
    """
    for value in (*model.graph.input, *model.graph.output):
        if value.type.HasField("tensor_type"):
            if not value.type.tensor_type.elem_type:
                raise ValueError(f"{value.name} has no element type")
            value.type.tensor_type.shape.SetInParent()
    for tensor in _external_tensors(model):
        tensor.dims[:] = [0]
        _store_bytes(tensor, b"")


def _load_small_tensors(path: str, model: Any) -> None:
    """Load the external data of small tensors, whose values shape inference needs."""
    with closing(locations.open_storage(path)) as model_file:
        folder = Folder(path, model_file)
        for tensor in _external_tensors(model):
            label = f"{path}:{tensor.name}"
            header = _header(tensor.SerializeToString(), label)
            if header.stored_nbytes <= _MAX_LOADED:
                data_path, start = folder.find_data(header, label)
                with closing(locations.open_storage(data_path)) as data:
                    _store_bytes(tensor, bytes(data.peek(start, header.stored_nbytes)))


def _header(raw: bytes, label: str) -> tensorproto.Tensor:
    return tensorproto.read(
        Message(lambda start, count: raw[start : start + count], 0, len(raw), label)
    )


def _store_bytes(tensor: Any, raw: bytes) -> None:
    """Store the bytes of an external tensor in the model."""
    tensor.ClearField("data_location")
    tensor.ClearField("external_data")
    tensor.raw_data = raw


def _external_tensors(model: Any) -> list[Any]:
    """Return the tensors of a model whose data are in other files."""
    tensors = (*model.graph.initializer, *_tensors(_nodes(model)))
    return [tensor for tensor in tensors if tensor.data_location == tensor.EXTERNAL]


def _nodes(model: Any) -> list[Any]:
    """Return the nodes of a model's graph and of its functions."""
    scopes = (model.graph.node, *(function.node for function in model.functions))
    return [node for nodes in scopes for node in nodes]


def _subgraphs(nodes: Any) -> Iterator[Any]:
    """Yield the subgraphs of nodes, nested ones too."""
    for attribute in (attribute for node in nodes for attribute in node.attribute):
        for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
            yield graph
            yield from _subgraphs(graph.node)


def _tensors(nodes: Any) -> Iterator[Any]:
    """Yield the tensors in nodes and in their subgraphs."""
    for attribute in (attribute for node in nodes for attribute in node.attribute):
        yield from (attribute.t, *attribute.tensors)
        for graph in (attribute.g, *attribute.graphs):
            yield from graph.initializer
            yield from _tensors(graph.node)
