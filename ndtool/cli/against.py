"""`verify --against`: comparisons with other engines, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ndtool.cli.commands import html_report_of_request
from ndtool.cli.reporter import Reporter

if TYPE_CHECKING:
    from ndtool.analysis.engines import EngineProgress, EngineSettings
    from ndtool.runs.request import Request


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
            answer = engines.verify(request, names, engine_settings, report_progress)
        if report:
            report.add_engines(answer.engines or ())
        if not reporter.json:
            reporter.print_answer(replace(answer, comparison=None))
        if answer.error is not None:
            answer.error.extra_fields["engines"] = answer.to_dict()["engines"]
            raise answer.error
        if report and answer.comparison is not None:
            report.add_comparison(answer.comparison)
    if reporter.json:
        reporter.print_answer(answer)
    else:
        reporter.report_verification(answer)
