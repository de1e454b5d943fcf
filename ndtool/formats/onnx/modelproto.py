"""Iterators over the nodes and tensors of ONNX's ModelProto.

The name of a value in a subgraph or function is a path: node/attribute/name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ndtool.arrays.source import DeclaredType
from ndtool.errors import refuse
from ndtool.formats.onnx import tensorproto
from ndtool.formats.onnx.tensorproto import ELEMENTS, Tensor, Values
from ndtool.formats.onnx.wire import FIXED32, LENGTH, VARINT, Field, Message
from ndtool.storage.descriptors import BLOCK_SIZE

MAX_DEPTH = 32  # maximum depth of nested graphs
DOMAINS = ("", "ai.onnx")  # of ONNX's standard operators
IR_VERSION, GRAPH, OPSETS, FUNCTIONS = 1, 7, 8, 25  # of a ModelProto
_NODE, _INITIALIZER, _SPARSE_INITIALIZER = 1, 5, 15  # of a GraphProto
_VALUE_KINDS = {11: "input", 12: "output", 13: "value"}  # fields of ValueInfoProtos
INITIALIZED_KINDS = ("initializer", "sparse initializer", "constant")  # kinds that are tensors
_FLOAT, _INT64 = 1, 7  # keys of ELEMENTS
# The fields of a Constant's attribute: its name, the element type, the wire type.
_LITERAL_FIELDS = {
    2: ("value_float", _FLOAT, FIXED32), 3: ("value_int", _INT64, VARINT),
    7: ("value_floats", _FLOAT, FIXED32), 8: ("value_ints", _INT64, VARINT),
}  # fmt: skip
_TENSOR_FIELD, _TYPE_FIELD = 5, 20
UNKNOWN = DeclaredType(None, None)
_FIELDS_BY_NAME = {"value": _TENSOR_FIELD} | {
    title: number for number, (title, _, _) in _LITERAL_FIELDS.items()
}
_ATTRIBUTE_TYPES = {2: 1, 3: 2, _TENSOR_FIELD: 4, 7: 6, 8: 7}  # AttributeProto.type by field
_SCALARS = ("value_float", "value_int")
_CONTINUATION_BYTES = bytes(range(0x80, 0x100))  # the bytes of a varint before the last


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
    message: Message
    versions: dict[str, int]

    @property
    def name(self) -> str:
        """The path of the node; an unnamed node has the name of its first output."""
        return self.path + (
            self.message.text_of(3) or next(iter(self.texts(2)), None) or self.operator
        )

    @property
    def is_standard(self) -> bool:
        """Whether the operator is in ONNX's standard domain."""
        return self.message.text_of(7) in DOMAINS

    def texts(self, number: int) -> list[str]:
        """Return the names of its inputs (1) or its outputs (2)."""
        message = self.message
        return [message.text(field) for field in message.fields() if field.number == number]


def walk(model: Message) -> Iterator[Value | Node]:
    """Yield all values and nodes of a model, including its functions."""
    for scope in scopes(model):
        yield from scope


def scopes(model: Message) -> Iterator[Iterator[Value | Node]]:
    """Yield an iterator over the values and nodes of the graph, and one for each function."""
    versions = _versions(model, OPSETS)
    for field in model.fields():
        if field.number == GRAPH:
            yield _graph(model.message_in(field), "", versions, 0)
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
    versions = _versions(function, 9)
    for field in function.fields():
        if field.number == 7:
            yield from _node(function.message_in(field), path, versions, 0)
        elif field.number == 12:
            value_info = function.message_in(field)
            yield Value(path, value_info.text_of(1), "value", value_info)


def _graph(
    graph: Message, path: str, versions: dict[str, int], depth: int
) -> Iterator[Value | Node]:
    if depth >= MAX_DEPTH:
        refuse(graph.label, f"graphs are nested more than {MAX_DEPTH} deep")
    for field in graph.fields():
        if field.number == _NODE:
            yield from _node(graph.message_in(field), path, versions, depth)
        elif field.number == _INITIALIZER:
            yield Value(path, None, "initializer", graph.message_in(field))
        elif field.number == _SPARSE_INITIALIZER:
            yield Value(path, None, "sparse initializer", graph.message_in(field))
        elif field.number in _VALUE_KINDS:
            value_info = graph.message_in(field)
            yield Value(path, value_info.text_of(1), _VALUE_KINDS[field.number], value_info)


def _node(
    message: Message, path: str, versions: dict[str, int], depth: int
) -> Iterator[Value | Node]:
    operator, attributes = "", []
    for field in message.fields():
        if field.number == 4:
            operator = message.text(field)
        elif field.number == 5:
            attributes.append(message.message_in(field))
    node = Node(path, operator, message, versions)
    yield node
    is_constant = attributes and operator == "Constant" and node.is_standard
    for attribute in attributes:
        if is_constant:
            yield Value(path, next(iter(node.texts(2)), ""), "constant", attribute)
        graphs = [field for field in attribute.fields() if field.number in (6, 11)]
        graph_path = f"{node.name}/{attribute.text_of(1)}/" if graphs else ""
        for index, field in enumerate(graphs):
            inner_path = graph_path if field.number == 6 else f"{graph_path}{index}/"
            yield from _graph(attribute.message_in(field), inner_path, versions, depth + 1)


def _initializer_name(value: Value) -> str:
    """Return the name of an initializer; a sparse initializer has the name of its values."""
    message = value.message
    if value.kind == "sparse initializer":
        message = next(iter(message.messages(1)), message)
    return message.text_of(tensorproto.NAME)


def _constant_tensor(attribute: Message) -> Tensor:
    """Return the tensor in a Constant's attribute."""
    name, values, attribute_type = attribute.text_of(1), dict[int, list[Field]](), 0
    for field in attribute.fields():
        if field.number in (4, 9):
            refuse(attribute.label, "the elements are strings: expected a type of a fixed size")
        if field.number == 22:
            refuse(attribute.label, "it is sparse: expected a dense tensor")
        if field.number == 21:
            refuse(attribute.label, "its value refers to an attribute of the function")
        if field.number == _TYPE_FIELD:
            attribute_type = field.value
        elif field.number in _ATTRIBUTE_TYPES:
            values.setdefault(field.number, []).append(field)
    number = _FIELDS_BY_NAME.get(name, 0)
    if len(values) > 1 or len(values.get(_TENSOR_FIELD, ())) > 1:
        refuse(attribute.label, "the constant has several values: expected one")
    if (
        not number
        or values.keys() - {number}
        or attribute_type not in (0, _ATTRIBUTE_TYPES[number])
    ):
        supported = ", ".join(_FIELDS_BY_NAME)
        refuse(attribute.label, f"its attribute {name} is not supported: valid {supported}")
    if number == _TENSOR_FIELD and values:
        return tensorproto.read(attribute.message_in(values[number][0]))
    if not values and (number == _TENSOR_FIELD or name in _SCALARS or not attribute_type):
        refuse(attribute.label, "the constant has no value")
    return _literal_tensor(attribute, number, values.get(number, []))


def _literal_tensor(attribute: Message, number: int, fields: list[Field]) -> Tensor:
    """Return the tensor of numbers in a float or int field of an attribute."""
    name, element_code, wire_type = _LITERAL_FIELDS[number]
    if any(field.wire_type not in (wire_type, LENGTH) for field in fields):
        refuse(attribute.label, f"{name} has values of the wrong wire type")
    if not fields:
        return Tensor("", ELEMENTS[element_code], (0,), None, None)
    first, nbytes = fields[0], sum(field.nbytes for field in fields)
    if name in _SCALARS and (len(fields) > 1 or first.wire_type == LENGTH):
        refuse(attribute.label, f"{name} has several values: expected one")
    if wire_type == FIXED32:
        count, remainder = divmod(nbytes, 4)
        if remainder:
            refuse(attribute.label, f"{name} has {nbytes} bytes: expected a multiple of 4")
    else:
        count = sum(1 if f.wire_type == VARINT else _count_varints(attribute, f) for f in fields)
    values = Values(attribute, number, name, wire_type, first, nbytes, len(fields))
    shape = () if name in _SCALARS else (count,)
    return Tensor("", ELEMENTS[element_code], shape, values if nbytes else None, None)


def _count_varints(message: Message, field: Field) -> int:
    """Return the number of varints in a packed field."""
    count = 0
    for start in range(field.start, field.stop, BLOCK_SIZE):
        raw = message.read_bytes(start, min(BLOCK_SIZE, field.stop - start))
        count += len(raw.translate(None, _CONTINUATION_BYTES))
    return count


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
