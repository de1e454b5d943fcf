"""Measure ndtool and its peers.

A complete run takes twenty minutes and writes benchmarks/results.json and the tables of
docs/performance.md. A partial one (--quick, --only, --peers) is printed, and written to
build/bench. --limits needs no peer, but a C compiler.
"""

import argparse
import json
import os
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

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

Record = dict[str, Any]


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="the cases only, with two peers")
    add("--ci", action="store_true", help="hold against ci_baseline.json")
    add("--record", action="store_true", help="with --ci: write the baseline")
    add("--only", action="append", metavar="NAME", help="cases, such as 'rows*'")
    add("--peers", metavar="NAMES", help="such as numpy,torch; default: all")
    add("--limits", action="store_true", help="only the shares of what plain C reaches; no peers")
    add("--points", type=int, metavar="N", help="only N calls drawn at random")
    add("--seed", type=int, default=0, help="of --points")
    add("--repeats", type=int, help="of each pair; default 7, quick 3")
    return parser.parse_args(arguments)


def main() -> int:
    options = parse(sys.argv[1:])
    if ORIGINAL_ENVIRONMENT not in os.environ:
        # malloc reads its settings when a process begins
        settings = {**os.environ, **SETTINGS, ORIGINAL_ENVIRONMENT: json.dumps(dict(os.environ))}
        os.execve(sys.executable, [sys.executable, *sys.argv], settings)
    environment = json.loads(os.environ.pop(ORIGINAL_ENVIRONMENT))
    import timing

    timing.use_two_cores()
    peers = options.peers and options.peers.split(",")
    if options.ci:
        import ci

        return ci.run(options.record)
    if options.points:
        import points

        return points.run(options.seed, options.points, peers)
    return measure_all(options, environment, peers)


def measure_all(
    options: argparse.Namespace, environment: dict[str, str], names: list[str] | None
) -> int:
    import measure
    import peers
    import problems
    import processes
    import report
    from cases import CASES, LATENCY_BOUND_CASES, OTHER_CASES

    is_complete_run = not (options.quick or options.only or names or options.limits)
    repeats = options.repeats or (3 if options.quick else 7)
    names = names or (QUICK_PEERS if options.quick else list(peers.PEERS))

    def select(cases: tuple) -> list:
        patterns = options.only or ["*"]
        return [case for case in cases if any(fnmatchcase(case.name, p) for p in patterns)]

    selected = select(CASES)
    others = select(OTHER_CASES) if options.only or not (options.quick or options.limits) else []
    results: report.Results = {
        "machine": report.describe_machine(names),
        "cases": {},
        "ladder": {},
        "threads": {},
        "small_call": None,
        "whole_runs": {},
    }
    print(results["machine"])
    if not options.only and not options.limits:
        print("whole runs, in processes of their own")
        results["whole_runs"] = processes.run_all(environment, repeats, options.quick)
        results["small_call"] = measure.small_call(repeats)
    alignments, threads = (["numpy"], [2]) if options.quick else ([*problems.ALIGNMENTS], [1, 2])
    for case in selected:
        record = measure.measure(
            case, [] if options.limits else names, repeats, alignments, threads
        )
        results["cases"][case.name] = print_record(case.name, record)
    for case in others:
        results["ladder"][case.name] = print_record(
            case.name, measure.measure(case, ["numpy"], repeats)
        )
    if is_complete_run:
        scaled = [case for case in selected if case.name in LATENCY_BOUND_CASES]
        results["threads"] = {case.name: measure.scaling(case, repeats) for case in scaled}
    folder = HERE if is_complete_run else HERE.parent / "build" / "bench"
    report.write(results, folder, is_complete_run)
    print("\n\n".join(report.tables(results).values()))
    print(f"\n{report.format_losses(results)}\nwritten to {folder}")
    return 0


def print_record(name: str, record: Record) -> Record:
    """Print a case as soon as it is measured."""
    peers = ", ".join(
        f"{peer} {p['ms']:.1f}{'' if p['answer'] == 'exact' else ' ' + p['answer']}"
        for peer, p in record["peers"].items()
        if "ms" in p
    )
    ratio, memcpy = (
        "-" if record[key] is None else f"{record[key]:.2f}" for key in ("ratio", "memcpy_ratio")
    )
    limit = ", ".join(
        f"{r['limit_ms'] / r['ndtool_ms']:.2f} ({alignment} {threads})"
        for alignment, by_threads in record["limit"].items()
        for threads, r in by_threads.items()
    )
    verdict = "" if record["verified"] else "  WRONG"
    print(
        f"{name:36} {record['ndtool_ms']:8.2f} ms  ratio {ratio}"
        f"  of memcpy {memcpy}  of plain C {limit or '-'}  ({peers}){verdict}",
        flush=True,
    )
    return record


if __name__ == "__main__":
    sys.exit(main())
