"""HTML fragments that all reports share."""

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
from ndtool.cli import figures
from ndtool.cli.html import markup
from ndtool.cli.html.markup import element
from ndtool.errors import NdtoolError, format_count, printable

if TYPE_CHECKING:
    from ndtool.analysis.engines import Report as Answer
    from ndtool.analysis.verify import Comparison

_ICON = "data:,"  # else browsers request one
_LONGEST = 300  # characters of a command-line argument
ENGINE_COLUMNS = ("engine", "version", "threads", "result", "different", "description")


def document_of(title: str, *parts: Element | None) -> Element:
    """Return a complete HTML document, whose policy forbids all other scripts and resources."""
    style, script = (
        resources.files("ndtool.cli.html").joinpath(f"page.{kind}").read_text("utf-8")
        for kind in ("css", "js")
    )
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)};"
        " base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href=_ICON),
        element("title", title),
        markup.verbatim("style", style),
    )
    versions = f"ndtool {__version__}, NumPy {np.__version__}, Python {platform.python_version()}"
    body = element(
        "body",
        element("main", *(part for part in parts if part is not None)),
        element("footer", element("p", versions)),
        markup.verbatim("script", script),
    )
    return element("html", head, body, lang="en")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def command(arguments: list[str]) -> Element:
    """Return the command line of a report."""
    printed = (printable(word, _LONGEST) for word in arguments)
    return element("pre", f"$ ndtool {shlex.join(printed)}", class_="command")


def section(title: str, *parts: Element | None) -> Element:
    """Return a section with a title."""
    return element("section", element("h2", title), *parts)


def failure(error: NdtoolError) -> Element:
    """Return the error of a call."""
    places = [element("li", place) for place in error.places]
    hint = element("p", f"hint: {error.hint}") if error.hint else None
    message = element("p", element("strong", "error: "), error.message)
    return element("section", message, element("ul", *places), hint, class_="error")


def comparison(compared: Comparison) -> list[Element]:
    """Return the comparison of an array."""
    equal = compared.total - compared.different
    lines = [f"{equal} of {compared.total} elements have the same bits"]
    parts = [element("p", line) for line in lines + figures.differences(compared)]
    if rows := figures.distances(compared):
        largest = max(count for _, count in rows)
        cells = [(name, str(count), _bar(count / largest)) for name, count in rows]
        parts.append(scrollable(markup.table((*figures.DISTANCE_COLUMNS, ""), cells)))
    return parts


def _bar(fraction: float) -> Element:
    """Return a bar, hidden from screen readers; a nonzero one is always visible."""
    length = max(fraction, 0.01) if fraction else 0
    bar = element("rect", width=f"{length:.2%}", height="100%")
    return element("svg", bar, width=240, height=14, aria_hidden="true", class_="share")


def engine(answer: Answer) -> tuple[Element | str, ...]:
    """Return an engine's row of the table with ENGINE_COLUMNS."""
    different = "" if answer.different is None else str(answer.different)
    result = element("span", answer.result, class_=f"result {answer.result}")
    threads = str(answer.threads or "")
    return answer.engine, answer.version or "", threads, result, different, answer.message or ""


def differing(answers: Sequence[Answer], title: str = "") -> list[Element]:
    """Return the comparisons of engines that differ; title: the prefix of their titles."""
    parts = []
    for answer in answers:
        if answer.comparison is not None and answer.comparison.different:
            threads = format_count(answer.threads or 0, "thread")
            parts.append(element("h3", f"{title}{answer.engine} {answer.version}, {threads}"))
            parts += comparison(answer.comparison)
    return parts


def scrollable(content: Element | None) -> Element:
    """Return an element that scrolls if it is wider than the page."""
    return element("div", content, class_="wide")
