"""Results as data and as Markdown: the machine, the targets, and the tables of a document."""

import json
import os
import platform
import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from cases import CONTIGUOUS_ROWS

Results = dict[str, Any]

DOCUMENT = Path(__file__).parents[1] / "docs/performance.md"
ALIGNMENT_NAMES = {
    "numpy": "arrays as NumPy allocates them",
    "aligned": "arrays aligned to a cache line",
}
THREAD_NAMES = {"1": "one thread", "2": "two threads"}
ANSWER_MARKS = {"exact": "", "rounding": " ~", "wrong": " †"}
CASES_NOTE = (
    "ratio: the fastest peer's time / ndtool's, in the same minutes; a loss is bold. of memcpy:"
    " a two-thread memcpy of the same output bytes / ndtool's time. of limit: the plainest loop"
    " in C without checks / ndtool's time, two threads. ~: the peer's answer is not"
    " rounded as the sequential loop's; †: it is wrong. -: not offered."
)
LIMITS_NOTE = (
    "share: the limit's time / ndtool's, called in turn on the same arrays. The times and the"
    " loop are those of arrays as NumPy allocates them and two threads."
)


def describe_machine(peers: Iterable[str]) -> str:
    """Return the facts needed to compare results."""
    caches = []
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (
            (folder / name).read_text().strip() for name in ("level", "type", "size")
        )
        if kind != "Instruction":
            caches.append(f"L{level}{'d' if kind == 'Data' else ''} {size}")
    try:
        compiler = subprocess.check_output(["cc", "--version"], text=True).splitlines()[0]
    except (OSError, subprocess.CalledProcessError):
        compiler = "no compiler"
    versions = {name: _version(name) for name in peers}
    missing = [name for name, number in versions.items() if number is None]
    return (
        f"{processor().partition(': ')[0]}, {os.cpu_count()} CPUs ({', '.join(caches)}),"
        f" {memory_size() / 2**30:.0f} GiB, {platform.system()} {platform.release()},"
        f" Python {platform.python_version()}, {compiler}."
        f" {', '.join(f'{name} {number}' for name, number in versions.items() if number)}."
        + (f" Not installed: {', '.join(missing)}." if missing else "")
    )


def processor() -> str:
    """Return a processor's name and, if the system reports them, its features."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    fields = {key.strip(): value.strip() for key, _, value in (x.partition(":") for x in lines)}
    return f"{fields.get('model name') or platform.processor()}: {fields.get('flags', '')}"


def memory_size() -> int:
    """Return the bytes of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _version(package: str) -> str | None:
    for name in (package, f"{package}-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            pass
    return None


def shares(cases: Results) -> dict[tuple[str, str], dict[str, float]]:
    """Return each case's share of the limit, by alignment and number of threads."""
    result: dict[tuple[str, str], dict[str, float]] = {}
    for name, record in cases.items():
        for alignment, by_threads in record["limit"].items():
            for threads, r in by_threads.items():
                result.setdefault((alignment, threads), {})[name] = r["limit_ms"] / r["ndtool_ms"]
    return result


def _lowest(values: dict[str, float]) -> tuple[str, float]:
    return min(values.items(), key=lambda item: item[1])


Target = tuple[str, str, float, float | None]  # its name, "at least" or "at most", limit, reached


def targets(results: Results) -> Iterable[Target]:
    """Yield each target with the value reached, None if it was not measured."""
    cases = results["cases"]
    by_conditions = shares(cases)
    if ratios := {name: r["ratio"] for name, r in cases.items() if r["ratio"]}:
        title = "geometric mean relative to the fastest peer"
        if by_conditions.get(("numpy", "2"), {}).keys() >= ratios.keys():
            # the mean if every kernel were as fast as its limit
            limits = {name: cases[name]["limit"]["numpy"]["2"]["limit_ms"] for name in ratios}
            limit = geometric_mean(
                [ratio * cases[name]["ndtool_ms"] / limits[name] for name, ratio in ratios.items()]
            )
            title += f" (the limit's: {limit:.2f})"
        yield title, "at least", 2.5, geometric_mean(ratios.values())
        worst, ratio = _lowest(ratios)
        yield f"worst case, {worst}", "at least", 1.15, ratio
    for (alignment, threads), values in by_conditions.items():
        conditions, (worst, share) = (
            f"{ALIGNMENT_NAMES[alignment]}, {THREAD_NAMES[threads]}",
            _lowest(values),
        )
        yield f"share of the limit, {conditions}", "at least", 0.95, geometric_mean(values.values())
        yield f"worst share, {conditions}: {worst}", "at least", 0.8, share
    for name in CONTIGUOUS_ROWS:
        if name in cases:
            yield f"{name} relative to memcpy", "at least", 0.9, cases[name]["memcpy_ratio"]
    if ladder := {name: r["ratio"] for name, r in results["ladder"].items() if r["ratio"]}:
        worst, ratio = _lowest(ladder)
        yield f"other cases relative to numpy, worst: {worst}", "at least", 1.0, ratio
    for name, ratio in results["threads"].items():
        yield f"two threads relative to one, {name}", "at least", 1.7, ratio
    if small := results["small_call"]:
        worst_ratio = small["times_numpy"]
        yield "small calls, times NumPy's indexing, worst", "at most", 1.2, worst_ratio
    for name, run in results["whole_runs"].items():
        if "ratio" in run:
            yield name, "at least", run["target"], run["ratio"]
        elif "peak_mib" in run:
            yield f"{name}, MiB", "at most", run["target_mib"], run["peak_mib"]
        elif "growth" in run:
            yield name, "at most", run["target"], run["growth"]
        else:
            yield name, "at least", 0, None
    records = {**results["cases"], **results["ladder"], **results["whole_runs"]}
    wrong = [name for name, record in records.items() if not record.get("verified", True)]
    yield f"wrong answers of ndtool: {', '.join(wrong) or 'none'}", "at most", 0, len(wrong)


def tables(results: Results) -> dict[str, str]:
    """Return every table by the name of its markers in a document."""
    cases, by_conditions = results["cases"], shares(results["cases"])
    tables = {"machine": results["machine"]}
    if cases:
        tables["cases"] = f"{_cases_table(cases)}\n\n{CASES_NOTE}"
    if by_conditions:
        rows = [["share of the limit", "threads", "geometric mean", "worst case"]]
        for (alignment, threads), values in by_conditions.items():
            worst = "{} {:.2f}".format(*_lowest(values))
            mean = f"{geometric_mean(values.values()):.2f}"
            rows.append([ALIGNMENT_NAMES[alignment], threads, mean, worst])
        tables["shares"] = _markdown(rows)
        tables["limits"] = f"{_limits_table(cases, by_conditions)}\n\n{LIMITS_NOTE}"
    if results["ladder"]:
        rows = [["case", "ndtool, ms", "numpy, ms", "ratio", "of memcpy"]]
        for name, r in results["ladder"].items():
            own, numpy = f"{r['ndtool_ms']:.2f}", _peer_cell(r["peers"].get("numpy"))
            rows.append([name, own, numpy, _ratio(r["ratio"]), _number(r["memcpy_ratio"])])
        tables["ladder"] = _markdown(rows)
    if results["whole_runs"]:
        rows = [["run", "ndtool", "numpy", "ratio"]]
        rows += [[name, *_run_cells(run)] for name, run in results["whole_runs"].items()]
        tables["whole-runs"] = _markdown(rows)
    rows = [["target", "", "reached", ""]]
    for name, rule, limit, reached in targets(results):
        value = "not measured" if reached is None else f"{reached:.3g}"
        passed = reached is not None and (reached >= limit if "least" in rule else reached <= limit)
        rows.append([name, f"{rule} {limit:g}", value, "passed" if passed else "**missed**"])
    return tables | {"targets": _markdown(rows)}


def _cases_table(cases: Results) -> str:
    names = list(dict.fromkeys(name for record in cases.values() for name in record["peers"]))
    rows = [["case, ms", "ndtool", *names, "ratio", "of memcpy", "of limit"]]
    of_limit = shares(cases).get(("numpy", "2"), {})
    for case, record in cases.items():
        cells = [_peer_cell(record["peers"].get(name)) for name in names]
        ratios = [_ratio(record["ratio"]), _number(record["memcpy_ratio"])]
        cells += [*ratios, _number(of_limit.get(case))]
        rows.append([case, f"{record['ndtool_ms']:.1f}", *cells])
    return _markdown(rows)


def _limits_table(cases: Results, by_conditions: dict[tuple[str, str], dict[str, float]]) -> str:
    """Return every case's shares, and the limit with NumPy's alignment, two threads."""
    headings = [f"{alignment}, {THREAD_NAMES[threads]}" for alignment, threads in by_conditions]
    rows = [["case", *headings, "limit, ms", "ndtool, ms", "the loop"]]
    for name, record in cases.items():
        if not record["limit"]:
            continue
        cells = [_number(values.get(name)) for values in by_conditions.values()]
        limit = record["limit"]["numpy"]["2"]
        times = [f"{limit[key]:.1f}" for key in ("limit_ms", "ndtool_ms")]
        rows.append([name, *cells, *times, limit["variant"]])
    return _markdown(rows)


def _run_cells(run: Results) -> list[str]:
    if "ratio" in run:
        times = [f"{run[key] * 1e3:.0f} ms" for key in ("ndtool_s", "numpy_s")]
        return [*times, _ratio(run["ratio"])]
    if "peak_mib" in run:
        size = f"{run['peak_mib']:.0f} MiB for {run['output_bytes'] / 2**30:.1f} GiB of output"
    elif "growth" in run:
        times = [f"{int(n) >> 20} MiB: {t * 1e3:.0f} ms" for n, t in run["seconds"].items()]
        size = "; ".join(times)
    else:
        size = run["reason"].replace("\n", " ")
    return [size, "-", "-"]


def _peer_cell(peer: Results | None) -> str:
    if peer is None or "reason" in peer:
        return "-"
    return f"{peer['ms']:.1f}{ANSWER_MARKS[peer['answer']]}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _ratio(ratio: float | None) -> str:
    is_slower = ratio is not None and ratio < 1
    return f"**{ratio:.2f}**" if is_slower else _number(ratio)


def _markdown(rows: list[list[str]]) -> str:
    head, *body = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])


def format_losses(results: Results) -> str:
    """Return a sentence that lists the cases slower than a peer."""
    records = {**results["ladder"], **results["cases"]}
    slower = [
        f"{name} ({record['ratio']:.2f} of {record['fastest']})"
        for name, record in records.items()
        if (record["ratio"] or 1) < 1
    ]
    return f"slower than a peer: {', '.join(slower) or 'none'}"


def replace_tables(text: str, tables: dict[str, str]) -> str:
    """Insert each table between its markers, where the text has them."""
    for name, table in tables.items():
        head, begin, remaining = text.partition(f"<!-- bench:{name} -->\n")
        _, end, tail = remaining.partition(f"<!-- /bench:{name} -->")
        if begin and end:
            text = head + begin + table + "\n" + end + tail
    return text


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [*map(_rounded, value)] if isinstance(value, list | tuple) else value


def to_json(results: Results) -> str:
    """Return the results with a line for each case."""
    groups = []
    for name, group in _rounded(results).items():
        text = json.dumps(group)
        if isinstance(group, dict):
            lines = [f"  {json.dumps(key)}: {json.dumps(item)}" for key, item in group.items()]
            text = "{\n" + ",\n".join(lines) + "\n }"
        groups.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(groups) + "\n}\n"


def write(results: Results, folder: Path, recorded: bool) -> None:
    """Write results.json; the tables of the document only from a recorded run."""
    folder.mkdir(parents=True, exist_ok=True)
    text = to_json(results)
    (folder / "results.json").write_text(text)
    if recorded:
        DOCUMENT.write_text(replace_tables(DOCUMENT.read_text(), tables(json.loads(text))))
