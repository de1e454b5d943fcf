"""HTML tables of results for notebooks; names and values are escaped."""

from collections.abc import Iterable, Sequence
from html import escape

from ndtool.errors import RuleError, printable
from ndtool.rules import shapes
from ndtool.rules.inference import Inference
from ndtool.rules.trace import Trace


def table(caption: str, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table of text cells."""
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


class ShownTrace(Trace):
    """A trace that notebooks show as a table."""

    def _repr_html_(self) -> str:
        rows = [step[:3] for step in self.steps]
        return table(self.operator, ("rule", "with", "result"), rows)


def show_trace(error: RuleError) -> None:
    """Replace an error's trace, if it has one, by one that notebooks show as a table."""
    if isinstance(error.trace, Trace):
        error.trace = ShownTrace(*error.trace)


class ShownInference(Inference):
    """An inference that notebooks show as two tables: the array types, and the trace."""

    def _repr_html_(self) -> str:
        inputs = [(role, given.described) for role, given in self.inputs.items()]
        assumed = [("assumed", sentence) for sentence in self.trace.assumed]
        output = ("output", shapes.described(self.dtype, self.plan.output))
        call = table(self.operator, ("array", "type"), [*inputs, *assumed, output])
        return call + ShownTrace(*self.trace)._repr_html_()
