"""HTML reports (`--html`) about a call or a model: one self-contained file each.

Reports are reproducible: they contain no times and nothing about the terminal.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, cast
from xml.etree.ElementTree import Element

import click

from ndtool.analysis import drawing, excerpts, preview, stats
from ndtool.analysis.infer import Inferred, inferred
from ndtool.analysis.stats import Stats
from ndtool.arrays.sink import Sink
from ndtool.cli import pictures
from ndtool.cli.console import is_same_file
from ndtool.cli.html import fragments, markup
from ndtool.cli.html.fragments import scrollable_box, section
from ndtool.cli.html.grids import ActualElements, ElementLocation, Grids
from ndtool.cli.html.markup import element
from ndtool.errors import (
    DifferenceError,
    NdtoolError,
    UsageError,
    argument_name,
    format_count,
    printable,
)
from ndtool.formats import locators
from ndtool.formats.streams import Streams
from ndtool.publish import document, sinks
from ndtool.rules.inference import Input
from ndtool.runs.calls import OpenCall
from ndtool.runs.request import Request

if TYPE_CHECKING:
    from ndtool.analysis.explain import Explanation
    from ndtool.analysis.model import Model
    from ndtool.analysis.verify import Comparison, Difference, EngineReport
    from ndtool.cli.reporter import Reporter


class HtmlReport:
    """The HTML report of an open call: collects results, then publishes the report."""

    def __init__(self, path: str, call: OpenCall, reporter: Reporter) -> None:
        request = call.request
        document.check(path, clobber=request.clobber)
        require_distinct_file("--html", path, *request.arguments.values(), request.output)
        self._path, self._call, self._reporter = path, call, reporter
        self.warnings = call.warnings
        self._sections: list[Element] = []
        self._selected: list[ElementLocation] = []
        self._is_verified = False
        self._difference: Difference | None = None
        self._sink: Sink | None = None
        self.stats: Stats | None = None

    def add_explanation(self, explanation: Explanation) -> None:
        """Add explanations, and highlight their elements."""
        tables = map(fragments.table_element, explanation.tables())
        self._sections.append(section("Explanation", *tables))
        self._selected += [("output", item.at) for item in explanation.elements]
        self._selected += [("data", item.from_) for item in explanation.origins]

    def add_comparison(self, comparison: Comparison) -> None:
        """Add the comparison of the output."""
        self._is_verified = True
        self._difference = comparison.first
        elements = fragments.comparison_elements(comparison)
        self._sections.append(section("Comparison", *elements))

    def add_engines(self, reports: Sequence[EngineReport]) -> None:
        """Add the results of engines, and highlight the first difference of each engine."""
        table = markup.table(fragments.ENGINE_COLUMNS, map(fragments.engine_row, reports))
        elements = [scrollable_box(table), *fragments.engine_differences(reports)]
        self._sections.append(section("Other engines", *elements))
        differing_positions = [
            report.comparison.first.position
            for report in reports
            if report.comparison and report.comparison.first
        ]
        self._selected += [("output", position) for position in differing_positions]

    def as_sink(self, error: NdtoolError | None = None) -> Sink:
        """Return the complete report as a sink to publish; error: the error of the call."""
        content, request = markup.html_document(self._document(error)), self._call.request
        self._sink = document.create(
            self._path, content, clobber=request.clobber, sync=request.sync
        )
        return self._sink

    def publish(self, error: NdtoolError | None = None) -> None:
        """Publish the report, unless it was published together with an output; see `as_sink`."""
        if self._sink is not None and error is None:
            return
        self.close()  # of an output that was not published
        if isinstance(error, DifferenceError) and error.comparison is not None:
            self.add_comparison(cast("Comparison", error.comparison))
        sinks.commit(self.as_sink(error))

    def close(self) -> None:
        """Discard the report if it was not published."""
        if self._sink is not None:
            self._sink.abort()

    def _document(self, error: NdtoolError | None) -> Element:
        call = self._call
        if self.stats is None:
            with self._reporter.progress() as progress_bar:
                nbytes = call.sources["indices"].metadata.nbytes
                self.stats = stats.stats(call, progress_bar.callback(nbytes))
        drawing_contents, answer = self._drawing(), inferred(call.inference, call.request.output)
        command = click.get_current_context().command_path
        return fragments.create_document(
            f"{command}: {argument_name(call.inference.inputs['data'].name)}",
            element("h1", command),
            element("p", answer.title, class_="call"),
            fragments.command_line(self._reporter.arguments),
            None if error is None else fragments.error_section(error),
            *(element("p", warning, class_="warning") for warning in self.warnings),
            *self._sections,
            *drawing_contents[:1],
            section("Arrays", fragments.table_element(answer.arrays())),
            _statistics(self.stats),
            section("Shape inference", _trace(answer)),
            *drawing_contents[1:],
        )

    def _drawing(self) -> list[Element]:
        """Return the drawing, and the table of sources."""
        call = self._call
        differing_position = [] if self._difference is None else [self._difference.position]
        positions = {
            role: [position for name, position in self._selected if name == role]
            for role in ("output", "data")
        }
        focus = excerpts.Focus(
            (*differing_position, *positions["output"]), tuple(positions["data"])
        )
        has_large_updates = excerpts.has_large_updates(call)
        contents = None if has_large_updates else drawing.draw(call, focus)
        if contents is None:
            limit = excerpts.MAX_ELEMENTS
            text = f"Not drawn: more than {limit} elements of an array would have to be drawn."
            if has_large_updates:
                text = "Not drawn: updates would have to be read a second time."
            return [section("Drawing", element("p", text, class_="hint"))]
        expected = contents.grids.get("output")
        actual = self._actual_output(contents) if expected is not None else None
        grids = Grids(call, contents, self._selected, actual)
        source_table = grids.sources()
        text = "There is no output, because an index is out of bounds."
        no_output_hint = element("p", text, class_="hint") if expected is None else None
        sections = [section("Drawing", no_output_hint, grids.figure())]
        return sections + ([] if source_table is None else [section("Sources", source_table)])

    def _actual_output(self, contents: drawing.Drawing) -> ActualElements | None:
        """Return the drawn elements of the output to verify; None if its dtype or shape differs."""
        call, grid = self._call, contents.grids["output"]
        if not self._is_verified or grid.elements is None:
            return None
        with closing(locators.open_source(call.request.output or "", Streams())) as source:
            metadata, dtype = source.metadata, call.inference.dtype
            stored_type = Input(source.name, metadata.dtype, metadata.shape)
            actual_input = stored_type.view_as(call.request.dtype)
            if (actual_input.dtype, actual_input.shape) != (dtype, call.inference.plan.output):
                return None
            elements = preview.elements_at(source, dtype, grid.positions)
        pairs = zip(elements, grid.elements, strict=True)
        return [(actual, actual.tobytes() != expected.tobytes()) for actual, expected in pairs]


def check_plot(path: str, call: OpenCall, html: str | None) -> None:
    """Raise an error if `write_plot` cannot write its file; html: the path of the report."""
    document.check(path)
    require_distinct_file("--plot", path, *call.request.arguments.values(), html)
    pictures.require_package(path)


def write_plot(path: str, call: OpenCall, statistics: Stats, reporter: Reporter) -> None:
    """Write the picture of statistics, in the format that the suffix of the path shows."""
    picture = pictures.picture(statistics)
    content = pictures.picture_bytes(path, picture)
    if content is None:
        content = markup.html_document(
            fragments.create_document(
                picture.title,
                element("p", statistics.title, class_="call"),
                fragments.command_line(reporter.arguments),
                scrollable_box(pictures.svg(picture)),
            )
        )
    document.publish(path, content)
    reporter.report_file(path)


def require_distinct_file(option: str, path: str, *others: str | None) -> None:
    """Raise UsageError if a report would replace another file of the call.

    The other file may also be a store in whose directory the report is, or a standard stream.
    """
    real_path = os.path.realpath(path)
    for other in filter(None, others):
        other_real_path = os.path.realpath(locators.parse(other).path)
        if real_path == other_real_path or (
            os.path.isdir(other_real_path) and real_path.startswith(other_real_path + os.sep)
        ):
            relation = "is" if real_path == other_real_path else "is in"
            raise UsageError(
                f"{option} {printable(path)} {relation} {argument_name(other)}: expected another"
                " file"
            )
    for fd, stream in enumerate(("standard input", "standard output")):
        if stat.S_ISREG(_mode(path)) and is_same_file(path, fd):
            raise UsageError(f"{option} {printable(path)} is {stream}: expected another file")


def reopen_call(request: Request) -> OpenCall:
    """Open the inputs and the output of `verify` a second time; UsageError if one is a pipe."""
    for name in (*request.arguments.values(), request.output or ""):
        if name == "-" or stat.S_ISFIFO(_mode(name)):
            raise UsageError(
                f"--html reads {argument_name(name)} twice: expected a file, not a pipe"
            )
    return OpenCall(request)


def _mode(path: str) -> int:
    try:
        return os.stat(path).st_mode
    except (OSError, ValueError):
        return 0  # opening the file raises the error


def _statistics(statistics: Stats) -> Element:
    count = format_count(statistics.tuples, "index tuple")
    table = statistics.tables()[0]
    components = markup.table(table.columns, table.rows) if table.rows else None
    lines = element("ul", *(element("li", line) for line in statistics.remarks))
    picture = pictures.svg(pictures.picture(statistics)) if statistics.distinct else None
    return section(
        "Statistics of the indices",
        element("p", count),
        scrollable_box(components),
        lines,
        scrollable_box(picture),
    )


def _trace(answer: Inferred) -> Element:
    table = answer.rules()
    return scrollable_box(markup.table(table.columns, table.rows, class_="trace"))


def check_model(path: str, model: str, inputs: str | None) -> None:
    """Raise an error if `write_model` cannot write its file, before the model runs."""
    document.check(path)
    require_distinct_file("--html", path, model, inputs)


def write_model(path: str, model: str, answer: Model, reporter: Reporter) -> None:
    """Write the report of a model."""
    root = fragments.create_document(
        f"ndtool model: {argument_name(model)}",
        element("h1", "ndtool model"),
        element("p", argument_name(model), class_="call"),
        fragments.command_line(reporter.arguments),
        None if answer.error is None else fragments.error_section(answer.error),
        section("Nodes", fragments.table_element(answer.tables()[0])),
        *_engine_sections(answer),
    )
    document.publish(path, markup.html_document(root))
    reporter.report_file(path)


def _engine_sections(answer: Model) -> list[Element]:
    """Return the section with the results of engines for each node."""
    rows = [
        (node.node, *fragments.engine_row(report))
        for node in answer.nodes
        for report in node.engines or ()
    ]
    if not rows:
        return []
    table = markup.table(("node", *fragments.ENGINE_COLUMNS), rows)
    differences = [
        difference
        for node in answer.nodes
        for difference in fragments.engine_differences(node.engines or (), f"{node.node}: ")
    ]
    return [section("Other engines", scrollable_box(table), *differences)]
