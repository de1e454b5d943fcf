"""Admission lock for the writers of an output that is to be published or removed."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, get_ident

from ndtool.errors import OutputError, argument_name


class Gate:
    """Admission lock: admits writers until closed, so that none recreates a removed folder.

    name: the output's name in messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._inside, self._closed = Counter[int](), False  # entries by thread ID
        self._changed = Condition()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Admit a writer; OutputError if the lock is closed."""
        with self._changed:
            if self._closed:
                raise OutputError(f"{argument_name(self._name)}: the run has ended")
            self._inside[get_ident()] += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside[get_ident()] -= 1
                self._changed.notify_all()

    def close(self, seconds: float | None = None) -> None:
        """Admit no more writers, and wait for the admitted ones, at most `seconds`.

        Entries of this thread are ignored: a signal handler may have interrupted its write for
        good.
        """
        with self._changed:
            self._closed = True
            self._changed.wait_for(self._has_no_others, seconds)

    def _has_no_others(self) -> bool:
        return not any(n for thread, n in self._inside.items() if thread != get_ident())
