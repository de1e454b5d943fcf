"""`verify --against`: comparisons with other engines, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ndtool.analysis import records as json_records
from ndtool.cli.commands import html_report_of_request
from ndtool.cli.console import write_stdout
from ndtool.cli.reporter import Reporter, format_table

if TYPE_CHECKING:
    from ndtool.analysis.engines import EngineProgress, EngineReport, EngineSettings
    from ndtool.runs.request import Request

REPORT_COLUMNS = ("engine", "threads", "answer")


def pop_engine_settings(options: dict[str, Any]) -> EngineSettings:
    """Remove the settings for engines from the options, and return them."""
    from ndtool.analysis.engines import EngineSettings

    names = EngineSettings._fields
    return EngineSettings(**{name: options.pop(name) for name in names if name in options})


@contextmanager
def engine_progress(reporter: Reporter) -> Iterator[EngineProgress]:
    """Yield a progress callback that shows the completed fraction and the running engine."""

    def report_progress(fraction: float, engine_name: str) -> None:
        progress_bar.begin(engine_name)
        progress(fraction)

    with reporter.progress() as progress_bar:
        progress = progress_bar.callback(0)
        yield report_progress


def verify(
    reporter: Reporter,
    request: Request,
    names: tuple[str, ...],
    engine_settings: EngineSettings,
    html: str | None,
) -> None:
    """Compare engines with the correct output, print the table, and raise the first error."""
    from ndtool.analysis import engines

    with html_report_of_request(html, request, reporter) as report:
        with engine_progress(reporter) as report_progress:
            verdict = engines.verify(request, names, engine_settings, report_progress)
        if report:
            report.add_engines(verdict.reports)
        if not reporter.json:
            write_stdout(
                format_table(REPORT_COLUMNS, report_rows(verdict.reports), REPORT_COLUMNS[2:], 1)
            )
        if verdict.error is not None:
            verdict.error.extra_fields["engines"] = json_records.engine_records(verdict.reports)
            raise verdict.error
        if report and verdict.comparison is not None:
            report.add_comparison(verdict.comparison)
    if reporter.json:
        record = json_records.verification_record(
            request.output, verdict.comparison, verdict.reports
        )
        reporter.print_json(record)
    elif request.output is not None and verdict.comparison is not None:
        reporter.report_verification(request.output, verdict.comparison)


def report_rows(reports: Sequence[EngineReport]) -> list[tuple[str, ...]]:
    """Return the rows of the table of engines; equal results of an engine share a row."""
    rows: list[tuple[str, ...]] = []
    for report in reports:
        version = (report.version or "").partition("-")[0]  # without build metadata
        row = (
            f"{report.engine} {version}".rstrip(),
            str(report.threads or "-"),
            _result_text(report),
        )
        if rows and (rows[-1][0], rows[-1][2]) == (row[0], row[2]):
            row = row[0], f"{rows.pop()[1]}, {row[1]}", row[2]
        rows.append(row)
    return rows


def _result_text(report: EngineReport) -> str:
    message = report.message or ""
    if report.result == "same":
        return message or "the same bits"
    if report.result in ("different", "unstable") or message.startswith("not offered: "):
        return message
    return f"{report.result}: {message}"
