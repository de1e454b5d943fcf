"""The commands that answer a question about a call, a file or a standard."""

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ndtool.cli import against, options
from ndtool.cli.commands import (
    FILES,
    HELP,
    argument,
    attribute_options,
    attributes_of,
    command,
    reporting,
    reporting_on,
)
from ndtool.cli.console import put
from ndtool.cli.folding import lines
from ndtool.cli.talk import Talk, table
from ndtool.errors import NdtoolError, UsageError
from ndtool.rules.operators import OPERATORS, Operator

if TYPE_CHECKING:
    from ndtool.analysis.stats import Stats
    from ndtool.runs.jobs import Job


@click.pass_obj
def _infer(talk: Talk, /, *, operator: str, **asked: Any) -> None:
    from ndtool.analysis import infer

    talk.trace = True  # where a rule is broken, the trace is still the result
    arguments = {role: asked.pop(role) for role in OPERATORS[operator].inputs}
    talk.inferred(infer.infer(operator, arguments, attributes_of(operator, asked), **asked))


@click.pass_obj
def _explain(
    talk: Talk,
    /,
    *,
    operator: str,
    at: tuple[tuple[int, ...], ...],
    origins: tuple[tuple[int, ...], ...],
    every: bool,
    html: str | None,
    **asked: Any,
) -> None:
    from ndtool import endings
    from ndtool.analysis import explain, typed
    from ndtool.cli import answers
    from ndtool.runs import jobs

    if not at and not origins:
        raise UsageError("no element is asked for: expected --at or --from with a position")
    request = jobs.Request(operator, attributes=attributes_of(operator, asked), **asked)
    endings.prepare(*talk.last_words())
    with typed.opened(request) as job:
        talk.warn(job.warnings)
        with reporting(html, job, talk) as report:
            with talk.progress() as progress:
                tick = progress.of(job.sources["indices"].facts.nbytes)
                found = explain.explain(job, at, origins, every, tick)
            if report:
                report.explained(*found)
        one = len(at) + len(origins) == 1
        talk.answer(
            lambda: answers.explained_record(job, *found, one),
            lambda: answers.explained(job, *found),
        )


@click.pass_obj
def _stats(
    talk: Talk, /, *, operator: str, html: str | None, plot: str | None, **asked: Any
) -> None:
    from ndtool import endings
    from ndtool.analysis import stats
    from ndtool.cli import figures
    from ndtool.runs import jobs

    if plot is not None:
        from ndtool.cli import page
    request = jobs.Request(operator, attributes=attributes_of(operator, asked), **asked)
    endings.prepare(*talk.last_words())
    with stats.open_call(request) as job:
        talk.warn(job.warnings)
        if plot is not None:
            page.check_plot(plot, job, html)
        with reporting(html, job, talk) as report:
            with talk.progress() as progress:
                found = stats.stats(job, progress.of(job.sources["indices"].facts.nbytes))
            if report:
                report.stats = found
        if plot is not None:
            page.plot(plot, job, found, talk)
        if talk.json:
            talk.put_json(figures.stats_record(job, found))
        else:
            _put_stats(job, found)


def _put_stats(job: "Job", found: "Stats") -> None:
    """Print statistics in words."""
    from ndtool.cli import figures, records

    count, *others = figures.facts(job, found)
    put(lines([records.title(job.inference), count], 1))
    if found.components:
        cells, folded = figures.component_cells(found), ("valid", "out of bounds")
        put(table(figures.COMPONENT_COLUMNS, cells, folded, 1))
    put(lines([*others, *figures.histogram(found)], 1))


@click.pass_obj
def _verify(
    talk: Talk,
    /,
    *,
    operator: str,
    within: int,
    engines: tuple[str, ...] | None,
    runs: int,
    threads: int | None,
    timeout: int,
    html: str | None,
    **asked: Any,
) -> None:
    from ndtool import endings
    from ndtool.analysis import verify
    from ndtool.runs import jobs

    request = jobs.Request(operator, attributes=attributes_of(operator, asked), **asked)
    if request.output is None and engines is None:
        raise UsageError("missing argument 'OUTPUT': expected one, or --against with engines")
    endings.prepare(*talk.last_words())
    if engines is not None:
        from ndtool.analysis.engines import How

        against.verify(talk, request, engines, How(within, runs, threads, timeout), html)
        return
    with reporting_on(html, request, talk) as report:
        with talk.progress() as progress:
            compared = verify.verify(request, progress.of(0), within)
        if report:
            report.compared(compared)
    talk.verified(request.output or "", compared)


@click.pass_obj
def _inspect(talk: Talk, /, *, names: tuple[str, ...]) -> None:
    from ndtool.arrays.names import describe, nodes
    from ndtool.arrays.source import Entry, OperatorNode
    from ndtool.arrays.streams import Streams

    entries: list[Entry] = []
    found: list[OperatorNode] = []
    failed: NdtoolError | None = None
    streams = Streams()
    for name in names:
        try:
            entries += describe(name, streams)
            found += nodes(name)
        except NdtoolError as exc:
            if len(names) == 1:
                raise
            failed = failed or exc
            entries.append(Entry(name, None, None, None, 0, exc.message, None))
    talk.entries(entries, found)
    if failed is not None:
        raise failed


@click.pass_obj
def _spec(talk: Talk, /, *, command: str | None) -> None:
    from ndtool.rules import specs

    names = [name for name, operator in OPERATORS.items() if command in (None, operator.command)]
    talk.specs([row for row in specs.TABLE if row.operator in names])


def infer() -> list[click.Command]:
    """Return a command for every operator that infers what it gives."""
    return list(map(_infer_command, OPERATORS.values()))


def explain() -> list[click.Command]:
    """Return a command for every operator that explains elements."""
    return list(map(_explain_command, OPERATORS.values()))


def stats() -> list[click.Command]:
    """Return a command for every operator that tells what indices do."""
    return list(map(_stats_command, OPERATORS.values()))


def verify() -> list[click.Command]:
    """Return a command for every operator that checks an output."""
    return list(map(_verify_command, OPERATORS.values()))


def _infer_command(operator: Operator) -> click.Command:
    return command(
        f"infer {operator.command}",
        partial(_infer, operator=operator.name),
        (
            *map(argument, operator.inputs),
            *attribute_options(operator),
            options.SPEC,
            options.DTYPE,
            options.JSON,
        ),
        f"Infer what {operator.command} gives: each argument is a file, of which only the"
        " header is read, or dtype[d0,d1,...], whose sizes may be names.",
        HELP[operator.name].types,
    )


def _explain_command(operator: Operator) -> click.Command:
    files = " ".join(FILES[role] for role in operator.inputs)
    return command(
        f"explain {operator.command}",
        partial(_explain, operator=operator.name),
        (
            *map(argument, operator.inputs),
            *attribute_options(operator),
            options.AT,
            options.FROM,
            options.ALL,
            options.SPEC,
            options.DTYPE,
            options.HTML,
            options.QUIET,
            options.JSON,
        ),
        f"Explain what {operator.command} gives: which index tuple names an element of the output,"
        " where it comes from, what updates do to it. DATA and UPDATES may be dtype[d0,d1,...].",
        f"{files} {HELP[operator.name].asked}",
    )


def _stats_command(operator: Operator) -> click.Command:
    return command(
        f"stats {operator.command}",
        partial(_stats, operator=operator.name),
        (
            *map(argument, ("data", "indices")),
            *attribute_options(operator),
            options.SPEC,
            options.DTYPE,
            options.HTML,
            options.PLOT,
            options.QUIET,
            options.JSON,
        ),
        f"Count what {operator.command} does: the range of indices, what is out of bounds,"
        " which runs they name how often, what of DATA they touch. DATA may be dtype[d0,d1,...].",
        f"{FILES['data']} {FILES['indices']} {HELP[operator.name].flags}",
    )


def _verify_command(operator: Operator) -> click.Command:
    files = " ".join(FILES[role] for role in (*operator.inputs, "output"))
    return command(
        f"verify {operator.command}",
        partial(_verify, operator=operator.name),
        (
            *map(argument, operator.inputs),
            argument("output", required=False),
            *attribute_options(operator),
            options.WITHIN,
            *options.ENGINES,
            options.THREADS,
            options.DTYPE,
            options.HTML,
            options.QUIET,
            options.JSON,
        ),
        f"Check an output of {operator.command}: recompute it, slowly, and compare type, shape"
        " and every bit; with --against, also what other engines give. The exit status is 8 if"
        " they differ.",
        f"{files} {HELP[operator.name].flags}",
    )


def inspect() -> click.Command:
    """Return the command that shows what files hold."""
    return command(
        "inspect",
        _inspect,
        (
            argument("names", nargs=-1, required=True, metavar="FILE..."),
            options.QUIET,
            options.JSON,
        ),
        "Show what files hold, also nodes of ONNX models: from their headers, without the data.",
        "data.npy stored.npz",
    )


def spec() -> click.Command:
    """Return the command that shows what the standards accept."""
    choice = click.Choice([operator.command for operator in OPERATORS.values()])
    return command(
        "spec",
        _spec,
        (
            click.Argument(["command"], type=choice, required=False, metavar="[OPERATOR]"),
            options.JSON,
        ),
        "Show what each standard accepts: a row for every version of one operator, or of all.",
        "gather-nd",
    )
