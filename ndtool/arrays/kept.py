"""The file to which a member is written, of which the others stay."""

import os
from collections.abc import Iterable

from ndtool.arrays import places
from ndtool.arrays.local import File
from ndtool.errors import OutputError, printable


class OldFile:
    """An old file, open until what stays of it is published anew.

    Where there is none yet, one that others make meanwhile is not replaced either.
    """

    def __init__(self, path: str, there: bool) -> None:
        self._path = path
        self.file: File | None = places.open_place(path) if there else None

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
        elif not places.is_url(self._path) and os.path.lexists(self._path):
            change = "was made by others during the run"
        if change:
            raise OutputError(f"{printable(self._path)} {change}")

    def close(self) -> None:
        """Let go of it."""
        if self.file is not None:
            self.file.close()
