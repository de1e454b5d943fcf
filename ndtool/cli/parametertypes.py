"""Parameter types of options: each converts a word, or raises an error with the valid values."""

import os
import re
from collections.abc import Callable
from typing import Any

import click

from ndtool import redaction
from ndtool.cli.variables import is_from_environment
from ndtool.errors import NdtoolError, UsageError
from ndtool.rules.reductions import ALIASES


class ParameterType(click.ParamType):  # type: ignore[type-arg]
    """A parameter type. parse: converts a word, or raises NdtoolError.

    completer: the name of the function of completion.py that completes a word, and its further
    arguments.
    """

    def __init__(self, name: str, parse: Callable[[str], Any] = str, *completer: Any) -> None:
        self.name, self._parse, self._completer = name, parse, completer

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value  # a default
        try:
            return self._parse(value)
        except NdtoolError as exc:
            self.fail(exc.message.removeprefix("spec is "), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[Any]:
        if not self._completer:
            return []
        from ndtool.cli import completion

        function, *settings = self._completer
        completions: list[Any] = getattr(completion, function)(incomplete, *settings)
        return completions


class Directories(ParameterType):
    """A directory or URL; a variable has directories separated by `:` as in PATH, or one URL."""

    def __init__(self) -> None:
        super().__init__("file", str, "array_arguments")

    def split_envvar_value(self, rv: str) -> list[str]:
        """Return the directories in a variable."""
        from ndtool.storage import locations

        return [rv] if locations.is_url(rv) else list(filter(None, rv.split(os.pathsep)))


class Flag(click.types.BoolParamType):
    """A flag; its variable is one of SET or UNSET."""

    SET = ("1", "true", "yes", "on", "t", "y")
    UNSET = ("0", "false", "no", "off", "f", "n")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """Return whether the flag is set, or fail with the valid values."""
        word = value.strip().lower() if isinstance(value, str) else value
        if word in self.SET or word in self.UNSET:
            return word in self.SET
        if not isinstance(word, bool):
            expected = f"expected {', '.join(self.SET)} or {', '.join(self.UNSET)}"
            self.fail(f"{value!r} is not a flag: {expected}", param, ctx)
        return word


class Reduction(click.Choice):  # type: ignore[type-arg]
    """A reduction, by ndtool's name or by that of another library."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name, or fail with the valid values."""
        return super().convert(ALIASES.get(value, value), param, ctx)


def integer(lowest: int, highest: int) -> ParameterType:
    """Return the parameter type of decimal integers from `lowest` to `highest`."""

    def parse(word: str) -> int:
        if re.fullmatch("[+-]?[0-9]{1,30}", word) and lowest <= int(word) <= highest:
            return int(word)
        raise UsageError(f"{word!r} is not an integer in {lowest}..{highest}")

    return ParameterType("integer", parse)


def file_with_suffix(*suffixes: str) -> ParameterType:
    """Return the parameter type of files whose names end with one of the suffixes."""

    def parse(word: str) -> str:
        if not word.endswith(suffixes):
            raise UsageError(f"{word!r}: expected a name that ends with {' or '.join(suffixes)}")
        return word

    return ParameterType("file", parse, "files_with_suffix", suffixes)


def ulps(word: str) -> int:
    """Convert a distance in units in the last place, with or without the unit."""
    distance: int = integer(0, 2**63 - 1).convert(re.sub(" ?ulps?$", "", word), None, None)
    return distance


def spec(word: str) -> str:
    """Return the name of a standard; raise UsageError if it is unknown."""
    from ndtool.rules import specs

    specs.require_valid(word)
    return word


def element_type(word: str) -> str:
    """Return an element type; a type from a variable applies to void-typed data only."""
    from ndtool.rules import dtypes

    dtypes.from_name(word)
    return dtypes.DefaultType(word) if is_from_environment("dtype") else word


def fill_value(word: str) -> str:
    """Return a fill value; a later step checks that the data's type can represent it."""
    from ndtool.rules import numbers

    if not numbers.is_number(word):
        raise UsageError(f"{word!r} is not a number: expected one such as -1, 0.5, nan or true")
    return word


def address(word: str) -> str:
    """Return the address of a scheduler, or the name of its scheduler file."""
    if "://" not in word and (word.endswith(".json") or os.path.exists(word)):
        return word
    redaction.register(word)
    if not re.fullmatch(r"([a-z][a-z0-9+.-]*://.+|.*:[0-9]+)", word):
        expected = "expected tcp://host:port, or the name of its scheduler file"
        raise UsageError(
            f"{redaction.redact_secrets(word)!r} is not the address of a scheduler: {expected}"
        )
    return word


def sizes(word: str) -> tuple[int, ...]:
    """Convert a comma-separated list of sizes, one for each axis."""
    if not re.fullmatch("[1-9][0-9]{0,17}(, ?[1-9][0-9]{0,17})*", word):
        raise UsageError(f"{word!r} is not a list of sizes: expected one such as 100,64")
    return tuple(map(int, word.split(",")))


def position(word: str) -> tuple[int, ...]:
    """Convert the position of an element: a comma-separated integer for each axis."""
    if not re.fullmatch("([+-]?[0-9]{1,19}(, ?[+-]?[0-9]{1,19})*)?", word):
        raise UsageError(f"{word!r} is not a position: expected one such as 3,0")
    return tuple(map(int, word.split(","))) if word else ()


def memory(word: str) -> int:
    """Convert a size in bytes, with or without a unit."""
    from ndtool.engine.tuning import MIN_MEMORY
    from ndtool.machine import memory

    nbytes = memory.parse_size(word)
    if nbytes is None:
        raise UsageError(f"{word!r} is not a size: expected bytes, or a number such as 512MiB")
    if nbytes < MIN_MEMORY:
        raise UsageError(f"{word} is too little memory: expected at least 1MiB")
    return nbytes


def codec(word: str) -> str:
    """Return the name of a codec, with a level if it has one."""
    from ndtool.publish import targets

    return targets.codec(word)


def engines(word: str) -> tuple[str, ...]:
    """Return the names of engines in a comma-separated list."""
    from ndtool.analysis import engines

    return engines.parse_names(word)
