"""HTML reports (`--html`) about a call or a model: one self-contained file each.

Reports are reproducible: they contain no times and nothing about the terminal.
"""

from __future__ import annotations

import os
import stat
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, cast
from xml.etree.ElementTree import Element

import click

from ndtool.analysis import drawing, excerpts, preview, stats
from ndtool.analysis.stats import Stats
from ndtool.arrays.sink import Sink
from ndtool.cli import explanations, figures, pictures, records
from ndtool.cli.console import is_same_file
from ndtool.cli.html import fragments, markup
from ndtool.cli.html.fragments import scrollable_box, section
from ndtool.cli.html.grids import ActualElements, ElementLocation, Grids
from ndtool.cli.html.markup import element
from ndtool.errors import DifferenceError, NdtoolError, UsageError, argument_name, printable
from ndtool.formats import locators
from ndtool.formats.streams import Streams
from ndtool.publish import document, sinks
from ndtool.rules.inference import Input
from ndtool.rules.shapes import format_type
from ndtool.runs.calls import OpenCall
from ndtool.runs.request import Request

if TYPE_CHECKING:
    from ndtool.analysis.engines import EngineReport
    from ndtool.analysis.explain import Element as ExplainedElement
    from ndtool.analysis.explain import Origin
    from ndtool.analysis.model import Outcome
    from ndtool.analysis.verify import Comparison, Difference
    from ndtool.cli.reporter import Reporter

    Table = tuple[tuple[str, ...], list[tuple[str, ...]], list[str]]

MAX_EXPLANATION_ROWS = 1000  # rows of an explanation


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

    def add_explanation(self, elements: list[ExplainedElement], origins: list[Origin]) -> None:
        """Add explanations, and highlight their elements."""
        element_explanations = explanations.explain_elements(self._call, elements, origins)
        self._sections.append(
            section("Explanation", *map(_explanation_element, element_explanations))
        )
        self._selected += [("output", explained.position) for explained in elements]
        self._selected += [("data", origin.position) for origin in origins]

    def add_comparison(self, comparison: Comparison) -> None:
        """Add the comparison of the output."""
        self._is_verified = True
        self._difference = comparison.first
        elements = fragments.comparison_elements(comparison)
        self._sections.append(section("Comparison", *elements))

    def add_engines(self, reports: list[EngineReport]) -> None:
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
        drawing_contents = self._drawing()
        command = click.get_current_context().command_path
        return fragments.create_document(
            f"{command}: {argument_name(call.inference.inputs['data'].name)}",
            element("h1", command),
            element("p", records.call_title(call.inference), class_="call"),
            fragments.command_line(self._reporter.arguments),
            None if error is None else fragments.error_section(error),
            *(element("p", warning, class_="warning") for warning in self.warnings),
            *self._sections,
            *drawing_contents[:1],
            section("Arrays", _arrays(call)),
            _statistics(call, self.stats),
            section("Shape inference", _trace(call)),
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
    picture = pictures.picture(call, statistics)
    content = pictures.picture_bytes(path, picture)
    if content is None:
        content = markup.html_document(
            fragments.create_document(
                picture.title,
                element("p", records.call_title(call.inference), class_="call"),
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


def _explanation_element(explanation: explanations.Explanation) -> Element:
    """Return an explanation as a title and a table of at most LISTED rows."""
    rows = [
        element("tr", *(element("td", cell) for cell in row))
        for row in islice(explanation.rows, MAX_EXPLANATION_ROWS)
    ]
    omitted = len(explanation.rows) - len(rows)
    remark = f"{omitted} more, which the command prints" if omitted else explanation.omission
    if remark:
        row = element("tr", element("td", f"… {remark}", colspan=5))
        rows.insert(len(rows) if omitted else explanation.remark_row, row)
    table = element("table", element("tbody", *rows), class_="steps") if rows else None
    return element("div", element("h3", explanation.title), scrollable_box(table))


def _arrays(call: OpenCall) -> Element:
    rows = [
        (
            role,
            element("span", argument_name(argument.name), class_="file"),
            format_type(*argument[1:]),
        )
        for role, argument in call.inference.inputs.items()
    ]
    output = "" if call.request.output in (None, "-") else argument_name(call.request.output)
    kind = format_type(call.inference.dtype, call.inference.plan.output)
    return scrollable_box(
        markup.table(("array", "name", "type"), [*rows, ("output", output, kind)])
    )


def _statistics(call: OpenCall, statistics: Stats) -> Element:
    count, *other_paths = figures.statistics_lines(call, statistics)
    cells = figures.component_rows(statistics)
    components = markup.table(figures.COMPONENT_COLUMNS, cells) if cells else None
    lines = element("ul", *(element("li", line) for line in other_paths))
    picture = pictures.svg(pictures.picture(call, statistics)) if statistics.distinct else None
    return section(
        "Statistics of the indices",
        element("p", count),
        scrollable_box(components),
        lines,
        scrollable_box(picture),
    )


def _trace(call: OpenCall) -> Element:
    cells = records.trace_rows(call.inference.trace)
    return scrollable_box(markup.table(records.TRACE_COLUMNS, cells, class_="trace"))


def check_model(path: str, model: str, inputs: str | None) -> None:
    """Raise an error if `write_model` cannot write its file, before the model runs."""
    document.check(path)
    require_distinct_file("--html", path, model, inputs)


def write_model(path: str, model: str, outcome: Outcome, table: Table, reporter: Reporter) -> None:
    """Write the report of a model; table: columns and rows of its nodes, and assumptions."""
    columns, rows, assumed = table
    nodes = scrollable_box(markup.table(columns, rows, class_="nodes"))
    no_nodes_message = element("p", records.NO_NODES, class_="hint")
    root = fragments.create_document(
        f"ndtool model: {argument_name(model)}",
        element("h1", "ndtool model"),
        element("p", argument_name(model), class_="call"),
        fragments.command_line(reporter.arguments),
        None if outcome.error is None else fragments.error_section(outcome.error),
        section(
            "Nodes", nodes if rows else no_nodes_message, *(element("p", line) for line in assumed)
        ),
        *_engine_sections(outcome),
    )
    document.publish(path, markup.html_document(root))
    reporter.report_file(path)


def _engine_sections(outcome: Outcome) -> list[Element]:
    """Return the section with the results of engines for each node."""
    rows = [
        (model_node.node.node, *fragments.engine_row(report))
        for model_node in outcome.nodes
        for report in model_node.reports
    ]
    if not rows:
        return []
    table = markup.table(("node", *fragments.ENGINE_COLUMNS), rows)
    differences = [
        difference
        for model_node in outcome.nodes
        for difference in fragments.engine_differences(
            model_node.reports, f"{model_node.node.node}: "
        )
    ]
    return [section("Other engines", scrollable_box(table), *differences)]
