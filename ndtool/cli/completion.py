"""Shell completion of members of files and of values of options; shells complete the files."""

from __future__ import annotations

import os
import re

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    split_arg_string,
)

from ndtool.errors import NdtoolError
from ndtool.formats import table

_UNQUOTED = re.compile(r"[\w%+./@^=-]+")  # names that have no meaning to any shell


@add_completion_class
class Bash(BashComplete):
    """Bash, which splits words at colons and completes what follows the last one."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor, and the word at it, with words joined at colons."""
        words, cursor = split_arg_string(os.environ["COMP_WORDS"]), int(os.environ["COMP_CWORD"])
        words += [""] * (cursor + 1 - len(words))
        joined: list[str] = []
        is_after_colon = False
        for word in words[: cursor + 1]:
            is_colon = word.startswith(":") and len(joined) > 1
            if is_after_colon or is_colon:
                joined[-1] += word
            else:
                joined.append(word)
            is_after_colon = is_colon
        typed = joined[-1]
        self._prefix = "" if typed == words[cursor] else typed[: typed.rindex(":") + 1]
        return joined[1:-1], typed

    def format_completion(self, item: CompletionItem) -> str:
        """Return a completion without the words before the last colon."""
        return f"{item.type},{item.value.removeprefix(self._prefix)}"


def array_arguments(typed: str) -> list[CompletionItem]:
    """Complete files, and after a colon the members of a file that no shell has to quote."""
    path, colon, _ = typed.rpartition(":")
    if not colon or not os.path.exists(path) or os.path.exists(typed):
        return [CompletionItem(typed, type="file")]
    try:
        names = table.array_names(path, by_suffix=True)
    except (NdtoolError, OSError):
        return []
    is_one_word = path.isprintable() and "," not in path
    members = [f"{path}:{name}" for name in names if is_one_word and _UNQUOTED.fullmatch(name)]
    return [CompletionItem(member) for member in members if member.startswith(typed)]


def spec_names(typed: str) -> list[CompletionItem]:
    """Complete the name of a standard, with its version."""
    from ndtool.rules.specs import table as versions

    names = [row.spec for row in sorted(versions(), key=lambda row: (row.standard, row.version))]
    names = list(dict.fromkeys(["ndtool", *names]))
    return [CompletionItem(name) for name in names if name.startswith(typed)]


def void_types(typed: str) -> list[CompletionItem]:
    """Complete an element type that .npy stores as void."""
    from ndtool.rules.dtypes import EXTENSION_DTYPES

    return [CompletionItem(name) for name in EXTENSION_DTYPES if name.startswith(typed)]
