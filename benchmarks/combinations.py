"""Combinations of updates, compared with the plain ones: sub, mean and others with add.

Each line is the time of a call relative to that of the same call with `add` (for duplicates, with
`none`), in place, alternately. `scatter` is relative to scatter_nd with tuples of one component.
"""

from typing import Any

import problems
from cases import CASES, Case, scatter_nd
from timing import alternate

import ndtool

# The options of a combination, and those of the call that it is compared with.
COMBINATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sub": ({"reduction": "sub"}, {"reduction": "add"}),
    "add, no current values": ({"reduction": "add", "include_self": False}, {"reduction": "add"}),
    "mean": ({"reduction": "mean"}, {"reduction": "add"}),
    "mean, no current values": ({"reduction": "mean", "include_self": False}, {"reduction": "add"}),
    "duplicates first": ({"duplicates": "first"}, {}),
    "duplicates error": ({"duplicates": "error"}, {}),
}
# Like scatter-none-rows: the only one of the cases without duplicates.
DISTINCT = (scatter_nd("scatter-none-scalars", (2**24,), (2**23, 1), "none", pattern="distinct"),)


def run(repeats: int) -> int:
    """Print the table of ratios as Markdown."""
    print(f"| case | {' | '.join(COMBINATIONS)} | scatter |")
    print(f"|---|{'---|' * (len(COMBINATIONS) + 1)}", flush=True)
    for case in [one for one in CASES if one.scatters] + [*DISTINCT]:
        cells = [cell(case, *options, repeats) for options in COMBINATIONS.values()]
        cells.append(by_plain_indices(case, repeats))
        print(f"| {case.name} | {' | '.join(cells)} |", flush=True)
    return 0


def cell(case: Case, ours: dict[str, Any], theirs: dict[str, Any], repeats: int) -> str:
    """Return the ratio of two calls, or "-" if the indices have duplicates that are refused."""
    if ours.get("duplicates") == "error" and case.pattern != "distinct":
        return "-"
    problem = problems.make(case)
    operator, out = getattr(ndtool, case.operator), problem.data.copy()
    given: dict[str, Any] = {"out": out} if case.nd else {"out": out, "axis": case.attribute}
    arrays = problem.data, problem.indices, problem.updates
    pair = alternate(
        lambda: operator(*arrays, **given, **ours),
        lambda: operator(*arrays, **given, **theirs),
        repeats,
    )
    return f"{pair.ours / pair.theirs:.2f}"


def by_plain_indices(case: Case, repeats: int) -> str:
    """Return the ratio of scatter to scatter_nd, for tuples of one component."""
    if not case.nd or case.k != 1:
        return "-"
    problem = problems.make(case)
    out, data, indices, updates = problem.data.copy(), *problem[1:]
    options: dict[str, Any] = {"reduction": case.reduction, "out": out}
    pair = alternate(
        lambda: ndtool.scatter(data, indices[:, 0], updates, **options),
        lambda: ndtool.scatter_nd(data, indices, updates, **options),
        repeats,
    )
    return f"{pair.ours / pair.theirs:.2f}"
