"""The trace of a call: every rule that inference checks, with its numbers."""

from __future__ import annotations

from typing import NamedTuple

from ndtool.errors import RuleError
from ndtool.rules.symbols import Sizes


class Step(NamedTuple):
    """One rule of a trace: its formula, the formula with numbers, and the result.

    assumed: the assumptions under which it holds, as sentences.
    """

    rule: str
    numbers: str
    result: str
    assumed: tuple[str, ...] = ()


class Trace(NamedTuple):
    """The rules that were checked for one call, in order; a broken one is the last.

    sizes: the assumptions about symbolic sizes.
    """

    operator: str
    steps: tuple[Step, ...]
    sizes: Sizes

    @property
    def decisive(self) -> Step:
        """The rule that made the output's shape."""
        return next(step for step in self.steps if step.rule.startswith("output.shape = "))

    @property
    def assumed(self) -> tuple[str, ...]:
        """The assumptions about symbolic sizes, without duplicates."""
        return tuple(dict.fromkeys(one for step in self.steps for one in step.assumed))


class Tracer:
    """Collects the steps of a trace; a broken rule raises RuleError with the trace so far."""

    def __init__(self, operator: str) -> None:
        self.operator = operator
        self.steps: list[Step] = []
        self.sizes = Sizes()

    def require(
        self,
        holds: bool | None,
        rule: str,
        numbers: str,
        broken: str,
        *assumed: str,
        hint: str = "",
    ) -> None:
        """Add a rule; holds: None if it depends on symbolic sizes and is assumed."""
        result = "assumed" if holds is None else "ok" if holds else "broken"
        self.steps.append(Step(rule, numbers, result, assumed if holds is None else ()))
        if holds is False:
            error = RuleError(broken, hint=hint)
            error.trace = self.trace()
            raise error

    def derive(self, rule: str, numbers: str, result: object) -> None:
        self.steps.append(Step(rule, numbers, str(result)))

    def trace(self) -> Trace:
        return Trace(self.operator, tuple(self.steps), self.sizes)
