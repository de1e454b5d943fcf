"""Exceptions, each with a message, fields for JSON and an exit status."""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NoReturn, Self

from ndtool.redaction import redact_secrets
from ndtool.redaction import redact_urls as redact_urls

__all__ = [  # the names that the package ndtool exports as well
    "BoundsError",
    "DifferenceError",
    "DtypeError",
    "DuplicatesError",
    "InputError",
    "NdtoolError",
    "OutputError",
    "ResourceError",
    "RuleError",
    "Status",
    "UsageError",
]  # fmt: skip


class Status(IntEnum):
    """Exit statuses of the command line, which are stable across versions."""

    DONE = 0
    BUG = 1
    USAGE = 2
    INPUT = 3
    RULE = 4
    BOUNDS = 5
    RESOURCE = 6
    OUTPUT = 7
    DIFFERENCE = 8
    HANGUP = 129
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


SIGNAL_STATUSES = {
    "SIGINT": Status.INTERRUPTED,
    "SIGTERM": Status.TERMINATED,
    "SIGHUP": Status.HANGUP,
}


def printable(text: str, limit: int = 200) -> str:
    """Return `text` on one line of at most `limit` characters, control characters escaped.

    Secrets in URLs are removed.
    """
    text = redact_urls(text)
    if len(text) <= limit and text.isprintable():
        return text
    escaped = "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode("ascii")
        for c in text
    )
    return escaped if len(escaped) <= limit else escaped[: limit - 3] + "..."


_names_options = False  # whether messages are for the command line


def name_options() -> None:
    """Name options in messages as on the command line from now on, not as in Python."""
    global _names_options
    _names_options = True


def option(name: str, value: object = None) -> str:
    """Return an option as its user writes it: `--index-base 1`, in Python `index_base=1`.

    value: None for the name alone; False for a flag such as `--no-negatives`.
    """
    if not _names_options:
        return name if value is None else f"{name}={value!r}"
    words = name.strip("_").replace("_", "-")
    if isinstance(value, bool):
        return f"--{words}" if value else f"--no-{words}"
    return f"--{words}" if value is None else f"--{words} {value}"


def library_message(error: object, limit: int = 200) -> str:
    """Return the message of another package's exception on one line, without secrets."""
    text = redact_secrets(" ".join(str(error).split()))
    return printable(text or type(error).__name__, limit)


def lacks_memory(error: Exception) -> bool:
    """Whether an exception, of any package, says that memory is exhausted."""
    texts = ("can't start new thread", "failed to map segment", "allocate memory", "bad_alloc")
    return isinstance(error, MemoryError) or any(text in str(error) for text in texts)


def import_extra(package: str, user: str, extra: str) -> Any:
    """Import the package that `user` needs; UsageError if it is missing. extra: what has it."""
    try:
        return __import__(package)
    except ImportError as exc:
        if lacks_memory(exc):
            raise
        hint = f"pip install 'ndtool[{extra}]'"
        raise UsageError(f"{user} needs the {package} package", hint=hint) from None


def argument_name(argument: str) -> str:
    """Return an argument as messages name it: a printable file name, or "standard input"."""
    return "standard input" if argument == "-" else printable(argument)


def format_value(value: object, formatter: Callable[[object], str] = repr, limit: int = 100) -> str:
    """Return the repr of a value on one line, or its type where the repr fails."""
    try:
        return printable(formatter(value), limit)
    except Exception:
        return format_integer(value) if type(value) is int else f"a {type(value).__name__}"


def format_integer(value: int) -> str:
    """Return an integer in digits, or its order of magnitude if it has more than 40 digits."""
    if abs(value) < 10**40:
        return str(value)
    power = int(value.bit_length() * 0.30103)
    return f"about {'-' if value < 0 else ''}10^{power}"


def format_count(count: int, noun: str) -> str:
    """Return a count with its noun in the singular or plural: 1 thread, 2 threads."""
    return f"{count} {noun}" + "s" * (count != 1)


def format_size(count: int) -> str:
    """Return a size as text: 10.2 kB."""
    if count < 1000:
        return "1 byte" if count == 1 else f"{count} bytes"
    units = ["kB", "MB", "GB", "TB", "PB"]
    size = count / 1000
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        del units[0]
    return f"{size:.3g} {units[0]}" if size < 1000 else f"{size:.0f} {units[0]}"


def format_columns(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as plain text in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows)


class NdtoolError(Exception):
    """Base class of all errors that ndtool raises.

    message: one sentence that ends with the allowed values. places: lines that locate the
    error. hint: a suggested remedy. extra_fields: additional fields of the JSON object. passing:
    whether the error may be transient, such as a full disk or a throttling server.
    Each class accepts the message as the only argument, as unpickling and copying require.
    """

    status = Status.BUG
    passing = False
    message: str
    places: tuple[str, ...]
    hint: str

    def __init__(self, message: str, *, places: tuple[str, ...] = (), hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.places = places
        self.hint = hint
        self.extra_fields: dict[str, object] = {}

    def __str__(self) -> str:
        lines = [self.message]
        lines += [("  --> " if i == 0 else "      ") + p for i, p in enumerate(self.places)]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def fields(self) -> dict[str, object]:
        """Return the error as the object that `--json` prints."""
        return {
            "error": type(self).__name__,
            "status": int(self.status),
            "message": self.message,
            "places": list(self.places),
            "hint": self.hint or None,
            **self.extra_fields,
        }


class UsageError(NdtoolError, ValueError):
    """Invalid argument or option, or a missing member name."""

    status = Status.USAGE


class InputError(NdtoolError, ValueError):
    """Input that cannot be read: missing, not an array, truncated or malformed."""

    status = Status.INPUT


def refuse(name: str, problem: str, hint: str = "", places: tuple[str, ...] = ()) -> NoReturn:
    """Raise InputError about a file or a member."""
    message = f"{printable(name)}: {printable(problem, 300)}"
    raise InputError(message, places=places, hint=hint) from None


class RuleError(NdtoolError, ValueError):
    """Inputs that violate a rule on ranks, shapes, axis, batch_dims, reduction or spec.

    trace: the shape rules checked before the error, the last of which is violated.
    """

    status = Status.RULE
    trace: object = None


class DuplicatesError(RuleError):
    """Index tuples that select the same slice or element, where duplicates are an error.

    second: the position in `indices` of the first tuple, in row-major order, that selects the slice
        of an earlier tuple. first: the position of the first tuple that selects this slice.
        Positions are without the last axis for nd operators.
    """

    def __init__(
        self,
        message: str = "duplicate indices: two of them select the same slice of data",
        *,
        first: tuple[int, ...] = (),
        second: tuple[int, ...] = (),
    ) -> None:
        super().__init__(message)
        self.first, self.second = first, second
        self.name("indices")

    def name(self, indices: str) -> None:
        """Set `places`, with the name of the indices."""
        first, second = (
            f"{indices}[{', '.join(map(str, position))}]" for position in (self.first, self.second)
        )
        self.places = (first, f"{second} selects the same slice")

    def fields(self) -> dict[str, object]:
        """Return the error as the object that `--json` prints."""
        return {**super().fields(), "first": list(self.first), "second": list(self.second)}


class DtypeError(NdtoolError, TypeError):
    """Element type that the operator, the reduction or the spec does not support."""

    status = Status.RULE


class BoundsError(NdtoolError, IndexError):
    """Index out of bounds: the first one, and their number.

    position: the position of the first one in `indices`, without the last axis for nd operators.
        component: its coordinate on that last axis; None for other operators. axis: the axis of
        data. value: the index. size: the size of the axis. count: the number of index tuples (or of
        single indices) out of bounds. total: the number of all index tuples. lowest: the smallest
        valid index. base: the index of an axis' first element. length: the number of elements
        written along the axis, from the index on.
    """

    status = Status.BOUNDS
    _hint: str | None

    def __init__(
        self,
        message: str = "",
        *,
        position: tuple[int, ...] = (),
        component: int | None = None,
        axis: int = 0,
        value: int = 0,
        size: int = 0,
        count: int = 0,
        total: int = 0,
        lowest: int | None = None,
        length: int = 1,
        base: int = 0,
    ) -> None:
        super().__init__(message)
        self.position, self.component, self.axis = position, component, axis
        self.value, self.size, self.count, self.total = value, size, count, total
        self.length, self.base = length, base
        self.lowest = (-size if lowest is None else lowest) + base
        if not message:  # else it is a copy, whose other attributes are set next
            self.name("indices", "data")
            self._hint = None

    @property
    def hint(self) -> str:
        """The hint that was set, else the likely cause, in the terms of this process."""
        return self._cause_hint() if self._hint is None else self._hint

    @hint.setter
    def hint(self, hint: str) -> None:
        self._hint = hint

    @property
    def counted(self) -> str:
        """The number of indices out of bounds and of all indices, for messages."""
        unit = "elements" if self.component is None else "index tuples"
        return f"{self.count} of {self.total} {unit}"

    def name(self, indices: str, data: str) -> None:
        """Set the message and `places`, with the names of the inputs."""
        entry = self.position if self.component is None else (*self.position, self.component)
        brackets = f"[{', '.join(map(str, entry))}]" if entry else ""
        axis = f"data axis {self.axis}" + ("" if data == "data" else f" of {data}")
        highest = self.size - self.length + self.base
        has_valid_index = highest >= self.lowest
        valid_range = f"valid {self.lowest}..{highest}" if has_valid_index else "no index is valid"
        written_length = "" if self.length == 1 else f", of which {self.length} are written"
        self.message = f"indices out of bounds: {self.counted}"
        self.args = (self.message,)
        self.places = (
            f"{indices}{brackets} = {format_value(self.value)}",
            f"{axis} has size {self.size}{written_length}: {valid_range}",
        )

    def _cause_hint(self) -> str:
        """Return the likely cause of the first index out of bounds, "" if none is known."""
        if self.size and self.value == self.size:
            question = f"are the indices 1-based? Then: {option('index_base', 1)}"
            return f"{self.value} equals the size of the axis: {question}"
        if self.lowest == 0 and -self.size <= self.value < 0:
            excluded = option("negatives", False)
            return f"negative indices are not allowed here: by the spec, or by {excluded}"
        return ""

    def fields(self) -> dict[str, object]:
        return {**super().fields(), **self.first(), "count": self.count, "total": self.total}

    def first(self) -> dict[str, object]:
        """Return the first index out of bounds as fields for JSON."""
        return {
            "position": list(self.position),
            "component": self.component,
            "axis": self.axis,
            "value": self.value,
            "size": self.size,
        }


class ResourceError(NdtoolError, MemoryError):
    """Insufficient memory or disk space, or a limit exceeded."""

    status = Status.RESOURCE

    def __new__(cls, *args: object, **_: object) -> Self:
        """Create an error without MemoryError's method, which refuses classes with another base."""
        return Exception.__new__(cls, *args)


class OutputError(NdtoolError, OSError):
    """Output that cannot be written, or an input that changed during the run."""

    status = Status.OUTPUT


class DifferenceError(NdtoolError):
    """Output that differs from the operator's result; `verify` raises it.

    comparison: the comparison of the elements, None if dtype or shape differ.
    """

    status = Status.DIFFERENCE
    comparison: object = None
