"""Outputs that several processes write to, on this machine or others that see the same files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from ndtool.arrays.source import Facts
from ndtool.arrays.storage import failure, let_go, write_at
from ndtool.errors import OutputError

if TYPE_CHECKING:
    from ndtool.arrays.claims import Mark


class Shared(NamedTuple):
    """Where an output is written before it has its name.

    name: what messages call it. path: of a file, or of a Zarr store, or its URL. within: where the
    array is in it. start: where its bytes begin. Behind a URL, metadata: what is there last; mark:
    what tells that it is the same store for all.
    """

    name: str
    facts: Facts
    path: str
    within: str
    start: int
    metadata: dict[str, bytes] | None = None
    mark: Mark | None = None


class SharedFile:
    """The bytes of an array in a file that another process made."""

    streamed = False
    at_once = 1

    def __init__(self, shared: Shared) -> None:
        self.name, self.facts, self._start = shared.name, shared.facts, shared.start
        try:
            self._fd = os.open(shared.path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as exc:
            raise failure(exc, self.name, OutputError) from None

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        """Write bytes of the data from `start` on, in any order and from any thread."""
        try:
            write_at(self._fd, self._start + start, view)
        except OSError as exc:
            raise failure(exc, self.name, OutputError) from None
        let_go(self._fd, self._start + start, len(view))

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)
