"""Resume on a cluster: a run reuses the complete segments of one that was killed.

A manifest has the fingerprint of the killed run's inputs, and its partitioning. They determine what
a task spills, so that a segment with the same manifest is as good as a new one.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from ndtool import __version__
from ndtool.arrays.source import Source
from ndtool.errors import NdtoolError, argument_name, redact_urls
from ndtool.machine import pool
from ndtool.rules import grid
from ndtool.rules.inference import Inference
from ndtool.runs.external import policy, spillfiles
from ndtool.runs.external.partitioning import Partitioning, phase
from ndtool.runs.external.results import NOTE, TaskResult
from ndtool.runs.external.rows import Rows
from ndtool.runs.external.spill import Segment, SpillFolder
from ndtool.runs.external.spillfiles import SharedStore
from ndtool.runs.external.tables import Collected

RunFingerprint = dict[str, Any]  # fingerprint of a run, as JSON

LISTED = 100_000  # chunks of data to fingerprint, at most: a gather may read few
_MANIFEST = "manifest"
_CALL = {
    "version": "the killed run had another version of ndtool",
    "call": "the killed run had another operator, attribute, type or shape",
    "rows": "in the killed run, data or the output had other chunks",
}


def fingerprint_of(
    inference: Inference, rows: Rows, named: dict[str, str], sources: dict[str, Source]
) -> RunFingerprint:
    """Return the fingerprint of a run: the call, and name and fingerprint of each input.

    named: the inputs' locations on workers. A scatter's segments do not depend on data.
    """
    types = [(given.dtype, given.shape) for given in inference.inputs.values()]
    fingerprint: RunFingerprint = {
        "version": __version__,
        "call": repr((inference.operator, inference.spec, inference.attributes, types)),
        "rows": (rows.over, rows.width, sources["data"].metadata.unit),
    }
    for role, name in named.items():
        if role != "data" or not inference.scatters:
            fingerprint[role] = (redact_urls(name), _input_fingerprint(role, name, sources[role]))
    again: RunFingerprint = json.loads(json.dumps(fingerprint))
    return again


def difference(fingerprint: RunFingerprint, expected: RunFingerprint) -> str:
    """Return the first difference between two fingerprints, as text; "" if they are equal."""
    for key, value in expected.items():
        if fingerprint.get(key) != value:
            return _CALL.get(key) or f"{argument_name(value[0])} has changed"
    return ""


def without_fingerprint(fingerprint: RunFingerprint) -> str:
    """Return the name of an input that has no fingerprint, "" if all have one."""
    roles = (role for role in ("indices", "updates") if role in fingerprint)
    return next((fingerprint[role][0] for role in roles if fingerprint[role][1] is None), "")


def _input_fingerprint(role: str, name: str, source: Source) -> Any:
    if role == "data" and grid.blocks(source.metadata.shape, source.metadata.unit) > LISTED:
        return None
    fingerprint = source.fingerprint()
    if fingerprint is None and role == "indices" and name.lstrip()[:1] == "[":
        return "written out"
    return fingerprint


def write_manifest(
    store: SharedStore, fingerprint: RunFingerprint, partitioning: Partitioning
) -> bool:
    """Write the manifest; return False if the run cannot be resumed."""
    if without_fingerprint(fingerprint):
        return False
    manifest = {
        "fingerprint": fingerprint,
        "block": partitioning.block,
        "group_shapes": partitioning.group_shapes,
        "range_tuples": partitioning.range_tuples,
    }  # fmt: skip
    policy.patiently(partial(store.write_file, _MANIFEST, json.dumps(manifest).encode()))
    return True


class AbandonedRun:
    """An abandoned run, and the segments of it that another run resumes.

    fingerprint: the fingerprint of the resuming run. folder: the reopened folder, None if none
    fits. reason: why none fits, "" if none exists. taken: the number of resumed tasks by phase.
    """

    def __init__(self, location: str, fingerprint: RunFingerprint) -> None:
        self.fingerprint, self.reason = fingerprint, ""
        self.folder: SpillFolder | None = None
        self.taken = {"split": 0}
        self._first: dict[int, TaskResult] = {}  # of the first level
        self._sizes: dict[Segment, int] = {}
        if name := without_fingerprint(fingerprint):
            self.reason = f"changes of {argument_name(name)} cannot be detected"
            return
        insides, in_use = spillfiles.abandoned(location)
        if in_use:
            self.reason = (
                f"{argument_name(in_use[0])} is from another machine, or from before this"
                " machine's last start"
            )
        for inside in insides:
            store = spillfiles.open_store(inside)
            manifest = _read(store)
            if manifest is None:
                continue
            self.reason = difference(manifest["fingerprint"], fingerprint)
            if not self.reason and (folder := spillfiles.reopen(inside)):
                self.folder, self._store, self._manifest = folder, store, manifest
                return

    def partitioning(self, partitioning: Partitioning) -> Partitioning:
        """Return the partitioning of the abandoned run."""
        return partitioning._replace(
            block=self._manifest["block"],
            group_shapes=tuple(map(tuple, self._manifest["group_shapes"])),
            range_tuples=self._manifest["range_tuples"],
        )

    def refuse(self, reason: str) -> None:
        """Resume nothing, for a reason."""
        self.reason = reason
        self.close()
        self.folder = None

    def find_segments(self, partitioning: Partitioning) -> None:
        """Find the segments that are complete."""
        self._sizes, self._partitioning = self._store.segments(), partitioning
        self._first = self._results(0, Collected(partitioning, self._store))
        self.taken["split"] = len(self._first)

    def splits(self, depth: int, tables: Collected) -> dict[int, TaskResult]:
        """Return the results of resumed splits of groups at a depth, by task."""
        results = self._results(depth, tables) if depth else self._first
        self.taken[phase("split", depth)] = len(results)
        return results

    def rows(self, name: str, tables: Collected) -> dict[int, TaskResult]:
        """Return the results of resumed tasks of a phase that spills rows, by task."""
        is_known = name == "combine" or self.fingerprint["data"][1] is not None
        results = {
            segment.number: TaskResult(segment.attempt)
            for segment, nbytes in self._sizes.items()
            if segment.phase == name and nbytes == self._row_bytes(segment, tables) and is_known
        }
        self.taken[name] = len(results)
        return results

    def close(self) -> None:
        """Release the folder for another run, unless it was removed."""
        if self.folder is not None:
            self.folder.leave()

    def _results(self, depth: int, tables: Collected) -> dict[int, TaskResult]:
        """Return the results of the splits whose segments are complete."""
        results = dict[int, TaskResult]()
        if self.folder is None:
            return results

        def read(segment: Segment) -> None:
            if end := self._result(segment, depth, tables):
                results[segment.number] = end

        segments = filter(lambda segment: segment.phase == phase("split", depth), self._sizes)
        pool.run_all(read, segments, self._store.at_once)
        return results

    def _result(self, segment: Segment, depth: int, tables: Collected) -> TaskResult | None:
        """Read the result of a split; None if its segment is incomplete."""
        partitioning = self._partitioning
        number, block = divmod(segment.number, partitioning.blocks)
        group = tables.group(depth, number)
        if block >= group.blocks:
            return None
        nbytes = group.tuples_of(block) * partitioning.spilled_per_tuple(depth)
        children = partitioning.children(number, depth)
        end = memoryview(bytearray(8 * (children + 1) + NOTE))
        if self._sizes[segment] != nbytes + len(end):
            return None
        try:
            self._store.read(segment, nbytes, end)
            return TaskResult.of(segment.attempt, bytes(end))
        except (NdtoolError, ValueError, TypeError):
            return None

    def _row_bytes(self, segment: Segment, tables: Collected) -> int | None:
        """Return the bytes of a complete segment of rows; None if no task has its number."""
        partitioning = self._partitioning
        kind = segment.phase.rstrip("0123456789")
        depth = int(segment.phase[len(kind) :]) - 1 if kind == "replay" else partitioning.levels
        segments = partitioning.blocks if kind == "replay" else partitioning.ranges
        number, at = divmod(segment.number, segments)
        group, span = tables.group(depth, number), partitioning.segment_tuples(depth)
        if at * span >= group.tuples:
            return None
        if kind == "combine":
            return partitioning.height(number) * partitioning.rows.width
        return min(span, group.tuples - at * span) * partitioning.rows.width


def _read(store: SharedStore) -> dict[str, Any] | None:
    """Return the manifest of a folder, None if it is missing or malformed."""
    try:
        content = json.loads(store.read_file(_MANIFEST) or b"")
    except ValueError:
        return None
    match content:
        case {"fingerprint": dict(), "block": int(), "group_shapes": list(), "range_tuples": int()}:
            manifest: dict[str, Any] = content
            return manifest
    return None
