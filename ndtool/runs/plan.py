"""What each way to run would cost, and which of them is taken.

A cost is a number of bytes read in order that take as long. Where what is accessed at random fits
into memory, the direct way costs nothing of that kind.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from ndtool import _kernels
from ndtool._kernels import MARKED, Piece
from ndtool.arrays.local import Stretch
from ndtool.arrays.source import Facts, Flat
from ndtool.engine import memory, tuning
from ndtool.engine.bind import bind_boxes, bind_rows
from ndtool.rules.shapes import ElementsPlan
from ndtool.runs.direct import Operands

if TYPE_CHECKING:
    from ndtool.runs.cut import Cut, Rows

SHIFT = 32  # rows are numbered in two pieces
SAMPLES = (
    61  # places of indices that are looked at for order: a prime, to fall anywhere in their rows
)
PAGE = 1 << 12  # bytes that the system reads at least
TOGETHER = 64  # tuples that are looked at in each


class Plan(NamedTuple):
    """How a run is done, and what that comes to at most.

    way: "direct", "sweep" or "cluster". tasks: how many there are, by phase. read, written,
    spilled: bytes. memory: bytes that the run takes of its own. reason: what decided. cut: of what
    is not direct.
    """

    way: str
    tasks: dict[str, int]
    read: int
    written: int
    spilled: int
    memory: int
    reason: str
    cut: Cut | None = None


def choose(operands: Operands, limit: int | None, to: Facts) -> Plan:
    """Choose a way; limit: bytes of memory, None for what there is; to: what the output will be.

    Where no array is in chunks, indices must be row-major, or have been checked.
    """
    chunked = in_chunks(operands, to)
    cut, reason = _cut_chunks(operands, limit, to) if chunked else _cut(operands, limit)
    if cut is not None:
        return planned("sweep", operands, cut, reason)
    gathers, output = "updates" not in operands.sources, operands.inference.nbytes
    own = operands.threads * tuning.WRITTEN if gathers else tuning.FILE_SCRATCH
    given, data = _given(operands)
    read = given + (min(data, output) if gathers else data)
    return Plan("direct", {}, read, output, 0, own, reason)


def planned(way: str, operands: Operands, cut: Cut, reason: str) -> Plan:
    """Return what a run comes to that is cut."""
    from ndtool.runs.cut import read_again

    tasks = {"split": cut.blocks, "sweep": cut.parts}
    if cut.gathers:
        tasks["replay"] = cut.blocks
    facts = {role: source.facts for role, source in operands.sources.items()}
    read = sum(_given(operands)) + cut.spilled + read_again(operands.inference, facts, cut)
    written = operands.inference.nbytes + cut.spilled
    return Plan(way, tasks, read, written, cut.spilled, cut.memory, reason, cut)


def _given(operands: Operands) -> tuple[int, int]:
    """Return the bytes of the inputs but data, and of data."""
    sizes = {role: source.facts.nbytes for role, source in operands.sources.items()}
    data = sizes.pop("data")
    return sum(sizes.values()), data


def in_chunks(operands: Operands, to: Facts) -> bool:
    """Whether an array of a run is in chunks."""
    given = any(not isinstance(source, Flat) for source in operands.sources.values())
    return given or to.in_chunks


def _cut_chunks(operands: Operands, limit: int | None, to: Facts) -> tuple[Cut | None, str]:
    """Return how a run with arrays in chunks is cut, and what decided.

    The direct way puts all chunks together that it reads and writes.
    """
    facts = {role: source.facts for role, source in operands.sources.items()}
    data, gathers, rows = operands.sources["data"], "updates" not in facts, rows_in(operands, to)
    if isinstance(data, Flat) and (data.there is None or data.facts.order == "F"):
        return None, "data cannot be read in parts"
    if not rows.tuples or not rows.width or rows.height < 2:
        return None, "nothing is accessed at random"
    allowed = max(memory.available(), tuning.COUNTED_ON) if limit is None else limit
    each = (
        PAGE + rows.width
        if isinstance(data, Flat)
        else prod(facts["data"].grid) * to.dtype.itemsize
    )
    held = min(facts["data"].nbytes, rows.tuples * each) if gathers else facts["data"].nbytes
    held += sum(one.nbytes for role, one in facts.items() if role != "data") + to.nbytes
    if memory.holds(held, allowed):
        return None, f"memory of {allowed} bytes holds the {held} that are read and written"
    for output in (to, to._replace(grid=to.shape, notes={})):  # or its chunks are put together
        cut = cut_chunks(operands, output, min(allowed // 2, tuning.SWEPT))
        if cut is not None and cut.memory > allowed:
            cut = cut._replace(workers=1)
        if cut is not None and cut.memory <= allowed:
            break
    else:
        return None, f"a part of data would take more than {allowed} bytes"
    return cut, f"memory of {allowed} bytes does not hold the {held} that are read and written"


def rows_in(operands: Operands, to: Facts) -> Rows:
    """Return what a call is in rows, numbered in one order if data and output are flat."""
    from ndtool.runs.cut import rows_of

    gathers = "updates" not in operands.sources
    flat = isinstance(operands.sources["data"], Flat) and (gathers or not to.in_chunks)
    return rows_of(operands.inference, flat)


def cut_chunks(operands: Operands, to: Facts, budget: int) -> Cut | None:
    """Cut a run with arrays in chunks; None where parts would have more rows than are numbered."""
    from ndtool.runs.cut import MOST_ROWS, cut_for, units_of

    facts = {role: source.facts for role, source in operands.sources.items()}
    rows, units = rows_in(operands, to), units_of(operands.inference, facts, to)
    if not facts["data"].in_chunks and ("updates" not in facts or not to.in_chunks):
        units = units._replace(box=(1,))
    cut = cut_for(rows, "updates" not in facts, budget, operands.threads, units)
    return cut if prod(cut.step) <= MOST_ROWS else None


def _cut(operands: Operands, limit: int | None) -> tuple[Cut | None, str]:
    """Return how a run is cut, None where the direct way is taken, and what decided."""
    data, output = operands.sources["data"], operands.inference.nbytes
    there = data.there if isinstance(data, Flat) else None
    if there is None or (data.facts.order == "F" and len(data.facts.shape) > 1):
        return None, "data cannot be read in parts"
    if limit is None and not there.mapped:
        return None, "data are in memory"
    size = data.facts.nbytes
    if isinstance(operands.inference.plan, ElementsPlan):
        size = max(size, output)
    allowed = max(memory.available(), tuning.COUNTED_ON) if limit is None else limit
    if memory.holds(size, allowed):
        return None, f"memory of {allowed} bytes holds the {size} that are accessed at random"
    from ndtool.runs.cut import cut_for, rows_of

    rows, gathers = rows_of(operands.inference), "updates" not in operands.sources
    if not rows.tuples or not rows.width or rows.height < 2:
        return None, "nothing is accessed at random"
    cut = cut_for(rows, gathers, min(allowed // 2, tuning.SWEPT), operands.threads)
    if cut.memory > allowed:
        return None, f"a sweep would take {cut.memory} bytes of memory, more than {allowed}"
    near, reach = sampled(operands, rows)
    far = rows.tuples * (1 - near)
    jumps = far * max(1 - allowed / size, 0.25)
    if memory.holds(reach, allowed):
        jumps = min(jumps, reach / PAGE)  # what was read stays there
    jump, sweep = tuning.RANDOM, cost(cut)
    if gathers and there.mapped and sweep < jumps * (jump + rows.width):
        absent = 1 - there.cached(1, unknown=0.0) if limit is None else 1.0
        touched = min(int(far * (PAGE + rows.width)), reach)
        if memory.holds(int(touched * absent), allowed):
            ahead = not isinstance(operands.inference.plan, ElementsPlan)
            jump = max(PAGE, int(absent * page_cost(there, ahead)))
    direct = int(jumps * (jump + rows.width) * (1 if gathers else 2))
    reason = f"access at random takes as long as reading {direct} bytes in order, a sweep {sweep}"
    return (cut if sweep < direct else None), reason


def page_cost(data: Stretch, ahead: bool) -> int:
    """Return how many bytes of a file are read in order in the time that a page of it takes.

    ahead: whether many pages are asked for at once, as a gather of rows does.
    """
    size = len(data.buffer)
    room = memoryview(bytearray(min(tuning.ORDERED, size // 4)))
    places = [(2 * i + 1) * size // (2 * tuning.FOUND) for i in range(tuning.FOUND)]
    started = perf_counter()
    for place in places if ahead else ():
        data.advise("willneed", place, 1)
    for place in places:
        data.read(place, room[:1])
    found = perf_counter()
    data.read(size // 4, room)
    each, whole = (found - started) / len(places), perf_counter() - found
    return min(int(each / whole * len(room)), tuning.RANDOM)


def cost(cut: Cut) -> int:
    """Return what a sweep costs beyond what both ways read and write.

    What a part needs of a block is one piece of the temporary file, found at random.
    """
    rows, pieces = cut.rows, cut.blocks * cut.parts
    found = 2 * min(pieces, rows.tuples) * tuning.RANDOM * cut.spilled // cut.kept
    sorting = (rows.tuples + pieces) * tuning.SORTING
    return rows.height * rows.width * cut.gathers + 2 * cut.spilled + sorting + found


def sampled(operands: Operands, rows: Rows) -> tuple[float, int]:
    """Return about which share of tuples names a row not far from that of the tuple before.

    And about how many bytes of data there are from the first row that is named to the last.
    """
    addressing = bind_rows(operands.inference.plan, operands.negatives)
    boxes = bind_boxes((rows.height,), (min(rows.height, 1 << SHIFT),))
    given = operands.indices or operands.stretch("indices").buffer
    rule = "error" if operands.outside is None else "clip"
    indices = operands._replace(indices=given).bound_by(rule)
    marks, local = bytearray(2 * TOGETHER), memoryview(bytearray(4 * TOGETHER)).cast("I")
    found = total = highest = 0
    lowest = rows.height
    for first in range(0, rows.tuples, max(TOGETHER, rows.tuples // SAMPLES)):
        piece = Piece(first, min(TOGETHER, rows.tuples - first), 0, 0)
        starts = memoryview(bytearray(8 * (boxes.parts + 1))).cast("q")
        if _kernels.mark(addressing, indices, 0, piece, boxes, marks, local, starts):
            continue  # out of bounds, as the run itself will find
        wide = boxes.parts > MARKED
        parts = memoryview(marks).cast("H") if wide else marks
        numbers = [(parts[i] << SHIFT) + local[i] for i in range(piece.tuples)]
        lowest, highest = min(lowest, *numbers), max(highest, *numbers)
        steps = [abs(b - a) * rows.width for a, b in pairwise(numbers)]
        found += sum(step <= tuning.RANDOM for step in steps)
        total += len(steps)
    reach = max(0, highest + 1 - lowest) * rows.width
    return found / total if total else 0.0, reach
