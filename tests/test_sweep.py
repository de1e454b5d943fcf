"""Arrays larger than memory: split, sweep, replay give what the direct way gives, bit for bit."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Case, cases, opaque, same

from ndtool.analysis import reference
from ndtool.arrays import memory
from ndtool.engine.gathers import silent
from ndtool.rules.operators import OPERATORS, Attributes
from ndtool.runs import sweep
from ndtool.runs.cut import cut_for
from ndtool.runs.jobs import Job, Request
from ndtool.runs.rows import rows_of


def swept(case: Case, budget: int, threads: int, held: int) -> Any:
    """Return what a sweep within a budget gives, None where there is nothing to sweep."""
    attributes, roles = Attributes(**case.arguments), OPERATORS[case.operator].inputs
    arrays = [np.array(opaque(a), order="C").view(a.dtype) for a in case.arrays]
    sources = {role: memory.source(role, a) for role, a in zip(roles, arrays, strict=True)}
    request = Request(case.operator, *roles, attributes=attributes)
    with Job(request, sources) as job:
        rows = rows_of(job.inference)
        if not rows.tuples or not rows.width or rows.height < 2:
            return None
        cut = cut_for(rows, "updates" not in sources, budget, threads)._replace(held=held)
        room = np.zeros(job.inference.nbytes, np.uint8)
        sink = memory.RoomSink(room.data, job.facts)
        phases = list(sweep.run(job.check(), sink, cut, None, silent))
        assert phases == ["split", "sweep", "replay"][: 2 + cut.gathers]
        return room.view(arrays[0].dtype).reshape(job.inference.plan.output)


@settings(max_examples=400, deadline=None)
@given(cases, st.sampled_from((1, 600, 4000, 1 << 20)), st.integers(1, 3), st.integers(0, 300))
def test_a_sweep_gives_the_bits_of_the_reference(
    case: Case, budget: int, threads: int, held: int
) -> None:
    got = swept(case, budget, threads, held)
    if got is not None:
        expected = getattr(reference, case.operator)(*case.arrays, **case.arguments)
        assert same(got, expected)
