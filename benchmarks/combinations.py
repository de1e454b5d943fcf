"""Combinations of updates, compared with the plain ones: sub, mean and others with add.

Each line is the time of a call relative to that of the same call with `add` (for duplicates, with
`none`), in place, alternately. `scatter` is relative to scatter_nd with tuples of one component.
"""

from typing import Any

import problems
from cases import CASES, Case, scatter_nd
from timing import alternate

import ndtool

# Options of a call, and those of the call that it is compared with.
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
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
    print(f"| case | {' | '.join(VARIANTS)} | scatter |")
    print(f"|---|{'---|' * (len(VARIANTS) + 1)}", flush=True)
    for case in [case for case in CASES if case.is_scatter] + [*DISTINCT]:
        cells = [compare_combination(case, *options, repeats) for options in VARIANTS.values()]
        cells.append(compare_scatter(case, repeats))
        print(f"| {case.name} | {' | '.join(cells)} |", flush=True)
    return 0


def compare_combination(
    case: Case, options: dict[str, Any], plain_options: dict[str, Any], repeats: int
) -> str:
    """Return the ratio of two calls, or "-" if the indices have duplicates that are refused."""
    if options.get("duplicates") == "error" and case.pattern != "distinct":
        return "-"
    problem = problems.generate(case)
    operator, out = getattr(ndtool, case.operator), problem.data.copy()
    attributes: dict[str, Any] = (
        {"out": out} if case.has_tuples else {"out": out, "axis": case.attribute}
    )
    arrays = problem.data, problem.indices, problem.updates
    times = alternate(
        lambda: operator(*arrays, **attributes, **options),
        lambda: operator(*arrays, **attributes, **plain_options),
        repeats,
    )
    return f"{times.first / times.second:.2f}"


def compare_scatter(case: Case, repeats: int) -> str:
    """Return the ratio of scatter to scatter_nd, for tuples of one component."""
    if not case.has_tuples or case.k != 1:
        return "-"
    problem = problems.generate(case)
    out, data, indices, updates = problem.data.copy(), *problem[1:]
    options: dict[str, Any] = {"reduction": case.reduction, "out": out}
    times = alternate(
        lambda: ndtool.scatter(data, indices[:, 0], updates, **options),
        lambda: ndtool.scatter_nd(data, indices, updates, **options),
        repeats,
    )
    return f"{times.first / times.second:.2f}"
