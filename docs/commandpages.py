"""A page for each command, generated from click's objects: on the site and as a manual page."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import click

from ndtool.cli.helppages import Group
from ndtool.cli.options import Argument
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
    """A document. name: the name of the manual page. summary: the command's summary, a line."""

    name: str
    summary: str
    text: str


def write(folder: Path) -> list[Page]:
    """Write a page for ndtool and for each command, and their index; skip unchanged files."""
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


def _pages(group: Group) -> Iterator[Page]:
    program_context = click.Context(group, info_name="ndtool")
    commands = [make() for make in group.factories.values()]
    listed = [f"{_manual_link(c)}\n   {_escape(_summary(c))}" for c in commands]
    text = _text("ndtool", str(group.help), [program_context], "\n".join(listed))
    yield Page("ndtool", "gather and scatter on files of arrays", text)
    for command in commands:
        context = click.Context(command, info_name=command.name, parent=program_context)
        subcommands = [
            click.Context(make(), info_name=name, parent=context)
            for name, make in getattr(command, "factories", {}).items()
        ]
        descriptions = [
            str(subcommand.command.help).replace(str(subcommand.info_name), "OPERATOR")
            for subcommand in subcommands
        ]
        description = " ".join(dict.fromkeys(descriptions)) or str(command.help)
        text = _text(context.command_path, description, subcommands or [context])
        yield Page(f"ndtool-{command.name}", _summary(command), text)


def _text(path: str, description: str, contexts: list[click.Context], commands: str = "") -> str:
    """Return the text of a command's page; contexts: the command, or its subcommands."""
    usages = [[c.command_path, *c.command.collect_usage_pieces(c)] for c in contexts]
    records = [option.get_help_record(c) for c in contexts for option in _options(c)]
    options = map(_option_entry, filter(None, dict.fromkeys(records)))
    epilogs = [str(c.command.epilog) for c in contexts if c.command.epilog]
    examples = [epilog.rpartition("Example:\n")[2].strip() for epilog in epilogs]
    sections = {
        "Synopsis": _code_block(map(" ".join, usages)),
        "Description": _escape(description),
        "Arguments": _arguments(contexts),
        "Commands": commands,
        "Options": f".. program:: {path}\n\n" + "\n".join(options),
        "Examples": _code_block(examples) if examples else "",
    }
    blocks = [f"{path}\n{'=' * len(path)}\n"]
    blocks += [
        f"{title}\n{'-' * len(title)}\n\n{text}\n" for title, text in sections.items() if text
    ]
    return "\n".join([*blocks, SHARED, "" if commands else SEE_ALSO])


def _arguments(contexts: list[click.Context]) -> str:
    """Return the arguments of commands as a definition list; an argument may have several texts."""
    texts_by_name: dict[str, dict[str, None]] = {}
    for context in contexts:
        for parameter in context.command.params:
            if isinstance(parameter, Argument):
                name, text = parameter.help_record
                texts_by_name.setdefault(name, {})[text] = None
    entries = (
        f"{name}\n   {_escape(' Or: '.join(texts))}" for name, texts in texts_by_name.items()
    )
    return "\n".join(entries)


def _options(context: click.Context) -> list[click.Option]:
    return [p for p in context.command.params if isinstance(p, click.Option)]


def _summary(command: click.Command) -> str:
    return command.get_short_help_str(200).rstrip(".")


def _manual_link(command: click.Command) -> str:
    return f":manpage:`ndtool-{command.name}(1)`"


def _code_block(lines: Iterable[str]) -> str:
    return "\n   ".join([".. code-block:: text\n", *lines])


def _option_entry(record: tuple[str, str]) -> str:
    names, text = record
    return f".. option:: {names.replace(' / ', ', ')}\n\n   {_escape(text)}\n"


def _escape(text: str) -> str:
    return re.sub(r"([\\*`|_])", r"\\\1", text)
