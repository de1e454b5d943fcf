"""Results as data and as Markdown: targets, tables, and the documents that include them."""

import json
import math
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import machine
from cases import CONTIGUOUS_ROWS

Results = dict[str, Any]

ROOT = Path(__file__).parents[1]
DOCUMENTS = (ROOT / "docs/performance.md",)

BOLD = "**"  # around a ratio below 1
ALIGNMENT_NAMES = {
    "numpy": "arrays as NumPy allocates them",
    "aligned": "arrays aligned to a cache line",
}
ANSWER_MARKS = {"exact": "", "rounding": " ~", "wrong": " †"}


def summarise(results: Results) -> Results:
    """Return the geometric mean, the worst case, and each target with the value reached."""
    ratios = {name: r["ratio"] for name, r in results["cases"].items() if r["ratio"]}
    summary: Results = {"geomean": None, "worst": None, "limit_geomean": None}
    if ratios:
        worst = min(ratios, key=lambda name: ratios[name])
        summary["geomean"] = _geomean(ratios.values())
        summary["worst"] = {"case": worst, "ratio": ratios[worst]}
        summary["limit_geomean"] = _limit_geomean(results["cases"], ratios)
    summary["shares"] = _shares(results["cases"])
    targets = [*_kernel_targets(results, summary), *_run_targets(results["whole_runs"])]
    wrong = [name for name, record in _verified_records(results) if not record["verified"]]
    title = f"wrong answers of ndtool: {', '.join(wrong) or 'none'}"
    return {**summary, "targets": [*targets, _at_most(title, len(wrong), 0)]}


def _limit_geomean(cases: Results, ratios: dict[str, float]) -> float | None:
    """Return the geometric mean if every kernel were as fast as its limit."""
    shares = {name: cases[name]["limit"].get("numpy", {}).get("2") for name in ratios}
    if not all(shares.values()):
        return None
    return _geomean([ratio / shares[name]["share"] for name, ratio in ratios.items()])


def _shares(cases: Results) -> list[Results]:
    """Return the geometric mean and the worst share of the limit, by alignment and threads."""
    measured: dict[tuple[str, str], dict[str, float]] = {}
    for name, record in cases.items():
        for alignment, by_threads in record["limit"].items():
            for threads, r in by_threads.items():
                measured.setdefault((alignment, threads), {})[name] = r["share"]
    records = []
    for (alignment, threads), shares in measured.items():
        worst = min(shares, key=lambda name: shares[name])
        records.append(
            {
                "place": alignment,
                "threads": threads,
                "geomean": _geomean(shares.values()),
                "worst": {"case": worst, "share": shares[worst]},
            }
        )
    return records


def _geomean(values: Collection[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _kernel_targets(results: Results, summary: Results) -> Iterable[Results]:
    if summary["worst"]:
        limit = summary["limit_geomean"]
        suffix = "" if limit is None else f" (the limit's: {limit:.2f})"
        yield _at_least(
            f"geometric mean relative to the fastest peer{suffix}", summary["geomean"], 2.5
        )
        worst = summary["worst"]
        yield _at_least(f"worst case, {worst['case']}", worst["ratio"], 1.15)
    for share in summary["shares"]:
        conditions, worst = (
            f"{ALIGNMENT_NAMES[share['place']]}, {_format_threads(share['threads'])}",
            share["worst"],
        )
        yield _at_least(f"share of the limit, {conditions}", share["geomean"], 0.95)
        yield _at_least(f"worst share, {conditions}: {worst['case']}", worst["share"], 0.8)
    for name in CONTIGUOUS_ROWS:
        if name in results["cases"]:
            yield _at_least(
                f"{name} relative to memcpy", results["cases"][name]["memcpy_ratio"], 0.9
            )
    ladder = {name: r["ratio"] for name, r in results["ladder"].items() if r["ratio"]}
    if ladder:
        name = min(ladder, key=lambda name: ladder[name])
        yield _at_least(f"other cases relative to numpy, worst: {name}", ladder[name], 1.0)
    for name, ratio in results["threads"].items():
        yield _at_least(f"two threads relative to one, {name}", ratio, 1.7)
    if small := results["small_call"]:
        yield _at_most("small calls, times NumPy's indexing, worst", small["times_numpy"], 1.2)
        if small["of_onnxruntime"]:
            yield _at_most("small call, of onnxruntime", small["of_onnxruntime"], 0.25)


def _run_targets(runs: Results) -> Iterable[Results]:
    for name, run in runs.items():
        if "ratio" in run:
            yield _at_least(name, run["ratio"], run["target"])
        elif "peak_mib" in run:
            yield _at_most(f"{name}, MiB", run["peak_mib"], run["target_mib"])
        elif "growth" in run:
            yield _at_most(name, run["growth"], run["target"])
        else:
            yield _at_least(name, None, 0)


def _verified_records(results: Results) -> Iterable[tuple[str, Results]]:
    for group in ("cases", "ladder", "whole_runs"):
        yield from ((n, r) for n, r in results[group].items() if "verified" in r)
    if results["small_call"]:
        yield "small call", results["small_call"]


def _at_least(name: str, value: float | None, limit: float) -> Results:
    return _target(name, "at least", limit, value, value is not None and value >= limit)


def _at_most(name: str, value: float, limit: float) -> Results:
    return _target(name, "at most", limit, value, value <= limit)


def _target(name: str, rule: str, limit: float, value: float | None, passed: bool) -> Results:
    return {"target": name, "rule": rule, "limit": limit, "reached": value, "passed": passed}


def format_losses(results: Results) -> str:
    """Return a sentence that lists the cases slower than a peer."""
    slower = [
        f"{name} ({record['ratio']:.2f} of {record['fastest']})"
        for group in ("cases", "ladder")
        for name, record in results[group].items()
        if record["ratio"] is not None and record["ratio"] < 1
    ]
    return f"slower than a peer: {', '.join(slower) or 'none'}"


def tables(results: Results) -> dict[str, str]:
    """Return every table by the name of its markers in a document."""
    tables = {
        "machine": machine.format_description(results["machine"])
        + _missing_peers(results["machine"])
    }
    if results["cases"]:
        tables["cases"] = _cases_table(results["cases"])
    if results["summary"]["shares"]:
        tables["shares"] = _shares_table(results["summary"]["shares"])
        tables["limits"] = _limits_table(results["cases"])
    if results["ladder"]:
        tables["ladder"] = _ladder_table(results["ladder"])
    if results["whole_runs"]:
        tables["whole-runs"] = _runs_table(results["whole_runs"])
    tables["targets"] = _targets_table(results["summary"]["targets"])
    return tables


def _missing_peers(machine_record: Results) -> str:
    names = [name for name, number in machine_record["peers"].items() if number is None]
    return f" Not installed: {', '.join(names)}." if names else ""


def _cases_table(cases: Results) -> str:
    names = list(dict.fromkeys(name for record in cases.values() for name in record["peers"]))
    rows = [["case, ms", "ndtool", *names, "ratio", "of memcpy", "of limit"]]
    for case, record in cases.items():
        cells = [_peer_cell(record["peers"].get(name)) for name in names]
        share = record["limit"].get("numpy", {}).get("2")
        ratios = _format_ratio(record["ratio"]), _format_number(record["memcpy_ratio"])
        of_limit = _format_number(share and share["share"])
        rows.append([case, f"{record['ndtool_ms']:.1f}", *cells, *ratios, of_limit])
    notes = (
        "ratio: the fastest peer's time / ndtool's, in the same minutes; a loss is bold. of memcpy:"
        " a two-thread memcpy of the same output bytes / ndtool's time. of limit: the plainest loop"
        " in C without checks / ndtool's time, two threads. ~: the peer's answer is not"
        " rounded as the sequential loop's; †: it is wrong. -: not offered."
    )
    return _markdown(rows) + "\n\n" + notes


def _format_threads(number: str) -> str:
    return "one thread" if number == "1" else "two threads"


def _shares_table(shares: list[Results]) -> str:
    rows = [["share of the limit", "threads", "geometric mean", "worst case"]]
    for s in shares:
        worst = f"{s['worst']['case']} {s['worst']['share']:.2f}"
        rows.append([ALIGNMENT_NAMES[s["place"]], s["threads"], f"{s['geomean']:.2f}", worst])
    return _markdown(rows)


def _limits_table(cases: Results) -> str:
    """Return every case's shares, and the limit with NumPy's alignment, two threads."""
    measured = {name: record["limit"] for name, record in cases.items() if record["limit"]}
    columns = dict.fromkeys(
        (alignment, threads)
        for limit in measured.values()
        for alignment, by_threads in limit.items()
        for threads in by_threads
    )
    headings = [f"{alignment}, {_format_threads(threads)}" for alignment, threads in columns]
    rows = [["case", *headings, "limit, ms", "ndtool, ms", "its check, ms", "the loop"]]
    for name, limit in measured.items():
        shares = [
            _format_number(limit[alignment][threads]["share"]) for alignment, threads in columns
        ]
        record = limit["numpy"]["2"]
        times = [f"{record[key]:.1f}" for key in ("limit_ms", "ndtool_ms", "check_ms")]
        rows.append([name, *shares, *times, record["variant"]])
    notes = (
        "share: the limit's time / ndtool's, called in turn on the same arrays. The times and the"
        " loop are those of arrays as NumPy allocates them and two threads; its check: what reading"
        " all indices before the first byte of out takes of ndtool's time."
    )
    return _markdown(rows) + "\n\n" + notes


def _peer_cell(peer: Results | None) -> str:
    if peer is None or peer["ms"] is None:
        return "-"
    return f"{peer['ms']:.1f}{ANSWER_MARKS[peer['answer']]}"


def _format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _format_ratio(ratio: float | None) -> str:
    is_slower = ratio is not None and ratio < 1
    return f"{BOLD}{ratio:.2f}{BOLD}" if is_slower else _format_number(ratio)


def _ladder_table(ladder: Results) -> str:
    rows = [["case", "ndtool, ms", "numpy, ms", "ratio", "of memcpy"]]
    for case, r in ladder.items():
        ndtool_ms, numpy_ms = f"{r['ndtool_ms']:.2f}", _peer_cell(r["peers"].get("numpy"))
        rows.append(
            [
                case,
                ndtool_ms,
                numpy_ms,
                _format_ratio(r["ratio"]),
                _format_number(r["memcpy_ratio"]),
            ]
        )
    return _markdown(rows)


def _runs_table(runs: Results) -> str:
    rows = [["run", "ndtool", "numpy", "ratio"]]
    for name, run in runs.items():
        if "ratio" in run:
            ndtool_ms, numpy_ms = (f"{run[key] * 1e3:.0f} ms" for key in ("ndtool_s", "numpy_s"))
            rows.append([name, ndtool_ms, numpy_ms, _format_ratio(run["ratio"])])
        elif "peak_mib" in run:
            size = f"{run['peak_mib']:.0f} MiB for {run['output_bytes'] / 2**30:.1f} GiB of output"
            rows.append([name, size, "-", "-"])
        elif "growth" in run:
            times = [f"{int(n) >> 20} MiB: {t * 1e3:.0f} ms" for n, t in run["seconds"].items()]
            rows.append([name, "; ".join(times), "-", "-"])
        else:
            rows.append([name, run["reason"].replace("\n", " "), "-", "-"])
    return _markdown(rows)


def _targets_table(targets: list[Results]) -> str:
    rows = [["target", "", "reached", ""]]
    for t in targets:
        value = "not measured" if t["reached"] is None else f"{t['reached']:.3g}"
        rule = f"{t['rule']} {t['limit']:g}"
        rows.append([t["target"], rule, value, "passed" if t["passed"] else "**missed**"])
    return _markdown(rows)


def _markdown(rows: list[list[str]]) -> str:
    head, *body = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])


def begin_marker(name: str) -> str:
    return f"<!-- bench:{name} -->\n"


def end_marker(name: str) -> str:
    return f"<!-- /bench:{name} -->"


def replace_tables(text: str, tables: dict[str, str]) -> str:
    """Insert each table between its markers, in documents that have them."""
    for name, table in tables.items():
        head, begin, remaining = text.partition(begin_marker(name))
        _, end, tail = remaining.partition(end_marker(name))
        if begin and end:
            text = head + begin + table + "\n" + end + tail
    return text


def write(results: Results, folder: Path, recorded: bool) -> None:
    """Write results.json and the picture; the tables of documents only from a recorded run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    if results["cases"]:
        try:
            import picture
        except ImportError as error:
            print(f"no picture: {error.name} is not installed")
        else:
            picture.draw(results["cases"], folder / "results.png")
    if recorded:
        filled = tables(results)
        for document in DOCUMENTS:
            if document.exists():
                document.write_text(replace_tables(document.read_text(), filled))
