"""HTML elements that all reports share: document, sections, errors, comparisons."""

from __future__ import annotations

import base64
import hashlib
import platform
import shlex
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

import numpy as np

from ndtool import __version__
from ndtool.cli.html import markup
from ndtool.cli.html.markup import element
from ndtool.errors import NdtoolError, format_count, printable

if TYPE_CHECKING:
    from ndtool.analysis.verify import Comparison, EngineReport
    from ndtool.notebook import Table

_ICON = "data:,"  # an empty icon: without it browsers request one
MAX_ROWS = 1000  # of an explanation; longer ones are shown in part
_MAX_ARGUMENT_LENGTH = 300  # characters of a command-line argument
ENGINE_COLUMNS = ("engine", "version", "threads", "result", "different", "description")


def create_document(title: str, *children: Element | None) -> Element:
    """Return an HTML document, whose policy allows no scripts and resources but its own."""
    style, script = (
        resources.files("ndtool.cli.html").joinpath(f"page.{kind}").read_text("utf-8")
        for kind in ("css", "js")
    )
    policy = (
        f"default-src 'none'; img-src data:; style-src {_policy_hash(style)}; script-src"
        f" {_policy_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href=_ICON),
        element("title", title),
        markup.unescaped_element("style", style),
    )
    versions = f"ndtool {__version__}, NumPy {np.__version__}, Python {platform.python_version()}"
    body = element(
        "body",
        element("main", *(part for part in children if part is not None)),
        element("footer", element("p", versions)),
        markup.unescaped_element("script", script),
    )
    return element("html", head, body, lang="en")


def _policy_hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def command_line(arguments: list[str]) -> Element:
    """Return the command line that wrote a report."""
    printed = (printable(word, _MAX_ARGUMENT_LENGTH) for word in arguments)
    return element("pre", f"$ ndtool {shlex.join(printed)}", class_="command")


def section(title: str, *children: Element | None) -> Element:
    """Return a section with a title."""
    return element("section", element("h2", title), *children)


def error_section(error: NdtoolError) -> Element:
    """Return the section with the error of a call."""
    places = [element("li", place) for place in error.places]
    hint = element("p", f"hint: {error.hint}") if error.hint else None
    message = element("p", element("strong", "error: "), error.message)
    return element("section", message, element("ul", *places), hint, class_="error")


def comparison_elements(comparison: Comparison) -> list[Element]:
    """Return the HTML elements that show how an array differs from the expected one."""
    line = f"{comparison.equal} of {comparison.total} elements have the same bits"
    return [element("p", line), *map(table_element, comparison.tables())]


def table_element(content: Table) -> Element:
    """Return a table of an answer, with its title and notes."""
    if (omitted := len(content.rows) - MAX_ROWS) > 0:
        half = MAX_ROWS // 2
        remark = (f"... {omitted} more rows, which the command prints",)
        content = content._replace(rows=[*content.rows[:half], remark, *content.rows[-half:]])
    content, table = content.printable(), None
    if content.columns and content.bars:
        largest = max(1, *(int(row[-1]) for row in content.rows))
        rows = [(*row, _bar_element(int(row[-1]) / largest)) for row in content.rows]
        table = markup.table((*content.columns, ""), rows)
    elif content.columns:
        table = markup.table(content.columns, content.rows)
    elif content.rows:
        body = [
            element(
                "tr", *(element("td", cell, colspan=5 if len(row) == 1 else None) for cell in row)
            )
            for row in content.rows
        ]
        table = element("table", element("tbody", *body), class_="steps")
    title = element("h3", content.title) if content.title else None
    notes = [element("p", note) for note in content.notes]
    return element("div", title, None if table is None else scrollable_box(table), *notes)


def _bar_element(fraction: float) -> Element:
    """Return a bar, hidden from screen readers; a bar of a nonzero fraction is always visible."""
    length = max(fraction, 0.01) if fraction else 0
    bar = element("rect", width=f"{length:.2%}", height="100%")
    return element("svg", bar, width=240, height=14, aria_hidden="true", class_="fraction-bar")


def engine_row(report: EngineReport) -> tuple[Element | str, ...]:
    """Return the row of an engine in the table with ENGINE_COLUMNS."""
    different = "" if report.different is None else str(report.different)
    result = element("span", report.result, class_=f"result {report.result}")
    threads = str(report.threads or "")
    return report.engine, report.version or "", threads, result, different, report.message or ""


def engine_differences(reports: Sequence[EngineReport], title: str = "") -> list[Element]:
    """Return the comparisons of engines with different results; title: a prefix of their titles."""
    elements = []
    for report in reports:
        if report.comparison is not None and report.comparison.different:
            threads = format_count(report.threads or 0, "thread")
            elements.append(element("h3", f"{title}{report.engine} {report.version}, {threads}"))
            elements += comparison_elements(report.comparison)
    return elements


def scrollable_box(content: Element | None) -> Element:
    """Return an element in a box that scrolls if the element is wider than the page."""
    return element("div", content, class_="scrollable")
