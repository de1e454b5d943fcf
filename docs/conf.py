"""The Sphinx configuration: `make docs`. Pages are Markdown that is also readable as such."""

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

import ndtool

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import commandpages  # noqa: E402 - next to this file

project = html_title = "ndtool"
version = release = ndtool.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.doctest"]
myst_heading_anchors = 3
myst_url_schemes = {"https": None, "drawing": "gallery/{{path}}.html"}  # by gallery.py
myst_enable_extensions = ["deflist"]  # replaces tables in manual pages
nitpicky = True
smartquotes = False  # would replace the two hyphens of an option by a dash
default_role = "literal"  # docstrings are written as Markdown
doctest_global_setup = """
import numpy as np
from ndtool import *
from ndtool.onnx import OPS
"""
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings describe types; that of an ArrayLike fills a screen

html_theme = "furo"
html_copy_source = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_copyright = False

manpages_url = "{page}.html"  # among the pages of the commands
man_pages = [
    (f"commands/{page.name}", page.name, page.does, [], 1)
    for page in commandpages.write(HERE / "commands")
]

ENTRY = re.compile(r"(?:^|(?<=\. ))((?:\w+, )*\w+): ")  # of a list of parameters in a docstring


def link_documents(app: Sphinx, path: Path, parent: str, content: list[str]) -> None:
    """Link the documents that README.md refers to: on a package index they are not linked."""
    content[0] = re.sub(r"`docs/(\w+\.md)`", r"[\1](\1)", content[0])
    content[0] = re.sub(r"\]\(docs/", "](", content[0])
    for name, page in {"SECURITY.md": "security.md", "CODE_OF_CONDUCT.md": "conduct.md"}.items():
        content[0] = content[0].replace(f"]({name})", f"]({page})")


def unlink(app: Sphinx, doctree: nodes.document, name: str) -> None:
    """Remove links from manual pages, where they would be file names of the site."""
    if app.builder.name == "man":
        for link in list(doctree.findall(nodes.reference)):
            link.parent.replace(link, link.children)


def list_parameters(
    app: Sphinx, kind: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Convert paragraphs such as `data: meaning. out: meaning.` to lists."""
    known = {n for one in (thing, thing.__init__) for n in getattr(one, "__annotations__", ())}
    made = []
    for paragraph in "\n".join(lines).split("\n\n"):
        first, *rest = ENTRY.split(" ".join(paragraph.split()))
        names, texts = rest[::2], rest[1::2]
        if known.issuperset(", ".join(names).split(", ")):
            items = [f"* **{n}**: {text}" for n, text in zip(names, texts, strict=True)]
            made.append("\n".join([first, "", *items]))
        else:
            made.append(paragraph)
    lines[:] = "\n\n".join(made).splitlines()


def setup(app: Sphinx) -> None:
    """Register the handlers of Sphinx's events."""
    app.connect("include-read", link_documents)
    app.connect("doctree-resolved", unlink)
    app.connect("autodoc-process-docstring", list_parameters)
