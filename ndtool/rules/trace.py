"""Every rule that is checked for a call, with the numbers put in."""

from __future__ import annotations

from typing import NamedTuple

from ndtool import notebook
from ndtool.errors import RuleError
from ndtool.rules.symbols import Sizes


class Step(NamedTuple):
    """One rule of a trace: the rule, the numbers put in, and what came of it.

    assumed: sentences that must be true for it to hold.
    """

    rule: str
    numbers: str
    result: str
    assumed: tuple[str, ...] = ()


class Trace(NamedTuple):
    """Every rule that was checked for one call, in order; a broken one is the last."""

    operator: str
    steps: tuple[Step, ...]

    @property
    def assumed(self) -> tuple[str, ...]:
        """What must be true of sizes that have names."""
        return tuple(dict.fromkeys(one for step in self.steps for one in step.assumed))

    def _repr_html_(self) -> str:
        rows = [step[:3] for step in self.steps]
        return notebook.table(self.operator, ("rule", "with", "result"), rows)


class Tracer:
    """Collects steps; a broken rule raises with all of them."""

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
        """Add a rule; where holds is None, names of sizes leave it open, and it is assumed."""
        result = "assumed" if holds is None else "ok" if holds else "broken"
        self.steps.append(Step(rule, numbers, result, assumed if holds is None else ()))
        if holds is False:
            error = RuleError(broken, hint=hint)
            error.trace = self.trace()
            raise error

    def derive(self, what: str, numbers: str, result: object) -> None:
        self.steps.append(Step(what, numbers, str(result)))

    def trace(self) -> Trace:
        return Trace(self.operator, tuple(self.steps))
