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

from ndtool.analysis import drawing, excerpts, explain, stats
from ndtool.analysis.stats import Stats
from ndtool.arrays.sink import Sink
from ndtool.cli import answers, figures, pictures, records
from ndtool.cli.console import is_open_as
from ndtool.cli.html import fragments, markup
from ndtool.cli.html.fragments import scrollable, section
from ndtool.cli.html.grids import GivenElements, Grids, Location
from ndtool.cli.html.markup import element
from ndtool.errors import DifferenceError, NdtoolError, UsageError, argument_name, printable
from ndtool.formats import locators
from ndtool.formats.streams import Streams
from ndtool.publish import document, sinks
from ndtool.rules.inference import Input
from ndtool.rules.shapes import described
from ndtool.runs.calls import OpenCall
from ndtool.runs.request import Request

if TYPE_CHECKING:
    from ndtool.analysis.engines import Report as Answer
    from ndtool.analysis.explain import Element as Explained
    from ndtool.analysis.explain import Origin
    from ndtool.analysis.model import Outcome
    from ndtool.analysis.verify import Comparison, Difference
    from ndtool.cli.reporter import Reporter

    Table = tuple[tuple[str, ...], list[tuple[str, ...]], list[str]]

LISTED = 1000  # rows of an explanation


class Report:
    """The HTML report about an open call: collects results, then publishes them."""

    def __init__(self, path: str, call: OpenCall, reporter: Reporter) -> None:
        request = call.request
        document.check(path, clobber=request.clobber)
        require_apart("--html", path, *request.arguments.values(), request.output)
        self._path, self._call, self._reporter = path, call, reporter
        self.warnings = call.warnings
        self._answers: list[Element] = []
        self._selected: list[Location] = []
        self._verifies = False
        self._difference: Difference | None = None
        self._sink: Sink | None = None
        self.stats: Stats | None = None

    def explained(self, elements: list[Explained], origins: list[Origin]) -> None:
        """Add explanations, and highlight their elements."""
        answer_texts = answers.answer_texts(self._call, elements, origins)
        self._answers.append(section("Explanation", *map(_answer_rows, answer_texts)))
        self._selected += [("output", explained.position) for explained in elements]
        self._selected += [("data", origin.position) for origin in origins]

    def compared(self, compared: Comparison) -> None:
        """Add the comparison of the output."""
        self._verifies = True
        self._difference = compared.first
        parts = fragments.comparison(compared)
        self._answers.append(section("Comparison", *parts))

    def answered(self, answers: list[Answer]) -> None:
        """Add the reports on engines, and highlight the first difference of each."""
        table = markup.table(fragments.ENGINE_COLUMNS, map(fragments.engine, answers))
        parts = [scrollable(table), *fragments.differing(answers)]
        self._answers.append(section("Other engines", *parts))
        firsts = [
            answer.comparison.first.position
            for answer in answers
            if answer.comparison and answer.comparison.first
        ]
        self._selected += [("output", at) for at in firsts]

    def as_sink(self, error: NdtoolError | None = None) -> Sink:
        """Return the complete report as a sink to publish; error: that of the call."""
        content, request = markup.page(self._root(error)), self._call.request
        self._sink = document.create(
            self._path, content, clobber=request.clobber, sync=request.sync
        )
        return self._sink

    def publish(self, error: NdtoolError | None = None) -> None:
        """Write the report alone, unless it was published with an output; see `as_sink`."""
        if self._sink is not None and error is None:
            return
        self.close()  # the sink for an output that failed
        if isinstance(error, DifferenceError) and error.comparison is not None:
            self.compared(cast("Comparison", error.comparison))
        sinks.commit(self.as_sink(error))

    def close(self) -> None:
        """Drop the report if it was not published."""
        if self._sink is not None:
            self._sink.abort()

    def _root(self, error: NdtoolError | None) -> Element:
        call = self._call
        if self.stats is None:
            with self._reporter.progress() as progress:
                nbytes = call.sources["indices"].metadata.nbytes
                self.stats = stats.stats(call, progress.of(nbytes))
        drawn = self._drawing()
        command = click.get_current_context().command_path
        return fragments.document_of(
            f"{command}: {argument_name(call.inference.inputs['data'].name)}",
            element("h1", command),
            element("p", records.title(call.inference), class_="call"),
            fragments.command(self._reporter.arguments),
            None if error is None else fragments.failure(error),
            *(element("p", warning, class_="warning") for warning in self.warnings),
            *self._answers,
            *drawn[:1],
            section("Arrays", _arrays(call)),
            _statistics(call, self.stats),
            section("Shape inference", _trace(call)),
            *drawn[1:],
        )

    def _drawing(self) -> list[Element]:
        """Return the drawing, and the table of sources."""
        call = self._call
        first = [] if self._difference is None else [self._difference.position]
        positions = {
            role: [at for name, at in self._selected if name == role] for role in ("output", "data")
        }
        focus = excerpts.Focus((*first, *positions["output"]), tuple(positions["data"]))
        large = excerpts.has_large_updates(call)
        drawn = None if large else drawing.draw(call, focus)
        if drawn is None:
            text = f"Not drawn: more than {excerpts.MAX_ELEMENTS} elements of an array are linked."
            if large:
                text = "Not drawn: updates would have to be read once more."
            return [section("Drawing", element("p", text, class_="hint"))]
        expected = drawn.grids.get("output")
        actual = self._given_output(drawn) if expected is not None else None
        grids = Grids(call, drawn, self._selected, actual)
        source_table = grids.sources()
        text = "There is no output, because an index is out of bounds."
        missing = element("p", text, class_="hint") if expected is None else None
        parts = [section("Drawing", missing, grids.figure())]
        return parts + ([] if source_table is None else [section("Sources", source_table)])

    def _given_output(self, drawn: drawing.Drawing) -> GivenElements | None:
        """Return the drawn elements of the output to verify; None if its type or shape differs."""
        call, grid = self._call, drawn.grids["output"]
        if not self._verifies or grid.elements is None:
            return None
        with closing(locators.open_source(call.request.output or "", Streams())) as source:
            metadata, dtype = source.metadata, call.inference.dtype
            typed = Input(source.name, metadata.dtype, metadata.shape).viewed_as(call.request.dtype)
            if (typed.dtype, typed.shape) != (dtype, call.inference.plan.output):
                return None
            elements = explain.elements_at(source, dtype, grid.positions)
        pairs = zip(elements, grid.elements, strict=True)
        return [(actual, actual.tobytes() != expected.tobytes()) for actual, expected in pairs]


def check_plot(path: str, call: OpenCall, html: str | None) -> None:
    """Raise errors about the file of `plot` before statistics; html: the report's path."""
    document.check(path)
    require_apart("--plot", path, *call.request.arguments.values(), html)
    pictures.require(path)


def plot(path: str, call: OpenCall, statistics: Stats, reporter: Reporter) -> None:
    """Write the picture of statistics, in the format of its suffix."""
    picture = pictures.picture(call, statistics)
    content = pictures.file(path, picture)
    if content is None:
        content = markup.page(
            fragments.document_of(
                picture.title,
                element("p", records.title(call.inference), class_="call"),
                fragments.command(reporter.arguments),
                scrollable(pictures.svg(picture)),
            )
        )
    document.publish(path, content)
    reporter.written(path)


def require_apart(option: str, path: str, *others: str | None) -> None:
    """Raise UsageError if a report would replace another file of the call.

    Such a file may also be a store that contains the report, or a standard stream.
    """
    real = os.path.realpath(path)
    for other in filter(None, others):
        real_other = os.path.realpath(locators.parse(other).path)
        if real == real_other or (
            os.path.isdir(real_other) and real.startswith(real_other + os.sep)
        ):
            relation = "is" if real == real_other else "is in"
            raise UsageError(
                f"{option} {printable(path)} {relation} {argument_name(other)}: expected another"
                " file"
            )
    for fd, stream in enumerate(("standard input", "standard output")):
        if stat.S_ISREG(_mode(path)) and is_open_as(path, fd):
            raise UsageError(f"{option} {printable(path)} is {stream}: expected another file")


def call_to_verify(request: Request) -> OpenCall:
    """Open a call to verify once more."""
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
        return 0  # opening it raises the error


def _answer_rows(answer: answers.AnswerText) -> Element:
    """Return an explanation as a title and a table of at most LISTED rows."""
    rows = [
        element("tr", *(element("td", cell) for cell in row)) for row in islice(answer.rows, LISTED)
    ]
    omitted = len(answer.rows) - len(rows)
    remark = f"{omitted} more, which the command prints" if omitted else answer.more
    if remark:
        row = element("tr", element("td", f"… {remark}", colspan=5))
        rows.insert(len(rows) if omitted else answer.remark_row, row)
    table = element("table", element("tbody", *rows), class_="steps") if rows else None
    return element("div", element("h3", answer.title), scrollable(table))


def _arrays(call: OpenCall) -> Element:
    rows = [
        (
            role,
            element("span", argument_name(argument.name), class_="file"),
            described(*argument[1:]),
        )
        for role, argument in call.inference.inputs.items()
    ]
    output = "" if call.request.output in (None, "-") else argument_name(call.request.output)
    kind = described(call.inference.dtype, call.inference.plan.output)
    return scrollable(markup.table(("array", "name", "type"), [*rows, ("output", output, kind)]))


def _statistics(call: OpenCall, statistics: Stats) -> Element:
    count, *others = figures.metadata(call, statistics)
    cells = figures.component_cells(statistics)
    components = markup.table(figures.COMPONENT_COLUMNS, cells) if cells else None
    lines = element("ul", *(element("li", line) for line in others))
    picture = pictures.svg(pictures.picture(call, statistics)) if statistics.distinct else None
    return section(
        "Statistics of the indices",
        element("p", count),
        scrollable(components),
        lines,
        scrollable(picture),
    )


def _trace(call: OpenCall) -> Element:
    cells = records.trace_cells(call.inference.trace)
    return scrollable(markup.table(records.TRACE_COLUMNS, cells, class_="trace"))


def check_model(path: str, model: str, inputs: str | None) -> None:
    """Raise errors about the file of `write_model` before the model runs."""
    document.check(path)
    require_apart("--html", path, model, inputs)


def write_model(path: str, model: str, outcome: Outcome, table: Table, reporter: Reporter) -> None:
    """Write the report of a model; table: columns and rows of its nodes, and assumptions."""
    columns, rows, assumed = table
    nodes = scrollable(markup.table(columns, rows, class_="nodes"))
    none = element("p", records.NO_NODES, class_="hint")
    root = fragments.document_of(
        f"ndtool model: {argument_name(model)}",
        element("h1", "ndtool model"),
        element("p", argument_name(model), class_="call"),
        fragments.command(reporter.arguments),
        None if outcome.error is None else fragments.failure(outcome.error),
        section("Nodes", nodes if rows else none, *(element("p", line) for line in assumed)),
        *_engines_of(outcome),
    )
    document.publish(path, markup.page(root))
    reporter.written(path)


def _engines_of(outcome: Outcome) -> list[Element]:
    """Return the reports on engines for each node."""
    rows = [
        (node.node.node, *fragments.engine(report))
        for node in outcome.nodes
        for report in node.reports
    ]
    if not rows:
        return []
    table = markup.table(("node", *fragments.ENGINE_COLUMNS), rows)
    parts = [
        part
        for node in outcome.nodes
        for part in fragments.differing(node.reports, f"{node.node.node}: ")
    ]
    return [section("Other engines", scrollable(table), *parts)]
