"""The default number of threads, and runs for which the system refuses threads."""

import io
import os
import signal
import sys
import time
from threading import Thread, active_count

import pytest
from command import python
from limits import IS_ROOT

from ndtool.errors import UsageError
from ndtool.machine import memory, threads


@pytest.fixture
def default(monkeypatch):
    """The default, computed again."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads.default_threads.cache_clear()
    yield threads.default_threads
    threads.default_threads.cache_clear()


@pytest.mark.parametrize(
    ("value", "count"),
    [(" 5,2", 5), ("1024", 1024), ("0", 7), ("1025", 7), ("many", 7), ("9" * 4301, 7)],
)
def test_the_variable_counts_where_it_is_a_number(default, monkeypatch, value, count):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    monkeypatch.setattr(threads, "_available", lambda: 7)
    assert default() == count
    assert threads.resolve_threads(None) == count
    assert threads.resolve_threads(2) == 2


@pytest.mark.parametrize(
    ("groups", "limits", "count"),
    [
        ("0::/a/b\n", {"/a/b": "350000 100000"}, 3),
        ("0::/a/b\n", {"/a/b": "max 100000", "/a": "250000 100000"}, 2),
        ("0::/a/b\n", {"/a/b": "5000 100000"}, 1),
        ("0::/a\n", {"/a": "nonsense"}, 16),
        ("5:memory:/x\n4:cpu,cpuacct:/x\n", {"/x": "300000", "/": "-1"}, 3),
        ("nonsense\n", {}, 16),
        (None, {}, 16),
    ],
)
def test_limits_of_a_container(monkeypatch, groups, limits, count):
    files = {} if groups is None else {"/proc/self/cgroup": groups}
    for folder, text in limits.items():
        if groups.startswith("0:"):
            files[os.path.normpath(f"/sys/fs/cgroup{folder}/cpu.max")] = text
        else:
            files[os.path.normpath(f"/sys/fs/cgroup/cpu{folder}/cpu.cfs_quota_us")] = text
            files[os.path.normpath(f"/sys/fs/cgroup/cpu{folder}/cpu.cfs_period_us")] = "100000"

    def opened(path):
        if os.path.normpath(path) not in files:
            raise FileNotFoundError(path)
        return io.StringIO(files[os.path.normpath(path)])

    for module in (memory, threads):
        monkeypatch.setattr(module, "open", opened, raising=False)
    assert threads._quota(16) == count


@pytest.mark.parametrize("startable", [0, 1, 2])
def test_work_is_divided_among_started_threads(monkeypatch, startable):
    start, started_threads, results = Thread.start, [], []

    def start_some(thread):
        if len(started_threads) == startable:
            raise RuntimeError("can't start new thread")
        started_threads.append(thread)
        start(thread)

    monkeypatch.setattr(Thread, "start", start_some)
    threads.run_all(results.append, iter(range(100)), 4)
    assert sorted(results) == list(range(100))
    assert len(started_threads) == startable


@pytest.mark.parametrize("count", [1, 4])
def test_the_first_failure_ends_all_work(count):
    results = []

    def work(item):
        results.append(item)
        if item == 3:
            raise KeyError(item)

    with pytest.raises(KeyError):
        threads.run_all(work, iter(range(10**6)), count)
    assert len(results) < 10**6


def test_a_signal_stops_all_tasks():
    """It is raised in the calling thread, which works or waits; no other thread remains."""
    for late in (0, 50):
        results, at_work = [], active_count()

        def work(item, late=late, results=results):
            results.append(item)
            if item == late:
                signal.raise_signal(signal.SIGINT)
            time.sleep(0.001)

        with pytest.raises(KeyboardInterrupt):
            threads.run_all(work, iter(range(10**6)), 3)
        assert len(results) < 10**5
        while active_count() > at_work:  # a thread that was about to begin ends at once
            time.sleep(0.001)


@pytest.mark.parametrize("count", [0, 1025, -1, 10**5000], ids=int.bit_length)
def test_counts_that_no_run_can_have(count):
    with pytest.raises(UsageError, match=r"it must be in 1\.\.1024"):
        threads.resolve_threads(count)


CALLS_SCRIPT = """
import os
import numpy as np, ndtool, ndtool._kernels
from ndtool.machine import threads as counts
counts.MIN_WORK = 1 << 20  # else it is measured
rng = np.random.default_rng(1)
data, idx = rng.integers(0, 99, 1 << 20), rng.integers(0, 1 << 20, (1 << 20, 1))
expected = data[idx[:, 0]]
def call(threads):
    assert (ndtool.gather_nd(data, idx, threads=threads) == expected).all()
def count_tasks():
    return len(os.listdir("/proc/self/task"))
initial_tasks = count_tasks()
"""
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc")


def run(script, **variables):
    env = {"OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **variables}
    result = python(CALLS_SCRIPT + script, env=env)
    assert (result.status, result.err) == (0, "")


@linux
@pytest.mark.skipif(not IS_ROOT, reason="root is needed to change to a user without processes")
@pytest.mark.parametrize(
    ("before", "after"),
    [("call(8); call(2); wait_for_threads(1)", "call(8); call(16)"), ("call(8)", "scatter(8)")],
    ids=["after a smaller team", "after a smaller team in the same call"],
)
def test_a_team_that_cannot_grow_again(before, after):
    """libgomp ends the threads that a smaller team does not need."""
    run(f"""
import resource, time
from ndtool.engine import tuning
updates, summed = idx[:, 0], data.copy()
np.add.at(summed, updates, updates)
tuning.WORK_ITEM, tuning.MAX_PARTITION, tuning.SORTED_OUTPUT, tuning.LOCAL_FRACTION = 5 << 19, 1, 0, 2

def scatter(threads):  # work items of data for two threads, then tuples for all threads
    actual = ndtool.scatter_nd(data, idx, updates, "add", threads=threads)
    assert (actual == summed).all()

def wait_for_threads(count):
    while count_tasks() != initial_tasks + count:
        time.sleep(0.01)

scatter(2)  # imports all modules while the process has permission
{before}
os.setgroups([])
os.setgid(54321)
os.setuid(54321)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
{after}
wait_for_threads(1)
""")


@linux
@pytest.mark.parametrize("is_locked", [False, True])
def test_the_lock_on_starts(is_locked):
    """The lock is free after a start; a process that holds it only delays a run."""
    run(f"""
import fcntl
file = open(ndtool._kernels.__file__, "rb")
if {is_locked}:
    fcntl.flock(file, fcntl.LOCK_EX)
call(3)
assert count_tasks() == initial_tasks + 2
fcntl.flock(file, fcntl.LOCK_EX)  # waits for other tests, not for this process
fcntl.flock(file, fcntl.LOCK_UN)
with ndtool._kernels.AdmissionLock():
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pass
    else:
        raise AssertionError("another descriptor got the lock while AdmissionLock was held")
fcntl.flock(file, fcntl.LOCK_EX)
""")


@linux
def test_the_child_of_a_process_with_threads_runs_one():
    run("""
for count in 4, 1:  # before this process has threads, and after
    child = os.fork()
    if child == 0:
        call(4)
        assert count_tasks() == count
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    call(4)
assert count_tasks() == initial_tasks + 3
""")
