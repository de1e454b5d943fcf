"""The command line as a whole: its commands, what is wrong with its words, their completion."""

import os

import click

from ndtool.cli import commands, models, options, questions
from ndtool.cli.console import put
from ndtool.cli.folding import columns
from ndtool.cli.talk import Talk
from ndtool.errors import UsageError, printable
from ndtool.rules.operators import OPERATORS

_COMPLETE = "_NDTOOL_COMPLETE"
_NARROWEST, _WIDTH, _WIDEST = 60, 80, 120  # columns of a help page; _WIDTH away from terminals


class _Group(click.Group):
    """Commands in the order in which they were made."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; of an operator's other names say what is meant."""
        name = args[0]
        titles = {operator.title: operator.command for operator in OPERATORS.values()}
        meant = titles.get(name, name.replace("_", "-"))
        if name not in self.commands and meant in self.commands:
            ctx.fail(f"no such command {name!r}: did you mean {meant!r}?")
        return super().resolve_command(ctx, args)


def _group(
    name: str, below: list[click.Command], text: str, *parameters: click.Parameter
) -> click.Group:
    return _Group(
        name,
        commands=below,
        help=text,
        short_help=text.rstrip("."),
        params=[*parameters, options.HELP],
        add_help_option=False,
        no_args_is_help=False,
    )


def program() -> click.Group:
    """Return the whole command line."""
    return _group(
        "ndtool",
        [
            *commands.runs(),
            _group("infer", questions.infer(), "Infer shapes without data."),
            _group("explain", questions.explain(), "Explain elements of an output."),
            _group("stats", questions.stats(), "Tell what an index array does."),
            questions.inspect(),
            models.model(),
            questions.spec(),
            _group("verify", questions.verify(), "Check an output, slowly."),
        ],
        "ONNX's gather and scatter operators on files of arrays: exact, parallel, checked.\n\n"
        "An input is the path or URL of a .npy, .npz, .safetensors, .pb, .onnx or .zarr,"
        " with :NAME for one array of several, or - for a .npy on standard input.",
        options.VERSION,
    )


def run(arguments: list[str], talk: Talk) -> None:
    """Run one command line; whatever goes wrong is raised, wrong usage as UsageError."""
    arguments = arguments or ["--help"]
    group = program()
    if wanted := os.environ.get(_COMPLETE):
        _complete(group, wanted)
        return
    talk.json = "--json" in arguments  # for what is wrong before click comes to it, as the next
    talk.data_on_stdout = commands.asks_for_array(arguments)
    talk.arguments = arguments
    try:
        with group.make_context(
            "ndtool", list(arguments), obj=talk, terminal_width=_width()
        ) as context:
            group.invoke(context)
    except click.exceptions.Exit:
        pass
    except click.ClickException as exc:
        raise _usage(exc) from None


def _complete(group: click.Group, wanted: str) -> None:
    """Print what a shell asks for to complete our words, or the function by which it will ask."""
    from ndtool.cli import completion as words

    shell, _, what = wanted.partition("_")
    kind = words.shell(shell)
    if kind is None or what not in ("source", "complete"):
        raise UsageError(
            f"{_COMPLETE} is {printable(repr(wanted))}: expected SHELL_source or SHELL_complete,"
            " where SHELL is bash, zsh or fish"
        )
    completion = kind(group, {}, "ndtool", _COMPLETE)
    if what == "source":
        put(completion.source())
        return
    try:
        completion.get_completion_args()
    except (KeyError, ValueError, IndexError):
        raise UsageError(
            f"{_COMPLETE} is {wanted}, without what goes with it:"
            " expected COMP_WORDS and COMP_CWORD, as the shell's function sets them"
        ) from None
    put(completion.complete() + "\n")


def _width() -> int:
    """Return how wide a help page is: as the terminal, within what reads well."""
    return min(max(columns(1), _NARROWEST), _WIDEST) if os.isatty(1) else _WIDTH


def _usage(exc: click.ClickException) -> UsageError:
    """Return click's error as ours."""
    option, context = getattr(exc, "param", None), getattr(exc, "ctx", None)
    if isinstance(exc, click.BadParameter) and isinstance(option, click.Option) and context:
        given = context.get_parameter_source(option.name or "")
        by_variable = given is click.core.ParameterSource.ENVIRONMENT
        names = [str(option.envvar)] if by_variable else option.opts
        exc.param_hint = " / ".join(map(repr, names))
    message = (
        printable(" ".join(exc.format_message().split()), 500).rstrip(".").replace(". (", " (")
    )
    command = context.command_path if context is not None else "ndtool"
    return UsageError(message[:1].lower() + message[1:], hint=f"{command} --help")
