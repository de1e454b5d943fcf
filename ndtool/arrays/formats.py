"""The formats, and which of them a file is of.

A format is one module and one row of FORMATS. Its functions:

    recognises(place)                       whether the content of a file is of this format
    entries(place, path, member)            what `inspect` tells of one member or all: facts alone
    open_source(place, name, path, member)  a Source, which closes the place
    check(target)                           what is wrong with a target, and the members that stay
    create(target, facts)                   a Sink
    stored(dtype)                           the element type that it has there; DtypeError where
                                            there is none; a format without it stores as .npy does
    nodes(place, path)                      of a model: the nodes of our operators
"""

from importlib import import_module
from typing import Any, NamedTuple

from ndtool.arrays import places
from ndtool.arrays.local import File, Folder


class Format(NamedTuple):
    """One kind of file.

    suffix: of the names of outputs that are written so. members: whether a file of it holds
    arrays by name, as `archive.npz:member`. functions: the module that has them. marked: whether
    its files begin or end as no others do; what else is called so is taken for a damaged one.
    chunks: whether it stores arrays in chunks.
    """

    suffix: str
    members: bool
    functions: str
    marked: bool = True
    chunks: bool = False

    @property
    def module(self) -> Any:
        """The functions, loaded at their first use."""
        return import_module(self.functions)


# The first row takes what no other recognises, and is written where no other suffix says so.
FORMATS = (
    Format(".npy", False, "ndtool.arrays.npy"),
    Format(".safetensors", True, "ndtool.arrays.safetensors"),
    Format(".npz", True, "ndtool.arrays.npz"),
    Format(".zarr", True, "ndtool.arrays.zarr", chunks=True),
    Format(".safetensors.index.json", True, "ndtool.arrays.shards"),
    Format(".pb", True, "ndtool.arrays.pb", marked=False),
    Format(".onnx", True, "ndtool.arrays.onnx", marked=False),
)


def of_content(place: File | Folder, path: str) -> Format:
    """Return the format of a file; of what none recognises, that of its suffix if it may be."""
    unmarked = (known for known in suffixed(path) if not known.marked)
    return recognised(place, path) or next(unmarked, FORMATS[0])


def suffixed(path: str) -> list[Format]:
    """Return the formats whose suffix a path has."""
    name = path.partition("?")[0] if places.is_url(path) else path
    return [known for known in FORMATS if name.endswith(known.suffix)]


def recognised(place: File | Folder, path: str) -> Format | None:
    """Return the format that recognises a file; the one of its suffix is tried first."""
    for known in dict.fromkeys((*suffixed(path), *FORMATS)):
        if known.module.recognises(place):
            return known
    return None
