"""Comparison of other engines on calls whose results differ: the table of engines.md.

`python docs/engines.py` runs the installed engines with `ndtool verify --against`, and writes the
table; it takes ten minutes.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

PAGE = Path(__file__).with_name("engines.md")
BEGIN, END = "<!-- engines -->\n", "<!-- /engines -->"
ROWS, TUPLES = 1000, 100_000  # rows of data, index tuples


class Case(NamedTuple):
    """A call of an operator. arrays: its inputs. options: those of the command line."""

    description: str
    operator: str
    arrays: tuple[Any, ...]
    options: tuple[str, ...] = ()


def cases() -> list[Case]:
    """Return the calls: gathers, duplicate indices, rounding, NaN, and indices out of bounds."""
    rng = np.random.default_rng(0)
    table, updates = (rng.random((ROWS, 4), np.float32), rng.random((TUPLES, 4), np.float32))
    rows, columns = (rng.integers(0, ROWS, (TUPLES, 1)), rng.integers(0, ROWS, (TUPLES, 4)))
    duplicates = rng.integers(0, TUPLES, (10 * TUPLES, 1))
    counts, ones = np.zeros(TUPLES, np.int32), np.ones(10 * TUPLES, np.int32)
    float16 = np.ones(ROWS, np.float16), rng.random(TUPLES).astype(np.float16)
    nans = table[:, 0].copy(), updates[:, 0].copy()
    nans[1][::100] = np.nan
    out_of_bounds = np.array([[1], [ROWS], [2]])
    add, maximum = ("--reduction", "add"), ("--reduction", "max")
    batched, mean = ("--batch-dims", "1"), ("--reduction", "mean")
    exclusive = (*maximum, "--no-include-self")
    float16_table = table.astype(np.float16), columns, updates.astype(np.float16)
    int32_table = tuple(
        (array * 100).astype(np.int32) if array.dtype.kind == "f" else array
        for array in (table, columns, updates)
    )
    return [
        Case("gather-nd", "gather-nd", (table, rows)),
        Case("gather-nd, negative indices", "gather-nd", (table, rows - ROWS)),
        Case("gather-nd, batch_dims 1", "gather-nd", (table, columns[:ROWS, :1] % 4), batched),
        Case("gather-elements, more indices than rows", "gather-elements", (table, columns)),
        Case("scatter-nd, which of duplicates wins", "scatter-nd", (table, rows, updates)),
        Case("scatter-nd, add int32", "scatter-nd", (counts, duplicates, ones), add),
        Case("scatter-nd, add float32", "scatter-nd", (table, rows, updates), add),
        Case("scatter-nd, add float16", "scatter-nd", (float16[0], rows, float16[1]), add),
        Case(
            "scatter-nd, max where there are NaN", "scatter-nd", (nans[0], rows, nans[1]), maximum
        ),
        Case("scatter-elements, add float32", "scatter-elements", (table, columns, updates), add),
        Case("scatter-elements, mean float32", "scatter-elements", (table, columns, updates), mean),
        Case("scatter-elements, mean float16", "scatter-elements", float16_table, mean),
        Case("scatter-elements, mean int32", "scatter-elements", int32_table, mean),
        Case(
            "scatter-elements, max without current values",
            "scatter-elements",
            int32_table,
            exclusive,
        ),
        Case(
            "scatter, sub float32", "scatter", (table, rows[:, 0], updates), ("--reduction", "sub")
        ),
        Case("gather-nd, an index out of bounds", "gather-nd", (table, out_of_bounds)),
        Case(
            "scatter-nd, an index out of bounds", "scatter-nd", (table, out_of_bounds, updates[:3])
        ),
    ]


def run_engines(case: Case) -> list[dict[str, Any]]:
    """Return the reports of `verify --against` on each engine with each number of threads."""
    with TemporaryDirectory() as folder:
        names = [f"{name}.npy" for name in ("data", "indices", "updates")[: len(case.arrays)]]
        for name, array in zip(names, case.arrays, strict=True):
            np.save(Path(folder, name), array)
        command = [sys.executable, "-m", "ndtool", "verify", case.operator, *names, *case.options]
        command += ["--against", "all", "--json"]
        process = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=False)
    reports: list[dict[str, Any]] = json.loads(process.stdout)["engines"]
    return reports


def summary(report: dict[str, Any]) -> str:
    """Return the entry of the table for an engine's report."""
    result, message = report["result"], report["message"] or ""
    if result == "same":
        return "same"
    if result == "missing" or message.startswith("not offered"):
        return "-"
    if result in ("refused", "crashed"):
        return result
    if report["different"] is None:
        return "answers"
    fraction = f"{report['different']} of {report['total']} elements"
    return f"varies, {fraction}" if result == "unstable" else fraction


def cell(reports: list[dict[str, Any]]) -> str:
    """Return the result of an engine with one thread, and with several if that differs."""
    first, *several_threads = [(report["threads"], summary(report)) for report in reports]
    differing = [
        f"; with {threads} threads {text}" for threads, text in several_threads if text != first[1]
    ]
    return "".join([first[1], *differing])


def table() -> str:
    """Return the table in Markdown, with a row for each case."""
    rows, versions = [], {}
    for case in cases():
        by_engine: dict[str, list[dict[str, Any]]] = {}
        for report in run_engines(case):
            by_engine.setdefault(report["engine"], []).append(report)
            versions[report["engine"]] = report["version"] or versions.get(report["engine"])
        rows.append([case.description, *map(cell, by_engine.values())])
        print(rows[-1])
    header = [
        "",
        *(f"{name} {version.partition('-')[0]}" for name, version in versions.items() if version),
    ]
    lines = [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    before, _, remaining = PAGE.read_text("utf-8").partition(BEGIN)
    after = remaining.partition(END)[2]
    PAGE.write_text(before + BEGIN + table() + END + after, "utf-8")
