"""ONNX's ValueInfoProto: the type and shape that a model gives a name."""

from ndtool.arrays.source import Known
from ndtool.arrays.tensorproto import ELEMENTS, STRING
from ndtool.arrays.wire import Message

UNKNOWN = Known(None, None)


def of_value(message: Message) -> Known:
    """Return what a ValueInfoProto says; of sequences, maps and the like, nothing.

    A size that is not known is None, or where it has one its symbol's name.
    """
    known = UNKNOWN
    for kind in _parts(message, 2):
        for tensor in _parts(kind, 1):
            known = _tensor(tensor)
    return known


def _parts(message: Message, number: int) -> list[Message]:
    """Return the messages in a field."""
    return [message.within(field) for field in message.fields() if field.number == number]


def _tensor(message: Message) -> Known:
    """Return what a TypeProto.Tensor says."""
    known = UNKNOWN
    for field in message.fields():
        if field.number == 1:
            name = "string" if field.value == STRING else None
            element = ELEMENTS.get(field.value)
            known = known._replace(dtype=name if element is None else element.name)
        elif field.number == 2:
            sizes = map(_size, _parts(message.within(field), 1))
            known = known._replace(shape=tuple(sizes))
    return known


def _size(message: Message) -> int | str | None:
    size: int | str | None = None
    for field in message.fields():
        if field.number == 1:
            size = field.signed
        elif field.number == 2:
            size = message.text(field) or None
    return size
