"""The Sphinx configuration: `make docs`. Pages are Markdown that is also readable as such."""

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

import ndtool

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))
import commandpages  # noqa: E402 - in the folder of this file

project = html_title = "ndtool"
version = release = ndtool.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.doctest"]
myst_heading_anchors = 3
myst_url_schemes = {"https": None, "drawing": "gallery/{{path}}.html"}  # by gallery.py
myst_enable_extensions = ["deflist"]  # replaces tables in manual pages
nitpicky = True
smartquotes = False  # they would replace the hyphens of an option by a dash
default_role = "literal"  # docstrings are written as Markdown
doctest_global_setup = """
import numpy as np
from ndtool import *
from ndtool.onnx import OPS
"""
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings describe types; the text of ArrayLike fills a screen

html_theme = "furo"
html_copy_source = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_copyright = False

manpages_url = "{page}.html"  # links between the pages of commands
man_pages = [
    (f"commands/{page.name}", page.name, page.summary, [], 1)
    for page in commandpages.write(DOCS / "commands")
]

PARAMETER = re.compile(r"(?:^|(?<=\. ))((?:\w+, )*\w+): ")  # in the paragraph of a docstring


def link_documents(app: Sphinx, path: Path, parent: str, content: list[str]) -> None:
    """Link the documents that README.md names; a package index would not find them."""
    content[0] = re.sub(r"`docs/(\w+\.md)`", r"[\1](\1)", content[0])
    content[0] = re.sub(r"\]\(docs/", "](", content[0])
    for name, page in {"SECURITY.md": "security.md", "CODE_OF_CONDUCT.md": "conduct.md"}.items():
        content[0] = content[0].replace(f"]({name})", f"]({page})")


def remove_links(app: Sphinx, doctree: nodes.document, name: str) -> None:
    """Remove links from manual pages: their targets are files of the site."""
    if app.builder.name == "man":
        for link in list(doctree.findall(nodes.reference)):
            link.parent.replace(link, link.children)


def list_parameters(
    app: Sphinx, kind: str, name: str, documented: Any, options: Any, lines: list[str]
) -> None:
    """Convert a docstring's paragraphs such as `data: meaning. out: meaning.` to lists."""
    parameters = {
        parameter
        for annotated in (documented, documented.__init__)
        for parameter in getattr(annotated, "__annotations__", ())
    }
    paragraphs = []
    for paragraph in "\n".join(lines).split("\n\n"):
        introduction, *fields = PARAMETER.split(" ".join(paragraph.split()))
        names, texts = fields[::2], fields[1::2]
        if parameters.issuperset(", ".join(names).split(", ")):
            items = [f"* **{n}**: {text}" for n, text in zip(names, texts, strict=True)]
            paragraphs.append("\n".join([introduction, "", *items]))
        else:
            paragraphs.append(paragraph)
    lines[:] = "\n\n".join(paragraphs).splitlines()


def setup(app: Sphinx) -> None:
    """Register the handlers of Sphinx's events."""
    app.connect("include-read", link_documents)
    app.connect("doctree-resolved", remove_links)
    app.connect("autodoc-process-docstring", list_parameters)
