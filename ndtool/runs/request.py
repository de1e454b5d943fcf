"""The request of a run: the user's arguments, before any input is opened."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from ndtool.errors import UsageError, argument_name
from ndtool.formats import locators
from ndtool.rules.operators import LOWERED_INPUTS, Attributes, operator_of
from ndtool.storage import locations


class Request(NamedTuple):
    """The arguments of one run; inputs and output are locations such as `a.npz:x` or `-`.

    dtype: the actual type of void elements. output: None for no output. only: whether to drop the
    other members of the output's archive. memory: the limit in bytes, including pages of files;
    None for available memory. spill: the directory of temporary files, or several; on a cluster
    one, or a URL; None for TMPDIR. scheduler: a scheduler's address, a scheduler file, or a client.
    workers: the number of processes to start, None for none. resume: whether a cluster reuses the
    spilled data of a killed run. text: whether indices and updates in an unknown format are text.
    chunks, shards, codec: see Encoding in publish/targets.py.
    """

    operator: str
    data: str
    indices: str
    updates: str | None = None
    output: str | None = None
    attributes: Attributes = Attributes()
    spec: str = "ndtool"
    dtype: str | None = None
    threads: int | None = None
    clobber: bool = True
    sync: bool = False
    only: bool = False
    memory: int | None = None
    spill: str | Sequence[str] | None = None
    scheduler: Any = None
    workers: int | None = None
    resume: bool = False
    chunks: tuple[int, ...] | None = None
    shards: tuple[int, ...] | None = None
    codec: str | None = None
    text: bool = False

    @property
    def on_cluster(self) -> bool:
        """Whether a cluster executes the run."""
        return self.scheduler is not None or self.workers is not None

    @property
    def arguments(self) -> dict[str, str]:
        """The inputs by the standards' names, without an omitted optional input."""
        roles = operator_of(self.operator).inputs
        arguments = {role: getattr(self, LOWERED_INPUTS.get(role, role)) for role in roles}
        if arguments.get("write_indices", "") is None:
            del arguments["write_indices"]
        for role in roles[1:] if self.text else ():  # data are never text
            if arguments.get(role) is not None:  # stats has no updates
                arguments[role] = locators.as_text(arguments[role])
        return arguments

    @property
    def spill_locations(self) -> tuple[str, ...]:
        """The locations of temporary files, none for TMPDIR; UsageError if one is unusable."""
        if self.resume and not self.on_cluster:
            raise UsageError(
                "--resume: only a run on a cluster can be resumed: expected --scheduler or"
                " --workers"
            )
        spill = [self.spill] if isinstance(self.spill, str) else self.spill or ()
        if self.on_cluster and len(spill) > 1:
            raise UsageError(
                f"--spill is given {len(spill)} times: a cluster spills to one directory or URL,"
                " which all workers share"
            )
        return tuple(map(self._spill_location, spill))

    def _spill_location(self, argument: str) -> str:
        location = locations.local_path(argument)
        if not location:
            raise UsageError("--spill is empty: expected a directory")
        if locations.is_url(location):
            if not self.on_cluster:
                raise UsageError(
                    f"--spill {argument_name(location)}: only a cluster spills to a URL:"
                    " expected a directory"
                )
        elif not os.path.isdir(location):
            problem = "is not a directory" if os.path.lexists(location) else "does not exist"
            raise UsageError(
                f"--spill {argument_name(location)} {problem}: expected an existing directory"
            )
        return location
