"""The performance of workers and their storage, for estimates and the simulator."""

from __future__ import annotations

from typing import NamedTuple


class Machine(NamedTuple):
    """A worker, which runs one task at a time, and its storage; all rates are per second.

    latency: seconds of a request. concurrency: the concurrent requests of a task. bandwidth: bytes
    to and from its storage. get_rate, put_rate: requests of all workers, 0 for no limit.
    total_bandwidth: bytes of all workers, 0 for no limit. sort_rate: tuples that it partitions or
    restores to order. copy_rate: bytes that it copies. scheduler_seconds: time of the scheduler for
    a task. write_factor: the time to write a byte, as a multiple of the time to read one.
    """

    latency: float
    concurrency: int
    bandwidth: float
    get_rate: float = 0.0
    put_rate: float = 0.0
    total_bandwidth: float = 0.0
    sort_rate: float = 20e6
    copy_rate: float = 4e9
    scheduler_seconds: float = 0.0
    write_factor: float = 1.0


# S3's limits are for one prefix.
STORE = Machine(0.03, 16, 100e6, 5500.0, 3500.0, scheduler_seconds=0.01)
DISK = Machine(1e-4, 16, 1e9, write_factor=2.0)
