"""The table of out-of-bounds modes: error, clip, wrap, fill and drop."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Mode(NamedTuple):
    """An out-of-bounds mode.

    name: the value of the option. participle: the verb form in reports. gathers, scatters: whether
    these operators have the mode. redirect: a function of a stored index and an axis size, integers
    or arrays, that returns a valid index. skips: whether the complete tuple selects nothing.
    ignores_distance: whether all indices below the bounds have the same result, and all above.
    """

    name: str
    participle: str
    gathers: bool = True
    scatters: bool = True
    redirect: Callable[[Any, Any], Any] | None = None
    skips: bool = False
    ignores_distance: bool = True

    @property
    def redirects(self) -> bool:
        """Whether the mode redirects to a valid index, which an axis of size 0 lacks."""
        return self.redirect is not None

    def is_valid_for(self, scatters: bool) -> bool:
        """Whether scatters, or else gathers, have the mode."""
        return self.scatters if scatters else self.gathers


MODES = {
    row.name: row
    for row in (
        Mode("error", "refused"),
        Mode("clip", "clipped", redirect=lambda i, size: (i > 0) * (size - 1)),
        Mode("wrap", "wrapped", redirect=lambda i, size: i % size, ignores_distance=False),
        Mode("fill", "filled", scatters=False, skips=True),
        Mode("drop", "dropped", gathers=False, skips=True),
    )
}


def names_for(scatters: bool) -> tuple[str, ...]:
    """Return the names of the modes that scatters, or else gathers, have."""
    return tuple(row.name for row in MODES.values() if row.is_valid_for(scatters))
