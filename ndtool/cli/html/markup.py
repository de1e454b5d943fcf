"""HTML and SVG elements; their contents are always text, never markup."""

import json
from typing import Any
from xml.etree.ElementTree import Element, tostring

from ndtool.errors import printable
from ndtool.redaction import in_fields

_LONGEST = 100_000  # characters of a text, more than any has


def element(tag: str, *children: "Element | str | None", **attributes: Any) -> Element:
    """Return an element; attributes None or False are omitted, `_` in names becomes `-`."""
    parent = Element(
        tag, {_name(key): _value(value) for key, value in attributes.items() if _is_given(value)}
    )
    for child in children:
        if isinstance(child, Element):
            parent.append(child)
        elif child is not None:
            _add_text(parent, printable(child, _LONGEST))
    return parent


def _is_given(value: Any) -> bool:
    return value is not None and value is not False


def _name(key: str) -> str:
    return key.strip("_").replace("_", "-")


def _value(value: Any) -> str:
    return "" if value is True else printable(str(value), _LONGEST)


def _add_text(parent: Element, text: str) -> None:
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text
    else:
        parent.text = (parent.text or "") + text


def verbatim(tag: str, text: str, **attributes: Any) -> Element:
    """Return an element with unescaped text: our own style or script."""
    child = element(tag, **attributes)
    child.text = text
    return child


def data_block(name: str, value: Any) -> Element:
    """Return JSON as a script element, escaped so that it cannot end the element."""
    text = json.dumps(in_fields(value), separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return verbatim("script", text, type="application/json", id=name)


def table(columns: tuple[str, ...], rows: Any, **attributes: Any) -> Element:
    """Return a table whose cells are texts or elements."""
    head = element("tr", *(element("th", name, scope="col") for name in columns))
    body = [element("tr", *(element("td", cell) for cell in row)) for row in rows]
    return element("table", element("thead", head), element("tbody", *body), **attributes)


def page(root: Element) -> bytes:
    """Return an HTML document as bytes."""
    text: bytes = tostring(root, "utf-8", method="html")
    return b"<!DOCTYPE html>\n" + text + b"\n"


def picture(root: Element) -> bytes:
    """Return an SVG picture as bytes."""
    text: bytes = tostring(root, "utf-8", xml_declaration=True)
    return text + b"\n"
