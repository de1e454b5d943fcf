"""Measure ndtool and its peers.

A complete run takes twenty minutes and writes benchmarks/results.json and results.png, and the
tables of docs/performance.md. A partial one (--quick, --only, --peers) is printed,
and written to build/bench. --limits needs no peer, but a C compiler.
"""

import argparse
import json
import os
import sys
from fnmatch import fnmatchcase
from pathlib import Path

# Variables read by peers when they start; with the first three they reuse memory of outputs.
SETTINGS = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"
    ":glibc.malloc.mmap_threshold=8589934592:glibc.malloc.trim_threshold=8589934592",
    "OMP_NUM_THREADS": "2",
    "POLARS_MAX_THREADS": "2",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "JAX_ENABLE_X64": "1",
    "JAX_PLATFORMS": "cpu",
    "PYTHONUNBUFFERED": "1",
}
ORIGINAL_ENVIRONMENT = "NDTOOL_BENCH_ENVIRONMENT"  # the user's, for runs in separate processes
QUICK_PEERS = ["numpy", "jax"]
HERE = Path(__file__).parent


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the cases only, with two peers")
    parser.add_argument("--ci", action="store_true", help="hold against ci_baseline.json")
    parser.add_argument("--record", action="store_true", help="with --ci: write the baseline")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="cases or ladder entries, such as 'rows*'"
    )
    parser.add_argument("--peers", metavar="NAMES", help="such as numpy,torch; default: all")
    parser.add_argument(
        "--limits", action="store_true", help="only the shares of what plain C reaches; no peers"
    )
    parser.add_argument(
        "--combinations", action="store_true", help="only reductions and duplicates, no peers"
    )
    parser.add_argument(
        "--beyond", action="store_true", help="only arrays larger than memory; needs root"
    )
    parser.add_argument(
        "--gib", type=int, default=8, help="of --beyond: the data; runs have an eighth of it"
    )
    parser.add_argument("--points", type=int, metavar="N", help="only N calls drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of --points")
    parser.add_argument("--threads", choices=["1", "2", "both"], default="both", help="of --limits")
    parser.add_argument(
        "--alignment",
        choices=["numpy", "aligned", "both"],
        default="both",
        help="of --limits: alignment of arrays",
    )
    parser.add_argument("--repeats", type=int, help="of each pair; default 7, quick 3")
    return parser.parse_args(arguments)


def main() -> int:
    options = parse(sys.argv[1:])
    if ORIGINAL_ENVIRONMENT not in os.environ:
        # malloc reads its settings when a process begins
        settings = {**os.environ, **SETTINGS, ORIGINAL_ENVIRONMENT: json.dumps(dict(os.environ))}
        os.execve(sys.executable, [sys.executable, *sys.argv], settings)
    environment = json.loads(os.environ.pop(ORIGINAL_ENVIRONMENT))
    import machine

    machine.use_two_cores()
    if options.ci:
        import ci

        return ci.run(options.record)
    if options.limits:
        return show_limits(options)
    if options.combinations:
        import combinations

        return combinations.run(options.repeats or 5)
    if options.points:
        import points

        return points.run(options.seed, options.points, options.peers and options.peers.split(","))
    if options.beyond:
        import beyond

        peers = None if options.peers is None else set(options.peers.split(","))
        return beyond.run(environment, options.gib, options.only, peers)
    return measure_all(options, environment)


def show_limits(options: argparse.Namespace) -> int:
    """Print ndtool's share of the limit of some cases."""
    import problems
    import shares
    from cases import CASES

    alignments = [*problems.ALIGNMENTS] if options.alignment == "both" else [options.alignment]
    threads = [1, 2] if options.threads == "both" else [int(options.threads)]
    for case in select_cases(CASES, options.only):
        measured = shares.measure(
            *shares.generate_case(case), alignments, threads, options.repeats or 5
        )
        shares.print_records(case.name, measured)
    return 0


def select_cases(cases: tuple, only: list[str] | None) -> list:
    """Return the cases that match a pattern."""
    return [case for case in cases if any(fnmatchcase(case.name, name) for name in only or ["*"])]


def measure_all(options: argparse.Namespace, environment: dict[str, str]) -> int:
    import machine
    import measure
    import peers
    import problems
    import report
    import whole_runs
    from cases import CASES, LATENCY_BOUND_CASES, OTHER_CASES

    repeats = options.repeats or (3 if options.quick else 7)
    names = options.peers.split(",") if options.peers else list(peers.PEERS)
    if options.quick and not options.peers:
        names = QUICK_PEERS
    selected = select_cases(CASES, options.only)
    other_cases = (
        select_cases(OTHER_CASES, options.only) if options.only or not options.quick else []
    )
    results: report.Results = {
        "machine": machine.describe(names),
        "settings": {"threads": peers.THREADS, "repeats": repeats, "statistic": "median"},
        "cases": {},
        "ladder": {},
        "threads": {},
        "small_call": None,
        "whole_runs": {},
    }
    print(report.machine.format_description(results["machine"]))
    if not options.only:
        print("whole runs, in processes of their own")
        run = whole_runs.quick if options.quick else whole_runs.full
        results["whole_runs"] = run(environment, repeats)
        results["small_call"] = measure.small_call(repeats)
    alignments, threads = (["numpy"], [2]) if options.quick else ([*problems.ALIGNMENTS], [1, 2])
    for case in selected:
        record = measure.measure(case, names, repeats, alignments, threads)
        results["cases"][case.name] = print_record(case.name, record)
    for case in other_cases:
        record = measure.measure(case, ["numpy"], repeats)
        results["ladder"][case.name] = print_record(case.name, record)
    if not options.quick:
        results["threads"] = {
            case.name: measure.scaling(case, repeats)
            for case in selected
            if case.name in LATENCY_BOUND_CASES
        }
    results["summary"] = report.summarise(results)
    is_complete_run = not (options.quick or options.only or options.peers)
    folder = HERE if is_complete_run else HERE.parent / "build" / "bench"
    report.write(results, folder, is_complete_run)
    print("\n\n".join(report.tables(results).values()))
    print(f"\n{report.format_losses(results)}\nwritten to {folder}")
    return 0


def print_record(name: str, record: dict) -> dict:
    """Print a case as soon as it is measured."""
    peers = ", ".join(
        f"{peer} {p['ms']:.1f}{'' if p['answer'] == 'exact' else ' ' + p['answer']}"
        for peer, p in record["peers"].items()
        if p["ms"] is not None
    )
    ratio = "-"
    if record["ratio"]:
        ratio = f"{record['ratio']:.2f} (of best times {record['best_ratio']:.2f})"
    memcpy = f"{record['memcpy_ratio']:.2f}" if record["memcpy_ratio"] else "-"
    limit = ", ".join(
        f"{r['share']:.2f} ({alignment} {threads})"
        for alignment, by_threads in record.get("limit", {}).items()
        for threads, r in by_threads.items()
    )
    verdict = "" if record["verified"] else "  WRONG"
    print(
        f"{name:36} {record['ndtool_ms']:8.2f} ms  ratio {ratio}"
        f"  of memcpy {memcpy}  of plain C {limit or '-'}  ({peers}){verdict}"
    )
    return record


if __name__ == "__main__":
    sys.exit(main())
