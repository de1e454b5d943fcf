"""Answers about files, models and comparisons, with the fields of the objects of --json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ndtool.notebook import Table
from ndtool.questions.answers import Answer, Element, Origin, Output, Position, Typed, Value
from ndtool.rules.shapes import format_shape


@dataclass(frozen=True, slots=True)
class Difference(Value):
    """An element whose bits differ. ulps: its distance in units in the last place, or None."""

    position: Position
    output: Element
    expected: Element
    ulps: int | None


@dataclass(frozen=True, slots=True)
class Compared(Value):
    """The comparison of an output with the correct one; fields are None if there is no output.

    equal, different, total: counts of elements. first, largest: the first difference, and the
    largest. ulps: counts by distance in units in the last place. examined: the count of diagnosed
    elements, of which lost_updates lack one update and doubled_updates have one twice. cause: the
    options that give all of these. within: the accepted distance.
    """

    NESTED: ClassVar = {"first": Difference, "largest": Difference}
    equal: int | None = None
    different: int | None = None
    total: int | None = None
    first: Difference | None = None
    largest: Difference | None = None
    ulps: Mapping[str, int] | None = None
    examined: int | None = None
    lost_updates: int | None = None
    doubled_updates: int | None = None
    compared_otherwise: int | None = None
    cause: str | None = None
    within: int | None = None

    def rows(self) -> list[tuple[str, str]]:
        """Return the counts of elements by distance."""
        return [(name, str(count)) for name, count in (self.ulps or {}).items()]


@dataclass(frozen=True, slots=True)
class Engine(Value):
    """The report on another engine with a number of threads, None if it did not run.

    result: same, different, unstable, refused, crashed or missing. compared: the worst of its
    outputs compared with the expected one, None without outputs.
    """

    NESTED: ClassVar = {"compared": Compared}
    INLINED: ClassVar = "compared"
    engine: str
    version: str | None
    threads: int | None
    result: str
    different: int | None
    message: str | None
    compared: Compared | None

    @property
    def cells(self) -> tuple[str, str, str]:
        """The engine, its threads and its answer, as a row of a table."""
        name = f"{self.engine} {self.version or ''}".rstrip()
        return name, str(self.threads or "-"), f"{self.result} {self.message or ''}".rstrip()


ENGINE_COLUMNS = ("engine", "threads", "answer")


@dataclass(frozen=True, slots=True)
class Verification(Answer):
    """A verified output, and the reports on other engines if they were requested."""

    NESTED: ClassVar = {"compared": Compared, "engines": Engine}
    OPTIONAL: ClassVar = ("engines",)
    INLINED: ClassVar = "compared"
    output: str | None
    verified: bool
    compared: Compared | None
    engines: tuple[Engine, ...] | None = None

    def tables(self) -> list[Table]:
        """Return the counts of elements by distance, and a row for each engine."""
        tables, title = [], f"verified {self.output or 'the operator'}"
        if self.compared is not None:
            title += f": {self.compared.equal} of {self.compared.total} elements have the same bits"
            tables.append(Table(title, ("ulps apart", "elements"), self.compared.rows()))
        if self.engines is not None:
            tables.append(Table(title, ENGINE_COLUMNS, [engine.cells for engine in self.engines]))
        return tables


@dataclass(frozen=True, slots=True)
class Array(Value):
    """An array in a file. If it cannot be read, fields are None and `problem` has the reason.

    bytes: the size of its elements. position: their offset in the file, None if they cannot be
    mapped. notes: metadata of its format.
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
    mappable: bool
    position: int | None
    file_size: int | None
    problem: str | None
    warning: str | None
    notes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Node(Value):
    """A gather or scatter node of an ONNX model. version: that of its operator set."""

    model: str
    node: str
    operator: str
    title: str
    version: int | None
    attributes: Mapping[str, Any]
    inputs: tuple[str, ...]
    output: str | None


@dataclass(frozen=True, slots=True)
class Inspection(Answer):
    """The arrays in files, and the nodes of ONNX models."""

    NESTED: ClassVar = {"arrays": Array, "nodes": Node}
    arrays: tuple[Array, ...]
    nodes: tuple[Node, ...]

    def tables(self) -> list[Table]:
        """Return the arrays, and the nodes if there are any."""
        arrays = [
            (
                array.name,
                "none" if array.shape is None else f"{array.dtype}{format_shape(array.shape)}",
                array.order or "",
                "" if array.bytes is None else str(array.bytes),
                array.problem or ("yes" if array.mappable else "no"),
            )
            for array in self.arrays
        ]
        tables = [Table("", ("name", "array", "order", "bytes", "mappable"), arrays)]
        nodes = [
            (node.node, node.title, ", ".join(node.inputs), node.output or "")
            for node in self.nodes
        ]
        if nodes:
            tables.append(Table("", ("node", "operator", "inputs", "output"), nodes))
        return tables


@dataclass(frozen=True, slots=True)
class ModelNode(Value):
    """A gather or scatter node of a model. version, opset: those of its operator, operator set.

    assumed: conditions on sizes that the model does not declare. problem: a broken rule of its
    version, as its declarations show. runs, engines, saved: if the model
    ran, the count of computations, reports on other engines, and files of its tensors by role.
    """

    NESTED: ClassVar = {"inputs": Typed, "output": Typed, "engines": Engine}
    OPTIONAL: ClassVar = ("runs", "engines", "saved")
    node: str
    operator: str
    title: str
    version: int | None
    opset: int | None
    attributes: Mapping[str, Any]
    inputs: Mapping[str, Typed]
    output: Typed
    assumed: tuple[str, ...]
    problem: str | None
    runs: int | None = None
    engines: tuple[Engine, ...] | None = None
    saved: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Computed(Value):
    """How many nodes of a model an engine computed, ndtool included."""

    engine: str
    version: str
    nodes: int


@dataclass(frozen=True, slots=True)
class Model(Answer):
    """The gather and scatter nodes of an ONNX model.

    computed: who computed how many of all nodes, if the model ran. warnings: about the run.
    """

    NESTED: ClassVar = {"nodes": ModelNode, "computed": Computed}
    nodes: tuple[ModelNode, ...]
    computed: tuple[Computed, ...]
    warnings: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return the nodes, and the reports on other engines if there are any."""
        rows = [
            (
                node.node,
                node.title + ("" if node.version is None else f"-{node.version}"),
                ", ".join(f"{name} {value}" for name, value in node.attributes.items()) or "-",
                ", ".join(f"{array.name} {array.description}" for array in node.inputs.values()),
                f"{node.output.name or ''} {node.output.description}",
                {None: "", 0: "no", 1: "ok"}.get(node.runs, f"ok, {node.runs} times"),
            )
            for node in self.nodes
        ]
        columns = ("node", "operator", "attributes", "inputs", "output", "computed")
        engines = [
            (node.node, *engine.cells) for node in self.nodes for engine in node.engines or ()
        ]
        tables = [Table("", columns, rows)]
        return tables + ([Table("", ("node", *ENGINE_COLUMNS), engines)] if engines else [])


@dataclass(frozen=True, slots=True)
class Converted(Answer):
    """A conversion. seconds: its duration. warnings: about the source."""

    NESTED: ClassVar = {"source": Origin, "output": Output}
    source: Origin
    output: Output
    seconds: float
    warnings: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return the source and the output."""
        rows = [
            (role, array.name or "", array.description)
            for role, array in (("source", self.source), ("output", self.output))
        ]
        return [Table("", ("array", "name", "type"), rows)]
