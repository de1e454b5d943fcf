"""The names of elements in answers: of files by file name, of other inputs by role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ndtool.analysis.typed import TypeSource
from ndtool.errors import argument_name
from ndtool.rules.operators import MODES
from ndtool.rules.plans import Plan
from ndtool.runs.calls import OpenCall


@dataclass(frozen=True, slots=True)
class ElementNames:
    """The names of elements and index tuples of a call, without its arrays.

    files: the names of inputs from files, by role.
    """

    files: Mapping[str, str]
    plan: Plan

    @classmethod
    def of(cls, call: OpenCall) -> ElementNames:
        """Return the names in a call."""
        files = {
            role: argument_name(source.name)
            for role, source in call.sources.items()
            if role in call.inference.inputs
            and not isinstance(source, TypeSource)
            and not source.name.startswith("[")
        }
        return cls(files, call.inference.plan)

    def name_of(self, role: str, position: tuple[int, ...]) -> str:
        """Return the name of an element: `table.npy[3, 0]`."""
        coordinates = f"[{', '.join(map(str, position))}]" if position else ""
        return self.files.get(role, role) + coordinates

    def index_text(
        self, position: tuple[int, ...], index: tuple[int, ...], remark: str = ""
    ) -> str:
        """Return an index tuple as text, followed by a remark: `rows.npy[7] = (-876)`."""
        return f"{self.name_of('indices', position)} = {self.tuple_text(index)}{remark}"

    def tuple_text(self, index: tuple[int, ...]) -> str:
        """Return a tuple as text, as it is stored; a single integer has no parentheses."""
        return str(index[0]) if self.plan.has_scalar_indices else f"({', '.join(map(str, index))})"

    def bounds_remark(self, stored: tuple[int, ...], normalized: tuple[int, ...]) -> str:
        """Return the remark on a tuple that is padding or out of bounds, else ""."""
        attributes = self.plan.attributes
        if attributes.pad is not None and attributes.pad in stored:
            return ", padding"
        ranges = map(attributes.valid_indices, self.plan.sizes)
        if all(low <= i <= high for i, (low, high) in zip(stored, ranges, strict=True)):
            return ""
        mode = MODES[attributes.out_of_bounds]
        if mode.redirect is None:
            return ", out of bounds"
        return f", out of bounds, {mode.participle} to {self.tuple_text(self.written(normalized))}"

    def written(self, normalized: tuple[int, ...]) -> tuple[int, ...]:
        """Return a tuple that counts from 0 as indices are written."""
        return tuple(i + self.plan.attributes.index_base for i in normalized)
