"""Types such as `float32[8,128,64]` that stand for arrays whose values do not matter."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NoReturn

from ndtool.arrays.source import Facts, Touched
from ndtool.engine.gathers import Tick
from ndtool.errors import UsageError, printable
from ndtool.rules import dtypes, shapes
from ndtool.rules.shapes import Shape
from ndtool.rules.symbols import Symbol

if TYPE_CHECKING:
    from ndtool.runs.jobs import Job, Request

# A dtype, which may have a unit in brackets, then a shape; no path or member looks like it.
_TYPE = re.compile(r"([^:/.\[\]]+(?:\[[0-9]*[A-Za-z]+\])?)\[(.*)\]")
_SIZE = "(?:[0-9]{1,19}|[A-Za-z_][A-Za-z0-9_]{0,99})"
_SIZES = re.compile(f"(?:{_SIZE}(?:, ?{_SIZE})*)?")


class Typed:
    """A source that has no values."""

    warning: str | None = None
    at_once = 0
    tick: Tick | None = None

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

    def told(self) -> None:
        """Nothing tells it from others."""

    def is_open_as(self, fd: int) -> bool:
        """Say that no descriptor is open on it."""
        return False

    def close(self) -> None:
        """Nothing is open."""


def typed(argument: str, named: bool = False) -> Typed | None:
    """Return what stands for an array if an argument is `dtype[d0,d1,...]`, unless a file is.

    named: whether sizes may be names.
    """
    match = _TYPE.fullmatch(argument)
    if match is None or os.path.lexists(argument):
        return None
    shape = _shape(argument, match[2], named)
    dtype = dtypes.from_name(match[1])
    if dtype.kind in "mM" and "[" not in dtype.name and match[2].isalpha():
        raise _no_type(argument)  # that is a unit, and no shape
    return Typed(argument, Facts(dtype, shape, "C", shape, {}))


def opened(request: Request, **stand: Typed) -> Job:
    """Return a job whose inputs may be types; stand: inputs that are already."""
    from ndtool.runs.jobs import Job

    arguments = {role: name for role, name in request.arguments.items() if role not in stand}
    types = {role: found for role, name in arguments.items() if (found := typed(name))}
    return Job(request, {**types, **stand})


def _shape(argument: str, sizes: str, named: bool) -> Shape:
    if not _SIZES.fullmatch(sizes):
        raise _no_type(argument)
    words = sizes.replace(" ", "").split(",") if sizes else []
    shape = tuple(int(word) if word.isdecimal() else Symbol(word) for word in words)
    if any(size > shapes.MOST for size in shape):
        raise _no_type(argument)
    names = [size for size in shape if isinstance(size, Symbol)]
    if names and not named:
        raise UsageError(f"{printable(argument)}: size {names[0]} is a name: expected a number")
    if len(shape) > shapes.MOST_RANK:
        raise UsageError(f"{printable(argument)}: rank {len(shape)}: valid 0..{shapes.MOST_RANK}")
    return shape


def _no_type(argument: str) -> UsageError:
    return UsageError(f"{printable(argument)}: expected a file or dtype[d0,d1,...]")
