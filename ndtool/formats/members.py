"""Choice of a member of a file, and errors about names that are missing, unknown or ambiguous."""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import TypeVar

from ndtool.errors import UsageError, format_count, printable, refuse

T = TypeVar("T")

MAX_LISTED = 10  # members listed in an error


def listing(members: Iterable[tuple[str, str]], count: int) -> tuple[str, ...]:
    """Return a line for each of the first MAX_LISTED members, then the number of further ones.

    members: (name, description) of each member. count: the number of members.
    """
    lines = [f"{printable(name, 80)}: {text}" for name, text in islice(members, MAX_LISTED)]
    return (*lines, f"and {count - MAX_LISTED} more") if count > MAX_LISTED else tuple(lines)


def choose(
    path: str,
    name: str | None,
    members: Mapping[str, T],
    owner: str,
    kind: str,
    describe: Callable[[T], str],
) -> T:
    """Return the member with a name, or the only one if it is None; an error lists the members.

    owner, kind: words for the file and a member, such as "the store" and "array".
    """

    def lines(names: list[str]) -> tuple[str, ...]:
        return listing(((name, describe(members[name])) for name in names), len(names))

    names = list(members)
    if not names:
        refuse(path, f"{owner} has no {kind}s")
    if name is None and len(names) == 1:
        return members[names[0]]
    if name is None:
        count = f"{owner} has {len(names)} {kind}s"
        raise unnamed_member_error(path, count, names[0], lines(names))
    if name in members:
        return members[name]
    if inner := [member for member in names if member.startswith(f"{name}/")]:
        count = f"{printable(name)} is a group of {format_count(len(inner), kind)}"
        raise unnamed_member_error(path, count, inner[0], lines(inner))
    return refuse(path, f"{printable(name)} is no {kind} of {owner}", places=lines(names))


def unnamed_member_error(path: str, count: str, first: str, lines: tuple[str, ...]) -> UsageError:
    """Return the error that a member must be named.

    count: the number of members, such as "the archive has 3 members". first: a member's name.
    """
    return UsageError(
        f"{printable(path)}: {count}: name one of them",
        places=lines,
        hint=f"for example {printable(path)}:{printable(first)}",
    )
