"""What the values of options are: each kind takes a word, or says what was allowed."""

import re
from typing import Any

import click

from ndtool.errors import UsageError
from ndtool.rules.operators import REDUCTIONS


class File(click.ParamType):  # type: ignore[type-arg]
    """An argument that names an array."""

    name = "file"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[Any]:
        """Offer files that can be arrays, and members."""
        from ndtool.cli import completion

        return completion.arrays(incomplete)


class Integer(click.ParamType):  # type: ignore[type-arg]
    """A whole number within limits, written in decimal digits."""

    name = "integer"

    def __init__(self, lowest: int, highest: int) -> None:
        self.lowest, self.highest = lowest, highest

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number, or fail with what was allowed."""
        number = value if isinstance(value, int) else None
        if number is None and re.fullmatch("[+-]?[0-9]{1,30}", value):
            number = int(value)
        if number is None or not self.lowest <= number <= self.highest:
            self.fail(f"{value!r} is no whole number in {self.lowest}..{self.highest}", param, ctx)
        return number


class Ulps(Integer):
    """A distance in units in the last place, with or without the unit."""

    def __init__(self) -> None:
        super().__init__(0, 2**63 - 1)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number, or fail with what was allowed."""
        bare = re.sub(" ?ulps?$", "", value) if isinstance(value, str) else value
        return super().convert(bare, param, ctx)


class Flag(click.types.BoolParamType):
    """A flag: on the command line it has no value, in its variable one of a few words."""

    SET = ("1", "true", "yes", "on", "t", "y")
    UNSET = ("0", "false", "no", "off", "f", "n")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """Return whether the flag is set, or fail with what was allowed."""
        word = value.strip().lower() if isinstance(value, str) else value
        if word in self.SET or word in self.UNSET:
            return word in self.SET
        if not isinstance(word, bool):
            words = f"expected {', '.join(self.SET)} or {', '.join(self.UNSET)}"
            self.fail(f"{value!r} does not say whether it is set: {words}", param, ctx)
        return word


class Reduction(click.Choice):  # type: ignore[type-arg]
    """A reduction by its name in the standards; of other engines' names it says what is meant."""

    MEANT = {  # noqa: RUF012 - never changed
        "sum": "add", "prod": "mul", "multiply": "mul", "amax": "max", "maximum": "max",
        "amin": "min", "minimum": "min", "update": "none", "assign": "none",
    }  # fmt: skip

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name, or fail with what was allowed."""
        if meant := self.MEANT.get(value):
            self.fail(f"{value!r} is not one of {', '.join(REDUCTIONS)}: did you mean {meant!r}?")
        return super().convert(value, param, ctx)


class Sizes(click.ParamType):  # type: ignore[type-arg]
    """One size for each axis, with commas between them."""

    name = "sizes"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Return the sizes, or fail with what was allowed."""
        if isinstance(value, tuple):
            return value
        if not re.fullmatch("[1-9][0-9]{0,17}(, ?[1-9][0-9]{0,17})*", value):
            self.fail(f"{value!r} is no list of sizes: expected one such as 100,64", param, ctx)
        return tuple(map(int, value.split(",")))


class Place(click.ParamType):  # type: ignore[type-arg]
    """The position of an element: a number for each axis, with commas between them."""

    name = "position"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Return the position, or fail with what was allowed."""
        if isinstance(value, tuple):
            return value
        if not re.fullmatch("([+-]?[0-9]{1,19}(, ?[+-]?[0-9]{1,19})*)?", value):
            self.fail(f"{value!r} is no position: expected one such as 3,0", param, ctx)
        return tuple(map(int, value.split(","))) if value else ()


class Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes, perhaps with a unit."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes, or fail with what was allowed."""
        from ndtool.engine.tuning import LEAST_MEMORY

        if isinstance(value, int):
            return value
        found = re.fullmatch(
            r"([0-9]{1,15})([KMGT]?)(i?B)?", value.strip(), re.ASCII | re.IGNORECASE
        )
        nbytes = 0
        if found:
            number, unit, rest = found.groups()
            thousands = unit and rest and rest.upper() == "B"
            powers = "KMGT".find(unit.upper()) + 1 if unit else 0
            nbytes = int(number) * (1000 if thousands else 1024) ** powers
        if nbytes < LEAST_MEMORY:
            self.fail(
                f"{value!r} is no size: expected one such as 512MiB, at least 1MiB", param, ctx
            )
        return nbytes


class Document(click.ParamType):  # type: ignore[type-arg]
    """A file for people, of one of some suffixes."""

    name = "file"

    def __init__(self, *suffixes: str) -> None:
        self._suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return its name, or fail with what was allowed."""
        if not value.endswith(self._suffixes):
            self.fail(f"{value!r} ends with none of {', '.join(self._suffixes)}", param, ctx)
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[Any]:
        """Offer files of the suffixes."""
        from ndtool.cli import completion

        return completion.documents(incomplete, self._suffixes)


class Codec(click.ParamType):  # type: ignore[type-arg]
    """What compresses, perhaps with a level."""

    name = "codec"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return what was given, or fail with what was allowed."""
        from ndtool.arrays import targets

        try:
            return targets.codec(value)
        except UsageError as exc:
            self.fail(exc.message, param, ctx)


class Engines(click.ParamType):  # type: ignore[type-arg]
    """Names of engines, with commas between them."""

    name = "engines"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Return the names, or fail with what was allowed."""
        from ndtool.analysis import engines

        if isinstance(value, tuple):
            return value
        try:
            return engines.chosen(value)
        except UsageError as exc:
            self.fail(exc.message, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[Any]:
        """Offer one more engine."""
        from ndtool.cli import completion

        return completion.engines(incomplete)
