"""Types such as `float32[8,128,64]` that stand for arrays whose values do not matter."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NoReturn

from ndtool.arrays.source import Facts, Touched
from ndtool.errors import UsageError, printable
from ndtool.rules import dtypes, shapes
from ndtool.rules.shapes import Shape

if TYPE_CHECKING:
    from ndtool.runs.jobs import Job, Request

# A dtype, which may have a unit in brackets, then a shape; no path or member looks like it.
_TYPE = re.compile(r"([^:/.\[\]]+(?:\[[0-9]*[A-Za-z]+\])?)\[(.*)\]")
_SIZES = re.compile(r"(?:[0-9]{1,19}(?:, ?[0-9]{1,19})*)?")


class Typed:
    """A source that has no values."""

    warning: str | None = None

    def __init__(self, name: str, facts: Facts) -> None:
        self.name, self.facts = name, facts

    def whole(self, touched: Touched | None = None) -> NoReturn:
        """Refuse: there are no bytes."""
        raise UsageError(
            f"{printable(self.name)} is a type, without values: expected a file",
            hint="indices may be written out, such as '[[5], [7]]'",
        )

    def block(self, number: int) -> NoReturn:
        """Refuse as well."""
        self.whole()

    def recheck(self) -> None:
        """Nothing can have changed."""

    def is_open_as(self, fd: int) -> bool:
        """Say that no descriptor is open on it."""
        return False

    def close(self) -> None:
        """Nothing is open."""


def typed(argument: str) -> Typed | None:
    """Return what stands for an array if an argument is `dtype[d0,d1,...]`, unless a file is."""
    match = _TYPE.fullmatch(argument)
    if match is None or os.path.lexists(argument):
        return None
    shape = _shape(argument, match[2])
    return Typed(argument, Facts(dtypes.from_name(match[1]), shape, "C", shape, {}))


def opened(request: Request, **stand: Typed) -> Job:
    """Return a job whose inputs may be types; stand: inputs that are already."""
    from ndtool.runs.jobs import Job

    arguments = {role: name for role, name in request.arguments.items() if role not in stand}
    types = {role: found for role, name in arguments.items() if (found := typed(name))}
    return Job(request, {**types, **stand})


def _shape(argument: str, sizes: str) -> Shape:
    shape = tuple(map(int, sizes.split(","))) if _SIZES.fullmatch(sizes) and sizes else ()
    if not _SIZES.fullmatch(sizes) or any(size > shapes.MOST for size in shape):
        raise UsageError(f"{printable(argument)}: expected a file or dtype[d0,d1,...]")
    if len(shape) > shapes.MOST_RANK:
        raise UsageError(f"{printable(argument)}: rank {len(shape)}: valid 0..{shapes.MOST_RANK}")
    return shape
