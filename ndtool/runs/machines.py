"""What workers and their storage can do, as estimates and the simulator take it."""

from __future__ import annotations

from typing import NamedTuple


class Machine(NamedTuple):
    """A worker, which runs a task at a time, and its storage; rates per second.

    latency: seconds of a request. concurrency: its concurrent requests. bandwidth: bytes to and
    from its storage. gets, puts: requests of all workers, 0 for no limit. every: bytes of all
    workers, 0 for no limit. sorted: tuples that it partitions or restores to order. moved: bytes
    that it copies. scheduled: seconds of the scheduler for a task. writing: the time to write a
    byte, as a multiple of that to read one.
    """

    latency: float
    concurrency: int
    bandwidth: float
    gets: float = 0.0
    puts: float = 0.0
    every: float = 0.0
    sorted: float = 20e6
    moved: float = 4e9
    scheduled: float = 0.0
    writing: float = 1.0


# S3's limits are for one prefix.
STORE = Machine(0.03, 16, 100e6, 5500.0, 3500.0, scheduled=0.01)
DISK = Machine(1e-4, 16, 1e9, writing=2.0)
