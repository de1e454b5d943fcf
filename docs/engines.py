"""Results of other engines on distinguishing calls: the table of engines.md.

`python docs/engines.py` runs the installed ones, by `ndtool verify --against`, and writes the
table, in ten minutes.
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
SLOTS, MANY = 1000, 100_000


class Case(NamedTuple):
    """A call. what: its description. arrays: its inputs. flags: its command-line options."""

    what: str
    operator: str
    arrays: tuple[Any, ...]
    flags: tuple[str, ...] = ()


def cases() -> list[Case]:
    """Return the calls: plain ones, duplicates, rounding, NaN, and invalid ones."""
    rng = np.random.default_rng(0)
    table, updates = rng.random((SLOTS, 4), np.float32), rng.random((MANY, 4), np.float32)
    rows, columns = rng.integers(0, SLOTS, (MANY, 1)), rng.integers(0, SLOTS, (MANY, 4))
    often = rng.integers(0, MANY, (10 * MANY, 1))
    counts, ones = np.zeros(MANY, np.int32), np.ones(10 * MANY, np.int32)
    halves = np.ones(SLOTS, np.float16), rng.random(MANY).astype(np.float16)
    line = table[:, 0].copy(), updates[:, 0].copy()
    line[1][::100] = np.nan
    far = np.array([[1], [SLOTS], [2]])
    add, largest = ("--reduction", "add"), ("--reduction", "max")
    batched, mean = ("--batch-dims", "1"), ("--reduction", "mean")
    without = (*largest, "--no-include-self")
    small = table.astype(np.float16), columns, updates.astype(np.float16)
    whole = tuple(
        (one * 100).astype(np.int32) if one.dtype.kind == "f" else one
        for one in (table, columns, updates)
    )
    return [
        Case("gather-nd", "gather-nd", (table, rows)),
        Case("gather-nd, negative indices", "gather-nd", (table, rows - SLOTS)),
        Case("gather-nd, batch_dims 1", "gather-nd", (table, columns[:SLOTS, :1] % 4), batched),
        Case("gather-elements, more indices than rows", "gather-elements", (table, columns)),
        Case("scatter-nd, which of duplicates wins", "scatter-nd", (table, rows, updates)),
        Case("scatter-nd, add int32", "scatter-nd", (counts, often, ones), add),
        Case("scatter-nd, add float32", "scatter-nd", (table, rows, updates), add),
        Case("scatter-nd, add float16", "scatter-nd", (halves[0], rows, halves[1]), add),
        Case(
            "scatter-nd, max where there are NaN", "scatter-nd", (line[0], rows, line[1]), largest
        ),
        Case("scatter-elements, add float32", "scatter-elements", (table, columns, updates), add),
        Case("scatter-elements, mean float32", "scatter-elements", (table, columns, updates), mean),
        Case("scatter-elements, mean float16", "scatter-elements", small, mean),
        Case("scatter-elements, mean int32", "scatter-elements", whole, mean),
        Case("scatter-elements, max without current values", "scatter-elements", whole, without),
        Case(
            "scatter, sub float32", "scatter", (table, rows[:, 0], updates), ("--reduction", "sub")
        ),
        Case("gather-nd, an index out of bounds", "gather-nd", (table, far)),
        Case("scatter-nd, an index out of bounds", "scatter-nd", (table, far, updates[:3])),
    ]


def run_engines(case: Case) -> list[dict[str, Any]]:
    """Return the report of `verify --against` on each engine, by its number of threads."""
    with TemporaryDirectory() as folder:
        names = [f"{name}.npy" for name in ("data", "indices", "updates")[: len(case.arrays)]]
        for name, array in zip(names, case.arrays, strict=True):
            np.save(Path(folder, name), array)
        command = [sys.executable, "-m", "ndtool", "verify", case.operator, *names, *case.flags]
        command += ["--against", "all", "--json"]
        ran = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=False)
    reports: list[dict[str, Any]] = json.loads(ran.stdout)["engines"]
    return reports


def summary(report: dict[str, Any]) -> str:
    """Summarize an engine's report in a few words."""
    result, message = report["result"], report["message"] or ""
    if result == "same":
        return "same"
    if result == "missing" or message.startswith("not offered"):
        return "-"
    if result in ("refused", "crashed"):
        return result
    if report["different"] is None:
        return "answers"
    share = f"{report['different']} of {report['total']} elements"
    return f"varies, {share}" if result == "unstable" else share


def cell(reports: list[dict[str, Any]]) -> str:
    """Summarize an engine's reports, with one thread and with more if these differ."""
    first, *others = [(report["threads"], summary(report)) for report in reports]
    differing = [
        f"; with {threads} threads {words}" for threads, words in others if words != first[1]
    ]
    return "".join([first[1], *differing])


def table() -> str:
    """Return the table, a row for each case."""
    rows, versions = [], {}
    for case in cases():
        by_engine: dict[str, list[dict[str, Any]]] = {}
        for report in run_engines(case):
            by_engine.setdefault(report["engine"], []).append(report)
            versions[report["engine"]] = report["version"] or versions.get(report["engine"])
        rows.append([case.what, *map(cell, by_engine.values())])
        print(rows[-1])
    heads = [
        "",
        *(f"{name} {number.partition('-')[0]}" for name, number in versions.items() if number),
    ]
    lines = [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(before + BEGIN + table() + END + after, "utf-8")
