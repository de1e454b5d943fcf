"""Sizes that have a name instead of a number, and what must be true of them."""

from __future__ import annotations


class Symbol(int):
    """A size that is not known: a name, or the product of some and of a number.

    As an int it is that number: what is known of it.
    """

    names: tuple[str, ...]

    def __new__(cls, *names: str, factor: int = 1) -> Symbol:
        """Return the product of all."""
        made = super().__new__(cls, factor)
        made.names = names
        return made

    def __mul__(self, other: int) -> int:
        factor = int(self) * int(other)
        names = self.names + (other.names if isinstance(other, Symbol) else ())
        return Symbol(*names, factor=factor) if factor else 0

    def __rmul__(self, other: int) -> int:
        return self * other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Symbol):
            return False
        return int(self) == int(other) and sorted(self.names) == sorted(other.names)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((int(self), *sorted(self.names)))

    def __repr__(self) -> str:
        return "*".join(([str(int(self))] if int(self) != 1 else []) + list(self.names))


class Sizes:
    """Compares sizes: True or False, or None where that depends on names, and is assumed then.

    What was assumed to be equal is so in all that follows.
    """

    def __init__(self) -> None:
        self._same: dict[int, int] = {}

    def equal(self, a: int, b: int) -> bool | None:
        """Return whether two sizes are equal."""
        a, b = self._known(a), self._known(b)
        if a == b or not (isinstance(a, Symbol) or isinstance(b, Symbol)):
            return a == b
        if isinstance(a, Symbol):
            self._same[a] = b
        else:
            self._same[b] = a
        return None

    def at_most(self, a: int, b: int) -> bool | None:
        """Return whether the first of two sizes is not larger than the second."""
        a, b = self._known(a), self._known(b)
        if isinstance(a, Symbol) or isinstance(b, Symbol):
            return True if a == b or a == 0 else None
        return a <= b

    def shown(self, size: int) -> str:
        """Return a size, with what it was assumed to be."""
        known = self._known(size)
        return str(size) if known == size else f"{size} (assumed to be {known})"

    def _known(self, size: int) -> int:
        """Return what a size was assumed to be, or itself."""
        while size in self._same:
            size = self._same[size]
        return size
