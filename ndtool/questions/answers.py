"""Answers to questions about calls, with the fields of the JSON objects that --json prints.

Answers are immutable. Notebooks and `rich.print` show them as tables, `print` as text. A field
whose name is a Python keyword ends in an underscore: `from_`, `with_`.
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
    """An answer, or a nested value of one, made from a JSON object.

    NESTED: the classes of fields that are objects or lists of objects. OPTIONAL: fields without a
    key in the object if they are None. INLINED: the field whose own fields are keys of the object.
    """

    NESTED: ClassVar[Mapping[str, type[Value]]] = {}
    OPTIONAL: ClassVar[tuple[str, ...]] = ()
    INLINED: ClassVar[str] = ""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Return the value with the fields of a JSON object."""
        names, kind = names_of(cls), cls.NESTED.get(cls.INLINED)
        inlined = {key: record[key] for key in record if cls.INLINED and key not in names}
        values = {key: value for key, value in record.items() if key not in inlined}
        if inlined and kind is not None:
            inlined = {key: record[key] for key in names_of(kind) if key in record}
        if cls.INLINED:
            values[cls.INLINED] = inlined if inlined or kind is None else None
        fields = {key if key in names else f"{key}_": value for key, value in values.items()}
        return cls(**{name: _frozen(cls.NESTED.get(name), value) for name, value in fields.items()})

    def fields(self) -> dict[str, Any]:
        """Return the JSON object that --json prints."""
        values = ((name, getattr(self, name)) for name in names_of(type(self)))
        record = {
            name.rstrip("_"): _plain(value)
            for name, value in values
            if value is not None or name not in self.OPTIONAL
        }
        inlined = record.pop(self.INLINED, None) or {}
        return record | inlined


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


def names_of(kind: type[Value]) -> list[str]:
    """Return the names of the fields of a class."""
    return [field.name for field in fields(kind)]


def _frozen(kind: type[Value] | None, value: Any) -> Any:
    """Return a JSON value as an immutable one; kind: the class of its objects."""
    if isinstance(value, Mapping):
        if kind is None or all(isinstance(item, Mapping) for item in value.values()):
            return Fields({key: _frozen(kind, item) for key, item in value.items()})
        return kind.of(value)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return tuple(_frozen(kind, item) for item in value)
    return value


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, Value):
        return value.fields()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True)
class Answer(Value):
    """An answer. version: that of ndtool."""

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
    def described(self) -> str:
        """The type and shape as text."""
        if self.shape is None:
            return self.dtype or "?"
        sizes = ",".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.dtype or '?'}[{sizes}]"


@dataclass(frozen=True, slots=True)
class Output(Typed):
    """An output. bytes: None if a size is a symbol. kept: the preserved members of its file."""

    OPTIONAL: ClassVar = ("kept",)
    bytes: int | None
    kept: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Origin(Typed):
    """The source of a conversion. order: C or F."""

    order: str


@dataclass(frozen=True, slots=True)
class Rule(Value):
    """A rule of the shape inference: its formula, that with numbers, the result."""

    rule: str
    with_: str
    result: str


@dataclass(frozen=True, slots=True)
class Resolved(Value):
    """The row of a standard: its name, the operator's title and version there."""

    standard: str
    title: str
    version: int


@dataclass(frozen=True, slots=True)
class Inferred(Answer):
    """The inferred output of a call. trace: every rule. assumed: conditions on named sizes."""

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
        arrays = [(role, array.name or "", array.described) for role, array in self.inputs.items()]
        arrays += [("assumed", "", condition) for condition in self.assumed]
        arrays.append(("output", "", self.output.described))
        rules = [(rule.rule, rule.with_, rule.result) for rule in self.trace]
        return [
            Table(self.operator, ("array", "name", "type"), arrays),
            Table("trace", ("rule", "with", "result"), rules),
        ]


@dataclass(frozen=True, slots=True)
class Step(Value):
    """A step in which an element of the output gets a value.

    role: data, updates or fill. position, value: of the element of that array. indices: the
    position of the index tuple, None for the element before updates. tuple: the tuple as stored.
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
    """How an element of the output was computed. updates: their number, listed as steps or not."""

    NESTED: ClassVar = {"steps": Step}
    at: Position
    value: Element
    updates: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class ExplainedOrigin(Value):
    """Where an element of data went. outputs: the first and last of `count` positions.

    updates: in a scatter, the number of updates to the element.
    """

    from_: Position
    value: Element
    outputs: tuple[Position, ...]
    count: int
    updates: int


@dataclass(frozen=True, slots=True)
class Explanation(Answer):
    """The explanation of elements: those of `at`, then those of `from_`.

    The fields of the only one are fields of the explanation, too: value, steps, outputs.
    """

    operator: str
    explained: tuple[ExplainedElement | ExplainedOrigin, ...]

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Return the explanation in a JSON object, which has the fields of a single element."""
        remaining = dict(record)
        head = {name: remaining.pop(name) for name in ("version", "operator")}
        listed = remaining.get("explained", [remaining])
        explained = tuple(
            ExplainedElement.of(item) if "at" in item else ExplainedOrigin.of(item)
            for item in listed
        )
        return cls(**head, explained=explained)

    def fields(self) -> dict[str, Any]:
        """Return the JSON object that --json prints."""
        common = {"version": self.version, "operator": self.operator}
        if len(self.explained) == 1:
            return {**common, **self.explained[0].fields()}
        return {**common, "explained": [element.fields() for element in self.explained]}

    def __getattr__(self, name: str) -> Any:
        """Return a field of the only element."""
        if name == "explained" or name.startswith("_"):
            raise AttributeError(name)
        if len(self.explained) == 1:
            return getattr(self.explained[0], name)
        raise AttributeError(f"{len(self.explained)} elements are explained: see .explained")

    def tables(self) -> list[Table]:
        """Return a table of steps, or of destinations, for each element."""
        return [_explained(element) for element in self.explained]


def _explained(element: ExplainedElement | ExplainedOrigin) -> Table:
    if isinstance(element, ExplainedOrigin):
        title = (
            f"data{list(element.from_)} = {element.value}: {element.count} elements of the output"
        )
        return Table(title, ("position",), [(str(list(at)),) for at in element.outputs])
    rows = [
        (
            f"{step.role}{list(step.position)}",
            str(step.value),
            "" if step.indices is None else f"indices{list(step.indices)} = {step.tuple}",
            str(step.result),
        )
        for step in element.steps
    ]
    more = f", {element.updates} updates" if element.updates else ""
    title = f"output{list(element.at)} = {element.value}{more}"
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
class Beyond(Value):
    """An index out of bounds: the position of its tuple, its component, its value."""

    position: Position
    component: int | None
    value: int


@dataclass(frozen=True, slots=True)
class Frequent(Value):
    """A slice selected more than once. tuples: the positions of tuples that select it."""

    row: Position
    count: int
    tuples: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class Histogram(Value):
    """Counts of tuples by `runs` slices each."""

    runs: int
    tuples: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Statistics(Answer):
    """Statistics of the indices of a call; counts are of tuples, of slices and of bytes.

    tuples: all of them. first_out_of_bounds, most: the first, the most frequent. hints: likely
    causes of suspicious indices. runs: the shape of all slices that tuples can select. distinct,
    duplicated: slices selected at all, and more than once.
    """

    NESTED: ClassVar = {
        "components": Component, "first_out_of_bounds": Beyond, "most": Frequent,
        "histogram": Histogram,
    }  # fmt: skip
    operator: str
    tuples: int
    components: tuple[Component, ...]
    out_of_bounds: int
    first_out_of_bounds: tuple[Beyond, ...]
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
