"""Help pages: an example, the arguments, then options and commands in groups."""

from collections.abc import Callable, Iterator, Mapping

import click

from ndtool.cli import options
from ndtool.cli.options import Argument, Option
from ndtool.rules.operators import ALL_OPERATORS

_VARIABLES = "Environment variables set defaults, such as NDTOOL_JSON for --json."

Rows = list[tuple[str, str]]


class Command(click.Command):
    """A command whose help page describes the arguments, after an example, which is the epilog."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments, with the long names of options for their short ones.

        click searches all names for similar ones before it looks for a short one: 2 ms.
        """
        made = [param for param in self.params if isinstance(param, Option)]
        flags = {name for option in made if option.is_flag for name in option.opts}
        long_names = {option.opts[0]: option.opts[-1] for option in made}
        args, before = [*args], ""
        for position, text in enumerate(args):
            if text == "--":
                break
            if before[:1] == "-" and before not in flags:
                before = ""  # this is perhaps a value
            else:
                args[position] = before = long_names.get(text, text)
        return super().parse_args(ctx, args)

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


class _Commands(Mapping[str, click.Command]):
    """Commands by name, each made when it is called or described."""

    def __init__(self, factories: dict[str, Factory]) -> None:
        self._factories = factories
        self._made = dict[str, click.Command]()

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._made:
            self._made[name] = self._factories[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._factories)

    def __len__(self) -> int:
        return len(self._factories)


class Group(click.Group):
    """A group of commands. sections: what makes each command, by the titles of the help page."""

    def __init__(self, sections: Mapping[str, dict[str, Factory]], **settings: object) -> None:
        factories = {name: make for section in sections.values() for name, make in section.items()}
        super().__init__(commands=_Commands(factories), **settings)  # type: ignore[arg-type]
        self._sections = sections

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return a command by name; the error for an operator's ONNX name suggests ndtool's."""
        name = args[0]
        if name not in self.commands:
            titles = {operator.title: operator.command for operator in ALL_OPERATORS.values()}
            command_name = titles.get(name, name.replace("_", "-"))
            if command_name in self.commands:
                ctx.fail(f"no such command {name!r}: did you mean {command_name!r}?")
        return super().resolve_command(ctx, args)

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
