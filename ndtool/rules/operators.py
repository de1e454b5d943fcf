"""The operators: which inputs and attributes each has; every other place asks this table."""

from typing import NamedTuple

REDUCTIONS = ("none", "add", "mul", "max", "min")
RULES = ("error", "clip", "wrap", "fill", "drop")  # for indices out of bounds


class Attributes(NamedTuple):
    """The attributes of one call, by the standards' names; an operator looks at those it has.

    out_of_bounds: what becomes of indices out of bounds, one of RULES, which no standard has. fill:
    the element that "fill" puts there, as it is written; None if it was not said.
    """

    batch_dims: int = 0
    axis: int = 0
    reduction: str = "none"
    out_of_bounds: str = "error"
    fill: str | None = None


class Operator(NamedTuple):
    """name: ndtool's; title: the standards'; inputs, attributes: what it takes, in order."""

    name: str
    title: str
    inputs: tuple[str, ...]
    attributes: tuple[str, ...]

    @property
    def command(self) -> str:
        """The name on the command line."""
        return self.name.replace("_", "-")

    def given(self, attributes: Attributes) -> dict[str, int | str]:
        """Return the attributes that this operator has."""
        return {name: getattr(attributes, name) for name in self.attributes}


_GATHER = ("data", "indices")
_SCATTER = (*_GATHER, "updates")
OPERATORS = {
    operator.name: operator
    for operator in (
        Operator("gather_nd", "GatherND", _GATHER, ("batch_dims",)),
        Operator("scatter_nd", "ScatterND", _SCATTER, ("reduction",)),
        Operator("gather_elements", "GatherElements", _GATHER, ("axis",)),
        Operator("scatter_elements", "ScatterElements", _SCATTER, ("axis", "reduction")),
        Operator("gather", "Gather", _GATHER, ("axis",)),
    )
}
