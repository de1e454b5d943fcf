"""What notebooks show of results: HTML, in which names are text."""

from collections.abc import Iterable, Sequence
from html import escape

from ndtool.errors import printable


def table(caption: str, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose cells are texts."""
    head = "".join(f"<th>{_text(title)}</th>" for title in titles)
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f"<table><caption>{_text(caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _text(text: str) -> str:
    return escape(printable(text, 1000))
