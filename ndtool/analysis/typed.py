"""Types such as `float32[8,128,64]` in place of arrays whose values are not needed."""

from __future__ import annotations

import os
import re
from contextlib import closing
from typing import TYPE_CHECKING, NoReturn

from ndtool.arrays.source import ArrayMetadata, Source
from ndtool.errors import UsageError, printable
from ndtool.formats import locators
from ndtool.formats.streams import Streams
from ndtool.rules import dtypes, shapes
from ndtool.rules.dtypes import Dtype
from ndtool.rules.plans import Shape
from ndtool.rules.trace import Symbol

if TYPE_CHECKING:
    from ndtool.runs.calls import OpenCall, Request

# A dtype, which may have a unit in brackets, then a shape; no path or member matches.
_TYPE = re.compile(r"([^:/.\[\]]+(?:\[[0-9]*[A-Za-z]+\])?)\[(.*)\]")
_SIZE = "(?:[0-9]{1,19}|[A-Za-z_][A-Za-z0-9_]{0,99})"
_SIZES = re.compile(f"(?:{_SIZE}(?:, ?{_SIZE})*)?")


class TypeSource(Source):
    """A source with a type and shape but no values."""

    concurrency = 0

    def __init__(self, name: str, metadata: ArrayMetadata, warning: str | None = None) -> None:
        self.name, self.metadata, self.warning = name, metadata, warning

    def load(self, *_: object, **__: object) -> NoReturn:
        """Raise UsageError: a type has no bytes."""
        raise UsageError(
            f"{printable(self.name)} is a type without values: expected a file",
            hint="indices may be a literal, such as '[[5], [7]]'",
        )


def type_source(argument: str, allow_symbols: bool = False) -> TypeSource | None:
    """Return a TypeSource if an argument is `dtype[d0,d1,...]`, and not the name of a file.

    allow_symbols: whether sizes may be symbolic.
    """
    match = _TYPE.fullmatch(argument)
    if match is None or os.path.lexists(argument):
        return None
    shape = _shape(argument, match[2], allow_symbols)
    dtype = dtypes.from_name(match[1])
    if dtype.kind in "mM" and "[" not in dtype.name and match[2].isalpha():
        raise _invalid_type(argument)  # a unit in brackets, without a shape
    return TypeSource(argument, ArrayMetadata(dtype, shape, "C", shape, {}))


def header_source(
    argument: str,
    streams: Streams,
    *,
    literals: bool = False,
    dtype: Dtype | None = None,
    symbols: bool = False,
) -> TypeSource:
    """Return a TypeSource of a type, or of a file, of which only the header is read."""
    if (declared := type_source(argument, symbols)) is not None:
        return declared
    entries = locators.describe(argument, streams, literals=literals, dtype=dtype)
    if len(entries) == 1 and (metadata := entries[0].metadata):
        return TypeSource(argument, metadata, entries[0].warning)
    # open_source raises the error that says why.
    with closing(locators.open_source(argument, streams, literals=literals, dtype=dtype)) as source:
        return TypeSource(argument, source.metadata, source.warning)


def open_typed_call(request: Request, sources: dict[str, Source] | None = None) -> OpenCall:
    """Open a call whose inputs may be types; sources: open inputs of the caller, by role."""
    from ndtool.runs.calls import OpenCall

    opened_sources, arguments = sources or {}, request.arguments.items()
    types: dict[str, Source] = {
        role: source
        for role, name in arguments
        if role not in opened_sources and (source := type_source(name))
    }
    return OpenCall(request, types | opened_sources)


def _shape(argument: str, sizes: str, allow_symbols: bool) -> Shape:
    if not _SIZES.fullmatch(sizes):
        raise _invalid_type(argument)
    size_texts = sizes.replace(" ", "").split(",") if sizes else []
    shape = tuple(int(word) if word.isdecimal() else Symbol(word) for word in size_texts)
    if any(size > shapes.MAX_SIZE for size in shape):
        raise _invalid_type(argument)
    symbols = [size for size in shape if isinstance(size, Symbol)]
    if symbols and not allow_symbols:
        raise UsageError(f"{printable(argument)}: size {symbols[0]} is a symbol: expected a number")
    if len(shape) > shapes.MAX_RANK:
        raise UsageError(f"{printable(argument)}: rank {len(shape)}: valid 0..{shapes.MAX_RANK}")
    return shape


def _invalid_type(argument: str) -> UsageError:
    return UsageError(f"{printable(argument)}: expected a file or dtype[d0,d1,...]")
