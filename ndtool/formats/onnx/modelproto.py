"""Iterators over the nodes and tensors of ONNX's ModelProto.

The name of a value in a subgraph or function is a path: node/attribute/name.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from ndtool.arrays.source import DeclaredType
from ndtool.errors import refuse
from ndtool.formats.onnx import tensorproto
from ndtool.formats.onnx.tensorproto import ELEMENTS, Tensor
from ndtool.formats.onnx.wire import FIXED32, LENGTH, VARINT, Field, Message

MAX_DEPTH = 32  # maximum depth of nested graphs
DOMAINS = ("", "ai.onnx")  # of ONNX's standard operators
IR_VERSION, GRAPH, OPSETS, FUNCTIONS = 1, 7, 8, 25  # of a ModelProto
# The fields of a GraphProto and a FunctionProto: nodes, tensors, and values with declared types.
_GRAPH_FIELDS = {
    1: "node", 5: "initializer", 11: "input", 12: "output", 13: "value", 15: "sparse initializer"
}  # fmt: skip
_FUNCTION_FIELDS = {7: "node", 12: "value"}
INITIALIZED_KINDS = ("initializer", "sparse initializer", "constant")  # kinds that are tensors
_MAX_LITERAL_BYTES = 1 << 24  # of the numbers in an attribute
# The fields of a Constant's attribute: its name, AttributeProto.type, the key of ELEMENTS, the wire
# type of its numbers.
_CONSTANTS = {
    5: ("value", 4, 0, LENGTH), 2: ("value_float", 1, 1, FIXED32), 3: ("value_int", 2, 7, VARINT),
    7: ("value_floats", 6, 1, FIXED32), 8: ("value_ints", 7, 7, VARINT),
}  # fmt: skip
_REFUSED = {
    4: "the elements are strings: expected a type of a fixed size",
    9: "the elements are strings: expected a type of a fixed size",
    21: "its value refers to an attribute of the function",
    22: "it is sparse: expected a dense tensor",
}
_TENSOR_FIELD, _TYPE_FIELD = 5, 20
UNKNOWN = DeclaredType(None, None)
_NODE_FIELDS = {
    1: ("inputs", Message.text), 2: ("outputs", Message.text), 3: ("name", Message.text),
    4: ("operator", Message.text), 5: ("attributes", Message.message_in),
    7: ("domain", Message.text),
}  # fmt: skip
_ATTRIBUTE_FIELDS = {
    1: ("name", Message.text), 6: ("graph", Message.message_in), 11: ("graphs", Message.message_in)
}  # fmt: skip


class Value(NamedTuple):
    """A tensor of a model, or a value that only has a declared type.

    path: of its graph or function, with a slash at the end. kind: one of INITIALIZED_KINDS for a
    tensor, else "input", "output" or "value". message: the TensorProto, the attribute of a
    Constant, or the ValueInfoProto of a declared type.
    """

    path: str
    name: str | None
    kind: str
    message: Message

    @property
    def member(self) -> str:
        """The path of the value in the model."""
        return self.path + (_initializer_name(self) if self.name is None else self.name)

    def tensor(self, label: str) -> Tensor:
        """Return the tensor; InputError if it is not supported. label: its name in messages."""
        message = self.message._replace(label=label)
        if self.kind == "sparse initializer":
            refuse(message.label, "it is sparse: expected a dense tensor")
        return _constant_tensor(message) if self.kind == "constant" else tensorproto.read(message)


class Node(NamedTuple):
    """A node. path: of its graph or function. versions: of the imported opsets, by domain."""

    path: str
    operator: str
    title: str
    domain: str
    inputs: list[str]
    outputs: list[str]
    attributes: list[Message]
    versions: dict[str, int]

    @property
    def name(self) -> str:
        """The path of the node; an unnamed node has the name of its first output."""
        return self.path + (self.title or next(iter(self.outputs), None) or self.operator)

    @property
    def is_standard(self) -> bool:
        """Whether the operator is in ONNX's standard domain."""
        return self.domain in DOMAINS


def walk(model: Message) -> Iterator[Value | Node]:
    """Yield all values and nodes of a model, including its functions."""
    for scope in scopes(model):
        yield from scope


def scopes(model: Message) -> Iterator[Iterator[Value | Node]]:
    """Yield an iterator over the values and nodes of the graph, and one for each function."""
    versions = _versions(model, OPSETS)
    for field in model.fields():
        if field.number == GRAPH:
            yield _scope(model.message_in(field), "", versions, 0, _GRAPH_FIELDS)
        elif field.number == FUNCTIONS:
            yield _function(model.message_in(field))


def enclosing_graphs(path: str) -> Iterator[str]:
    """Yield the path of a graph, then those of the enclosing graphs."""
    while path:
        yield path
        # The path ends in node/attribute/ or node/attribute/index/; names may contain slashes.
        path = path[: path.rfind("/", 0, -1) + 1]
    yield ""


def _versions(message: Message, number: int) -> dict[str, int]:
    """Return the versions of the opsets that a model or function imports, by domain."""
    versions = {}
    for opset in message.messages(number):
        domain, version = opset.text_of(1), opset.last_field(2)
        versions["" if domain in DOMAINS else domain] = version.signed if version else 0
    return versions


def _function(function: Message) -> Iterator[Value | Node]:
    name, domain, overload = (function.text_of(number) for number in (1, 10, 13))
    path = f"{domain}.{name}" if domain else name
    path += f":{overload}/" if overload else "/"
    yield from _scope(function, path, _versions(function, 9), 0, _FUNCTION_FIELDS)


def _scope(
    scope: Message, path: str, versions: dict[str, int], depth: int, kinds: dict[int, str]
) -> Iterator[Value | Node]:
    """Yield the values and nodes of a graph or function."""
    if depth >= MAX_DEPTH:
        refuse(scope.label, f"graphs are nested more than {MAX_DEPTH} deep")
    for field in scope.fields():
        if (kind := kinds.get(field.number)) is None:
            continue
        message = scope.message_in(field)
        if kind == "node":
            yield from _node(message, path, versions, depth)
        else:
            name = None if kind in INITIALIZED_KINDS else message.text_of(1)
            yield Value(path, name, kind, message)


def _node(
    message: Message, path: str, versions: dict[str, int], depth: int
) -> Iterator[Value | Node]:
    fields = message.parse(_NODE_FIELDS)
    operator, title, domain = (
        next(reversed(fields[name]), "") for name in ("operator", "name", "domain")
    )
    inputs, outputs, attributes = (fields[name] for name in ("inputs", "outputs", "attributes"))
    node = Node(path, operator, title, domain, inputs, outputs, attributes, versions)
    yield node
    for attribute in attributes:
        if operator == "Constant" and node.is_standard:
            yield Value(path, next(iter(node.outputs), ""), "constant", attribute)
        parsed = attribute.parse(_ATTRIBUTE_FIELDS)
        graph_path = f"{node.name}/{next(reversed(parsed['name']), '')}/"
        for graph in parsed["graph"]:
            yield from _scope(graph, graph_path, versions, depth + 1, _GRAPH_FIELDS)
        for index, graph in enumerate(parsed["graphs"]):
            yield from _scope(graph, f"{graph_path}{index}/", versions, depth + 1, _GRAPH_FIELDS)


def _initializer_name(value: Value) -> str:
    """Return the name of an initializer; a sparse initializer has the name of its values."""
    message = value.message
    if value.kind == "sparse initializer":
        message = next(iter(message.messages(1)), message)
    return message.text_of(tensorproto.NAME)


def _constant_tensor(attribute: Message) -> Tensor:
    """Return the tensor in a Constant's attribute."""
    name, attribute_type, tensors = attribute.text_of(1), 0, list[Message]()
    found, literal, count = set[int](), bytearray(), 0
    for field in attribute.fields():
        if field.number in _REFUSED:
            refuse(attribute.label, _REFUSED[field.number])
        if field.number == _TYPE_FIELD:
            attribute_type = field.value
        elif field.number == _TENSOR_FIELD:
            tensors.append(attribute.message_in(field))
        if field.number in _CONSTANTS:
            found.add(field.number)
            count += field.number in (2, 3, _TENSOR_FIELD)
            if field.number != _TENSOR_FIELD:
                literal += _numbers(attribute, field)
        if len(literal) > _MAX_LITERAL_BYTES:
            refuse(attribute.label, f"{name} has more than {_MAX_LITERAL_BYTES} bytes")
    number = next((number for number, row in _CONSTANTS.items() if row[0] == name), 0)
    if len(found) > 1 or count > 1:
        refuse(attribute.label, f"{name} has several values: expected one")
    if not number or found - {number} or attribute_type not in (0, _CONSTANTS[number][1]):
        supported = ", ".join(row[0] for row in _CONSTANTS.values())
        refuse(attribute.label, f"its attribute {name} is not supported: valid {supported}")
    is_scalar = number in (2, 3, _TENSOR_FIELD)
    if not found and (is_scalar or not attribute_type):
        refuse(attribute.label, "the constant has no value")
    if number == _TENSOR_FIELD:
        return tensorproto.read(tensors[0])
    element = ELEMENTS[_CONSTANTS[number][2]]
    shape = () if is_scalar else (len(literal) // element.dtype.itemsize,)
    return Tensor("", element, shape, attribute, literal=bytes(literal))


def _numbers(attribute: Message, field: Field) -> bytes:
    """Return the little-endian elements of a float or int field of an attribute."""
    name, _, _, wire_type = _CONSTANTS[field.number]
    is_packed = field.wire_type == LENGTH and field.number in (7, 8)
    if field.wire_type != wire_type and not is_packed:
        refuse(attribute.label, f"{name} has values of the wrong wire type")
    if wire_type == VARINT:
        values = attribute.varints(field, _MAX_LITERAL_BYTES // 8)
        return struct.pack(f"<{len(values)}Q", *values)
    if field.nbytes % 4 or field.nbytes > _MAX_LITERAL_BYTES:
        refuse(attribute.label, f"{name} has {field.nbytes} bytes: expected a multiple of 4")
    return attribute.read_bytes(field.start, field.nbytes)


def declared_type(message: Message) -> DeclaredType:
    """Return the tensor type that a ValueInfoProto declares; UNKNOWN for sequences and maps.

    A dimension without a size is its symbolic name, or None.
    """
    tensors = [tensor for type_proto in message.messages(2) for tensor in type_proto.messages(1)]
    if not tensors:
        return UNKNOWN
    code, shape = tensors[-1].last_field(1), tensors[-1].messages(2)
    name = None
    if code is not None:
        element = ELEMENTS.get(code.value)
        name = element.dtype.name if element else None
        name = "string" if code.value == tensorproto.STRING else name
    return DeclaredType(name, tuple(map(_dimension, shape[-1].messages(1))) if shape else None)


def _dimension(message: Message) -> int | str | None:
    number = message.last_field(1)
    return message.text_of(2) or (number.signed if number else None)
