"""The page that `--html` asks for: one file that needs no other, about one call.

It is the same for the same inputs and words: nothing of a clock or a terminal is in it.
"""

from __future__ import annotations

import os
import stat
from contextlib import closing
from math import prod
from typing import TYPE_CHECKING, cast
from xml.etree.ElementTree import Element

import click

from ndtool.analysis import drawing, stats
from ndtool.analysis.stats import Stats
from ndtool.arrays import document, names, sink
from ndtool.arrays.streams import Streams
from ndtool.cli import answers, figures, markup, pageparts, pictures, records
from ndtool.cli.markup import element
from ndtool.cli.pagegrids import Found, Grids
from ndtool.cli.pageparts import section, wide
from ndtool.cli.sentences import number_of
from ndtool.errors import DifferenceError, NdtoolError, UsageError, called, printable
from ndtool.rules.inference import Given
from ndtool.rules.shapes import described
from ndtool.runs.jobs import Job, Request

if TYPE_CHECKING:
    from ndtool.analysis.engines import Report as Answer
    from ndtool.analysis.explain import Element as Explained
    from ndtool.analysis.explain import Origin
    from ndtool.analysis.verify import Comparison
    from ndtool.cli.talk import Talk


class Report:
    """A page about a call whose inputs are open: what is known of it is put in, then published."""

    def __init__(self, path: str, job: Job, talk: Talk) -> None:
        request = job.request
        document.check(path, clobber=request.clobber)
        require_apart("--html", path, *request.arguments.values(), request.output)
        self._path, self._job, self._talk = path, job, talk
        self._answers: list[Element] = []
        self._asked: list[str] = []
        self._verifies = False
        self._sink: sink.Sink | None = None
        self.stats: Stats | None = None

    def explained(self, elements: list[Explained], origins: list[Origin]) -> None:
        """Put explanations in, and mark what they are about."""
        plan = self._job.inference.plan
        told = answers.told(self._job, elements, origins)
        self._answers.append(section("Explanation", *map(_told, told)))
        for role, shape, positions in (
            ("output", plan.output, [one.at for one in elements]),
            ("data", plan.data, [one.position for one in origins]),
        ):
            self._asked += [f"{role}-{number_of(at, shape)}" for at in positions]

    def compared(self, compared: Comparison) -> None:
        """Put in how the output compares with what it must be."""
        self._verifies = True
        parts = pageparts.comparison(compared)
        self._answers.append(section("Comparison", *parts))

    def answered(self, answers: list[Answer]) -> None:
        """Put in what other engines gave; where one differs first is marked."""
        table = markup.table(pageparts.ENGINE_COLUMNS, map(pageparts.engine, answers))
        parts = [wide(table), *pageparts.differing(answers)]
        self._answers.append(section("Other engines", *parts))
        firsts = [
            one.compared.first.position for one in answers if one.compared and one.compared.first
        ]
        shape = self._job.inference.plan.output
        self._asked += [f"output-{number_of(at, shape)}" for at in firsts]

    def as_sink(self, error: NdtoolError | None = None) -> sink.Sink:
        """Return the page, complete, for who publishes it; error: what the call ended with."""
        content, request = markup.page(self._root(error)), self._job.request
        self._sink = document.create(
            self._path, content, clobber=request.clobber, sync=request.sync
        )
        return self._sink

    def publish(self, error: NdtoolError | None = None) -> None:
        """Write the page by itself, unless it was published with an output; see `as_sink`."""
        if self._sink is not None and error is None:
            return
        self.close()  # one for an output that will not be
        if isinstance(error, DifferenceError) and error.comparison is not None:
            self.compared(cast("Comparison", error.comparison))
        sink.commit(self.as_sink(error))

    def close(self) -> None:
        """Drop the page, if it was not published."""
        if self._sink is not None:
            self._sink.abort()

    def _root(self, error: NdtoolError | None) -> Element:
        job = self._job
        if self.stats is None:
            with self._talk.progress() as progress:
                nbytes = job.sources["indices"].facts.nbytes
                self.stats = stats.stats(job, progress.of(nbytes))
        drawn = self._drawing()
        command = click.get_current_context().command_path
        return pageparts.document_of(
            f"{command}: {called(job.inference.inputs['data'].name)}",
            element("h1", command),
            element("p", records.title(job.inference), class_="call"),
            pageparts.command(self._talk.arguments),
            None if error is None else pageparts.failure(error),
            *(element("p", warning, class_="warning") for warning in job.warnings),
            *self._answers,
            *drawn[:1],
            section("Arrays", _arrays(job)),
            _statistics(job, self.stats),
            section("Shape inference", _trace(job)),
            *drawn[1:],
        )

    def _drawing(self) -> list[Element]:
        """Return the drawing, and the table of what it shows."""
        job = self._job
        drawn = drawing.draw(job)
        if drawn is None:
            large = [
                f"{prod(shape)} {what}"
                for what, shape in drawing.sizes(job).items()
                if prod(shape) > drawing.LIMIT
            ]
            text = f"Not drawn: {', '.join(large)}; up to {drawing.LIMIT} are."
            return [section("Drawing", element("p", text, class_="hint"))]
        expected = drawn.grids.get("output")
        found = self._given_output(drawn) if expected is not None else None
        wrong = [f"found-{n}" for n, (_, differs) in enumerate(found or []) if differs]
        grids = Grids(job, drawn, found)
        listed = grids.sources()
        text = "Without the output: an index is out of bounds."
        missing = element("p", text, class_="hint") if expected is None else None
        parts = [section("Drawing", missing, grids.figure(self._asked + wrong))]
        return parts + ([] if listed is None else [section("Sources", listed)])

    def _given_output(self, drawn: drawing.Drawing) -> Found | None:
        """Return the elements of the output that is verified; None where it is of another kind."""
        job, expected = self._job, drawn.grids["output"].elements
        if not self._verifies or expected is None:
            return None
        with closing(names.open_source(job.request.output or "", Streams())) as given:
            facts, dtype = given.facts, job.inference.dtype
            taken = Given(given.name, facts.dtype, facts.shape).taken_as(job.request.dtype)
            if (taken.dtype, taken.shape) != (dtype, job.inference.plan.output):
                return None
            elements = drawing.elements(given, dtype)
        pairs = zip(elements, expected, strict=True)
        return [(one, one.tobytes() != right.tobytes()) for one, right in pairs]


def check_plot(path: str, job: Job, html: str | None) -> None:
    """Raise what `plot` would about its file, before statistics; html: the page beside it."""
    document.check(path)
    require_apart("--plot", path, *job.request.arguments.values(), html)
    pictures.require(path)


def plot(path: str, job: Job, found: Stats, talk: Talk) -> None:
    """Write the picture of statistics, as a file of its suffix."""
    picture = pictures.picture(job, found)
    content = pictures.file(path, picture)
    if content is None:
        content = markup.page(
            pageparts.document_of(
                picture.title,
                element("p", records.title(job.inference), class_="call"),
                pageparts.command(talk.arguments),
                wide(pictures.svg(picture)),
            )
        )
    drawn = document.create(path, content)
    try:
        sink.commit(drawn)
    finally:
        drawn.abort()
    talk.written(path)


def require_apart(option: str, path: str, *others: str | None) -> None:
    """Raise UsageError if a file for people would take the place of another one of the call.

    Or go to a store that is replaced, or to the file that standard input or output is.
    """
    real = os.path.realpath(path)
    for other in filter(None, others):
        place = os.path.realpath(names.parse(other).path)
        if real == place or (os.path.isdir(place) and real.startswith(place + os.sep)):
            where = "is" if real == place else "is in"
            raise UsageError(
                f"{option} {printable(path)} {where} {called(other)}: expected another file"
            )
    for fd, stream in enumerate(("standard input", "standard output")):
        if stat.S_ISREG(_mode(path)) and _is_open_as(path, fd):
            raise UsageError(f"{option} {printable(path)} is {stream}: expected another file")


def _is_open_as(path: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except OSError:
        return False


def job_to_verify(request: Request) -> Job:
    """Return the job of a call whose output is verified, its inputs open once more."""
    for name in (*request.arguments.values(), request.output or ""):
        if name == "-" or stat.S_ISFIFO(_mode(name)):
            raise UsageError(f"--html reads {called(name)} twice: expected a file, no pipe")
    return Job(request)


def _mode(path: str) -> int:
    try:
        return os.stat(path).st_mode
    except (OSError, ValueError):
        return 0  # to be told by who opens it


def _told(one: answers.Told) -> Element:
    rows = [element("tr", *(element("td", cell) for cell in row)) for row in one.rows]
    if one.more:
        rows.insert(one.place, element("tr", element("td", f"… {one.more}", colspan=5)))
    shown = element("table", element("tbody", *rows), class_="steps") if rows else None
    return element("div", element("h3", one.title), wide(shown))


def _arrays(job: Job) -> Element:
    rows = [
        (role, element("span", called(given.name), class_="file"), described(*given[1:]))
        for role, given in job.inference.inputs.items()
    ]
    output = "" if job.request.output in (None, "-") else called(job.request.output)
    kind = described(job.inference.dtype, job.inference.plan.output)
    return wide(markup.table(("array", "name", "type"), [*rows, ("output", output, kind)]))


def _statistics(job: Job, found: Stats) -> Element:
    count, *others = figures.facts(job, found)
    cells = figures.component_cells(found)
    components = markup.table(figures.COMPONENT_COLUMNS, cells) if cells else None
    lines = element("ul", *(element("li", line) for line in others))
    picture = pictures.svg(pictures.picture(job, found)) if found.distinct else None
    return section(
        "Statistics of the indices", element("p", count), wide(components), lines, wide(picture)
    )


def _trace(job: Job) -> Element:
    cells = records.trace_cells(job.inference.trace)
    return wide(markup.table(records.TRACE_COLUMNS, cells, class_="trace"))
