"""The .onnx format: a model's initializers and constants, by name, memory-mapped if possible."""

from __future__ import annotations

import math
import struct
from typing import Any, NoReturn, TypeGuard

from ndtool.arrays.source import (
    ArrayMetadata,
    DeclaredType,
    FlatSource,
    MemberInfo,
    ModelInfo,
    OperatorNode,
    TypedNode,
)
from ndtool.errors import InputError, UsageError, printable
from ndtool.formats import members
from ndtool.formats.onnx import modelproto, tensordata
from ndtool.formats.onnx.modelproto import UNKNOWN, Node, Value
from ndtool.formats.onnx.tensordata import Folder
from ndtool.formats.onnx.wire import FIXED32, LENGTH, VARINT, Message
from ndtool.publish.targets import Target
from ndtool.rules import specs
from ndtool.storage.local import LocalFile

MOST = 1 << 20  # maximum number of tensors in a model
OPERATORS = {row.title: row.operator for row in specs.TABLE if row.standard == "onnx"}
OPERATORS["Scatter"] = "scatter_elements"  # its name before opset 11
# The fields of a ModelProto, with their wire types.
_FIELDS = {
    1: VARINT, 2: LENGTH, 3: LENGTH, 4: LENGTH, 5: VARINT, 6: LENGTH, 7: LENGTH, 8: LENGTH,
    14: LENGTH, 20: LENGTH, 25: LENGTH, 26: LENGTH,
}  # fmt: skip


def recognises(storage: LocalFile) -> bool:
    """Whether a file is a ModelProto, by all of its fields, as there is no magic string."""
    if storage.peek(0, 1) != b"\x08":
        return False
    message, numbers = Message(storage.peek, 0, storage.size, ""), set()
    try:
        for field in message.fields():
            numbers.add(field.number)
            if _FIELDS.get(field.number) != field.kind:
                return False
        return {modelproto.IR_VERSION, modelproto.GRAPH} <= numbers
    except InputError:
        return False


def entries(storage: LocalFile, path: str, member: str | None) -> list[MemberInfo]:
    """Return the member info of all tensors, or of one; an unreadable tensor has no metadata."""
    folder = Folder(path, storage)
    if member is not None:
        return [_entry(_choose(storage, path, member), storage, path, folder)]
    return [_entry(value, storage, path, folder) for value in _values(storage, path)]


def nodes(storage: LocalFile, path: str) -> list[OperatorNode]:
    """Return the nodes whose operators ndtool implements."""
    items = modelproto.walk(_model(storage, path))
    return [_operator_node(item, path) for item in items if _is_ours(item)]


def _is_ours(item: Value | Node) -> TypeGuard[Node]:
    return isinstance(item, Node) and item.operator in OPERATORS and item.is_standard


def model_info(storage: LocalFile, path: str) -> ModelInfo:
    """Return the nodes and the graph's inputs, with declared types and shapes."""
    return ModelInfo(_known_nodes(storage, path), *_inputs(storage, path))


def _known_nodes(storage: LocalFile, path: str) -> list[list[TypedNode]]:
    scopes = []
    for scope in modelproto.scopes(_model(storage, path)):
        items = list(scope)
        types, typed = _Types(items), []
        for item in filter(_is_ours, items):
            node = _operator_node(item, path)
            names = [*node.inputs, *([node.output] if node.output else [])]
            types_by_name = {name: types.of(item.path, name) for name in names}
            typed.append(TypedNode(node, item.path, types_by_name))
        scopes.append(typed)
    return scopes


def _inputs(storage: LocalFile, path: str) -> tuple[dict[str, DeclaredType], frozenset[str]]:
    items = [item for item in next(modelproto.scopes(_model(storage, path))) if not item.path]
    values = [item for item in items if isinstance(item, Value)]
    initialized = {value.member for value in values if value.kind in modelproto.INITIALIZED}
    inputs = {v.member: modelproto.declared(v.message) for v in values if v.kind == "input"}
    return inputs, frozenset(initialized & inputs.keys())


class _Types:
    """The declared types and shapes of the names in a function, or a graph with its subgraphs."""

    def __init__(self, items: list[Value | Node]) -> None:
        self._values: dict[str, list[Value]] = {}
        for item in items:
            if isinstance(item, Value):
                self._values.setdefault(item.member, []).append(item)

    def of(self, path: str, name: str) -> DeclaredType:
        """Return the type of a name in the graph at `path`, or in an enclosing graph."""
        for scope in modelproto.enclosing_graphs(path):
            for value in self._values.get(scope + name, ()):
                declared = _declared(value)
                if declared.dtype is not None:
                    return declared
        return UNKNOWN


def _declared(value: Value) -> DeclaredType:
    if value.kind not in modelproto.INITIALIZED:
        return modelproto.declared(value.message)
    try:
        tensor = value.tensor("")
    except InputError:
        return UNKNOWN
    return DeclaredType(tensor.element.dtype.name, tensor.shape)


def _operator_node(node: Node, path: str) -> OperatorNode:
    message = node.message
    return OperatorNode(
        path,
        node.name,
        OPERATORS[node.operator],
        node.operator,
        node.versions.get(""),
        dict(
            _attribute(message.message_in(field)) for field in message.fields() if field.number == 5
        ),
        tuple(node.texts(1)),
        next(iter(node.texts(2)), None),
    )


def _attribute(message: Message) -> tuple[str, Any]:
    """Return name and value of an attribute: a number, a string (also for NaN, inf) or None."""
    name, value = "", None
    for field in message.fields():
        if field.number == 1:
            name = message.text(field)
        elif (field.number, field.kind) == (2, FIXED32):
            (value,) = struct.unpack("<f", field.value.to_bytes(4, "little"))
            value = value if math.isfinite(value) else str(value)
        elif (field.number, field.kind) == (3, VARINT):
            value = field.signed
        elif field.number == 4:
            value = message.text(field)
    return name, value


def open_source(storage: LocalFile, name: str, path: str, member: str | None) -> FlatSource:
    """Open a tensor, the only one if none is named; closing the source closes the file."""
    chosen = _choose(storage, path, member)
    label = f"{path}:{chosen.member}"
    tensor = chosen.tensor(label)
    return tensordata.open_tensor(storage, name, label, Folder(path, storage), tensor, chosen.kind)


def _model(storage: LocalFile, path: str) -> Message:
    model = Message(storage.peek, 0, storage.size, path)
    if not any(field.number == modelproto.GRAPH for field in model.fields()):
        raise InputError(f"{printable(path)}: it has no graph: expected an ONNX model")
    return model


def _values(storage: LocalFile, path: str) -> list[Value]:
    """Return the tensors of a model."""
    values: list[Value] = []
    for item in modelproto.walk(_model(storage, path)):
        if isinstance(item, Value) and item.kind in modelproto.INITIALIZED:
            values.append(item)
            if len(values) > MOST:
                raise InputError(f"{printable(path)}: it has more than {MOST} tensors")
    return values


def _entry(value: Value, storage: LocalFile, path: str, folder: Folder) -> MemberInfo:
    try:
        tensor = value.tensor(path)
    except InputError as exc:
        member = value.member
        reason = exc.message.removeprefix(f"{printable(path)}: ")
        return MemberInfo(f"{path}:{member}", member, None, None, storage.size, reason)
    member = value.path + (tensor.name if value.name is None else value.name)
    label = f"{path}:{member}"
    return tensordata.entry(tensor, label, member, storage.size, folder, value.kind)


def _choose(storage: LocalFile, path: str, name: str | None) -> Value:
    """Return the tensor of a name, or the only one; the error otherwise lists the tensors."""
    folder = Folder(path, storage)

    def describe(value: Value) -> tuple[str, str]:
        entry = _entry(value, storage, path, folder)
        return entry.member or "", entry.label

    if name is None:
        values = _values(storage, path)
        if not values:
            raise InputError(f"{printable(path)}: the model has no initializers and no constants")
        return members.only(path, values, "the model has {} tensors", describe)
    matches = [one for one in _values(storage, path) if one.member == name]
    if len(matches) == 1:
        return matches[0]
    reason = "is more than one tensor of the model" if matches else _missing(storage, path, name)
    values = _values(storage, path)
    similar = [value for value in values if value.member.endswith(f"/{name}")]  # in subgraphs
    others = matches or similar or values
    raise InputError(
        f"{printable(path)}: {printable(name)} {reason}: expected one of these",
        places=members.listed(map(describe, others), len(others)),
    )


def _missing(storage: LocalFile, path: str, name: str) -> str:
    """Return why no tensor has the name, as text."""
    for item in modelproto.walk(_model(storage, path)):
        if isinstance(item, Value):
            if item.kind == "input" and item.member == name:
                return "is an input of the graph, and has no value in the model"
        elif any(item.path + output == name for output in item.texts(2)):
            return "is computed by a node, and has no value in the model"
    return "is no tensor of the model"


def create(target: Target, metadata: ArrayMetadata) -> NoReturn:
    """Raise UsageError: models are not written."""
    raise UsageError(
        f"{printable(target.path)}: models are read, not written",
        hint="a .pb file is one ONNX tensor",
    )
