"""Measure ndtool beside its peers.

Everything takes a quarter of an hour and writes benchmarks/results.json and results.png, and the
tables of docs/performance.md and README.md. A part of it (--quick, --only,
--peers) is printed, and written to build/bench.
"""

import argparse
import json
import os
import sys
from fnmatch import fnmatchcase
from pathlib import Path

# What the peers read when they start; the first three let their fresh outputs be warm memory.
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
ORIGINAL = "NDTOOL_BENCH_ENVIRONMENT"  # the user's, for the runs in processes of their own
QUICK_PEERS = ["numpy", "jax"]
HERE = Path(__file__).parent


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the cases only, beside two peers")
    parser.add_argument("--ci", action="store_true", help="hold against ci_baseline.json")
    parser.add_argument("--record", action="store_true", help="with --ci: write the baseline")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="cases or ladder entries, such as 'rows*'"
    )
    parser.add_argument("--peers", metavar="NAMES", help="such as numpy,torch; default: all")
    parser.add_argument("--repeats", type=int, help="of each pair; default 7, quick 3")
    return parser.parse_args(arguments)


def main() -> int:
    options = parse(sys.argv[1:])
    if ORIGINAL not in os.environ:
        # malloc reads its settings when a process begins
        settings = {**os.environ, **SETTINGS, ORIGINAL: json.dumps(dict(os.environ))}
        os.execve(sys.executable, [sys.executable, *sys.argv], settings)
    environment = json.loads(os.environ.pop(ORIGINAL))
    import machine

    machine.use_two_cores()
    if options.ci:
        import ci

        return ci.run(options.record)
    return measure_all(options, environment)


def measure_all(options: argparse.Namespace, environment: dict[str, str]) -> int:
    import machine
    import measure
    import peers
    import report
    import whole_runs
    from cases import CASES, LADDER, LATENCY

    repeats = options.repeats or (3 if options.quick else 7)
    names = options.peers.split(",") if options.peers else list(peers.PEERS)
    if options.quick and not options.peers:
        names = QUICK_PEERS
    wanted = options.only or ["*"]
    chosen, ladder = (
        [case for case in group if any(fnmatchcase(case.name, name) for name in wanted)]
        for group in (CASES, [] if options.quick and not options.only else LADDER)
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
    print(report.machine.written(results["machine"]))
    if not options.only:
        print("whole runs, in processes of their own")
        run = whole_runs.quick if options.quick else whole_runs.full
        results["whole_runs"] = run(environment, repeats)
        results["small_call"] = measure.small_call(repeats)
    for case in chosen:
        results["cases"][case.name] = show(case.name, measure.measure(case, names, repeats))
    for case in ladder:
        record = measure.measure(case, ["numpy"], repeats)
        results["ladder"][case.name] = show(case.name, record)
    if not options.quick:
        results["threads"] = {
            case.name: measure.scaling(case, repeats) for case in chosen if case.name in LATENCY
        }
    results["summary"] = report.summarise(results)
    recorded = not (options.quick or options.only or options.peers)
    folder = HERE if recorded else HERE.parent / "build" / "bench"
    report.write(results, folder, recorded)
    print("\n\n".join(report.tables(results).values()))
    print(f"\n{report.losses(results)}\nwritten to {folder}")
    return 0


def show(name: str, record: dict) -> dict:
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
    verdict = "" if record["verified"] else "  WRONG"
    print(
        f"{name:36} {record['ndtool_ms']:8.2f} ms  ratio {ratio}"
        f"  of memcpy {memcpy}  ({peers}){verdict}"
    )
    return record


if __name__ == "__main__":
    sys.exit(main())
