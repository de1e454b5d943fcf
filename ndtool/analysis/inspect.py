"""The arrays in files, the nodes of models, conversions, and what the standards accept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

from ndtool.analysis.answers import ARRAY_COLUMNS, HIDDEN, Answer, Output, Typed, Value
from ndtool.arrays.source import ArrayMetadata, MemberInfo, OperatorNode
from ndtool.errors import NdtoolError, UsageError, argument_name, printable
from ndtool.notebook import Table
from ndtool.rules import specs
from ndtool.rules.operators import ALL_OPERATORS
from ndtool.rules.plans import Position
from ndtool.rules.shapes import format_shape

if TYPE_CHECKING:
    from ndtool.runs.convert import Conversion

_BYTE_ORDERS = {"<": "little", ">": "big"}
_TYPE_SIZES = ("8", "16", "32", "64")
_ABBREVIATIONS = tuple(
    (", ".join(word + size for size in sizes), f"{word}{sizes[0]}..{sizes[-1]}")
    for word, sizes in (
        ("uint", _TYPE_SIZES),
        ("int", _TYPE_SIZES),
        ("float", _TYPE_SIZES[1:]),
        ("complex", ("64", "128")),
    )
)


@dataclass(frozen=True, slots=True)
class Array(Value):
    """An array in a file. If it cannot be read, fields are None and `problem` has the reason.

    bytes: the size of its elements. offset: where they are in the file, or in the member that is a
    file. notes: metadata of its format. columns: those that tables show.
    """

    INLINED: ClassVar = "notes"
    name: str
    member: str | None
    dtype: str | None
    byte_order: str | None
    shape: Position | None
    order: str | None
    chunks: Position | None
    bytes: int | None
    npy_version: Any
    offset: int | None
    notes: Mapping[str, Any]
    mappable: bool
    problem: str | None
    warning: str | None
    columns: Mapping[str, str] = field(metadata=HIDDEN)

    def row(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the row of a table; columns: those of the formats."""
        name, problem = printable(self.name), printable(self.problem or "")
        if self.shape is None:
            reason = f"none: {problem.removeprefix(f'{name}: ')}"
            return (name, reason, "", "", *("" for _ in columns), "")
        order = "Fortran" if self.order == "F" else "C"
        if "blocks" in self.columns:
            order = f"chunks of {self.columns['blocks']}"
        return (
            name,
            f"{self.dtype}{format_shape(self.shape)}",
            order + (", big-endian" if self.byte_order == "big" else ""),
            str(self.bytes),
            *(self.columns.get(column, "") for column in columns),
            f"no: {problem.removeprefix('compressed with ')}" if problem else "yes",
        )


def attributes_text(attributes: Mapping[str, Any]) -> str:
    """Return a node's attributes as text; `?` for a parameter of the node's ONNX function."""
    values = ((name, "?" if value is None else value) for name, value in attributes.items())
    return ", ".join(f"{name} {value}" for name, value in values) or "-"


@dataclass(frozen=True, slots=True)
class Inspection(Answer):
    """The arrays in files, and the nodes of ONNX models. error: of the first unreadable file."""

    arrays: tuple[Array, ...]
    nodes: tuple[OperatorNode, ...]

    def tables(self) -> list[Table]:
        """Return the arrays, and the nodes if there are any."""
        keys = dict.fromkeys(key for array in self.arrays for key in array.columns)
        columns = [key for key in keys if key != "blocks"]
        titles = (note.removesuffix("_version").removesuffix("_type") for note in columns)
        rows = [array.row(columns) for array in self.arrays]
        tables = [Table("", ("name", "array", "order", "bytes", *titles, "mappable"), rows)]
        nodes = [
            (
                f"{node.model}:{node.node}",
                node.title,
                "" if node.version is None else f"onnx:{node.version}",
                attributes_text(node.attributes),
                ", ".join(node.inputs),
                node.output or "",
            )
            for node in self.nodes
        ]
        node_columns = ("node", "operator", "spec", "attributes", "inputs", "output")
        return [*tables, *([Table("", node_columns, nodes)] if nodes else [])]


def inspect(names: Sequence[str]) -> Inspection:
    """List the arrays in files, and the nodes of models; an unreadable one of several is listed."""
    from ndtool.formats.locators import describe, nodes
    from ndtool.formats.streams import Streams

    if not names:
        raise UsageError("missing file: expected at least one name")
    members, model_nodes, streams = list[MemberInfo](), list[OperatorNode](), Streams()
    first_error: NdtoolError | None = None
    for name in names:
        try:
            members += describe(name, streams)
            model_nodes += nodes(name)
        except NdtoolError as exc:
            if len(names) == 1:
                raise
            first_error = first_error or exc
            members.append(MemberInfo(name, None, None, None, exc.message, None))
    return Inspection(tuple(map(_array, members)), tuple(model_nodes), error=first_error)


def _array(info: MemberInfo) -> Array:
    """Return the description of an array, or of a file that is none."""
    metadata, notes = info.metadata, dict[str, Any]()
    fields: dict[str, Any] = dict.fromkeys(
        ("dtype", "byte_order", "shape", "order", "chunks", "bytes", "npy_version", "offset")
    )
    columns: dict[str, str] = {}
    if metadata is not None:
        notes = _notes(metadata)
        columns = {key: _note_text(value) for key, value in notes.items()}
        blocks = None
        if metadata.block_shape != metadata.shape:
            blocks = tuple(metadata.block_shape)
            columns["blocks"] = str(list(blocks))
        fields |= {
            "dtype": metadata.dtype.name,
            "byte_order": _BYTE_ORDERS.get(metadata.dtype.order),
            "shape": tuple(metadata.shape),
            "order": metadata.order,
            "chunks": blocks,
            "bytes": metadata.nbytes,
        }
        for name in fields.keys() & notes.keys():
            value = notes.pop(name)
            fields[name] = tuple(value) if isinstance(value, list) else value
        if info.position is not None:
            fields["offset"] = info.position
    return Array(
        name=info.name,
        member=info.member,
        **fields,
        notes=notes,
        mappable=info.position is not None,
        problem=info.problem or None,
        warning=info.warning,
        columns=columns,
    )


def _notes(metadata: ArrayMetadata) -> dict[str, Any]:
    """Return the format-specific metadata of an array, with those of chunks if it has any."""
    if metadata.layout is None:
        return dict(metadata.notes)
    chunks, shards, codecs, _ = metadata.layout
    layout = {"chunks": list(chunks), "shards": shards and list(shards)}
    return {**metadata.notes, **layout, "codecs": ", ".join(codecs) or "none"}


def _note_text(value: object) -> str:
    if isinstance(value, tuple):
        return ".".join(map(str, value))
    return "" if value is None else printable(str(value))


@dataclass(frozen=True, slots=True)
class Origin(Typed):
    """The source of a conversion. order: C or F."""

    order: str


@dataclass(frozen=True, slots=True)
class Converted(Answer):
    """A conversion. seconds: its duration. warnings: about the source."""

    source: Origin
    output: Output
    seconds: float
    warnings: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return the source and the output."""
        arrays = (("source", self.source), ("output", self.output))
        rows = [
            (role, argument_name(array.name or ""), array.description) for role, array in arrays
        ]
        return [Table("", ARRAY_COLUMNS, rows)]


def converted(conversion: Conversion, preserved: tuple[str, ...] | None) -> Converted:
    """Return the answer of `convert`; preserved: the preserved members of the output's file."""
    source, metadata = conversion.source.metadata, conversion.metadata
    stored, name = conversion.output.stored_dtype.name, conversion.output_name
    return Converted(
        Origin(conversion.source_name, source.dtype.name, tuple(source.shape), source.order),
        Output(name, stored, tuple(metadata.shape), metadata.nbytes, preserved),
        perf_counter() - conversion.started,
        tuple(conversion.warnings),
    )


@dataclass(frozen=True, slots=True)
class Standards(Answer):
    """What the standards accept: the fields of an OperatorVersion, and `spec`, for each of them."""

    specs: tuple[dict[str, Any], ...]

    def tables(self) -> list[Table]:
        """Return a row for each version."""
        rows = [
            (
                row["spec"],
                row["title"],
                ", ".join(
                    f"reduction ({', '.join(row['reductions'])})" if name == "reduction" else name
                    for name in row["attributes"]
                )
                or "-",
                _abbreviate_types(row["indices"]) + ("" if row["negatives"] else ", none negative"),
                _abbreviate_types(row["data"]),
            )
            for row in self.specs
        ]
        return [Table("", ("spec", "operator", "attributes", "indices", "data"), rows)]


def standards(command: str | None) -> Standards:
    """Return what the standards accept; command: an operator's name, None for all operators."""
    names = [name for name, row in ALL_OPERATORS.items() if command in (None, row.command)]
    rows = [row for row in specs.table() if row.operator in names]
    return Standards(tuple({"spec": row.spec, **row._asdict()} for row in rows))


def _abbreviate_types(names: tuple[str, ...]) -> str:
    """Return element types as text, abbreviated: int8..64 for int8, int16, int32, int64."""
    text = ", ".join(names)
    for names_listed, abbreviated in _ABBREVIATIONS:
        text = text.replace(names_listed, abbreviated)
    return text
