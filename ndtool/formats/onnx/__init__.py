"""The .onnx format: a model's initializers and constants, by name, memory-mapped if possible."""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from typing import Any, NoReturn, TypeGuard

from ndtool.arrays.source import (
    ArrayMetadata,
    ContiguousSource,
    DeclaredType,
    MemberInfo,
    ModelInfo,
    OperatorNode,
    TypedNode,
)
from ndtool.errors import InputError, UsageError, printable, refuse
from ndtool.formats import members
from ndtool.formats.onnx import modelproto, tensordata
from ndtool.formats.onnx.modelproto import UNKNOWN, Node, Value
from ndtool.formats.onnx.tensordata import Folder
from ndtool.formats.onnx.wire import FIXED32, LENGTH, VARINT, Message
from ndtool.publish.targets import Target
from ndtool.rules import specs
from ndtool.storage.local import LocalFile

MAX_TENSORS = 1 << 20  # maximum number of tensors in a model
OPERATORS = {row.title: row.operator for row in specs.table() if row.standard == "onnx"}
OPERATORS["Scatter"] = "scatter_elements"  # the name of ScatterElements before opset 11
# The fields of a ModelProto, with their wire types.
_WIRE_TYPES = {
    1: VARINT, 2: LENGTH, 3: LENGTH, 4: LENGTH, 5: VARINT, 6: LENGTH, 7: LENGTH, 8: LENGTH,
    14: LENGTH, 20: LENGTH, 25: LENGTH, 26: LENGTH,
}  # fmt: skip


def recognises(storage: LocalFile) -> bool:
    """Whether all fields of a file are those of a ModelProto, which has no magic number."""
    if storage.peek(0, 1) != b"\x08":
        return False
    message, numbers = Message(storage.peek, 0, storage.size, ""), set()
    try:
        for field in message.fields():
            numbers.add(field.number)
            if _WIRE_TYPES.get(field.number) != field.wire_type:
                return False
        return {modelproto.IR_VERSION, modelproto.GRAPH} <= numbers
    except InputError:
        return False


def entries(storage: LocalFile, path: str, member: str | None) -> list[MemberInfo]:
    """Return the member info of all tensors, or of one; an unreadable tensor has no metadata."""
    folder = Folder(path, storage)
    if member is not None:
        return [_entry(_choose(storage, path, member), path, folder)]
    return [_entry(value, path, folder) for value in _values(storage, path)]


def nodes(storage: LocalFile, path: str) -> list[OperatorNode]:
    """Return the nodes whose operators ndtool implements."""
    items = modelproto.walk(_model(storage, path))
    return [_operator_node(item, path) for item in items if _is_implemented(item)]


def _is_implemented(item: Value | Node) -> TypeGuard[Node]:
    return isinstance(item, Node) and item.operator in OPERATORS and item.is_standard


def model_info(storage: LocalFile, path: str) -> ModelInfo:
    """Return the nodes whose operators ndtool implements, and the graph's inputs, with types."""
    return ModelInfo(_typed_nodes(storage, path), *_inputs(storage, path))


def _typed_nodes(storage: LocalFile, path: str) -> list[list[TypedNode]]:
    scopes = []
    for scope in modelproto.scopes(_model(storage, path)):
        items = list(scope)
        values, typed_nodes = defaultdict[str, list[Value]](list), list[TypedNode]()
        for item in items:
            if isinstance(item, Value):
                values[item.member].append(item)
        for item in filter(_is_implemented, items):
            node = _operator_node(item, path)
            names = [*node.inputs, *([node.output] if node.output else [])]
            types_by_name = {name: _find_type(values, item.path, name) for name in names}
            typed_nodes.append(TypedNode(node, item.path, types_by_name))
        scopes.append(typed_nodes)
    return scopes


def _inputs(storage: LocalFile, path: str) -> tuple[dict[str, DeclaredType], frozenset[str]]:
    items = [item for item in next(modelproto.scopes(_model(storage, path))) if not item.path]
    values = [item for item in items if isinstance(item, Value)]
    initialized = {value.member for value in values if value.kind in modelproto.INITIALIZED_KINDS}
    inputs = {v.member: modelproto.declared_type(v.message) for v in values if v.kind == "input"}
    return inputs, frozenset(initialized & inputs.keys())


def _find_type(values: dict[str, list[Value]], path: str, name: str) -> DeclaredType:
    """Return the declared type of a value in the graph at `path`, or in an enclosing graph."""
    for scope in modelproto.enclosing_graphs(path):
        for declared_type in map(_declared_type, values.get(scope + name, ())):
            if declared_type.dtype is not None:
                return declared_type
    return UNKNOWN


def _declared_type(value: Value) -> DeclaredType:
    if value.kind not in modelproto.INITIALIZED_KINDS:
        return modelproto.declared_type(value.message)
    try:
        tensor = value.tensor("")
    except InputError:
        return UNKNOWN
    return DeclaredType(tensor.element.dtype.name, tensor.shape)


def _operator_node(node: Node, path: str) -> OperatorNode:
    return OperatorNode(
        path,
        node.name,
        OPERATORS[node.operator],
        node.operator,
        node.versions.get(""),
        dict(map(_parse_attribute, node.attributes)),
        tuple(node.inputs),
        next(iter(node.outputs), None),
    )


def _parse_attribute(message: Message) -> tuple[str, Any]:
    """Return the name and value of an attribute: a number, a string, or None for another type.

    The values of NaN and infinities are strings.
    """
    name, value = "", None
    for field in message.fields():
        if field.number == 1:
            name = message.text(field)
        elif (field.number, field.wire_type) == (2, FIXED32):
            (value,) = struct.unpack("<f", field.value.to_bytes(4, "little"))
            value = value if math.isfinite(value) else str(value)
        elif (field.number, field.wire_type) == (3, VARINT):
            value = field.signed
        elif field.number == 4:
            value = message.text(field)
    return name, value


def open_source(storage: LocalFile, name: str, path: str, member: str | None) -> ContiguousSource:
    """Open a tensor, the only one if none is named; closing the source closes the file."""
    value = _choose(storage, path, member)
    label = f"{path}:{value.member}"
    tensor = value.tensor(label)
    return tensordata.open_tensor(storage, name, label, Folder(path, storage), tensor, value.kind)


def _model(storage: LocalFile, path: str) -> Message:
    model = Message(storage.peek, 0, storage.size, path)
    if not any(field.number == modelproto.GRAPH for field in model.fields()):
        refuse(path, "it has no graph: expected an ONNX model")
    return model


def _values(storage: LocalFile, path: str) -> list[Value]:
    """Return the tensors of a model."""
    values: list[Value] = []
    for item in modelproto.walk(_model(storage, path)):
        if isinstance(item, Value) and item.kind in modelproto.INITIALIZED_KINDS:
            values.append(item)
            if len(values) > MAX_TENSORS:
                refuse(path, f"it has more than {MAX_TENSORS} tensors")
    return values


def _entry(value: Value, path: str, folder: Folder) -> MemberInfo:
    try:
        tensor = value.tensor(path)
    except InputError as exc:
        info = MemberInfo.invalid(path, value.member, exc)
        return info._replace(name=f"{path}:{value.member}")
    member = value.path + (tensor.name if value.name is None else value.name)
    label = f"{path}:{member}"
    return tensordata.entry(tensor, label, member, folder, value.kind)


def _choose(storage: LocalFile, path: str, name: str | None) -> Value:
    """Return the tensor with a name, or the only tensor; else the error lists the tensors."""
    folder, values = Folder(path, storage), _values(storage, path)

    def describe(value: Value) -> str:
        return _entry(value, path, folder).label

    if name is None and not values:
        refuse(path, "the model has no initializers and no constants")
    matches = [value for value in values if name in (None, value.member)]
    if len(matches) == 1:
        return matches[0]
    reason = "is more than one tensor of the model"
    if name is not None and not matches:
        reason = _missing_reason(storage, path, name)
        similar = [value for value in values if value.member.endswith(f"/{name}")]  # in subgraphs
        matches = similar or values
    lines = members.listing(((value.member, describe(value)) for value in matches), len(matches))
    if name is None:
        count = f"the model has {len(values)} tensors"
        raise members.unnamed_member_error(path, count, values[0].member, lines)
    return refuse(path, f"{printable(name)} {reason}: expected one of these", places=lines)


def _missing_reason(storage: LocalFile, path: str, name: str) -> str:
    """Return the reason, for a message, why no tensor has a name."""
    for item in modelproto.walk(_model(storage, path)):
        if isinstance(item, Value):
            if item.kind == "input" and item.member == name:
                return "is an input of the graph, and has no value in the model"
        elif any(item.path + output == name for output in item.outputs):
            return "is computed by a node, and has no value in the model"
    return "is no tensor of the model"


def create(target: Target, metadata: ArrayMetadata) -> NoReturn:
    """Raise UsageError: models are not written."""
    raise UsageError(
        f"{printable(target.path)}: models are read, not written",
        hint="a .pb file is one ONNX tensor",
    )
