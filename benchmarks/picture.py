"""The chart: a bar per case on a ratio axis, ndtool's speed relative to the fastest peer."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, NullLocator

FASTER, SLOWER, MEMCPY, LIMIT = "#2f6f9f", "#b5483a", "#222222", "#d08a1d"


def draw(cases: dict[str, Any], path: Path) -> None:
    """Draw the cases that have a peer, the first at the top."""
    records = {name: record for name, record in reversed(cases.items()) if record["ratio"]}
    if not records:
        return
    heights = range(len(records))
    ratios = [record["ratio"] for record in records.values()]
    memcpy = {
        row: record["ratio"] / record["memcpy_ratio"]
        for row, record in enumerate(records.values())
        if record["memcpy_ratio"]
    }
    limit = {
        row: record["ratio"] / record["limit"]["numpy"]["2"]["share"]
        for row, record in enumerate(records.values())
        if record["limit"]
    }
    figure, axes = plt.subplots(figsize=(8.8, 0.9 + 0.31 * len(records)), dpi=200)
    # On a logarithmic axis bars begin at 1: equal to the fastest peer.
    axes.barh(
        heights,
        [ratio - 1 for ratio in ratios],
        left=1,
        height=0.66,
        color=[FASTER if ratio >= 1 else SLOWER for ratio in ratios],
    )
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=1)
    axes.scatter(
        [*memcpy.values()], [*memcpy], marker="|", s=130, linewidths=2, color=MEMCPY, zorder=4
    )
    axes.scatter([*limit.values()], [*limit], marker="D", s=26, color=LIMIT, zorder=5)
    label_transform = axes.get_yaxis_transform()  # a column of labels, beyond the bars
    for row, (ratio, record) in enumerate(zip(ratios, records.values(), strict=True)):
        weight = "bold" if ratio < 1 else "normal"
        label = f"{ratio:.2f}×  {record['fastest']}"
        axes.text(
            1.02, row, label, transform=label_transform, va="center", fontsize=8.5, weight=weight
        )
    axes.set_yticks(heights, list(records), fontsize=9)
    marks = [*ratios, *memcpy.values(), *limit.values()]
    min_ratio, max_ratio = min(*marks, 0.9), max(*marks, 1)
    axes.set_xlim(min_ratio * 0.93, max_ratio * 1.1)
    ticks = [
        t for t in (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64) if min_ratio * 0.93 <= t <= max_ratio * 1.1
    ]
    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(
        "times as fast as the fastest peer, which the right column names; two threads each\n"
        "|  where a memcpy of the same output bytes would be, ◆  the plainest loop in C, unchecked",
        fontsize=8.5,
    )
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
