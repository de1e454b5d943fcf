"""How many threads a run takes by default: variables, processors, and what a container allows."""

import io
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from ndtool.engine import crew, threads
from ndtool.errors import UsageError


@pytest.fixture
def default(monkeypatch):
    """The default, worked out anew."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads.default.cache_clear()
    yield threads.default
    threads.default.cache_clear()


@pytest.mark.parametrize(
    ("value", "count"),
    [("3", 3), (" 5,2", 5), ("1024", 1024), ("0", 7), ("1025", 7), ("many", 7), ("9" * 4301, 7)],
)
def test_the_variable_counts_where_it_is_a_number(default, monkeypatch, value, count):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    monkeypatch.setattr(threads, "_available", lambda: 7)
    assert default() == count
    assert threads.resolve(None) == count
    assert threads.resolve(2) == 2


def test_processors(monkeypatch):
    monkeypatch.setattr(threads, "_quota", lambda otherwise: otherwise)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 4, 5}, raising=False)
    assert threads._available() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    for found, count in ((6, 6), (None, 1), (5000, 1024)):
        monkeypatch.setattr(os, "cpu_count", lambda found=found: found)
        assert threads._available() == count


@pytest.mark.parametrize(
    ("groups", "limits", "count"),
    [
        ("0::/a/b\n", {}, 16),
        ("0::/a/b\n", {"/a/b": "350000 100000"}, 3),
        ("0::/a/b\n", {"/a/b": "max 100000", "/a": "250000 100000"}, 2),
        ("0::/a/b\n", {"/a/b": "200000 100000", "/a": "900000 100000"}, 2),
        ("0::/a/b\n", {"/a/b": "5000 100000"}, 1),
        ("0::/\n", {"/": "400000 100000"}, 4),
        ("0::/a\n", {"/a": "nonsense"}, 16),
        ("5:memory:/x\n4:cpu,cpuacct:/x\n", {"/x": "300000", "/": "-1"}, 3),
        ("4:cpu,cpuacct:/x\n", {"/x": "nonsense"}, 16),
        ("nonsense\n", {}, 16),
        (None, {}, 16),
    ],
)
def test_what_a_container_allows(monkeypatch, groups, limits, count):
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

    monkeypatch.setattr(threads, "open", opened, raising=False)
    assert threads._quota(16) == count


@pytest.mark.parametrize("startable", [0, 1, 2])
def test_work_is_shared_by_as_many_threads_as_start(monkeypatch, startable):
    submit, started, done = ThreadPoolExecutor.submit, [], []

    def start(pool, work):
        if len(started) == startable:
            raise RuntimeError("can't start new thread")
        started.append(work)
        return submit(pool, work)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", start)
    crew.share(done.append, iter(range(100)), 4)
    assert sorted(done) == list(range(100))
    assert len(started) == startable


@pytest.mark.parametrize("count", [1, 4])
def test_the_first_failure_ends_all_work(count):
    done = []

    def work(item):
        done.append(item)
        if item == 3:
            raise KeyError(item)

    with pytest.raises(KeyError):
        crew.share(work, iter(range(10**6)), count)
    assert len(done) < 10**6


@pytest.mark.parametrize("count", [0, 1025, -1, 10**5000], ids=int.bit_length)
def test_counts_that_no_run_can_have(count):
    with pytest.raises(UsageError, match=r"it must be in 1\.\.1024"):
        threads.resolve(count)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_no_more_threads_than_asked_for(count):
    with ThreadPoolExecutor(1) as fresh:  # each thread that calls kernels has a team of its own
        assert fresh.submit(threads.team, count, 1 << 40).result() == count
        assert fresh.submit(threads.team, 16, 2 << 20).result() == 2
        assert fresh.submit(threads.team, 16, 0).result() == 1
