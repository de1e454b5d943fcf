"""Errors about missing or unknown member names."""

from collections.abc import Iterable
from itertools import islice

from ndtool.errors import UsageError, printable

LISTED = 10  # members listed in an error


def listed(known: Iterable[tuple[str, str]], count: int) -> tuple[str, ...]:
    """Return a line for each of the first LISTED members, then one with the number of the others.

    known: (name, description) of each member. count: the number of members.
    """
    lines = [f"{printable(name, 80)}: {what}" for name, what in islice(known, LISTED)]
    return (*lines, f"and {count - LISTED} more") if count > LISTED else tuple(lines)


def unnamed(path: str, what: str, first: str, places: tuple[str, ...]) -> UsageError:
    """Return the error that a member must be named. what: the number of members. first: a name."""
    return UsageError(
        f"{printable(path)}: {what}: name one of them",
        places=places,
        hint=f"for example {printable(path)}:{printable(first)}",
    )
