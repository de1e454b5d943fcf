"""Remove options from NDTOOL_* variables that do not apply to a call.

An invalid value is an error, as for the option. A valid value that does not apply to a call is
ignored, whereas the option itself is an error.
"""

import os
from typing import Any

import click

from ndtool.errors import UsageError, argument_name

CHUNK_OPTIONS = ("chunks", "shards", "codec")  # options for chunked outputs


def is_from_environment(name: str) -> bool:
    """Return whether an environment variable sets an option of this call."""
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.ENVIRONMENT


def drop_inapplicable(output: str, options: dict[str, Any]) -> None:
    """Remove cluster and chunk options that come from variables and do not apply."""
    if "workers" in options:
        _drop_inapplicable_cluster(output, options)
    if options.get("spill") and is_from_environment("spill"):
        for spill in options["spill"]:
            _require_directory(spill)
    inapplicable_options = list(filter(is_from_environment, CHUNK_OPTIONS))
    if not inapplicable_options:
        return
    from ndtool.formats import locators, outputs
    from ndtool.storage import local

    file_format = outputs.format_by_name(output)
    is_store = local.is_zarr_store(locators.parse(output).path)
    if is_store or (file_format and file_format.is_folder):
        return
    if file_format and file_format.chunks:  # of HDF5, which has no shards and few codecs
        codec = (options.get("codec") or "none").partition(":")[0]
        inapplicable_options = [
            name for name in inapplicable_options
            if name == "shards" or (name == "codec" and codec not in file_format.module.CODECS)
        ]  # fmt: skip
    options.update(dict.fromkeys(inapplicable_options))


def drop_inapplicable_mode(scatters: bool, options: dict[str, Any]) -> None:
    """Remove --out-of-bounds and --fill from variables if the operator or the mode lacks them."""
    inapplicable = "fill" if scatters else "drop"
    if options.get("out_of_bounds") == inapplicable and is_from_environment("out_of_bounds"):
        del options["out_of_bounds"]
    uses_fill = options.get("out_of_bounds") == "fill" or options.get("pad") is not None
    if not uses_fill and is_from_environment("fill"):
        del options["fill"]


def _drop_inapplicable_cluster(output: str, options: dict[str, Any]) -> None:
    """Remove a variable's cluster if an option sets another, or workers cannot write the output."""
    from ndtool.storage import locations

    clusters = {name for name in ("scheduler", "workers") if options[name] is not None}
    by_variable = set(filter(is_from_environment, clusters))
    if by_variable != clusters or not _is_writable_by_workers(output):
        options.update(dict.fromkeys(by_variable))
    on_cluster = options["scheduler"] is not None or options["workers"] is not None
    spills = options["spill"] if is_from_environment("spill") else ()
    if (
        len(spills) > 1
        if on_cluster
        else any(map(locations.is_url, map(locations.local_path, spills)))
    ):
        options["spill"] = ()
    if not on_cluster and is_from_environment("resume"):
        options["resume"] = False


def _require_directory(spill: str) -> None:
    """Raise UsageError, with the variable's name, if its directory does not exist."""
    from ndtool.storage import locations

    directory = locations.local_path(spill)
    if not locations.is_url(directory) and not os.path.isdir(directory):
        problem = "is not a directory" if os.path.lexists(directory) else "does not exist"
        raise UsageError(
            f"NDTOOL_SPILL is {argument_name(directory)}, which {problem}: expected a directory"
        )


def _is_writable_by_workers(output: str) -> bool:
    """Return whether other processes can write an output: a file, or a store."""
    from ndtool.formats import locators, outputs
    from ndtool.storage import locations

    path = locators.parse(output).path
    if locations.is_url(path):
        file_format = outputs.format_by_name(output)
        return file_format is not None and file_format.is_folder
    return output != "-" and (
        os.path.isfile(path) or os.path.isdir(path) or not os.path.exists(path)
    )
