"""HTML reports (`--html`) about a call: one self-contained file each.

A report has the tables of answers, and as JSON what its script draws. Reports are reproducible:
they contain no times and nothing about the terminal.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape
from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any, cast

import click
import numpy as np

from ndtool import __version__
from ndtool.analysis import drawing, stats
from ndtool.analysis.infer import inferred
from ndtool.analysis.stats import Stats
from ndtool.arrays.sink import Sink
from ndtool.cli.console import is_same_file
from ndtool.engine import check
from ndtool.errors import DifferenceError, NdtoolError, UsageError, argument_name, printable
from ndtool.formats import locators, outputs
from ndtool.notebook import Table, html_table
from ndtool.publish import sinks
from ndtool.redaction import redact_json
from ndtool.rules.inference import Input
from ndtool.runs.calls import OpenCall

if TYPE_CHECKING:
    from ndtool.analysis.explain import Explanation
    from ndtool.analysis.verify import Comparison, Verification
    from ndtool.cli.reporter import Reporter
    from ndtool.rules.plans import Position

_MAX_TEXT_LENGTH = 100_000  # characters; no text of a report is longer
_MAX_ARGUMENT_LENGTH = 300  # characters of a command-line argument


class HtmlReport:
    """The HTML report of an open call: collects results, then publishes the report."""

    def __init__(self, path: str, call: OpenCall, reporter: Reporter) -> None:
        request = call.request
        outputs.check_document(path, request.clobber)
        names = list(filter(None, request.arguments.values()))  # `stats` has no updates
        names += [str(request.output)] if "output" in call.sources else []
        require_distinct(path, *(locators.parse(name).path for name in names))
        self._path, self._call, self._reporter = path, call, reporter
        self.warnings: Sequence[str] = call.warnings
        self._sections: list[str] = []
        self._outputs: list[Position] = []
        self._origins: list[Position] = []
        self._is_verified = False
        self._sink: Sink | None = None
        self.stats: Stats | None = None

    def add_explanation(self, explanation: Explanation) -> None:
        """Add explanations, and highlight their elements."""
        self._sections.append(_section("Explanation", explanation.tables()))
        self._outputs += [item.at for item in explanation.elements]
        self._origins += [item.from_ for item in explanation.origins]

    def add_comparison(self, comparison: Comparison) -> None:
        """Add the comparison of the output, and highlight the first difference."""
        self._is_verified = True
        if comparison.first is not None:
            self._outputs.insert(0, comparison.first.position)
        self._sections.append(_section("Comparison", [comparison.table()]))

    def add_engines(self, answer: Verification) -> None:
        """Add the results of engines, and highlight the first difference of each engine."""
        for report in answer.engines or ():
            if report.comparison is not None and report.comparison.first is not None:
                self._outputs.append(report.comparison.first.position)
        tables = replace(answer, comparison=None).tables()
        self._sections.append(_section("Other engines", tables))

    def as_sink(self, error: NdtoolError | None = None) -> Sink:
        """Return the complete report as a sink to publish; error: the error of the call."""
        request = self._call.request
        self._sink = outputs.create_document(
            self._path, self._content(error), request.clobber, request.sync
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

    def _content(self, error: NdtoolError | None) -> bytes:
        call = self._call
        if self.stats is None:
            with self._reporter.progress() as progress_bar:
                nbytes = call.sources["indices"].metadata.nbytes
                self.stats = stats.stats(call, progress_bar.callback(nbytes))
        answer = inferred(call.inference, call.request.output)
        command, drawn, remark = click.get_current_context().command_path, None, ""
        if self.stats.out_of_bounds and check.is_error(call.inference.plan):
            remark = "Not drawn: an index is out of bounds."
        elif drawing.has_large_updates(call):
            remark = "Not drawn: updates would have to be read a second time."
        elif (drawn := self._draw()) is None:
            remark = f"Not drawn: an array has more than {drawing.MAX_ELEMENTS} elements to draw."
        name = argument_name(call.inference.inputs["data"].name)
        return _page(
            f"{command}: {name}",
            _heading(command, answer.title, self._reporter.arguments, error, self.warnings),
            *self._sections,
            f"<section><h2>Drawing</h2>{_paragraph(remark, 'hint')}<noscript><p>The drawing needs"
            ' scripts.</p></noscript><div id="drawing"></div></section>',
            _section("Arrays", [answer.arrays()]),
            _section("Statistics of the indices", self.stats.tables()),
            _section("Shape inference", [answer.rules()._replace(title="")]),
            drawing=None if drawn is None else drawn.to_dict(),
        )

    def _draw(self) -> drawing.Drawing | None:
        """Return the drawing, with the output to verify if it has the right dtype and shape."""
        call, actual = self._call, None
        if self._is_verified:
            actual = call.sources["output"]
            stored = Input(actual.name, actual.metadata.dtype, actual.metadata.shape)
            _, dtype, shape = stored.view_as(call.request.dtype)
            if (dtype, shape) != (call.inference.dtype, call.inference.plan.output):
                actual = None
        return drawing.draw(call, self._outputs, self._origins, actual)


def require_distinct(path: str, *others: str) -> None:
    """Raise UsageError if a report would replace another file of the call.

    The other file may also be a store in whose directory the report is, or a standard stream.
    """
    real_path = os.path.realpath(path)
    for other, other_path in zip(others, map(os.path.realpath, others), strict=True):
        is_inside = os.path.isdir(other_path) and real_path.startswith(other_path + os.sep)
        if real_path == other_path or is_inside:
            relation = f"{'is in' if is_inside else 'is'} {printable(other)}"
            raise UsageError(f"--html {printable(path)} {relation}: expected another file")
    for fd, stream in enumerate(("standard input", "standard output")):
        if os.path.isfile(path) and is_same_file(path, fd):
            raise UsageError(f"--html {printable(path)} is {stream}: expected another file")


def _page(title: str, *sections: str, **drawn: Any) -> bytes:
    """Return a page; drawn: what its script draws."""
    files = resources.files("ndtool.cli")
    template, style, script = (
        files.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js")
    )
    versions = f"ndtool {__version__}, NumPy {np.__version__}, Python {platform.python_version()}"
    page = Template(template).substitute(
        title=_text(title),
        main="\n".join(sections),
        versions=versions,
        style=style,
        script=script,
        style_hash=_policy_hash(style),
        script_hash=_policy_hash(script),
        json=_json(drawn),
    )
    return page.encode("utf-8", "backslashreplace")


def _policy_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(value: Any) -> str:
    """Return JSON in which no value can end its element, and all integers are exact."""

    def exact(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: exact(child) for key, child in item.items()}
        if isinstance(item, list | tuple):
            return list(map(exact, item))
        return str(item) if isinstance(item, int) and abs(item) > 2**53 else item

    text = json.dumps(redact_json(exact(value)), separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _text(text: str) -> str:
    return escape(printable(text, _MAX_TEXT_LENGTH))


def _paragraph(text: str, kind: str) -> str:
    return f'<p class="{kind}">{_text(text)}</p>' if text else ""


def _heading(
    command: str,
    title: str,
    arguments: list[str],
    error: NdtoolError | None,
    warnings: Iterable[str],
) -> str:
    """Return the command, its error and its warnings."""
    line = shlex.join(printable(word, _MAX_ARGUMENT_LENGTH) for word in arguments)
    parts = [f"<h1>{_text(command)}</h1>", _paragraph(title, "call")]
    parts.append(f"<pre>{_text(f'$ ndtool {line}')}</pre>")
    if error is not None:
        places = "".join(f"<li>{_text(place)}</li>" for place in error.places)
        hint = f"<p>{_text(f'hint: {error.hint}')}</p>" if error.hint else ""
        message = f"<p><strong>error: </strong>{_text(error.message)}</p>"
        parts.append(f'<section class="error">{message}<ul>{places}</ul>{hint}</section>')
    return "\n".join([*parts, *(_paragraph(warning, "warning") for warning in warnings)])


def _section(title: str, tables: Iterable[Table]) -> str:
    parts = [f'<div class="scrollable">{html_table(table)}</div>' for table in tables]
    return f"<section><h2>{title}</h2>{''.join(parts)}</section>"
