"""Answers to questions about calls, with the fields of the JSON objects that --json prints.

Answers are immutable. Notebooks and `rich.print` show them as tables, `print` as text. The name of
a field that would be a Python keyword ends in an underscore: `from_`, `with_`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NoReturn, Self

from ndtool import notebook
from ndtool.notebook import Table

Position = tuple[int, ...]
Element = bool | int | float | str | None  # text if JSON has no such number


@dataclass(frozen=True, slots=True)
class Value:
    """An answer, or an object nested in one, created from a JSON object.

    NESTED: the classes of fields that are objects or lists of objects. OPTIONAL: fields without a
    key in the JSON object if they are None. INLINED: the field whose fields are keys of the JSON
    object itself.
    """

    NESTED: ClassVar[Mapping[str, type[Value]]] = {}
    OPTIONAL: ClassVar[tuple[str, ...]] = ()
    INLINED: ClassVar[str] = ""

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Return the value with the fields of a JSON object."""
        names, kind = field_names(cls), cls.NESTED.get(cls.INLINED)
        inlined_fields = {key: record[key] for key in record if cls.INLINED and key not in names}
        values = {key: value for key, value in record.items() if key not in inlined_fields}
        if inlined_fields and kind is not None:
            inlined_fields = {key: record[key] for key in field_names(kind) if key in record}
        if cls.INLINED:
            values[cls.INLINED] = inlined_fields if inlined_fields or kind is None else None
        fields = {key if key in names else f"{key}_": value for key, value in values.items()}
        return cls(**{name: _freeze(cls.NESTED.get(name), value) for name, value in fields.items()})

    def fields(self) -> dict[str, Any]:
        """Return the JSON object that --json prints."""
        values = ((name, getattr(self, name)) for name in field_names(type(self)))
        record = {
            name.rstrip("_"): _json_value(value)
            for name, value in values
            if value is not None or name not in self.OPTIONAL
        }
        inlined_fields = record.pop(self.INLINED, None) or {}
        return record | inlined_fields


class Fields(dict[str, Any]):
    """An immutable dict; unlike a mappingproxy, it can be pickled."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("an answer does not change")

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return Fields, (dict(self),)


def field_names(kind: type[Value]) -> list[str]:
    """Return the names of the fields of a class."""
    return [field.name for field in fields(kind)]


def _freeze(kind: type[Value] | None, value: Any) -> Any:
    """Return a JSON value as an immutable one; kind: the class of its objects."""
    if isinstance(value, Mapping):
        if kind is None or all(isinstance(item, Mapping) for item in value.values()):
            return Fields({key: _freeze(kind, item) for key, item in value.items()})
        return kind.from_record(value)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return tuple(_freeze(kind, item) for item in value)
    return value


def _json_value(value: Any) -> Any:
    """Return a value of JSON's types."""
    if isinstance(value, Value):
        return value.fields()
    if isinstance(value, Mapping):
        return {key: _json_value(item) for key, item in value.items()}
    return [_json_value(item) for item in value] if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True)
class Answer(Value):
    """Base class of the results of explain, stats, infer, ... version: ndtool's version."""

    version: str

    def tables(self) -> list[Table]:
        """Return the answer as tables of text."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return "".join(notebook.html_table(*table) for table in self.tables())

    def __rich__(self) -> Any:
        return notebook.rich_tables(self.tables())

    def __str__(self) -> str:
        return "\n".join(map(notebook.plain_table, self.tables()))


@dataclass(frozen=True, slots=True)
class Typed(Value):
    """The name, element type and shape of an array; sizes may be symbols, or unknown."""

    name: str | None
    dtype: str | None
    shape: tuple[int | str | None, ...] | None

    @property
    def description(self) -> str:
        """The type and shape as text."""
        if self.shape is None:
            return self.dtype or "?"
        sizes = ",".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.dtype or '?'}[{sizes}]"


@dataclass(frozen=True, slots=True)
class Output(Typed):
    """An output. bytes: its size, None if it has symbols. kept: preserved members of its file."""

    OPTIONAL: ClassVar = ("kept",)
    bytes: int | None
    kept: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Origin(Typed):
    """The source of a conversion. order: C or F."""

    order: str


@dataclass(frozen=True, slots=True)
class Rule(Value):
    """A rule of the shape inference: its formula, the formula with numbers, the result."""

    rule: str
    with_: str
    result: str


@dataclass(frozen=True, slots=True)
class Resolved(Value):
    """The resolved standard: its name, and the operator's name and version in it."""

    standard: str
    title: str
    version: int


@dataclass(frozen=True, slots=True)
class Inferred(Answer):
    """The inferred output of a call. trace: all rules. assumed: conditions on symbolic sizes."""

    NESTED: ClassVar = {"resolved": Resolved, "inputs": Typed, "output": Output, "trace": Rule}
    operator: str
    spec: str
    resolved: Resolved
    attributes: Mapping[str, int | str]
    inputs: Mapping[str, Typed]
    output: Output
    trace: tuple[Rule, ...]
    assumed: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return the arrays, and the trace."""
        arrays = [
            (role, array.name or "", array.description) for role, array in self.inputs.items()
        ]
        arrays += [("assumed", "", condition) for condition in self.assumed]
        arrays.append(("output", "", self.output.description))
        rules = [(rule.rule, rule.with_, rule.result) for rule in self.trace]
        return [
            Table(self.operator, ("array", "name", "type"), arrays),
            Table("trace", ("rule", "with", "result"), rules),
        ]


@dataclass(frozen=True, slots=True)
class Step(Value):
    """A step in which an element of the output gets a value.

    role: data, updates or fill. position, value: those of an element of that array. indices: the
    position of the index tuple, None for the current value in data. tuple: the tuple in indices.
    result: the element of the output after the step.
    """

    role: str
    position: Position
    value: Element
    indices: Position | None
    tuple: Position | None
    result: Element


@dataclass(frozen=True, slots=True)
class ExplainedElement(Value):
    """The computation of an element of the output. updates: the count of all, listed or not."""

    NESTED: ClassVar = {"steps": Step}
    at: Position
    value: Element
    updates: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class ExplainedOrigin(Value):
    """The copies of an element of data. outputs: the first and last of `count` positions.

    updates: in a scatter, the count of updates to the element.
    """

    from_: Position
    value: Element
    outputs: tuple[Position, ...]
    count: int
    updates: int


@dataclass(frozen=True, slots=True)
class Explanation(Answer):
    """The explanation of elements: those of the argument `at`, then those of `from_`.

    If one element is explained, its fields (value, steps, outputs) are the explanation's, too.
    """

    operator: str
    explained: tuple[ExplainedElement | ExplainedOrigin, ...]

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Return the explanation with the fields of a JSON object."""
        remaining = dict(record)
        common = {name: remaining.pop(name) for name in ("version", "operator")}
        items = remaining.get("explained", [remaining])
        explained = tuple(
            ExplainedElement.from_record(item)
            if "at" in item
            else ExplainedOrigin.from_record(item)
            for item in items
        )
        return cls(**common, explained=explained)

    def fields(self) -> dict[str, Any]:
        """Return the JSON object that --json prints."""
        common = {"version": self.version, "operator": self.operator}
        if len(self.explained) == 1:
            return {**common, **self.explained[0].fields()}
        return {**common, "explained": [element.fields() for element in self.explained]}

    def __getattr__(self, name: str) -> Any:
        """Return a field of the explained element, if there is only one."""
        if name == "explained" or name.startswith("_"):
            raise AttributeError(name)
        if len(self.explained) == 1:
            return getattr(self.explained[0], name)
        raise AttributeError(f"{len(self.explained)} elements are explained: see .explained")

    def tables(self) -> list[Table]:
        """Return a table of steps, or of destinations, for each element."""
        return [_explanation_table(element) for element in self.explained]


def _explanation_table(element: ExplainedElement | ExplainedOrigin) -> Table:
    if isinstance(element, ExplainedOrigin):
        title = (
            f"data{list(element.from_)} = {element.value}: {element.count} elements of the output"
        )
        return Table(title, ("position",), [(str(list(position)),) for position in element.outputs])
    rows = [
        (
            f"{step.role}{list(step.position)}",
            str(step.value),
            "" if step.indices is None else f"indices{list(step.indices)} = {step.tuple}",
            str(step.result),
        )
        for step in element.steps
    ]
    suffix = f", {element.updates} updates" if element.updates else ""
    title = f"output{list(element.at)} = {element.value}{suffix}"
    return Table(title, ("from", "value", "index tuple", "result"), rows)


@dataclass(frozen=True, slots=True)
class Component(Value):
    """The range of one component of all index tuples, and the axis of data that it indexes."""

    axis: int
    size: int
    lowest: int | None
    highest: int | None
    negative: int
    out_of_bounds: int


@dataclass(frozen=True, slots=True)
class BadIndex(Value):
    """An index out of bounds: the position of its tuple, its component, its value."""

    position: Position
    component: int | None
    value: int


@dataclass(frozen=True, slots=True)
class Frequent(Value):
    """A slice selected more than once. row: its position. tuples: those of tuples selecting it."""

    row: Position
    count: int
    tuples: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class Histogram(Value):
    """A histogram of slices. runs: the slices of a bin. tuples: the index tuples of each bin."""

    runs: int
    tuples: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Statistics(Answer):
    """Statistics of the indices of a call.

    tuples: the count of index tuples. first_out_of_bounds: the first indices out of bounds. hints:
    likely causes of suspicious indices. sorted: whether slices are selected in ascending order.
    runs: the shape of the axes that index tuples index. distinct, duplicated: the counts of slices
    selected at all, and more than once. most: the most frequent slices.
    """

    NESTED: ClassVar = {
        "components": Component, "first_out_of_bounds": BadIndex, "most": Frequent,
        "histogram": Histogram,
    }  # fmt: skip
    operator: str
    tuples: int
    components: tuple[Component, ...]
    out_of_bounds: int
    first_out_of_bounds: tuple[BadIndex, ...]
    hints: tuple[str, ...]
    sorted: bool
    runs: Position
    distinct: int
    duplicated: int
    most: tuple[Frequent, ...]
    bytes_touched: int
    pages_touched: int | None
    bytes_of_data: int
    histogram: Histogram

    def tables(self) -> list[Table]:
        """Return the ranges of components, and the counts."""
        columns = ("axis", "size", "lowest", "highest", "negative", "out of bounds")
        ranges = [tuple(map(str, component.fields().values())) for component in self.components]
        counts = [
            ("out of bounds", str(self.out_of_bounds)),
            *(("hint", hint) for hint in self.hints),
            ("sorted", "yes" if self.sorted else "no"),
            ("slices selected", str(self.distinct)),
            ("slices selected more than once", str(self.duplicated)),
            ("bytes selected", f"{self.bytes_touched} of {self.bytes_of_data}"),
        ]
        title = f"{self.operator}: {self.tuples} index tuples"
        return [Table(title, columns, ranges), Table("", ("statistic", "value"), counts)]
