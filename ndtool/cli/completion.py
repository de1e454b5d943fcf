"""Shell completion of files that can contain arrays, their members, and values of options."""

from __future__ import annotations

import os
import re
from typing import Any

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    split_arg_string,
)

from ndtool.errors import NdtoolError
from ndtool.formats import table

# Each completion ends with a NUL, because names in files may contain newlines. Bash inserts
# them as they are, so they are quoted before; zsh and fish quote what they insert. No space follows
# a folder or the colon before a member.
_BASH = """\
%(complete_func)s() {
    local value
    COMPREPLY=()
    while IFS= read -r -d '' value; do
        COMPREPLY+=("$value")
        [[ $value == *[/:] ]] && compopt -o nospace
    done < <(
        COMP_WORD="${COMP_WORDS[COMP_CWORD]}" COMP_WORDS="${COMP_WORDS[*]}" \\
            COMP_CWORD="$COMP_CWORD" %(complete_var)s=bash_complete "$1"
    )
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


# Zsh does not split words at colons.
_ZSH = """\
#compdef %(prog_name)s

%(complete_func)s() {
    local value help
    local -a described typed=("${(@Q)words}")
    typed[CURRENT]="${(Q):-$QIPREFIX$PREFIX$compstate[quote]}"
    for value help in "${(@0)$(
        COMP_WORDS="${(j: :)${(@qq)typed}}" COMP_CWORD=$((CURRENT - 1)) \\
            %(complete_var)s=zsh_complete "${(Q)words[1]}"
    )}"; do
        if [[ -n $help ]]; then
            described+=("${value//:/\\\\:}:$help")
        elif [[ $value == *[/:] ]]; then
            compadd -U -V words -S "" -- "$value"
        elif [[ -n $value ]]; then
            compadd -U -V words -- "$value"
        fi
    done
    (( $#described )) && _describe -V described described -U
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""
_FISH = """\
function %(complete_func)s
    set -l line (commandline -cp | string collect)
    set -l typed (commandline -ct | string collect)
    set -l program (commandline -opc)[1]
    env "COMP_WORDS=$line" "COMP_CWORD=$typed" %(complete_var)s=fish_complete $program |
        string split0
end

complete --no-files --keep-order --command %(prog_name)s --arguments "(%(complete_func)s)"
"""
_UNQUOTED = re.compile(r"[\w%+,./:=@^-]")  # characters without a meaning to bash
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class _NulTerminated(ShellComplete):
    """A shell whose completions end with NULs."""

    def complete(self) -> str:
        """Return all completions of the word at the cursor."""
        items = self.get_completions(*self.get_completion_args())
        return "".join(f"{self.format_completion(item)}\0" for item in items)


class Bash(_NulTerminated, BashComplete):
    """Bash, which splits words at colons and completes what follows the last one."""

    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor, and the word at it, with words joined at colons."""
        words = split_arg_string(os.environ["COMP_WORDS"])
        cursor_word = int(os.environ["COMP_CWORD"])
        self._open_quote, before_quote = _open_quote(os.environ.get("COMP_WORD", ""))
        self._prefix = before_quote
        joined: list[str] = []
        is_after_colon = False
        for word in [*words[: cursor_word + 1], *[""] * (cursor_word + 1 - len(words))]:
            is_colon = word.startswith(":") and len(joined) > 1
            if is_after_colon or is_colon:
                joined[-1] += word
            else:
                joined.append(word)
            is_after_colon = is_colon
        if joined and joined[-1] != (words[cursor_word] if cursor_word < len(words) else ""):
            self._prefix = joined[-1][: joined[-1].rindex(":") + 1] + before_quote
        return joined[1:-1], joined[-1] if joined else ""

    def format_completion(self, item: CompletionItem) -> str:
        """Return a completion, quoted for the quotes that are open at the cursor."""
        return _quoted(item.value.removeprefix(self._prefix), self._open_quote)


def _open_quote(word: str) -> tuple[str, str]:
    """Return the quote that is open at the end of a word, "" if none, and the text before it."""
    quote, before, escaped = "", "", False
    for position, character in enumerate(word):
        if escaped:
            escaped = False
        elif character == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote, before = character, "".join(split_arg_string(word[:position]))
    return (quote, before) if quote else ("", "")


def _quoted(value: str, quote: str) -> str:
    """Return a word as bash reads it after an open quote, or without one."""
    if quote == "'":
        return value.replace("'", "'\\''")
    if quote:  # an exclamation mark means a command of the history, except in single quotes
        return re.sub(r'([\\"$`])', r"\\\1", value).replace("!", "\"'!'\"")
    return "".join(
        character
        if _UNQUOTED.match(character)
        else f"'{character}'"
        if _CONTROL.match(character)
        else f"\\{character}"
        for character in value
    )


class Zsh(_NulTerminated, ZshComplete):
    """Zsh, which reads each completion and its help as two strings."""

    source_template = _ZSH

    def format_completion(self, item: CompletionItem) -> str:
        """Return a completion and its help."""
        return f"{item.value}\0{_on_one_line(item.help)}"


class Fish(_NulTerminated, FishComplete):
    """Fish, which reads each completion with its help after a tab."""

    source_template = _FISH

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Return completions without tabs."""
        items = super().get_completions(args, incomplete)
        return [item for item in items if "\t" not in item.value]

    def format_completion(self, item: CompletionItem) -> str:
        """Return a completion with its help."""
        return f"{item.value}\t{_on_one_line(item.help)}".rstrip("\t")


def _on_one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def shell_class(name: str) -> type[Any] | None:
    """Return the completion class of a shell, None if the shell is unknown."""
    return {"bash": Bash, "zsh": Zsh, "fish": Fish}.get(name)


def array_arguments(typed: str) -> list[CompletionItem]:
    """Complete folders and files that can contain arrays, and after a colon members of a file."""
    path, colon, _ = typed.rpartition(":")
    if colon and os.path.exists(path) and not os.path.exists(typed):
        return [CompletionItem(name) for name in _members(path) if name.startswith(typed)]
    names = _paths(typed, tuple(row.suffix for row in table.FORMATS if row.suffix))
    if names == [typed]:
        names += _members(typed)
    return [CompletionItem(name) for name in names]


def files_with_suffix(typed: str, suffixes: tuple[str, ...]) -> list[CompletionItem]:
    """Complete folders, and files with one of the suffixes."""
    return [CompletionItem(name) for name in _paths(typed, suffixes)]


def _paths(typed: str, suffixes: tuple[str, ...]) -> list[str]:
    folder, prefix = os.path.split(typed)
    names = []
    try:
        with os.scandir(os.path.expanduser(folder) or ".") as directory_entries:
            for entry in directory_entries:
                is_hidden = entry.name.startswith(".") and not prefix.startswith(".")
                if not entry.name.startswith(prefix) or is_hidden:
                    continue
                name = os.path.join(folder, entry.name)
                if entry.name.endswith(suffixes):
                    names.append(name)
                elif entry.is_dir():
                    names.append(name + "/")
    except OSError:
        pass  # no completions
    return sorted(names)


def _members(path: str) -> list[str]:
    """Return a file's members as arguments; none if it has none or cannot be read."""
    try:
        return [f"{path}:{name}" for name in table.array_names(path, by_suffix=True) if name]
    except (NdtoolError, OSError):
        return []


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


def engine_names(typed: str) -> list[CompletionItem]:
    """Complete the last engine of a comma-separated list."""
    from ndtool.analysis.engines import ENGINES

    preceding_names, comma, last = typed.rpartition(",")
    valid_names = [*ENGINES] if comma else [*ENGINES, "all", "auto"]
    used_names = preceding_names.split(",")
    remaining = [name for name in valid_names if name.startswith(last) and name not in used_names]
    return [CompletionItem(preceding_names + comma + name) for name in remaining]
