"""Answers: immutable values whose fields are the keys of --json, and which show as tables.

An answer is made where it is computed. `to_dict` returns the JSON object, `tables` what the command
line, rich, notebooks and HTML reports show. The name of a field that would be a Python keyword ends
in an underscore: `from_`, `with_`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from ndtool import __version__, notebook
from ndtool.arrays.source import DeclaredType
from ndtool.errors import NdtoolError
from ndtool.notebook import Table

Scalar = bool | int | float | str | None  # an element; text if JSON has no such number
ARRAY_COLUMNS = ("array", "name", "type")


HIDDEN = {"hidden": True}  # metadata of a field that only tables use: it is no key


@dataclass(frozen=True, slots=True)
class Value:
    """An answer, or an object nested in one.

    OPTIONAL: fields without a key in the JSON object if they are None. INLINED: the field whose
    fields are keys of the JSON object itself.
    """

    OPTIONAL: ClassVar[tuple[str, ...]] = ()
    INLINED: ClassVar[str] = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object that --json prints."""
        record: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            is_omitted = value is None and item.name in self.OPTIONAL
            if "hidden" in item.metadata or is_omitted:
                continue
            if item.name == self.INLINED:
                record |= json_value(value) or {}
            else:
                record[item.name.rstrip("_")] = json_value(value)
        return record


def json_value(value: Any) -> Any:
    """Return a value of JSON's types."""
    if isinstance(value, Value):
        return value.to_dict()
    if hasattr(value, "_asdict"):  # a NamedTuple of another layer
        value = {key.rstrip("_"): item for key, item in value._asdict().items()}
    if isinstance(value, Mapping):
        return {key: json_value(item) for key, item in value.items()}
    return [json_value(item) for item in value] if isinstance(value, tuple | list) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Value):
    """Base class of the results of explain, stats, infer, ... version: ndtool's version.

    error: of an incomplete or bad answer; it has the value of the key DETAILS, too.
    """

    DETAILS: ClassVar[str] = ""
    version: str = __version__
    error: NdtoolError | None = field(default=None, compare=False, metadata=HIDDEN)

    def raise_error(self) -> None:
        """Raise the error, if there is one."""
        if self.error is not None:
            if self.DETAILS:
                self.error.extra_fields[self.DETAILS] = self.to_dict()[self.DETAILS]
            raise self.error

    def tables(self) -> list[Table]:
        """Return the answer as tables of text."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return "".join(map(notebook.html_table, self.tables()))

    def __rich__(self) -> Any:
        return notebook.rich_tables(self.tables())

    def __str__(self) -> str:
        return "\n".join(map(notebook.plain_table, self.tables())).rstrip("\n")


@dataclass(frozen=True, slots=True)
class Typed(Value):
    """The name, element type and shape of an array; sizes may be symbols, or unknown."""

    name: str | None
    dtype: str | None
    shape: tuple[int | str | None, ...] | None

    @property
    def description(self) -> str:
        """The type and shape as text: float32[N,3], ?[...]."""
        return DeclaredType(self.dtype, self.shape).description


@dataclass(frozen=True, slots=True)
class Output(Typed):
    """An output. bytes: its size, None if it has symbols. kept: preserved members of its file."""

    OPTIONAL: ClassVar = ("kept",)
    bytes: int | None
    kept: tuple[str, ...] | None = None
