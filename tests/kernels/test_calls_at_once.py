"""Operators called from many threads at once, in parallel on a free-threaded interpreter."""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest

import ndtool
from ndtool.engine import tuning

THREADS = 8
ROUNDS = 20 * int(os.environ.get("NDTOOL_TEST_REPEATS", "1"))
RNG = np.random.default_rng(28)
DATA = RNG.integers(0, 100, (64, 16)).astype(np.float32)
ROWS = RNG.integers(-64, 64, (40, 1))
AXIS_INDICES = RNG.integers(0, 16, (64, 16))
UPDATES = RNG.integers(0, 100, (40, 16)).astype(np.float32)
CACHE, UPDATE = np.zeros((2, 8, 4), np.float32), np.ones((2, 2, 4), np.float32)


def calls() -> dict[str, Callable[[], Any]]:
    """Return calls of every operator, some with other shapes, so that cached plans are replaced."""
    operators: dict[str, Callable[[], Any]] = {
        "gather_nd": lambda: ndtool.gather_nd(DATA, ROWS),
        "gather": lambda: ndtool.gather(DATA, ROWS[:, 0]),
        "gather_elements": lambda: ndtool.gather_elements(DATA, AXIS_INDICES, 1),
        "scatter": lambda: ndtool.scatter(DATA, ROWS[:, 0], UPDATES, 0, "add"),
        "scatter_elements": lambda: ndtool.scatter_elements(DATA, AXIS_INDICES, DATA, 1, "max"),
        "tensor_scatter": lambda: ndtool.tensor_scatter(CACHE, UPDATE),
        "not contiguous": lambda: ndtool.gather_nd(DATA[::-1], ROWS),
        "two threads": lambda: ndtool.gather_nd(DATA, ROWS, threads=2),
    }
    for reduction in ("none", "add", "mean"):
        operators[f"scatter_nd {reduction}"] = lambda reduction=reduction: ndtool.scatter_nd(
            DATA, ROWS, UPDATES, reduction
        )
    for rows in range(1, 40, 3):
        operators[f"{rows} rows"] = lambda rows=rows: ndtool.gather_nd(DATA, ROWS[:rows])
    return operators


@pytest.mark.parametrize("limit", [tuning.COMPILED_CALL, 0], ids=["small calls", "general path"])
def test_calls_from_many_threads_are_correct(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "COMPILED_CALL", limit)
    operators = calls()
    expected = {name: call().tobytes() for name, call in operators.items()}
    start = Barrier(THREADS)

    def work(thread: int) -> list[str]:
        names = np.random.default_rng(thread).permutation(list(operators)).tolist()
        start.wait()
        return [
            name
            for _ in range(ROUNDS)
            for name in names
            if operators[name]().tobytes() != expected[name]
        ]

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(work, range(THREADS))) == [[]] * THREADS


def test_each_thread_raises_the_error_of_its_call() -> None:
    start = Barrier(THREADS)

    def work(thread: int) -> set[int]:
        bad = np.array([[0], [1000 + thread]])
        start.wait()
        values = set()
        for _ in range(ROUNDS):
            with pytest.raises(ndtool.BoundsError) as error:
                ndtool.gather_nd(DATA, bad)
            values.add(error.value.value)
        return values

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(work, range(THREADS))) == [{1000 + t} for t in range(THREADS)]


@pytest.mark.skipif(
    getattr(sys, "_is_gil_enabled", lambda: True)(), reason="this interpreter has a GIL"
)
def test_the_kernels_do_not_enable_the_gil() -> None:
    assert not sys._is_gil_enabled()
