"""How much of a run is done, for people who wait for it."""

from __future__ import annotations

import time
from collections.abc import Callable

from ndtool.cli.voice import say

_PATIENCE = 1.0  # seconds without a progress bar


class Progress:
    """A bar in the last line of a terminal, from a second on; a context manager that takes it away.

    phase: returns what is being done.
    """

    def __init__(self, shown: bool, phase: Callable[[], str] = str) -> None:
        self._phase = phase
        self._next = time.perf_counter() + _PATIENCE if shown else float("inf")
        self._drawn = False

    def of(self, nbytes: int | Callable[[], int]) -> Callable[[float], None]:
        """Return what is called with the share done of so many bytes, 0 where that is not known.

        nbytes: or what returns them, asked once there is a bar. A share of 0 begins anew. Any
        thread may call it: at worst a bar is drawn twice.
        """
        most = began = first = 0.0  # the highest share; when it was called first, and with which

        def tick(share: float) -> None:
            nonlocal most, began, first
            now = time.perf_counter()
            if not share or not began:
                most, began, first = share, now, share
            most = max(most, share)
            if now >= self._next:
                self._next = now + 0.1
                total = nbytes() if callable(nbytes) else nbytes
                self._draw(most, total, (most - first) / (now - began) if now > began else 0.0)

        return tick

    def _draw(self, share: float, nbytes: int, rate: float) -> None:
        """Draw the bar; rate: what is done of it in a second."""
        from ndtool.cli import records, styled

        self._drawn = True
        words = [self._phase()]
        if nbytes:
            words.append(f"{records.sized(round(share * nbytes))} of {records.sized(nbytes)}")
            words += [f"{records.sized(round(rate * nbytes))}/s"] * (rate > 0)
        if rate > 0:
            words.append(f"{records.lasted(max(1, round((1 - share) / rate)))} left")
        say(styled.progress(share, ", ".join(filter(None, words))))

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            say(b"\r\x1b[K")
