"""What can go wrong, as data: every error has fields, a message and an exit status."""

from collections.abc import Callable
from enum import IntEnum


class Status(IntEnum):
    """The exit statuses of the command line; they never change their meaning."""

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


STOPS = {"SIGINT": Status.INTERRUPTED, "SIGTERM": Status.TERMINATED, "SIGHUP": Status.HANGUP}


class Died(BaseException):
    """A signal ends the process: outputs drop what they have, then it comes again."""

    def __init__(self, number: int) -> None:
        self.number = number


def printable(text: str, limit: int = 200) -> str:
    """Return `text` on one line of at most `limit` characters, control characters escaped.

    Secrets that URLs may have are left out.
    """
    text = redacted(text)
    if len(text) <= limit and text.isprintable():
        return text
    escaped = "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode("ascii")
        for c in text
    )
    return escaped if len(escaped) <= limit else escaped[: limit - 3] + "..."


def redacted(text: str) -> str:
    """Return `text` without what URLs in it may have of secrets: user, password, query.

    >>> redacted("https://me:word@host/a.npz?signature=1:x is not there")
    'https://host/a.npz?...:x is not there'
    """
    if "://" not in text:
        return text
    import re

    text = re.sub(r"://[^/\s@?#]*@", "://", text)
    return re.sub(r"(://[^?\s]*\?)[^:\s]*", r"\1...", text)


def called(argument: str) -> str:
    """Return what messages call the file, member or stream that an argument names."""
    return "standard input" if argument == "-" else printable(argument)


def shown(value: object, form: Callable[[object], str] = repr, limit: int = 100) -> str:
    """Return how a value reads on one line, or what it is where Python cannot say."""
    try:
        return printable(form(value), limit)
    except Exception:
        return number(value) if type(value) is int else f"a {type(value).__name__}"


def number(value: int) -> str:
    """Return an integer in digits, or where they would be too many, about how large it is."""
    if abs(value) < 10**40:
        return str(value)
    power = int(value.bit_length() * 0.30103)
    return f"about {'-' if value < 0 else ''}10^{power}"


class NdtoolError(Exception):
    """Base of every error that ndtool raises on purpose.

    `message` is one sentence that ends with what was allowed; `places` are the lines that
    point at the culprit; `hint` says what to try. `fields()` is the same for machines,
    with what stands in `more`.
    """

    status = Status.BUG
    message: str
    places: tuple[str, ...]
    hint: str

    def __init__(self, message: str, *, places: tuple[str, ...] = (), hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.places = places
        self.hint = hint
        self.more: dict[str, object] = {}

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
            **self.more,
        }


class UsageError(NdtoolError, ValueError):
    """A malformed value, an unknown option or a missing member name."""

    status = Status.USAGE


class InputError(NdtoolError, ValueError):
    """An input that cannot be read: missing, not an array, truncated or hostile."""

    status = Status.INPUT


class RuleError(NdtoolError, ValueError):
    """A rank, shape, axis, batch_dims, reduction or spec rule that the inputs break.

    `trace` holds the rules checked so far, the broken one last, where shapes were the reason.
    """

    status = Status.RULE
    trace: object = None


class DtypeError(NdtoolError, TypeError):
    """An element type that the operator, the reduction or the spec does not take."""

    status = Status.RULE


class BoundsError(NdtoolError, IndexError):
    """An index outside its axis.

    position: where in `indices`, one int per axis of it but the last (nd operators) or per
        axis (elements operators). component: which entry of the index tuple (None for elements
        operators). axis: the axis of data. value: the index. size: the length of that axis.
        count: how many index tuples (elements) are out of bounds, of how many (`total`).
    """

    status = Status.BOUNDS

    def __init__(
        self,
        message: str = "indices out of bounds",
        *,
        position: tuple[int, ...] = (),
        component: int | None = None,
        axis: int = 0,
        value: int = 0,
        size: int = 0,
        count: int = 0,
        total: int = 0,
        lowest: int | None = None,
    ) -> None:
        super().__init__(message)
        self.position, self.component, self.axis = position, component, axis
        self.value, self.size, self.count, self.total = value, size, count, total
        self.lowest = -size if lowest is None else lowest
        self.name("indices", "data")
        self.hint = self._guess()

    @property
    def counted(self) -> str:
        """How many indices are out of bounds, of how many."""
        unit = "elements" if self.component is None else "index tuples"
        return f"{self.count} of {self.total} {unit}"

    def name(self, indices: str, data: str) -> None:
        """Put the names of the files that were read into the places."""
        entry = self.position if self.component is None else (*self.position, self.component)
        place = f"[{', '.join(map(str, entry))}]" if entry else ""
        axis = f"data axis {self.axis}" + ("" if data == "data" else f" of {data}")
        valid = f"valid {self.lowest}..{self.size - 1}" if self.size else "no index is valid"
        self.message = f"indices out of bounds: {self.counted}"
        self.args = (self.message,)
        self.places = (
            f"{indices}{place} = {shown(self.value)}",
            f"{axis} has size {self.size}: {valid}",
        )

    def _guess(self) -> str:
        if self.size and self.value == self.size:
            return f"{self.value} equals the size of the axis: are the indices 1-based?"
        if self.lowest == 0 and -self.size <= self.value < 0:
            return "this spec does not count from the end: negative indices are refused"
        return ""

    def fields(self) -> dict[str, object]:
        return {**super().fields(), **self.first(), "count": self.count, "total": self.total}

    def first(self) -> dict[str, object]:
        """Return which one it is."""
        return {
            "position": list(self.position),
            "component": self.component,
            "axis": self.axis,
            "value": self.value,
            "size": self.size,
        }


class ResourceError(NdtoolError, MemoryError):
    """Not enough memory or disk, or over a limit."""

    status = Status.RESOURCE


class OutputError(NdtoolError, OSError):
    """The output cannot be written, or an input changed during the run."""

    status = Status.OUTPUT


class DifferenceError(NdtoolError):
    """`verify` found an output that is not what the operator gives.

    `comparison` tells how far it is from that, where type and shape are right.
    """

    status = Status.DIFFERENCE
    comparison: object = None
