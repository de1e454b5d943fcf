"""The commands: parse, call, report; only this and its options know click."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import click

from ndtool.cli import options
from ndtool.cli.talk import Talk, put
from ndtool.errors import NdtoolError, UsageError, printable
from ndtool.rules.operators import OPERATORS, Attributes, Operator


class Help(NamedTuple):
    """What an operator's help pages say.

    does: one sentence. flags: attributes for an example on files. types: all of an example
    without files.
    """

    does: str
    flags: str
    types: str


HELP = {
    "gather_nd": Help(
        "Gather slices of DATA that index tuples name (ONNX and OpenVINO GatherND).",
        "--batch-dims 1",
        "'float32[8,128,64]' 'int64[8,5,1]' --batch-dims 1",
    ),
    "scatter_nd": Help(
        "Copy DATA, update slices that index tuples name (ONNX ScatterND).",
        "--reduction max",
        "'float32[4,3]' 'int64[2,1]' 'float32[2,3]'",
    ),
    "gather_elements": Help(
        "Gather one element for every index along an axis (ONNX GatherElements).",
        "--axis 1",
        "'int32[3,3]' 'int64[2,3]' --axis 0",
    ),
    "scatter_elements": Help(
        "Copy DATA, update one element for every index (ONNX ScatterElements).",
        "--axis 1",
        "'int8[3,3]' 'int64[2,3]' 'int8[2,3]' --axis 1",
    ),
}

_COMPLETE = "_NDTOOL_COMPLETE"
_NARROWEST, _WIDTH, _WIDEST = 60, 80, 120  # columns of a help page; _WIDTH away from terminals
_FILES = {"data": "data.npy", "indices": "idx.npy", "updates": "upd.npy", "output": "out.npy"}


@click.pass_obj
def _run(
    talk: Talk,
    /,
    *,
    operator: str,
    output: str | None,
    dry_run: bool,
    no_clobber: bool,
    **asked: Any,
) -> None:
    from ndtool import endings
    from ndtool.runs import jobs

    if output is None and not os.isatty(1):
        output = "-"
    elif output == "-" and os.isatty(1):
        raise UsageError(
            "standard output is a terminal: expected a file or a pipe",
            hint="without -o, a preview is shown",
        )
    talk.data_on_stdout = not dry_run and output is not None and _is_stdout(output)
    attributes = _attributes(operator, asked)
    request = jobs.Request(
        operator, output=output, clobber=not no_clobber, attributes=attributes, **asked
    )
    endings.prepare(*talk.last_words())
    with jobs.Job(request) as job:
        talk.begin(job, dry_run)
        operands, kept = job.check(), None
        if dry_run:
            kept = job.check_output()
        elif output is not None:
            with talk.progress() as tick:
                kept = job.run(operands, tick)
        elif not talk.json:
            from ndtool.analysis import preview

            shown = preview.text(operands)
            job.recheck()
            put(shown)
        talk.end(job, kept, dry_run)


def _attributes(operator: str, asked: dict[str, Any]) -> Attributes:
    """Take the attributes that an operator has out of what was asked for."""
    return Attributes(**{name: asked.pop(name) for name in OPERATORS[operator].attributes})


def _is_stdout(output: str) -> bool:
    """Whether an output is standard output, perhaps by another name."""
    try:
        return output == "-" or os.path.samestat(os.stat(output), os.fstat(1))
    except (OSError, ValueError):
        return False


@click.pass_obj
def _infer(talk: Talk, /, *, operator: str, **asked: Any) -> None:
    from ndtool.analysis import infer

    talk.trace = True  # where a rule is broken, the trace is still the result
    arguments = {role: asked.pop(role) for role in OPERATORS[operator].inputs}
    talk.inferred(infer.infer(operator, arguments, _attributes(operator, asked), **asked))


@click.pass_obj
def _verify(talk: Talk, /, *, operator: str, **asked: Any) -> None:
    from ndtool import endings
    from ndtool.analysis import verify
    from ndtool.runs import jobs

    request = jobs.Request(operator, attributes=_attributes(operator, asked), **asked)
    endings.prepare(*talk.last_words())
    with talk.progress() as tick:
        described = verify.verify(request, tick)
    talk.verified(request.output or "", described)


@click.pass_obj
def _inspect(talk: Talk, /, *, names: tuple[str, ...]) -> None:
    from ndtool.arrays.names import describe
    from ndtool.arrays.source import Entry
    from ndtool.arrays.streams import Streams

    entries: list[Entry] = []
    failed: NdtoolError | None = None
    streams = Streams()
    for name in names:
        try:
            entries += describe(name, streams)
        except NdtoolError as exc:
            if len(names) == 1:
                raise
            failed = failed or exc
            entries.append(Entry(name, None, None, None, 0, exc.message, None))
    talk.entries(entries)
    if failed is not None:
        raise failed


@click.pass_obj
def _spec(talk: Talk, /, *, command: str | None) -> None:
    from ndtool.rules import specs

    names = [name for name, operator in OPERATORS.items() if command in (None, operator.command)]
    talk.specs([row for row in specs.TABLE if row.operator in names])


class _Group(click.Group):
    """Commands in the order in which they were made."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def _group(
    name: str, commands: list[click.Command], text: str, *parameters: click.Parameter
) -> click.Group:
    return _Group(
        name,
        commands=commands,
        help=text,
        params=[*parameters, options.HELP],
        add_help_option=False,
        no_args_is_help=False,
    )


def _command(
    path: str,
    callback: Callable[..., None],
    parameters: tuple[click.Parameter, ...],
    text: str,
    example: str,
) -> click.Command:
    """Return the command at `path`, such as `infer gather-nd`, with an example in its help."""
    return click.Command(
        path.rpartition(" ")[2],
        callback=callback,
        params=[*parameters, options.HELP],
        help=text,
        short_help=text.partition(" (")[0].partition(":")[0],
        epilog=f"\b\nExample:\n  ndtool {path} {example}",
        add_help_option=False,
    )


def _argument(name: str, **settings: Any) -> click.Argument:
    return click.Argument([name], type=options.FILE, **settings)


def _run_command(operator: Operator) -> click.Command:
    files = " ".join(_FILES[role] for role in operator.inputs)
    return _command(
        operator.command,
        partial(_run, operator=operator.name),
        (
            *map(_argument, operator.inputs),
            *map(options.ATTRIBUTES.__getitem__, operator.attributes),
            options.SPEC,
            options.DTYPE,
            options.OUTPUT,
            options.THREADS,
            options.DRY_RUN,
            options.NO_CLOBBER,
            options.ONLY,
            options.SYNC,
            options.TRACE,
            options.QUIET,
            options.JSON,
        ),
        HELP[operator.name].does,
        f"{files} {HELP[operator.name].flags} -o out.npy",
    )


def _infer_command(operator: Operator) -> click.Command:
    return _command(
        f"infer {operator.command}",
        partial(_infer, operator=operator.name),
        (
            *map(_argument, operator.inputs),
            *map(options.ATTRIBUTES.__getitem__, operator.attributes),
            options.SPEC,
            options.DTYPE,
            options.JSON,
        ),
        f"Infer what {operator.command} gives: each argument is a file, of which only the"
        " header is read, or dtype[d0,d1,...].",
        HELP[operator.name].types,
    )


def _verify_command(operator: Operator) -> click.Command:
    files = " ".join(_FILES[role] for role in (*operator.inputs, "output"))
    return _command(
        f"verify {operator.command}",
        partial(_verify, operator=operator.name),
        (
            *map(_argument, (*operator.inputs, "output")),
            *map(options.ATTRIBUTES.__getitem__, operator.attributes),
            options.DTYPE,
            options.QUIET,
            options.JSON,
        ),
        f"Check an output of {operator.command}: recompute it, slowly, and compare type, shape"
        " and every bit. The exit status is 8 if they differ.",
        f"{files} {HELP[operator.name].flags}",
    )


def program() -> click.Group:
    """Return the whole command line."""
    inspect = _command(
        "inspect",
        _inspect,
        (
            _argument("names", nargs=-1, required=True, metavar="FILE..."),
            options.QUIET,
            options.JSON,
        ),
        "Show what .npy and .npz files hold: from their headers, without the data.",
        "data.npy stored.npz",
    )
    choice = click.Choice([operator.command for operator in OPERATORS.values()])
    spec = _command(
        "spec",
        _spec,
        (
            click.Argument(["command"], type=choice, required=False, metavar="[OPERATOR]"),
            options.JSON,
        ),
        "Show what each standard accepts: a row for every version of one operator, or of all.",
        "gather-nd",
    )
    return _group(
        "ndtool",
        [
            *map(_run_command, OPERATORS.values()),
            _group(
                "infer", list(map(_infer_command, OPERATORS.values())), "Infer shapes without data."
            ),
            inspect,
            spec,
            _group(
                "verify", list(map(_verify_command, OPERATORS.values())), "Check an output, slowly."
            ),
        ],
        "ONNX's gather and scatter operators on .npy and .npz files: exact, parallel, checked.\n\n"
        "An input is a path, archive.npz:member, or - for an array on standard input.",
        options.VERSION,
    )


def run(arguments: list[str], talk: Talk) -> None:
    """Run one command line; whatever goes wrong is raised, wrong usage as UsageError."""
    group = program()
    if wanted := os.environ.get(_COMPLETE):
        _complete(group, wanted)
        return
    talk.json = "--json" in arguments  # for what is wrong before click comes to it
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
    from click.shell_completion import get_completion_class

    shell, _, what = wanted.partition("_")
    kind = get_completion_class(shell)
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
    try:
        columns = os.get_terminal_size(1).columns
    except OSError:
        return _WIDTH
    asked = os.environ.get("COLUMNS", "")
    if asked.isascii() and asked.isdecimal():
        columns = int(asked[:9])
    return min(max(columns or _WIDTH, _NARROWEST), _WIDEST)


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
