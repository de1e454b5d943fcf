"""Statistics as a picture: which slices indices select, and how often."""

from __future__ import annotations

import io
from importlib import import_module
from math import prod
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element

from ndtool.analysis.stats import Stats
from ndtool.cli.html import markup
from ndtool.cli.html.markup import element
from ndtool.errors import UsageError, called
from ndtool.runs.calls import OpenCall

WIDTH, LEFT, RIGHT = 720, 70, 60  # of the picture, and of its margins
TALL, ROW = 130, 24  # heights of the histogram, and of a row of the bar chart
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1b2330 }
.title { font-weight: 600 } .faint { fill: #5b6675 }
.bar { fill: #2563c9 } .never { fill: #8a94a3 } .line { stroke: #8a94a3 }
@media (prefers-color-scheme: dark) {
  svg { background: #12161d }
  text { fill: #e4e8ee } .faint { fill: #9aa5b4 } .bar { fill: #6ea3f7 } .never { fill: #6b7684 }
}
"""


class Picture(NamedTuple):
    """The contents of a picture.

    runs, named, tuples: counts of slices, of selected slices, of tuples. density: counts of tuples
    by `width` slices. repeats: counts of slices by how often they are selected.
    """

    title: str
    unit: str
    runs: int
    named: int
    tuples: int
    density: list[int]
    width: int
    repeats: list[tuple[str, int]]

    @property
    def summary(self) -> str:
        """The contents in two sentences, as alternative text."""
        counts = ", ".join(f"{often} {count}" for often, count in self.repeats)
        return (
            f"{self.tuples} index tuples select {self.named} of {self.runs} slices of data."
            f" Slices by how often they are selected: {counts}."
        )


def picture(call: OpenCall, stats: Stats) -> Picture:
    """Return the picture of a call's statistics."""
    runs, name = prod(stats.runs), called(call.inference.inputs["data"].name)
    often = ["once", "2 times"] + [
        f"{2 ** (power - 1) + 1}..{2**power} times" for power in range(2, 64)
    ]
    return Picture(
        f"Where the indices of {call.inference.operator} fall in {name}",
        "slices of data, in row-major order",
        runs,
        stats.distinct,
        stats.tuples - stats.out_of_bounds,
        stats.fine_histogram,
        -(-runs // len(stats.fine_histogram)) if stats.fine_histogram else 1,
        [("never", runs - stats.distinct), *zip(often, stats.repeats, strict=False)],
    )


def file(path: str, shown: Picture) -> bytes | None:
    """Return a picture as .svg or .png, None for another suffix."""
    if path.endswith(".svg"):
        root = svg(shown)
        root.set("xmlns", "http://www.w3.org/2000/svg")
        root.insert(2, markup.verbatim("style", _STYLE))
        return markup.picture(root)
    return _png(shown) if path.endswith(".png") else None


def svg(shown: Picture) -> Element:
    """Return a picture as an SVG element."""
    height = 64 + TALL + 60 + ROW * len(shown.repeats)
    return element(
        "svg",
        element("title", shown.title, id="picture-title"),
        element("desc", shown.summary, id="picture-desc"),
        *_density(shown),
        *_repeats(shown, 64 + TALL + 40),
        viewBox=f"0 0 {WIDTH} {height}",
        width=WIDTH,
        height=height,
        role="img",
        aria_labelledby="picture-title",
        aria_describedby="picture-desc",
        class_="picture",
    )


def _density(shown: Picture) -> list[Element]:
    most, count = max(shown.density, default=0), len(shown.density)
    top, span = 44, WIDTH - LEFT - RIGHT
    parts = [
        _text(LEFT, 20, shown.title, "title"),
        _text(LEFT - 8, top + 10, str(most), "faint", "end"),
        _text(LEFT - 8, top + TALL, "0", "faint", "end"),
        _text(LEFT, top + TALL + 18, "0", "faint"),
        _text(LEFT + span / 2, top + TALL + 18, shown.unit, "faint", "middle"),
        _text(LEFT + span, top + TALL + 18, str(max(shown.runs - 1, 0)), "faint", "end"),
    ]
    for number, tuples in enumerate(shown.density):
        first, last = number * shown.width, min((number + 1) * shown.width, shown.runs) - 1
        begin, end = (span * edge / count for edge in (number, number + 1))
        if tuples:
            tall = TALL * tuples / most
            label = f"{_through(first, last)}: {tuples} tuples"
            parts.append(_bar(LEFT + begin, top + TALL - tall, end - begin, tall, label))
    parts.append(_rule(LEFT, top + TALL, span))
    return parts


def _repeats(shown: Picture, top: float) -> list[Element]:
    most, wide = max((count for _, count in shown.repeats), default=0) or 1, 120
    span = WIDTH - LEFT - RIGHT - wide - 80
    parts = [_text(LEFT, top, "Slices by how often they are selected", "title")]
    for number, (often, count) in enumerate(shown.repeats):
        y = top + 10 + ROW * number
        bar = _bar(LEFT + wide, y, span * count / most, ROW - 6, f"{often}: {count} slices")
        if often == "never":
            bar.set("class", "never")
        parts += [
            _text(LEFT + wide - 8, y + 14, often, "", "end"),
            bar,
            _text(LEFT + wide + span * count / most + 6, y + 14, str(count), "faint"),
        ]
    return parts


def _through(first: int, last: int) -> str:
    return f"slice {first}" if first == last else f"slices {first}..{last}"


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> Element:
    return element("text", text, x=_short(x), y=_short(y), class_=kind or None, text_anchor=anchor)


def _bar(x: float, y: float, width: float, height: float, label: str) -> Element:
    sizes = dict(
        zip(("x", "y", "width", "height"), map(_short, (x, y, width, height)), strict=True)
    )
    return element("rect", element("title", label), **sizes, class_="bar")


def _rule(x: float, y: float, width: float) -> Element:
    return element(
        "line", x1=_short(x), y1=_short(y), x2=_short(x + width), y2=_short(y), class_="line"
    )


def _short(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


def require(path: str) -> None:
    """Raise UsageError if the package that draws files of this suffix is not installed."""
    try:
        if path.endswith(".png"):
            import_module("matplotlib")
    except ImportError:
        raise UsageError(
            "a .png needs the package matplotlib: expected it, or a .svg or .html",
            hint="pip install 'ndtool[plot]'",
        ) from None


def _png(shown: Picture) -> bytes:
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(8, 6), layout="constrained")
    density, repeats = figure.subplots(2)
    edges = [min(number * shown.width, shown.runs) for number in range(len(shown.density) + 1)]
    density.stairs(shown.density, edges, fill=True)
    density.yaxis.get_major_locator().set_params(integer=True)
    density.set(title=shown.title.replace("$", r"\$"), xlabel=shown.unit, ylabel="index tuples")
    bars = repeats.barh(*zip(*shown.repeats, strict=True))
    repeats.bar_label(bars, padding=3)
    repeats.invert_yaxis()
    repeats.set(title="Slices by how often they are selected", xlabel="slices")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None, "Description": shown.summary})
    return buffer.getvalue()
