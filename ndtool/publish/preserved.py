"""The current file of an output with preserved members, compared before it is replaced."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from ndtool.errors import InputError, OutputError, printable
from ndtool.publish.targets import Target
from ndtool.storage import locations
from ndtool.storage.local import File

if TYPE_CHECKING:
    pass

T = TypeVar("T")


class CurrentFile:
    """The current file of a target, open from `read` until it is replaced.

    preserves: whether other members are preserved; then a file that another process creates during
    the run is not replaced. requires_unchanged: whether changes of the file prevent its
    replacement. file: the open file, None if no members are preserved.
    """

    def __init__(self, target: Target) -> None:
        self._target, self._path, self._existed = target, target.path, target.exists
        self.preserves = target.member is not None and not target.only
        self.requires_unchanged = not target.only
        self.file: File | None = None
        if not self.preserves:
            target.require_replaceable()

    def read(self, parse: Callable[[File], T], default: T, content: str) -> T:
        """Open and parse the file; return `default` if no members are preserved.

        content: what the file will contain with --only, such as "the array", for the error's hint.
        Raises OutputError for an invalid file.
        """
        if not (self.preserves and self._existed):
            return default
        try:
            self.file = locations.open_storage(self._path)
            return parse(self.file)
        except BaseException as exc:
            self.close()
            if isinstance(exc, InputError):
                hint = f"--only replaces it with {content} alone"
                raise OutputError(exc.message, hint=hint) from None
            raise

    def copy(self, fd: int, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Copy preserved byte ranges (start, stop, offset in the new file) of the current file."""
        assert self.file is not None, "members are preserved"
        for start, stop, target_start in ranges:
            if self.file.copy(start, stop - start, fd, target_start) < stop - start:
                raise OutputError(f"{printable(self._path)} changed during the run")

    def require_unchanged(self) -> None:
        """Raise OutputError if another process changed the file, as its changes would be lost.

        The conditional request that replaces a remote object compares it again.
        """
        change = ""
        exists = not self._target.url and os.path.lexists(self._path)
        if self.file is not None:
            removed = "" if exists or self._target.url else "was removed during the run"
            change = self.file.describe_change() or removed
        elif self.preserves and exists:
            change = "was created by another process during the run"
        elif self.requires_unchanged and exists:
            self._target.require_replaceable()
        if change:
            raise OutputError(f"{printable(self._path)} {change}")

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
