"""Help pages: an example, the arguments, then options and commands in groups."""

from collections.abc import Callable, Mapping
from typing import Any

import click

from ndtool.cli import options
from ndtool.cli.options import Argument, Option
from ndtool.rules.operators import ALL_OPERATORS

_VARIABLES = "Environment variables set defaults, such as NDTOOL_JSON for --json."

Rows = list[tuple[str, str]]


class Command(click.Command):
    """A command whose help page describes the arguments, after an example, which is the epilog."""

    def make_parser(self, ctx: click.Context) -> Any:
        """Return the parser; it would search for names similar to a short one, for 2 ms."""
        parser: Any = super().make_parser(ctx)
        parser._long_opt |= parser._short_opt
        return parser

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help page."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_epilog(ctx, formatter)
        self.format_options(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text(_VARIABLES)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments, then the options by group; options without a group come first."""
        arguments = [param.help_record for param in self.params if isinstance(param, Argument)]
        parameters = [param for param in self.params if isinstance(param, Option)]
        groups: dict[str, list[Option]] = {"Options": []}
        for title, members in options.GROUPS.items():
            group_options = [option for option in parameters if option.definition in members]
            groups |= {title: group_options} if len(group_options) > 1 else {}
        grouped = {option for group_options in groups.values() for option in group_options}
        groups["Options"] = [option for option in parameters if option not in grouped]
        records = {
            title: [record for option in group if (record := option.get_help_record(ctx))]
            for title, group in groups.items()
        }
        _write(({"Arguments": arguments} if arguments else {}) | records, formatter)


Factory = Callable[[], click.Command]


class Group(click.Group):
    """A group of commands. sections: what makes each command, by the titles of the help page."""

    def __init__(self, sections: Mapping[str, dict[str, Factory]], **settings: Any) -> None:
        super().__init__(**settings)
        self._sections = sections
        self.factories = {name: make for part in sections.values() for name, make in part.items()}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, made when it is called or described."""
        return self.factories[cmd_name]() if cmd_name in self.factories else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return a command by name; the error for an operator's ONNX name suggests ndtool's."""
        name = args[0]
        if name not in self.factories:
            titles = {operator.title: operator.command for operator in ALL_OPERATORS.values()}
            command_name = titles.get(name, name.replace("_", "-"))
            if command_name in self.factories:
                ctx.fail(f"no such command {name!r}: did you mean {command_name!r}?")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in order of definition."""
        return list(self.factories)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help page."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_epilog(ctx, formatter)
        self.format_options(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, by section."""
        commands_by_section = {
            title: [(name, make().get_short_help_str()) for name, make in factories.items()]
            for title, factories in self._sections.items()
        }
        _write(commands_by_section, formatter)


def _write(lists: dict[str, Rows], formatter: click.HelpFormatter) -> None:
    """Write definition lists with titles; all have a first column of one width."""
    width = max(len(term) for rows in lists.values() for term, _ in rows)
    for title, rows in lists.items():
        with formatter.section(title):
            formatter.write_dl([(term.ljust(width), text) for term, text in rows])
