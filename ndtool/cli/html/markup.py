"""HTML and SVG elements; texts in them are never interpreted as markup."""

import json
from typing import Any
from xml.etree.ElementTree import Element, tostring

from ndtool.errors import printable
from ndtool.redaction import redact_json

_MAX_TEXT_LENGTH = 100_000  # characters; no text of a report is longer


def element(tag: str, *children: "Element | str | None", **attributes: Any) -> Element:
    """Return an element; attributes None and False are omitted, `_` in names becomes `-`."""
    parent = Element(tag)
    for key, value in attributes.items():
        if value is not None and value is not False:
            text = "" if value is True else printable(str(value), _MAX_TEXT_LENGTH)
            parent.set(key.strip("_").replace("_", "-"), text)
    for child in children:
        if isinstance(child, Element):
            parent.append(child)
        elif child is not None:
            text = printable(child, _MAX_TEXT_LENGTH)
            if len(parent):
                parent[-1].tail = (parent[-1].tail or "") + text
            else:
                parent.text = (parent.text or "") + text
    return parent


def unescaped_element(tag: str, text: str, **attributes: Any) -> Element:
    """Return an element with unescaped text: the style or script of a report."""
    child = element(tag, **attributes)
    child.text = text
    return child


def json_element(name: str, value: Any) -> Element:
    """Return a script element with JSON, escaped so that no value can end the element."""
    text = json.dumps(redact_json(value), separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return unescaped_element("script", text, type="application/json", id=name)


def table(columns: tuple[str, ...], rows: Any, **attributes: Any) -> Element:
    """Return a table; cells are texts or elements."""
    head = element("tr", *(element("th", name, scope="col") for name in columns))
    body = [element("tr", *(element("td", cell) for cell in row)) for row in rows]
    return element("table", element("thead", head), element("tbody", *body), **attributes)


def html_document(root: Element) -> bytes:
    """Return an HTML document as bytes."""
    text: bytes = tostring(root, "utf-8", method="html")
    return b"<!DOCTYPE html>\n" + text + b"\n"


def svg_document(root: Element) -> bytes:
    """Return an SVG picture as bytes."""
    text: bytes = tostring(root, "utf-8", xml_declaration=True)
    return text + b"\n"
