"""Errors about member names that are missing, unknown or ambiguous."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TypeVar

from ndtool.errors import UsageError, printable, refuse

T = TypeVar("T")

MAX_LISTED = 10  # members listed in an error


def listing(members: Iterable[tuple[str, str]], count: int) -> tuple[str, ...]:
    """Return a line for each of the first MAX_LISTED members, then the number of further ones.

    members: (name, description) of each member. count: the number of members.
    """
    lines = [f"{printable(name, 80)}: {text}" for name, text in islice(members, MAX_LISTED)]
    return (*lines, f"and {count - MAX_LISTED} more") if count > MAX_LISTED else tuple(lines)


def only_member(
    path: str, members: Sequence[T], plural: str, describe: Callable[[T], tuple[str, str]]
) -> T:
    """Return the only member of a file; an error lists the members if there are several.

    plural: the format of the message, such as "the archive has {} members". describe: returns the
    name and the description of a member.
    """
    if not members:
        refuse(path, plural.format("no"))
    if len(members) > 1:
        lines = listing(map(describe, members), len(members))
        count = plural.format(len(members))
        raise unnamed_member_error(path, count, describe(members[0])[0], lines)
    return members[0]


def unnamed_member_error(path: str, count: str, first: str, lines: tuple[str, ...]) -> UsageError:
    """Return the error that a member must be named.

    count: the number of members, such as "the archive has 3 members". first: a member's name.
    """
    return UsageError(
        f"{printable(path)}: {count}: name one of them",
        places=lines,
        hint=f"for example {printable(path)}:{printable(first)}",
    )
