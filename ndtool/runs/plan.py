"""What each way to run would cost, and which of them is taken.

A cost is a number of bytes read in order that take as long. Where what is accessed at random fits
into memory, the direct way costs nothing of that kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ndtool.arrays.source import Flat
from ndtool.engine import memory, tuning
from ndtool.rules.shapes import ElementsPlan
from ndtool.runs.direct import Operands
from ndtool.runs.rows import Rows, rows_of
from ndtool.runs.sweep import MOST_PARTS, Cut

SAMPLES = 64  # places of indices that are looked at to tell whether they are in order
TOGETHER = 64  # tuples that are looked at in each


class Plan(NamedTuple):
    """How a run is done, and what that comes to at most.

    way: "direct" or "sweep". tasks: how many there are, by phase. read, written, spilled: bytes.
    memory: bytes that the run takes of its own. reason: what decided. cut: of a sweep.
    """

    way: str
    tasks: dict[str, int]
    read: int
    written: int
    spilled: int
    memory: int
    reason: str
    cut: Cut | None = None


def choose(operands: Operands, limit: int | None) -> Plan:
    """Choose a way for inputs that were checked; limit: bytes of memory, None for what there is."""
    rows = rows_of(operands.inference)
    cut, reason = _sweep(operands, rows, limit)
    inference = operands.inference
    given = sum(source.facts.nbytes for role, source in operands.sources.items() if role != "data")
    data, output = operands.sources["data"].facts.nbytes, inference.nbytes
    if cut is None:
        scatters = "updates" in operands.sources
        touched = data if scatters else min(data, output)
        own = tuning.FILE_SCRATCH if scatters else operands.threads * tuning.WRITTEN
        return Plan("direct", {}, given + touched, output, 0, own, reason)
    spilled = max(0, cut.kept - cut.held)
    tasks = {"split": cut.blocks, "sweep": cut.parts}
    if cut.gathers:
        tasks["replay"] = cut.blocks
    return Plan(
        "sweep", tasks, given + data + spilled, output + spilled, spilled, cut.memory, reason, cut
    )


def _sweep(operands: Operands, rows: Rows, limit: int | None) -> tuple[Cut | None, str]:
    """Return how a run is cut, None where the direct way is taken, and what decided."""
    data, gathers = operands.sources["data"], "updates" not in operands.sources
    there = data.there if isinstance(data, Flat) else None
    if not rows.tuples or not rows.width or rows.height < 2:
        return None, "nothing is accessed at random"
    if there is None or (data.facts.order == "F" and len(data.facts.shape) > 1):
        return None, "data cannot be read in parts"
    if limit is None and not there.mapped:
        return None, "data are in memory"
    allowed = memory.available() if limit is None else limit
    size, columns = data.facts.nbytes, isinstance(operands.inference.plan, ElementsPlan)
    reached = max(size, operands.inference.nbytes) if columns else size
    if memory.holds(reached, allowed):
        return None, f"{reached} bytes accessed at random fit into {allowed} bytes of memory"
    cut = cut_for(rows, gathers, min(allowed // 2, tuning.SWEPT), operands.threads)
    missing = 1 - allowed / reached if reached > allowed else 0.25
    jumps = rows.tuples * (1 - near(rows, operands.indices)) * missing
    direct = jumps * (tuning.RANDOM + rows.width) * (1 if gathers else 2)
    spilled = max(0, cut.kept - cut.held)
    sweep = (size if gathers else 0) + 2 * spilled + rows.tuples * tuning.SORTING
    costs = f"random accesses as long as reading {int(direct)} bytes, a sweep {int(sweep)}"
    return (cut if sweep < direct else None), costs


def cut_for(rows: Rows, gathers: bool, budget: int, threads: int) -> Cut:
    """Cut a run so that it takes about `budget` bytes of memory."""
    unit = max(1, budget // 16)
    part = 1
    while 2 * part * rows.width <= unit and part < rows.height:
        part *= 2
    while -(-rows.height // part) > MOST_PARTS:
        part *= 2
    cut = Cut(rows, gathers, 1, part, budget // 2, 1)
    block = max(1, unit // cut.scratch)
    return cut._replace(block=block, workers=min(threads + (threads > 1), 4))


def near(rows: Rows, indices: memoryview) -> float:
    """Return about which share of tuples is not far from the one before it in data."""
    found = total = 0
    for first in _places(rows.tuples):
        count = min(TOGETHER, rows.tuples - first)
        stored = b"".join(bytes(indices[at:stop]) for at, stop in rows.stored(first, count))
        numbers = rows.of(first, memoryview(stored))
        if numbers is None:  # changed since they were checked, as the run itself will find
            continue
        far = abs(numbers[1:] - numbers[:-1]) * rows.width > tuning.RANDOM
        found += int((~far).sum())
        total += count - 1
    return found / total if total else 0.0


def _places(tuples: int) -> Iterator[int]:
    step = max(TOGETHER, tuples // SAMPLES)
    return iter(range(0, tuples, step))
