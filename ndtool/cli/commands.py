"""The commands that write an array, and what all commands are made of: parse, call, report."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ndtool.cli import options
from ndtool.cli.console import put
from ndtool.cli.talk import Talk
from ndtool.errors import BoundsError, DifferenceError, UsageError, printable
from ndtool.rules.operators import OPERATORS, Attributes, Operator

if TYPE_CHECKING:
    from ndtool.cli.page import Report
    from ndtool.runs.jobs import Job, Request


class Help(NamedTuple):
    """What an operator's help pages say.

    does: one sentence. flags: attributes for an example on files. types: all of an example
    without files. asked: what is asked of an example's elements.
    """

    does: str
    flags: str
    types: str
    asked: str


HELP = {
    "gather_nd": Help(
        "Gather slices of DATA that index tuples name (ONNX and OpenVINO GatherND).",
        "--batch-dims 1",
        "'float32[8,128,64]' 'int64[8,5,1]' --batch-dims 1",
        "--batch-dims 1 --at 0,0",
    ),
    "scatter_nd": Help(
        "Copy DATA, update slices that index tuples name (ONNX ScatterND).",
        "--reduction max",
        "'float32[4,3]' 'int64[2,1]' 'float32[2,3]'",
        "--at 0,0,0",
    ),
    "gather_elements": Help(
        "Gather one element for every index along an axis (ONNX GatherElements).",
        "--axis 1",
        "'int32[3,3]' 'int64[2,3]' --axis 0",
        "--axis 1 --at 0,0",
    ),
    "scatter_elements": Help(
        "Copy DATA, update one element for every index (ONNX ScatterElements).",
        "--axis 1",
        "'int8[3,3]' 'int64[2,3]' 'int8[2,3]' --axis 1",
        "--axis 1 --at 0,0",
    ),
    "gather": Help(
        "Gather slices of DATA that plain numbers name along an axis (ONNX Gather).",
        "--axis 0",
        "'float32[128,64]' 'int64[3]' --axis 0",
        "--at 0,0,0",
    ),
}

FILES = {"data": "data.npy", "indices": "idx.npy", "updates": "upd.npy", "output": "out.npy"}


@click.pass_obj
def _run(
    talk: Talk,
    /,
    *,
    operator: str,
    output: str | None,
    dry_run: bool,
    no_clobber: bool,
    html: str | None,
    **asked: Any,
) -> None:
    from ndtool import endings
    from ndtool.runs import jobs

    if output is None and not os.isatty(1):
        output = "-"
    elif output is not None:
        _require_no_terminal(output, "without -o, a preview is shown")
    talk.data_on_stdout = not dry_run and output is not None and _is_stdout(output)
    _drop_idle(output or "-", asked)
    attributes = attributes_of(operator, asked)
    request = jobs.Request(
        operator, output=output, clobber=not no_clobber, attributes=attributes, **asked
    )
    endings.prepare(*talk.last_words())
    with jobs.Job(request) as job:
        talk.begin(job, dry_run)
        kept = None
        with reporting(html, job, talk) as report, talk.progress(lambda: job.phase) as progress:
            for source in job.sources.values():
                source.tick = progress.of(source.facts.nbytes)
            operands = job.check()
            if dry_run:
                kept = job.check_output()
                job.rehearse(operands)
            elif output is not None:
                beside = [report.as_sink()] if report else []
                kept = job.run(operands, progress.of(lambda: job.moved), beside)
            talk.warn(job.changed)
        if output is None and not dry_run and not talk.json:
            from ndtool.analysis import preview

            shown = preview.text(operands)
            job.recheck()
            put(shown)
        talk.end(job, kept, dry_run)


@click.pass_obj
def _convert(talk: Talk, /, *, output: str, no_clobber: bool, **asked: Any) -> None:
    from ndtool import endings
    from ndtool.runs import convert

    _require_no_terminal(output, "a file's name shows its format, such as x.npy")
    talk.data_on_stdout = _is_stdout(output)
    endings.prepare(*talk.last_words())
    _drop_idle(output, asked)
    request = convert.Request(output=output, clobber=not no_clobber, **asked)
    with convert.Conversion(request) as conversion:
        talk.warn(conversion.warnings)
        with talk.progress() as progress:
            kept = conversion.run(progress.of(conversion.facts.nbytes))
        talk.converted(conversion, kept)


@click.pass_obj
def _clean(talk: Talk, /, *, folder: str, force: bool) -> None:
    from ndtool.arrays import claims, leftovers, places
    from ndtool.arrays.storage import failure

    where = places.local_path(folder)
    if places.is_url(where):
        removed, others = claims.sweep(where, force)
    else:
        try:
            removed, others = leftovers.sweep(where, every=True), []
        except OSError as exc:
            raise failure(exc, folder) from None
    lines = [f"removed {printable(path)}\n" for path in removed]
    for one in others:
        who = f"process {one.process} on {printable(one.host)}"
        lines.append(f"kept {printable(one.folder)}: {who} may be at work\n")
    kept = [{"name": one.folder, "host": one.host, "process": one.process} for one in others]
    talk.answer(
        lambda: {"removed": removed, "kept": kept},
        lambda: "".join(lines or ["nothing was left here\n"]),
    )


def _require_no_terminal(output: str, hint: str) -> None:
    if output == "-" and os.isatty(1):
        raise UsageError("standard output is a terminal: expected a file or a pipe", hint=hint)


@contextmanager
def reporting(html: str | None, job: "Job", talk: Talk) -> "Iterator[Report | None]":
    """Give the page that was asked for, and write it when all is known.

    It is written, too, where the answer is an index out of bounds or a difference.
    """
    if html is None:
        yield None
        return
    from ndtool.cli.page import Report

    report = Report(html, job, talk)
    with closing(report):
        try:
            yield report
        except (BoundsError, DifferenceError) as error:
            report.publish(error)
            raise
        report.publish()
    talk.written(html)


@contextmanager
def reporting_on(html: str | None, request: "Request", talk: Talk) -> "Iterator[Report | None]":
    """Do the same for a call whose inputs nobody has open: they are read once more for it."""
    if html is None:
        yield None
        return
    from ndtool.cli import page

    with page.job_to_verify(request) as job, reporting(html, job, talk) as report:
        yield report


def attributes_of(operator: str, asked: dict[str, Any]) -> Attributes:
    """Take the attributes that an operator has, and its rule, out of what was asked for."""
    if asked.get("out_of_bounds") != "fill" and _is_by_variable("fill"):
        del asked["fill"]
    names = (*OPERATORS[operator].attributes, "out_of_bounds", "fill")
    return Attributes(**{name: asked.pop(name) for name in names if name in asked})


def _drop_idle(output: str, asked: dict[str, Any]) -> None:
    """Drop what variables say of clusters, and of chunks, where there are none of them."""
    if _is_by_variable("resume") and asked["scheduler"] is None and asked["workers"] is None:
        asked["resume"] = False
    idle = [option.name or "" for option in options.STORING if _is_by_variable(option.name or "")]
    if not idle:
        return
    from ndtool.arrays import formats, local, names

    path = names.parse(output).path
    known = formats.suffixed(path)
    if not local.is_store(path) and not (known and known[0].chunks):
        asked.update(dict.fromkeys(idle))


def _is_by_variable(name: str) -> bool:
    """Whether an option is set by its variable."""
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.ENVIRONMENT


def asks_for_array(words: list[str]) -> bool:
    """Whether a command line that may be wrong wants an array on standard output."""
    if words[0] not in {operator.command for operator in OPERATORS.values()} | {"convert"}:
        return False
    output = words[-1] if words[0] == "convert" else os.environ.get("NDTOOL_OUTPUT")
    for word, following in pairwise([*words, ""]):
        if word in ("-o", "--output"):
            output = following
        elif word.startswith(("-o", "--output=")):
            output = word.removeprefix("--output=").removeprefix("-o")
    return _is_stdout(output) if output else "--dry-run" not in words and not os.isatty(1)


def _is_stdout(output: str) -> bool:
    """Whether an output is standard output, perhaps by another name."""
    try:
        return output == "-" or os.path.samestat(os.stat(output), os.fstat(1))
    except (OSError, ValueError):
        return False


def command(
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
        short_help=text.partition(" (")[0].partition(":")[0].rstrip("."),
        epilog=f"\b\nExample:\n  ndtool {path} {example}",
        add_help_option=False,
    )


def attribute_options(operator: Operator) -> tuple[click.Parameter, ...]:
    """Return the options of an operator's attributes, and of indices out of bounds."""
    own = map(options.ATTRIBUTES.__getitem__, operator.attributes)
    fill = () if "updates" in operator.inputs else (options.FILL,)
    return (*own, options.OUT_OF_BOUNDS, *fill)


def argument(name: str, **settings: Any) -> click.Argument:
    """Return an argument that names a file or an array in it."""
    return click.Argument([name], type=options.FILE, **settings)


def _run_command(operator: Operator) -> click.Command:
    files = " ".join(FILES[role] for role in operator.inputs)
    return command(
        operator.command,
        partial(_run, operator=operator.name),
        (
            *map(argument, operator.inputs),
            *attribute_options(operator),
            options.SPEC,
            options.DTYPE,
            options.OUTPUT,
            options.THREADS,
            options.MEMORY,
            options.SPILL,
            options.SCHEDULER,
            options.WORKERS,
            options.RESUME,
            options.DRY_RUN,
            options.NO_CLOBBER,
            options.ONLY,
            *options.STORING,
            options.SYNC,
            options.TRACE,
            options.HTML,
            options.QUIET,
            options.JSON,
        ),
        HELP[operator.name].does,
        f"{files} {HELP[operator.name].flags} -o out.npy",
    )


def _convert_command() -> click.Command:
    return command(
        "convert",
        _convert,
        (
            argument("source", metavar="SRC"),
            argument("output", metavar="DST"),
            options.DTYPE,
            options.AS_VOID,
            *options.STORING,
            options.NO_CLOBBER,
            options.ONLY,
            options.SYNC,
            options.QUIET,
            options.JSON,
        ),
        "Copy the array SRC to DST, which may be of another format: the values as they are, in C"
        " order.",
        "stored.npz:data table.npy",
    )


def _clean_command() -> click.Command:
    return command(
        "clean",
        _clean,
        (
            click.Argument(["folder"], metavar="DIR", type=click.Path()),
            options.FORCE,
            options.QUIET,
            options.JSON,
        ),
        "Remove what runs left in DIR, here or at a URL, that were killed, and that nobody waits"
        " for any more.",
        ".",
    )


def runs() -> list[click.Command]:
    """Return the commands that write an array, and the one that removes what is left of them."""
    return [*map(_run_command, OPERATORS.values()), _convert_command(), _clean_command()]
