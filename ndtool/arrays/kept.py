"""The file to which a member is written, of which the others stay."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TypeVar

from ndtool.arrays import places
from ndtool.arrays.local import File
from ndtool.arrays.targets import Target
from ndtool.errors import InputError, OutputError, printable

T = TypeVar("T")


class OldFile:
    """What is at a target, open from `read` on until what stays of it is published anew.

    keeps: whether other members stay. Where there are none yet, a file that others make meanwhile
    is not replaced either. file: None where nothing stays.
    """

    def __init__(self, target: Target) -> None:
        self._path, self._there = target.path, target.is_there
        self.keeps = target.member is not None and not target.only
        self.file: File | None = None
        if not self.keeps:
            target.require_replaceable()

    def read(self, understand: Callable[[File], T], nothing: T, alone: str) -> T:
        """Return what is made of the file, `nothing` where nothing stays; closed if that fails.

        alone: what there would be with --only. Raises OutputError for what is no such file.
        """
        if not (self.keeps and self._there):
            return nothing
        try:
            self.file = places.open_place(self._path)
            return understand(self.file)
        except BaseException as exc:
            self.close()
            if isinstance(exc, InputError):
                hint = f"--only replaces it by {alone} alone"
                raise OutputError(exc.message, hint=hint) from None
            raise

    def copy(self, fd: int, pieces: Iterable[tuple[int, int, int]]) -> None:
        """Copy what stays: (start, stop, to) of bytes of the old file."""
        assert self.file is not None, "there is something to stay"
        for start, stop, to in pieces:
            if self.file.copy(start, stop - start, fd, to) < stop - start:
                raise OutputError(f"{printable(self._path)} changed during the run")

    def recheck(self) -> None:
        """Raise OutputError if others have written to it, which would be lost."""
        change = ""
        if self.file is not None:
            change = self.file.change()
        elif self.keeps and not places.is_url(self._path) and os.path.lexists(self._path):
            change = "was made by others during the run"
        if change:
            raise OutputError(f"{printable(self._path)} {change}")

    def close(self) -> None:
        """Let go of it."""
        if self.file is not None:
            self.file.close()
