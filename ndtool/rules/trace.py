"""The trace of a call: every rule that inference checks, with the numbers of the call.

Sizes may be symbolic, such as N in [N,3]: a trace has the assumptions made about them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ndtool.errors import RuleError

COLUMNS = ("rule", "with", "result")  # of a trace as a table


class Symbol(int):
    """A symbolic size: the product of names and a known factor.

    Its value as an int is the factor.
    """

    names: tuple[str, ...]

    def __new__(cls, *names: str, factor: int = 1) -> Symbol:
        """Return the product of the names and the factor."""
        symbol = super().__new__(cls, factor)
        symbol.names = names
        return symbol

    def __mul__(self, other: int) -> int:
        factor = int(self) * int(other)
        names = self.names + (other.names if isinstance(other, Symbol) else ())
        return Symbol(*names, factor=factor) if factor else 0

    def __rmul__(self, other: int) -> int:
        return self * other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Symbol):
            return False
        return int(self) == int(other) and sorted(self.names) == sorted(other.names)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((int(self), *sorted(self.names)))

    def __repr__(self) -> str:
        return "*".join(([str(int(self))] if int(self) != 1 else []) + list(self.names))


class Sizes:
    """Comparisons of sizes: True, False, or None if the result depends on symbols and is assumed.

    Comparisons use the equalities that earlier comparisons have assumed.
    """

    def __init__(self) -> None:
        self._equalities: dict[int, int] = {}

    def equal(self, a: int, b: int) -> bool | None:
        """Return whether two sizes are equal; None if equality is assumed."""
        a, b = self._resolve(a), self._resolve(b)
        if a == b or not (isinstance(a, Symbol) or isinstance(b, Symbol)):
            return a == b
        if isinstance(a, Symbol):
            self._equalities[a] = b
        else:
            self._equalities[b] = a
        return None

    def at_most(self, a: int, b: int) -> bool | None:
        """Return whether a <= b; None if it is assumed."""
        a, b = self._resolve(a), self._resolve(b)
        if isinstance(a, Symbol) or isinstance(b, Symbol):
            return True if a == b or a == 0 else None
        return a <= b

    def may_be_empty(self, size: int) -> list[str]:
        """Return the names in a symbolic size that may be 0."""
        names = size.names if isinstance(size, Symbol) else ()
        resolved = {name: self._resolve(Symbol(name)) for name in names}
        return [name for name, value in resolved.items() if isinstance(value, Symbol) or value == 0]

    def format_size(self, size: int) -> str:
        """Return a size as text, with the size that it is assumed to equal."""
        resolved = self._resolve(size)
        return str(size) if resolved == size else f"{size} (assumed to be {resolved})"

    def _resolve(self, size: int) -> int:
        """Return the size that `size` is assumed to equal, or itself."""
        while size in self._equalities:
            size = self._equalities[size]
        return size


class Step(NamedTuple):
    """A rule of a trace: its formula, the formula with the numbers of the call, the result."""

    rule: str
    with_: str
    result: str


class Trace(NamedTuple):
    """The rules that were checked for a call, in order; a broken rule is the last.

    sizes: the comparisons of symbolic sizes. assumptions: as sentences, those under which the rules
    hold.
    """

    operator: str
    steps: tuple[Step, ...]
    sizes: Sizes
    assumptions: tuple[str, ...]

    def table(self) -> Any:
        """Return the rules as a table."""
        from ndtool.notebook import Table

        return Table(self.operator, COLUMNS, self.steps)

    def _repr_html_(self) -> str:
        from ndtool.notebook import html_table

        return html_table(self.table())


class Tracer:
    """Collects the steps of a trace; a broken rule raises RuleError with the trace so far.

    trace: an earlier trace to continue.
    """

    def __init__(self, operator: str, trace: Trace | None = None) -> None:
        self.operator = operator
        self.steps: list[Step] = list(trace.steps) if trace else []
        self.sizes = trace.sizes if trace else Sizes()
        self._assumptions = dict.fromkeys(trace.assumptions if trace else ())

    def require(
        self,
        holds: bool | None,
        rule: str,
        numbers: str,
        message: str,
        *assumptions: str,
        hint: str = "",
    ) -> None:
        """Add a rule; if it is broken, raise RuleError with `message`.

        holds: None if the rule depends on symbolic sizes; then it is assumed to hold.
        """
        result = "assumed" if holds is None else "ok" if holds else "broken"
        self.steps.append(Step(rule, numbers, result))
        if holds is None:
            self._assumptions |= dict.fromkeys(assumptions)
        if holds is False:
            error = RuleError(message, hint=hint)
            error.trace = self.trace()
            raise error

    def derive(self, rule: str, numbers: str, result: object) -> None:
        self.steps.append(Step(rule, numbers, str(result)))

    def trace(self) -> Trace:
        return Trace(self.operator, tuple(self.steps), self.sizes, tuple(self._assumptions))
