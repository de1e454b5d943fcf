"""A page for each command, generated from click's objects: for the site and as a manual page."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import click

from ndtool.cli.program import program

# Pages of the site that every manual page includes as sections.
SHARED = """
.. only:: man

   Exit status
   -----------

   .. include:: ../statuses.md
      :parser: myst_parser.sphinx_
      :start-line: 1
      :end-before: ## Errors

   Environment
   -----------

   .. include:: ../environment.md
      :parser: myst_parser.sphinx_
      :start-line: 1
"""
SEE_ALSO = """
See also
--------

:manpage:`ndtool(1)`
"""


class Page(NamedTuple):
    """One document. name: of the manual page. does: the command's summary, one line."""

    name: str
    does: str
    text: str


def write(folder: Path) -> list[Page]:
    """Write a page for each command, one for all, and their list; skip unchanged files."""
    folder.mkdir(exist_ok=True)
    pages = list(_pages(program()))
    listed = "".join(f"   {page.name}\n" for page in pages)
    texts = {page.name: page.text for page in pages}
    texts["index"] = f"Commands\n========\n\n.. toctree::\n   :titlesonly:\n\n{listed}"
    for name, text in texts.items():
        file = folder / f"{name}.rst"
        if not file.exists() or file.read_text("utf-8") != text:
            file.write_text(text, "utf-8")
    return pages


def _pages(group: click.Group) -> Iterator[Page]:
    whole = click.Context(group, info_name="ndtool")
    commands = group.commands.values()
    listed = [f"{_manual(c)}\n   {_escaped(_line(c))}" for c in commands]
    text = _text("ndtool", str(group.help), [whole], "\n".join(listed))
    yield Page("ndtool", "gather and scatter on files of arrays", text)
    for command in commands:
        context = click.Context(command, info_name=command.name, parent=whole)
        below = [
            click.Context(one, info_name=name, parent=context)
            for name, one in getattr(command, "commands", {}).items()
        ]
        helps = [str(one.command.help).replace(str(one.info_name), "OPERATOR") for one in below]
        does = " ".join(dict.fromkeys(helps)) or str(command.help)
        text = _text(context.command_path, does, below or [context])
        yield Page(f"ndtool-{command.name}", _line(command), text)


def _text(path: str, does: str, contexts: list[click.Context], commands: str = "") -> str:
    """Return the page of a command, or of all subcommands of one."""
    usages = [[c.command_path, *c.command.collect_usage_pieces(c)] for c in contexts]
    records = [option.get_help_record(c) for c in contexts for option in _options(c)]
    options = map(_option, filter(None, dict.fromkeys(records)))
    epilogs = [str(c.command.epilog) for c in contexts if c.command.epilog]
    examples = [epilog.rpartition("Example:\n")[2].strip() for epilog in epilogs]
    sections = {
        "Synopsis": _literal(map(" ".join, usages)),
        "Description": _escaped(does),
        "Commands": commands,
        "Options": f".. program:: {path}\n\n" + "\n".join(options),
        "Examples": _literal(examples) if examples else "",
    }
    parts = [f"{path}\n{'=' * len(path)}\n"]
    parts += [
        f"{title}\n{'-' * len(title)}\n\n{text}\n" for title, text in sections.items() if text
    ]
    return "\n".join([*parts, SHARED, "" if commands else SEE_ALSO])


def _options(context: click.Context) -> list[click.Option]:
    return [p for p in context.command.params if isinstance(p, click.Option)]


def _line(command: click.Command) -> str:
    return command.get_short_help_str(200).rstrip(".")


def _manual(command: click.Command) -> str:
    return f":manpage:`ndtool-{command.name}(1)`"


def _literal(lines: Iterable[str]) -> str:
    return "\n   ".join([".. code-block:: text\n", *lines])


def _option(record: tuple[str, str]) -> str:
    names, text = record
    return f".. option:: {names.replace(' / ', ', ')}\n\n   {_escaped(text)}\n"


def _escaped(text: str) -> str:
    return re.sub(r"([\\*`|_])", r"\\\1", text)
