"""The results of tasks, which the policy takes, and which another run resumes."""

from __future__ import annotations

import json
from typing import NamedTuple

REPORT_BYTES = 128  # bytes of a block's bounds report in the trailer of its segment


class TaskResult(NamedTuple):
    """The result of a task. attempt: its ID. starts: for split, the partition offsets.

    outside: the indices of a block that are out of bounds, if that is no error.
    """

    attempt: int
    offsets: bytes = b""
    out_of_bounds: OutOfBounds | None = None

    @property
    def trailer(self) -> bytes:
        """The trailer of a segment of split: all that another run needs to resume it."""
        return self.offsets + json.dumps(self.out_of_bounds).encode().ljust(REPORT_BYTES)

    @classmethod
    def parse(cls, attempt: int, end: bytes) -> TaskResult:
        """Parse the trailer of a segment into its result; ValueError if it is malformed."""
        out_of_bounds = json.loads(end[-REPORT_BYTES:])
        return cls(
            attempt,
            end[:-REPORT_BYTES],
            None if out_of_bounds is None else OutOfBounds(*map(int, out_of_bounds)),
        )


class OutOfBounds(NamedTuple):
    """The first index of a block that is out of bounds, and the number of tuples with one.

    Repeated tuples of later batches are not counted.
    """

    position: int
    component: int
    value: int
    tuples: int
