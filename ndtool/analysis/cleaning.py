"""The removal of temporary files of killed runs, as an answer."""

from dataclasses import dataclass

from ndtool.analysis.answers import Answer, Value
from ndtool.errors import OutputError, printable
from ndtool.notebook import Table
from ndtool.publish import claims, cleanup
from ndtool.storage import locations
from ndtool.storage.descriptors import failure


@dataclass(frozen=True, slots=True)
class Claimed(Value):
    """A directory at a URL that a process on another machine may be using."""

    name: str
    host: str
    process: int


@dataclass(frozen=True, slots=True)
class Cleaned(Answer):
    """What was removed, and what was not. error: about files that could not be removed."""

    removed: tuple[str, ...]
    kept: tuple[Claimed, ...] = ()

    def tables(self) -> list[Table]:
        """Return a line for each path."""
        lines = [f"removed {path}" for path in self.removed]
        lines += [
            f"not removed: {item.name}: process {item.process} on {item.host} may be using it"
            for item in self.kept
        ]
        if not lines and self.error is None:
            lines = ["nothing to remove"]
        return [Table(notes=lines)]


def clean(folder: str, force: bool) -> Cleaned:
    """Remove the temporary files of killed runs in a directory, or below a URL.

    force: at a URL, also those of other machines, whose processes may be running.
    """
    location = locations.local_path(folder)
    if locations.is_url(location):
        removed, claimed = claims.clean(location, force)
        kept = (Claimed(url, owner.host, owner.process) for url, owner in claimed)
        return Cleaned(tuple(removed), tuple(kept))
    try:
        removed, failures = cleanup.clean(location, all_boots=True)
    except OSError as exc:
        raise failure(exc, folder) from None
    error = None
    if failures:
        reasons = (f"{printable(path)}: {exc.strerror}" for path, exc in failures)
        message = f"{printable(folder)}: some files could not be removed"
        error = OutputError(message, places=tuple(reasons))
    return Cleaned(tuple(removed), error=error)
