"""Suffixes of paths that no output format has."""

import os

from ndtool.errors import UsageError, printable


def require_supported(path: str) -> None:
    """Raise UsageError if a path or URL has the suffix of an unsupported output format.

    A colon separates a member name, unless a file of the complete name exists. A suffix without
    letters is ignored, as it may be part of a number.
    """
    name = os.path.basename(path)
    for file_name in (name if os.path.lexists(path) else name.partition(":")[0], name):
        suffix = os.path.splitext(file_name)[1]
        if any(map(str.isalpha, suffix)) and ":" not in suffix:
            raise unsupported_error(path, suffix)


def unsupported_error(path: str, suffix: str) -> UsageError:
    """Return the error for a suffix that is not one of an output format."""
    return UsageError(
        f"{printable(path)}: ndtool does not write {printable(suffix)}:"
        " expected .npy, .npz, .safetensors, .pb, .zarr, .h5, .parquet, .arrow, .csv or .txt"
        + ("" if suffix == suffix.lower() else ", in lower case"),
        hint=f"npy:{printable(path)} writes a .npy file of this name",
    )
