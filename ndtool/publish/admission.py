"""Admission lock of an output: no writer is admitted once the output is published or removed."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, get_ident

from ndtool.errors import OutputError, argument_name


class AdmissionLock:
    """A lock that admits writers until it is closed, so that none recreates a removed folder.

    name: the output's name in messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._entries, self._closed = Counter[int](), False  # entries by thread ID
        self._changed = Condition()

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Admit a writer; OutputError if the lock is closed."""
        with self._changed:
            if self._closed:
                raise OutputError(f"{argument_name(self._name)}: the run has ended")
            self._entries[get_ident()] += 1
        try:
            yield
        finally:
            with self._changed:
                self._entries[get_ident()] -= 1
                self._changed.notify_all()

    def close(self, timeout: float | None = None) -> None:
        """Admit no more writers, and wait for the admitted ones, at most `timeout` seconds.

        Writers of this thread are ignored: if this is called by a signal handler, the handler has
        interrupted the write, which never completes.
        """
        with self._changed:
            self._closed = True
            self._changed.wait_for(self._has_no_other_writers, timeout)

    def _has_no_other_writers(self) -> bool:
        return not any(n for thread, n in self._entries.items() if thread != get_ident())
