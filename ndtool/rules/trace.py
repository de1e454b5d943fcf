"""The trace of a call: every rule that inference checks, with the numbers of the call."""

from __future__ import annotations

from typing import NamedTuple

from ndtool.errors import RuleError
from ndtool.rules.symbols import Sizes


class Step(NamedTuple):
    """A rule of a trace: its formula and its result.

    numbers: the formula with the numbers of the call. assumptions: as sentences, those under which
    the rule holds.
    """

    rule: str
    numbers: str
    result: str
    assumptions: tuple[str, ...] = ()


class Trace(NamedTuple):
    """The rules that were checked for a call, in order; a broken rule is the last.

    sizes: the assumptions about symbolic sizes.
    """

    operator: str
    steps: tuple[Step, ...]
    sizes: Sizes

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions about symbolic sizes, without duplicates."""
        return tuple(dict.fromkeys(text for step in self.steps for text in step.assumptions))

    def _repr_html_(self) -> str:
        from ndtool.notebook import Table, html_table

        rows = [step[:3] for step in self.steps]
        return html_table(Table(self.operator, ("rule", "with", "result"), rows))


class Tracer:
    """Collects the steps of a trace; a broken rule raises RuleError with the trace so far.

    trace: an earlier trace to continue.
    """

    def __init__(self, operator: str, trace: Trace | None = None) -> None:
        self.operator = operator
        self.steps: list[Step] = list(trace.steps) if trace else []
        self.sizes = trace.sizes if trace else Sizes()

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
        self.steps.append(Step(rule, numbers, result, assumptions if holds is None else ()))
        if holds is False:
            error = RuleError(message, hint=hint)
            error.trace = self.trace()
            raise error

    def derive(self, rule: str, numbers: str, result: object) -> None:
        self.steps.append(Step(rule, numbers, str(result)))

    def trace(self) -> Trace:
        return Trace(self.operator, tuple(self.steps), self.sizes)
