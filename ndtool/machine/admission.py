"""A lock that stops the threads that write an output before the output is removed."""

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
        self._threads, self._closed = list[int](), False  # IDs of the threads that write
        self._changed = Condition()

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Admit a writer; OutputError if the lock is closed."""
        with self._changed:
            if self._closed:
                raise OutputError(f"{argument_name(self._name)}: the run has ended")
            self._threads.append(get_ident())
        try:
            yield
        finally:
            with self._changed:
                self._threads.remove(get_ident())
                self._changed.notify_all()

    def close(self, timeout: float | None = None) -> None:
        """Admit no more writers, and wait for the admitted ones, at most `timeout` seconds.

        Writers of this thread are ignored: if this is called by a signal handler, the handler has
        interrupted the write, which never completes.
        """
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: {*self._threads} <= {get_ident()}, timeout)
