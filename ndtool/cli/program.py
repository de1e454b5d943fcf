"""The complete command line: all commands, usage errors, shell completion."""

import os
from functools import partial
from importlib import import_module

import click

from ndtool.cli import commands, helppages, options
from ndtool.cli.reporter import Reporter
from ndtool.cli.wrapping import terminal_columns
from ndtool.errors import UsageError, name_options, printable
from ndtool.redaction import register
from ndtool.rules.operators import ALL_OPERATORS, Operator

_COMPLETION_VARIABLE = "_NDTOOL_COMPLETE"
_MIN_WIDTH, _DEFAULT_WIDTH, _MAX_WIDTH = 60, 80, 120  # columns; the default is for pipes


def _group(
    name: str,
    sections: dict[str, dict[str, helppages.Factory]],
    text: str,
    *parameters: options.Parameter,
    example: str = "",
) -> helppages.Group:
    return helppages.Group(
        sections,
        name=name,
        help=text,
        short_help=text.rstrip("."),
        epilog=f"\b\nExample:\n  {example}" if example else None,
        params=options.make((*parameters, options.HELP)),
        add_help_option=False,
        no_args_is_help=False,
    )


def _command(module: str, name: str, *arguments: Operator) -> click.Command:
    """Return the command that a function of a module of this package makes."""
    make: helppages.Factory = getattr(import_module(f"ndtool.cli.{module}"), name)
    return make(*arguments)


def _operator_commands(module: str, name: str) -> dict[str, helppages.Factory]:
    """Return what makes the command of each operator, by its name."""
    return {
        operator.command: partial(_command, module, name, operator)
        for operator in ALL_OPERATORS.values()
    }


def _questions(name: str, text: str) -> dict[str, helppages.Factory]:
    """Return what makes the group of a question about each operator, by its name."""
    return {name: lambda: _group(name, {"Commands": _operator_commands("questions", name)}, text)}


def program() -> helppages.Group:
    """Return the group of all commands."""
    files = {
        "convert": "commands", "inspect": "questions", "model": "questions", "clean": "commands",
        "spec": "questions",
    }  # fmt: skip
    return _group(
        "ndtool",
        {
            "Operators": _operator_commands("commands", "run"),
            "Analysis": {
                **_questions("infer", "Infer dtype and shape of an output."),
                **_questions("explain", "Show what elements of an output are computed from."),
                **_questions("stats", "Count duplicates and indices out of bounds."),
                **_questions("verify", "Check an output, or compare other engines."),
            },
            "Files and models": {
                name: partial(_command, module, name) for name, module in files.items()
            },
        },
        "Run ONNX's gather and scatter operators on arrays in files. A gather reads elements at"
        " indices, as data[indices] does in NumPy; a scatter writes to them in a copy.\n\n"
        "An input is the path or URL of a .npy, .npz, .safetensors, .pb, .onnx, .zarr, .h5, .nc,"
        " .parquet, .arrow, .csv, .txt or .json; FILE:NAME is one of several arrays in a file, - a"
        " .npy on standard input. INDICES may also be a literal, such as '[[5], [7]]'. An output is"
        " a .npy, .npz, .safetensors, .pb, .zarr, .h5, .parquet, .arrow, .csv or .txt.",
        options.VERSION,
        example="ndtool gather-nd data.npy '[[5], [7]]' -o out.npy",
    )


def run(arguments: list[str], reporter: Reporter) -> None:
    """Run a command line; raise NdtoolError on failure: UsageError for invalid arguments."""
    arguments = arguments or ["--help"]
    name_options()
    for text in (*arguments, *(os.environ[name] for name in os.environ if name[:7] == "NDTOOL_")):
        if "://" in text:
            register(text)
    group = program()
    if request := os.environ.get(_COMPLETION_VARIABLE):
        _complete(group, request)
        return
    reporter.json = (
        "--json" in arguments
    )  # this and the next: for errors before click parses options
    reporter.data_on_stdout = commands.writes_array_to_stdout(arguments)
    reporter.arguments = arguments
    try:
        with group.make_context(
            "ndtool", list(arguments), obj=reporter, terminal_width=_help_width()
        ) as context:
            group.invoke(context)
    except click.exceptions.Exit:
        pass
    except click.ClickException as exc:
        raise _usage_error(exc) from None
    except UsageError as exc:
        variables = ", ".join(sorted(name for name in os.environ if name[:7] == "NDTOOL_"))
        exc.hint = exc.hint or (variables and f"these variables are set: {variables}")
        raise


def _complete(group: click.Group, request: str) -> None:
    """Print completions of a word, or the shell function that calls ndtool for completions."""
    from click.shell_completion import (
        BashComplete,
        add_completion_class,
        shell_complete,
        split_arg_string,
    )

    @add_completion_class
    class Bash(BashComplete):
        """Bash, which splits words at colons, as in `archive.npz:member`."""

        def get_completion_args(self) -> tuple[list[str], str]:
            """Return the words before the cursor, and the word at it."""
            words, cursor = (
                split_arg_string(os.environ["COMP_WORDS"]),
                int(os.environ["COMP_CWORD"]),
            )
            joined = [""]
            for word in (*words[:cursor], "".join(words[cursor : cursor + 1])):
                if word.startswith(":") or joined[-1].endswith(":"):
                    joined[-1] += word
                else:
                    joined.append(word)
            return joined[2:-1], joined[-1]

    try:
        status = shell_complete(group, {}, "ndtool", _COMPLETION_VARIABLE, request)
    except (KeyError, ValueError, IndexError):
        status = 1
    if status:
        raise UsageError(
            f"{_COMPLETION_VARIABLE} is {printable(repr(request))}: expected SHELL_source, or"
            " SHELL_complete with COMP_WORDS and COMP_CWORD, where SHELL is bash, zsh or fish"
        )


def _help_width() -> int:
    """Return the width of help pages in columns: that of the terminal, within limits."""
    return min(max(terminal_columns(1), _MIN_WIDTH), _MAX_WIDTH) if os.isatty(1) else _DEFAULT_WIDTH


def _usage_error(exc: click.ClickException) -> UsageError:
    """Convert an error of click to a UsageError."""
    option, context = getattr(exc, "param", None), getattr(exc, "ctx", None)
    if isinstance(exc, click.BadParameter) and isinstance(option, click.Option) and context:
        origin = context.get_parameter_source(option.name or "")
        by_variable = origin is click.core.ParameterSource.ENVIRONMENT
        names = [str(option.envvar)] if by_variable else option.opts
        exc.param_hint = " / ".join(map(repr, names))
    message = (
        printable(" ".join(exc.format_message().split()), 500).rstrip(".").replace(". (", " (")
    )
    command = context.command_path if context is not None else "ndtool"
    hint = f"{command} --help"
    if getattr(exc, "option_name", "") == "--index-base" and command.endswith("tensor-scatter"):
        hint = "write indices are numbers of positions that are in use, which begin at 0"
    return UsageError(message[:1].lower() + message[1:], hint=hint)
