"""Help pages: an example, the arguments, then options and commands in groups."""

from collections.abc import Mapping

import click

from ndtool.cli import options
from ndtool.cli.options import Argument

_VARIABLES = "Environment variables set defaults, such as NDTOOL_JSON for --json."

Rows = list[tuple[str, str]]


class Command(click.Command):
    """A command whose help page describes the arguments, after an example, which is the epilog."""

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
        parameters = [param for param in self.params if isinstance(param, click.Option)]
        groups: dict[str, list[click.Option]] = {"Options": []}
        for title, members in options.GROUPS.items():
            group_options = [option for option in parameters if option in members]
            groups |= {title: group_options} if len(group_options) > 1 else {}
        grouped = {option for group_options in groups.values() for option in group_options}
        groups["Options"] = [option for option in parameters if option not in grouped]
        records = {
            title: [record for option in group if (record := option.get_help_record(ctx))]
            for title, group in groups.items()
        }
        _write(({"Arguments": arguments} if arguments else {}) | records, formatter)


class Group(click.Group):
    """A group of commands. sections: the commands, by the section titles of the help page."""

    def __init__(self, sections: Mapping[str, list[click.Command]], **settings: object) -> None:
        subcommands = [command for commands in sections.values() for command in commands]
        super().__init__(commands=subcommands, **settings)  # type: ignore[arg-type]
        self._sections = sections

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in order of definition."""
        return list(self.commands)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help page."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_epilog(ctx, formatter)
        self.format_options(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, by section."""
        commands_by_section = {
            title: [(str(command.name), command.get_short_help_str()) for command in commands]
            for title, commands in self._sections.items()
        }
        _write(commands_by_section, formatter)


def _write(lists: dict[str, Rows], formatter: click.HelpFormatter) -> None:
    """Write definition lists with titles; all have a first column of one width."""
    width = max(len(term) for rows in lists.values() for term, _ in rows)
    for title, rows in lists.items():
        with formatter.section(title):
            formatter.write_dl([(term.ljust(width), text) for term, text in rows])
