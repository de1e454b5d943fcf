"""Plots of statistics, as SVG or PNG: which slices indices select, and how often."""

from __future__ import annotations

import io
from importlib import import_module
from math import prod
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element

from ndtool.analysis.stats import Stats
from ndtool.cli.html import markup
from ndtool.cli.html.markup import element
from ndtool.errors import UsageError, format_count

WIDTH, LEFT_MARGIN, RIGHT_MARGIN = 720, 70, 60  # of the picture, and of its margins
HISTOGRAM_HEIGHT, ROW_HEIGHT = 130, 24  # heights of the histogram, and of a row of the bar chart
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

    slices, selected, tuples: the numbers of slices, of selected slices and of index tuples.
    density: the histogram, numbers of tuples by bins of `bin_size` slices. frequencies: numbers of
    slices by how often they are selected.
    """

    title: str
    unit: str
    slices: int
    selected: int
    tuples: int
    density: list[int]
    bin_size: int
    frequencies: list[tuple[str, int]]

    @property
    def summary(self) -> str:
        """The alternative text of the picture, two sentences."""
        counts = ", ".join(f"{frequency} {count}" for frequency, count in self.frequencies)
        return (
            f"{self.tuples} index tuples select {self.selected} of {self.slices} slices of data."
            f" Slices by how often they are selected: {counts}."
        )


def picture(stats: Stats) -> Picture:
    """Return the contents of the picture of statistics."""
    slice_count = prod(stats.slices)
    frequency_labels = ["once", "2 times"] + [
        f"{2 ** (power - 1) + 1}..{2**power} times" for power in range(2, 64)
    ]
    return Picture(
        f"Slices of {stats.data} that the indices of {stats.operator} select",
        "slices of data, in row-major order",
        slice_count,
        stats.distinct,
        stats.tuples - stats.out_of_bounds,
        list(stats.density),
        -(-slice_count // len(stats.density)) if stats.density else 1,
        [
            ("never", slice_count - stats.distinct),
            *zip(frequency_labels, stats.repetitions, strict=False),
        ],
    )


def picture_bytes(path: str, contents: Picture) -> bytes | None:
    """Return a picture as the bytes of a .svg or .png, None for another suffix."""
    if path.endswith(".svg"):
        root = svg(contents)
        root.set("xmlns", "http://www.w3.org/2000/svg")
        root.insert(2, markup.unescaped_element("style", _STYLE))
        return markup.svg_document(root)
    return _png(contents) if path.endswith(".png") else None


def svg(contents: Picture) -> Element:
    """Return a picture as an SVG element."""
    height = 64 + HISTOGRAM_HEIGHT + 60 + ROW_HEIGHT * len(contents.frequencies)
    return element(
        "svg",
        element("title", contents.title, id="picture-title"),
        element("desc", contents.summary, id="picture-desc"),
        *_draw_histogram(contents),
        *_draw_bar_chart(contents, 64 + HISTOGRAM_HEIGHT + 40),
        viewBox=f"0 0 {WIDTH} {height}",
        width=WIDTH,
        height=height,
        role="img",
        aria_labelledby="picture-title",
        aria_describedby="picture-desc",
        class_="picture",
    )


def _draw_histogram(contents: Picture) -> list[Element]:
    largest, count = max(contents.density, default=0), len(contents.density)
    top, plot_width = 44, WIDTH - LEFT_MARGIN - RIGHT_MARGIN
    elements = [
        _text(LEFT_MARGIN, 20, contents.title, "title"),
        _text(LEFT_MARGIN - 8, top + 10, str(largest), "faint", "end"),
        _text(LEFT_MARGIN - 8, top + HISTOGRAM_HEIGHT, "0", "faint", "end"),
        _text(LEFT_MARGIN, top + HISTOGRAM_HEIGHT + 18, "0", "faint"),
        _text(
            LEFT_MARGIN + plot_width / 2,
            top + HISTOGRAM_HEIGHT + 18,
            contents.unit,
            "faint",
            "middle",
        ),
        _text(
            LEFT_MARGIN + plot_width,
            top + HISTOGRAM_HEIGHT + 18,
            str(max(contents.slices - 1, 0)),
            "faint",
            "end",
        ),
    ]
    for bin_index, tuples in enumerate(contents.density):
        first, last = (
            bin_index * contents.bin_size,
            min((bin_index + 1) * contents.bin_size, contents.slices) - 1,
        )
        left_edge, right_edge = (plot_width * edge / count for edge in (bin_index, bin_index + 1))
        if tuples:
            bar_height = HISTOGRAM_HEIGHT * tuples / largest
            label = f"{_slice_range(first, last)}: {format_count(tuples, 'tuple')}"
            elements.append(
                _bar(
                    LEFT_MARGIN + left_edge,
                    top + HISTOGRAM_HEIGHT - bar_height,
                    right_edge - left_edge,
                    bar_height,
                    label,
                )
            )
    baseline = _format_coordinate(top + HISTOGRAM_HEIGHT)
    elements.append(
        element(
            "line",
            x1=LEFT_MARGIN,
            y1=baseline,
            x2=LEFT_MARGIN + plot_width,
            y2=baseline,
            class_="line",
        )
    )
    return elements


def _draw_bar_chart(contents: Picture, top: float) -> list[Element]:
    largest, label_width = max((count for _, count in contents.frequencies), default=0) or 1, 120
    plot_width = WIDTH - LEFT_MARGIN - RIGHT_MARGIN - label_width - 80
    elements = [_text(LEFT_MARGIN, top, "Slices by how often they are selected", "title")]
    for row, (frequency, count) in enumerate(contents.frequencies):
        y = top + 10 + ROW_HEIGHT * row
        bar = _bar(
            LEFT_MARGIN + label_width,
            y,
            plot_width * count / largest,
            ROW_HEIGHT - 6,
            f"{frequency}: {format_count(count, 'slice')}",
        )
        if frequency == "never":
            bar.set("class", "never")
        elements += [
            _text(LEFT_MARGIN + label_width - 8, y + 14, frequency, "", "end"),
            bar,
            _text(
                LEFT_MARGIN + label_width + plot_width * count / largest + 6,
                y + 14,
                str(count),
                "faint",
            ),
        ]
    return elements


def _slice_range(first: int, last: int) -> str:
    return f"slice {first}" if first == last else f"slices {first}..{last}"


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> Element:
    return element(
        "text",
        text,
        x=_format_coordinate(x),
        y=_format_coordinate(y),
        class_=kind or None,
        text_anchor=anchor,
    )


def _bar(x: float, y: float, width: float, height: float, label: str) -> Element:
    sizes = dict(
        zip(
            ("x", "y", "width", "height"),
            map(_format_coordinate, (x, y, width, height)),
            strict=True,
        )
    )
    return element("rect", element("title", label), **sizes, class_="bar")


def _format_coordinate(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


def require_package(path: str) -> None:
    """Raise UsageError for a .png if matplotlib is not installed."""
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
    density_axes, frequency_axes = figure.subplots(2)
    edges = [
        min(number * contents.bin_size, contents.slices)
        for number in range(len(contents.density) + 1)
    ]
    density_axes.stairs(contents.density, edges, fill=True)
    density_axes.yaxis.get_major_locator().set_params(integer=True)
    density_axes.set(
        title=contents.title.replace("$", r"\$"), xlabel=contents.unit, ylabel="index tuples"
    )
    bars = frequency_axes.barh(*zip(*contents.frequencies, strict=True))
    frequency_axes.bar_label(bars, padding=3)
    frequency_axes.invert_yaxis()
    frequency_axes.set(title="Slices by how often they are selected", xlabel="slices")
    buffer = io.BytesIO()
    figure.savefig(
        buffer, format="png", metadata={"Software": None, "Description": contents.summary}
    )
    return buffer.getvalue()
