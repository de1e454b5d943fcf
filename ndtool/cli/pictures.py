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
from ndtool.errors import UsageError, argument_name
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
        counts = ", ".join(f"{frequency} {count}" for frequency, count in self.repeats)
        return (
            f"{self.tuples} index tuples select {self.named} of {self.runs} slices of data."
            f" Slices by how often they are selected: {counts}."
        )


def picture(call: OpenCall, stats: Stats) -> Picture:
    """Return the picture of a call's statistics."""
    runs, name = prod(stats.slice_grid), argument_name(call.inference.inputs["data"].name)
    frequency = ["once", "2 times"] + [
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
        [("never", runs - stats.distinct), *zip(frequency, stats.repeats, strict=False)],
    )


def file(path: str, contents: Picture) -> bytes | None:
    """Return a picture as .svg or .png, None for another suffix."""
    if path.endswith(".svg"):
        root = svg(contents)
        root.set("xmlns", "http://www.w3.org/2000/svg")
        root.insert(2, markup.verbatim("style", _STYLE))
        return markup.picture(root)
    return _png(contents) if path.endswith(".png") else None


def svg(contents: Picture) -> Element:
    """Return a picture as an SVG element."""
    height = 64 + TALL + 60 + ROW * len(contents.repeats)
    return element(
        "svg",
        element("title", contents.title, id="picture-title"),
        element("desc", contents.summary, id="picture-desc"),
        *_density(contents),
        *_repeats(contents, 64 + TALL + 40),
        viewBox=f"0 0 {WIDTH} {height}",
        width=WIDTH,
        height=height,
        role="img",
        aria_labelledby="picture-title",
        aria_describedby="picture-desc",
        class_="picture",
    )


def _density(contents: Picture) -> list[Element]:
    largest, count = max(contents.density, default=0), len(contents.density)
    top, span = 44, WIDTH - LEFT - RIGHT
    parts = [
        _text(LEFT, 20, contents.title, "title"),
        _text(LEFT - 8, top + 10, str(largest), "faint", "end"),
        _text(LEFT - 8, top + TALL, "0", "faint", "end"),
        _text(LEFT, top + TALL + 18, "0", "faint"),
        _text(LEFT + span / 2, top + TALL + 18, contents.unit, "faint", "middle"),
        _text(LEFT + span, top + TALL + 18, str(max(contents.runs - 1, 0)), "faint", "end"),
    ]
    for number, tuples in enumerate(contents.density):
        first, last = number * contents.width, min((number + 1) * contents.width, contents.runs) - 1
        begin, end = (span * edge / count for edge in (number, number + 1))
        if tuples:
            bar_height = TALL * tuples / largest
            label = f"{_through(first, last)}: {tuples} tuples"
            parts.append(
                _bar(LEFT + begin, top + TALL - bar_height, end - begin, bar_height, label)
            )
    base = _short(top + TALL)
    parts.append(element("line", x1=LEFT, y1=base, x2=LEFT + span, y2=base, class_="line"))
    return parts


def _repeats(contents: Picture, top: float) -> list[Element]:
    largest, label_width = max((count for _, count in contents.repeats), default=0) or 1, 120
    span = WIDTH - LEFT - RIGHT - label_width - 80
    parts = [_text(LEFT, top, "Slices by how often they are selected", "title")]
    for number, (frequency, count) in enumerate(contents.repeats):
        y = top + 10 + ROW * number
        bar = _bar(
            LEFT + label_width, y, span * count / largest, ROW - 6, f"{frequency}: {count} slices"
        )
        if frequency == "never":
            bar.set("class", "never")
        parts += [
            _text(LEFT + label_width - 8, y + 14, frequency, "", "end"),
            bar,
            _text(LEFT + label_width + span * count / largest + 6, y + 14, str(count), "faint"),
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


def _png(contents: Picture) -> bytes:
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(8, 6), layout="constrained")
    density, repeats = figure.subplots(2)
    edges = [
        min(number * contents.width, contents.runs) for number in range(len(contents.density) + 1)
    ]
    density.stairs(contents.density, edges, fill=True)
    density.yaxis.get_major_locator().set_params(integer=True)
    density.set(
        title=contents.title.replace("$", r"\$"), xlabel=contents.unit, ylabel="index tuples"
    )
    bars = repeats.barh(*zip(*contents.repeats, strict=True))
    repeats.bar_label(bars, padding=3)
    repeats.invert_yaxis()
    repeats.set(title="Slices by how often they are selected", xlabel="slices")
    buffer = io.BytesIO()
    figure.savefig(
        buffer, format="png", metadata={"Software": None, "Description": contents.summary}
    )
    return buffer.getvalue()
