"""`verify --against`: how engines did, in a table for people and for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ndtool import __version__
from ndtool.cli.commands import reporting_on
from ndtool.cli.console import put
from ndtool.cli.talk import Talk, table
from ndtool.errors import redacted

if TYPE_CHECKING:
    from ndtool.analysis.engines import How, Report, Told, Verdict
    from ndtool.runs.jobs import Request

COLUMNS = ("engine", "threads", "answer")


@contextmanager
def telling(talk: Talk) -> Iterator[Told]:
    """Give what shows the share that is done, and who is at it."""
    phase = ""

    def tell(share: float, who: str) -> None:
        nonlocal phase
        phase = who
        tick(share)

    with talk.progress(lambda: phase) as progress:
        tick = progress.of(0)
        yield tell


def verify(
    talk: Talk, request: Request, names: tuple[str, ...], how: How, html: str | None
) -> None:
    """Show how engines do, and an output if there is one; raise what is wrong."""
    from ndtool.analysis import engines

    with reporting_on(html, request, talk) as report:
        with telling(talk) as tell:
            verdict = engines.verify(request, names, how, tell)
        told = records(verdict.reports)
        if report:
            report.answered(verdict.reports)
        if not talk.json:
            put(table(COLUMNS, cells(verdict.reports), COLUMNS[2:], 1))
        if verdict.error is not None:
            verdict.error.more["engines"] = told
            raise verdict.error
        if report and verdict.compared is not None:
            report.compared(verdict.compared)
    if talk.json:
        talk.put_json(_record(request, verdict, told))
    elif request.output is not None and verdict.compared is not None:
        talk.verified(request.output, verdict.compared)


def _record(request: Request, verdict: Verdict, told: list[dict[str, Any]]) -> dict[str, Any]:
    """Return for JSON that all is as it must be."""
    from ndtool.cli import figures

    output, compared = request.output, verdict.compared
    return {
        "version": __version__,
        "output": output and redacted(output),
        "verified": True,
        **(figures.comparison_record(compared) if compared else {}),
        "engines": told,
    }


def records(reports: Sequence[Report]) -> list[dict[str, Any]]:
    """Return how engines did, for JSON."""
    from ndtool.cli import figures

    return [
        {
            **(figures.comparison_record(one.compared) if one.compared else {}),
            "engine": one.engine,
            "version": one.version,
            "threads": one.threads,
            "result": one.result,
            "different": one.different,
            "message": one.message,
        }
        for one in reports
    ]


def cells(reports: Sequence[Report]) -> list[tuple[str, ...]]:
    """Return a row for each engine, and each number of threads with which it does otherwise."""
    rows: list[tuple[str, ...]] = []
    for one in reports:
        version = (one.version or "").partition("-")[0]  # without what it was built from
        row = f"{one.engine} {version}".rstrip(), str(one.threads or "-"), _answer(one)
        if rows and (rows[-1][0], rows[-1][2]) == (row[0], row[2]):
            row = row[0], f"{rows.pop()[1]}, {row[1]}", row[2]
        rows.append(row)
    return rows


def _answer(report: Report) -> str:
    message = report.message or ""
    if report.result == "same":
        return message or "the same bits"
    if report.result in ("different", "unstable") or message.startswith("not offered: "):
        return message
    return f"{report.result}: {message}"
