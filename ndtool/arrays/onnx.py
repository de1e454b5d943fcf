"""The .onnx format: initializers and constants of a model, by their names, where they stand."""

from __future__ import annotations

import math
import struct
from typing import Any, TypeGuard

from ndtool.arrays import modelproto, modeltypes, tensordata
from ndtool.arrays.local import LocalFile
from ndtool.arrays.modelproto import Node, Value
from ndtool.arrays.modeltypes import UNKNOWN
from ndtool.arrays.source import Entry, Facts, Flat, Known, KnownModel, KnownNode, OperatorNode
from ndtool.arrays.targets import Target
from ndtool.arrays.tensordata import Folder
from ndtool.arrays.wire import FIXED32, LENGTH, VARINT, Message
from ndtool.errors import InputError, UsageError, printable

LISTED = 10  # tensors that an error names
MOST = 1 << 20  # tensors of a model that are listed
OPERATORS = {
    "GatherND": "gather_nd",
    "ScatterND": "scatter_nd",
    "GatherElements": "gather_elements",
    "ScatterElements": "scatter_elements",
    "Gather": "gather",
    "Scatter": "scatter_elements",
}
# Of a ModelProto: which fields there are, and how each is encoded.
_FIELDS = {
    1: VARINT, 2: LENGTH, 3: LENGTH, 4: LENGTH, 5: VARINT, 6: LENGTH, 7: LENGTH, 8: LENGTH,
    14: LENGTH, 20: LENGTH, 25: LENGTH, 26: LENGTH,
}  # fmt: skip


def recognises(place: LocalFile) -> bool:
    """Tell whether a file is a ModelProto by all of its fields, as there is no magic string."""
    if place.look(0, 1) != b"\x08":
        return False
    message, found = Message(place.look, 0, place.size, ""), set()
    try:
        for field in message.fields():
            found.add(field.number)
            if _FIELDS.get(field.number) != field.kind:
                return False
        return {modelproto.IR_VERSION, modelproto.GRAPH} <= found
    except InputError:
        return False


def entries(place: LocalFile, path: str, member: str | None) -> list[Entry]:
    """Return what is said of all tensors, or of one; one that cannot be read has no facts."""
    folder = Folder(path, place)
    if member is not None:
        return [_entry(_choose(place, path, member), place, path, folder)]
    return [_entry(value, place, path, folder) for value in _values(place, path)]


def nodes(place: LocalFile, path: str) -> list[OperatorNode]:
    """Return the nodes of the operators that ndtool has."""
    items = modelproto.walk(_model(place, path))
    return [_operator_node(item, path) for item in items if _is_ours(item)]


def _is_ours(item: Value | Node) -> TypeGuard[Node]:
    return isinstance(item, Node) and item.operator in OPERATORS and item.is_standard


def known(place: LocalFile, path: str) -> KnownModel:
    """Return the same with what the model says of their inputs and outputs, and of its own."""
    return KnownModel(_known_nodes(place, path), *_inputs(place, path))


def _known_nodes(place: LocalFile, path: str) -> list[list[KnownNode]]:
    scopes = []
    for scope in modelproto.scopes(_model(place, path)):
        items = list(scope)
        types, found = _Types(items), []
        for item in filter(_is_ours, items):
            node = _operator_node(item, path)
            names = [*node.inputs, *([node.output] if node.output else [])]
            known = {name: types.of(item.path, name) for name in names}
            found.append(KnownNode(node, item.path, known))
        scopes.append(found)
    return scopes


def _inputs(place: LocalFile, path: str) -> tuple[dict[str, Known], frozenset[str]]:
    items = [item for item in next(modelproto.scopes(_model(place, path))) if not item.path]
    held = {one.member for one in items if isinstance(one, Value) and one.kind in modelproto.HELD}
    inputs = {
        one.member: modeltypes.of_value(one.message)
        for one in items
        if isinstance(one, Value) and one.kind == "input"
    }
    return inputs, frozenset(held & inputs.keys())


class _Types:
    """What is known of the names of a graph and of those in it, or of a function."""

    def __init__(self, items: list[Value | Node]) -> None:
        self._values: dict[str, list[Value]] = {}
        for item in items:
            if isinstance(item, Value):
                self._values.setdefault(item.member, []).append(item)

    def of(self, path: str, name: str) -> Known:
        """Return what is known of a name in the graph at `path`, or in one around it."""
        for scope in modelproto.outwards(path):
            for value in self._values.get(scope + name, ()):
                known = _known(value)
                if known.dtype is not None:
                    return known
        return UNKNOWN


def _known(value: Value) -> Known:
    if value.kind not in modelproto.HELD:
        return modeltypes.of_value(value.message)
    try:
        tensor = value.tensor("")
    except InputError:
        return UNKNOWN
    return Known(tensor.element.name, tensor.shape)


def _operator_node(node: Node, path: str) -> OperatorNode:
    message = node.message
    return OperatorNode(
        path,
        node.name,
        OPERATORS[node.operator],
        node.operator,
        node.versions.get(""),
        dict(_attribute(message.within(field)) for field in message.fields() if field.number == 5),
        tuple(node.texts(1)),
        next(iter(node.texts(2)), None),
    )


def _attribute(message: Message) -> tuple[str, Any]:
    """Return name and value of an attribute that is a number or a text; None for others.

    A float that is no number of JSON's is a text.
    """
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


def open_source(place: LocalFile, name: str, path: str, member: str | None) -> Flat:
    """Return one tensor, the only one where none is named; it closes the place."""
    chosen = _choose(place, path, member)
    label = f"{path}:{chosen.member}"
    tensor = chosen.tensor(label)
    return tensordata.open_tensor(place, name, label, Folder(path, place), tensor, chosen.kind)


def _model(place: LocalFile, path: str) -> Message:
    model = Message(place.look, 0, place.size, path)
    if not any(field.number == modelproto.GRAPH for field in model.fields()):
        raise InputError(f"{printable(path)}: it has no graph: expected an ONNX model")
    return model


def _values(place: LocalFile, path: str) -> list[Value]:
    """Return what has a value."""
    values: list[Value] = []
    for item in modelproto.walk(_model(place, path)):
        if isinstance(item, Value) and item.kind in modelproto.HELD:
            values.append(item)
            if len(values) > MOST:
                raise InputError(f"{printable(path)}: it has more than {MOST} tensors")
    return values


def _entry(value: Value, place: LocalFile, path: str, folder: Folder) -> Entry:
    try:
        tensor = value.tensor(path)
    except InputError as exc:
        member = value.member
        reason = exc.message.removeprefix(f"{printable(path)}: ")
        return Entry(f"{path}:{member}", member, None, None, place.size, reason, None)
    member = value.path + (tensor.name if value.name is None else value.name)
    label = f"{path}:{member}"
    return tensordata.entry(tensor, label, member, place.size, folder, value.kind)


def _choose(place: LocalFile, path: str, name: str | None) -> Value:
    """Return the one tensor of a name, or the only one; the error lists what there is."""
    if name is None:
        values = _values(place, path)
        if len(values) == 1:
            return values[0]
        if not values:
            raise InputError(f"{printable(path)}: the model has no initializers and no constants")
        raise UsageError(
            f"{printable(path)}: the model has {len(values)} tensors: name one of them",
            places=_listing(values, place, path),
            hint=f"for example {printable(path)}:{printable(values[0].member)}",
        )
    found = [one for one in _values(place, path) if one.member == name]
    if len(found) == 1:
        return found[0]
    reason = "is more than one tensor of the model" if found else _missing(place, path, name)
    raise InputError(
        f"{printable(path)}: {printable(name)} {reason}: expected one of these",
        places=_listing(found or _alike(_values(place, path), name), place, path),
    )


def _missing(place: LocalFile, path: str, name: str) -> str:
    """Return why a name has no value."""
    for item in modelproto.walk(_model(place, path)):
        if isinstance(item, Value):
            if item.kind == "input" and item.member == name:
                return "is an input of the graph, and has no value in the model"
        elif any(item.path + output == name for output in item.texts(2)):
            return "is computed by a node, and has no value in the model"
    return "is no tensor of the model"


def _alike(values: list[Value], name: str) -> list[Value]:
    """Return those in subgraphs that have the name there, else all."""
    return [value for value in values if value.member.endswith(f"/{name}")] or values


def _listing(values: list[Value], place: LocalFile, path: str) -> tuple[str, ...]:
    """Return a line for each tensor, and for the rest how many they are."""
    folder = Folder(path, place)
    listed = (_entry(value, place, path, folder) for value in values[:LISTED])
    lines = [f"{printable(entry.member or '', 80)}: {entry.label}" for entry in listed]
    more = len(values) - LISTED
    return (*lines, f"and {more} more") if more > 0 else tuple(lines)


def check(target: Target) -> None:
    """Refuse the target: a model is more than its tensors."""
    raise UsageError(
        f"{printable(target.path)}: models are read, not written",
        hint="a .pb file is one ONNX tensor",
    )


def create(target: Target, facts: Facts) -> Any:
    """Refuse the target."""
    check(target)
