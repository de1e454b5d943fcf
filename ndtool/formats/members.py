"""Errors about missing or unknown member names."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TypeVar

from ndtool.errors import InputError, UsageError, printable

T = TypeVar("T")

LISTED = 10  # members listed in an error


def listed(members: Iterable[tuple[str, str]], count: int) -> tuple[str, ...]:
    """Return a line for each of the first LISTED members, then one with the number of the others.

    members: (name, description) of each member. count: the number of members.
    """
    lines = [f"{printable(name, 80)}: {text}" for name, text in islice(members, LISTED)]
    return (*lines, f"and {count - LISTED} more") if count > LISTED else tuple(lines)


def only(
    path: str, members: Sequence[T], plural: str, describe: Callable[[T], tuple[str, str]]
) -> T:
    """Return the only member of a file; an error lists the members if there are several.

    plural: the file and its kind of members, such as "the archive has {} members". describe:
    returns the name and the description of a member.
    """
    if not members:
        raise InputError(f"{printable(path)}: {plural.format('no')}")
    if len(members) > 1:
        places = listed(map(describe, members), len(members))
        count = plural.format(len(members))
        raise unnamed(path, count, describe(members[0])[0], places)
    return members[0]


def unnamed(path: str, count: str, first: str, places: tuple[str, ...]) -> UsageError:
    """Return the error that a member must be named. count: the number of members, in words."""
    return UsageError(
        f"{printable(path)}: {count}: name one of them",
        places=places,
        hint=f"for example {printable(path)}:{printable(first)}",
    )
