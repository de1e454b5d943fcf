"""Resuming on a cluster: a run reuses the complete segments of a killed run.

A manifest has the fingerprint of the killed run's inputs, and its partitioning. These determine
what a task spills, so a segment of a run with the same manifest can replace the execution of its
task.
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
from ndtool.runs.external.partitioning import Partitioning, phase_name
from ndtool.runs.external.results import REPORT_BYTES, TaskResult
from ndtool.runs.external.rows import Rows
from ndtool.runs.external.spill import Segment, SpillFolder
from ndtool.runs.external.spillfiles import SharedStore
from ndtool.runs.external.tables import TableBuilder

RunFingerprint = dict[str, Any]  # fingerprint of a run, as JSON

MAX_FINGERPRINTED_CHUNKS = 100_000  # of data, of which a gather may read only a few
_MANIFEST = "manifest"
_DIFFERENCES = {
    "version": "the killed run had another version of ndtool",
    "call": "the killed run had another operator, attribute, type or shape",
    "rows": "in the killed run, data or the output had other chunks",
}


def fingerprint_of(
    inference: Inference, rows: Rows, locations: dict[str, str], sources: dict[str, Source]
) -> RunFingerprint:
    """Return the fingerprint of a run: the call, and the name and fingerprint of each input.

    locations: the inputs' locations on workers. Segments of a scatter do not depend on data.
    """
    types = [(info.dtype, info.shape) for info in inference.inputs.values()]
    fingerprint: RunFingerprint = {
        "version": __version__,
        "call": repr((inference.operator, inference.spec, inference.attributes, types)),
        "rows": (rows.shape, rows.width, sources["data"].metadata.file_shape),
    }
    for role, name in locations.items():
        if role != "data" or not inference.scatters:
            fingerprint[role] = (redact_urls(name), _input_fingerprint(role, name, sources[role]))
    as_json: RunFingerprint = json.loads(json.dumps(fingerprint))
    return as_json


def difference(fingerprint: RunFingerprint, expected: RunFingerprint) -> str:
    """Return the first difference between two fingerprints, as text; "" if they are equal."""
    for key, value in expected.items():
        if fingerprint.get(key) != value:
            return _DIFFERENCES.get(key) or f"{argument_name(value[0])} has changed"
    return ""


def without_fingerprint(fingerprint: RunFingerprint) -> str:
    """Return the name of an input that has no fingerprint, "" if all have one."""
    roles = (role for role in ("indices", "updates") if role in fingerprint)
    return next((fingerprint[role][0] for role in roles if fingerprint[role][1] is None), "")


def _input_fingerprint(role: str, name: str, source: Source) -> Any:
    if (
        role == "data"
        and grid.count_blocks(source.metadata.shape, source.metadata.file_shape)
        > MAX_FINGERPRINTED_CHUNKS
    ):
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
    policy.with_retries(partial(store.write_file, _MANIFEST, json.dumps(manifest).encode()))
    return True


class AbandonedRun:
    """An abandoned run, and its segments that another run resumes.

    fingerprint: the fingerprint of the resuming run. folder: the reopened spill folder, None if no
    folder matches. reason: why none matches, "" if none exists. resumed_tasks: the number of
    resumed tasks by phase.
    """

    def __init__(self, location: str, fingerprint: RunFingerprint) -> None:
        self.fingerprint, self.reason = fingerprint, ""
        self.folder: SpillFolder | None = None
        self.resumed_tasks = {"split": 0}
        self._first_splits: dict[int, TaskResult] = {}  # of the first level
        self._sizes: dict[Segment, int] = {}
        if name := without_fingerprint(fingerprint):
            self.reason = f"changes of {argument_name(name)} cannot be detected"
            return
        folders, in_use = spillfiles.find_abandoned(location)
        if in_use:
            self.reason = (
                f"{argument_name(in_use[0])} is from another machine, or from before this"
                " machine's last start"
            )
        for path in folders:
            store = spillfiles.open_store(path)
            manifest = _read_manifest(store)
            if manifest is None:
                continue
            self.reason = difference(manifest["fingerprint"], fingerprint)
            if not self.reason and (folder := spillfiles.reopen(path)):
                self.folder, self._store, self._manifest = folder, store, manifest
                return

    def partitioning(self, partitioning: Partitioning) -> Partitioning:
        """Return the partitioning of the abandoned run."""
        return partitioning._replace(
            block=self._manifest["block"],
            group_shapes=tuple(map(tuple, self._manifest["group_shapes"])),
            range_tuples=self._manifest["range_tuples"],
        )

    def reject(self, reason: str) -> None:
        """Release the abandoned run without resuming it; reason: for the warning."""
        self.reason = reason
        self.close()
        self.folder = None

    def find_segments(self, partitioning: Partitioning) -> None:
        """Find the complete segments of the abandoned run."""
        self._sizes, self._partitioning = self._store.segments(), partitioning
        self._first_splits = self._results(0, TableBuilder(partitioning, self._store))
        self.resumed_tasks["split"] = len(self._first_splits)

    def splits(self, depth: int, tables: TableBuilder) -> dict[int, TaskResult]:
        """Return the results of resumed splits of groups at a depth, by task."""
        results = self._results(depth, tables) if depth else self._first_splits
        self.resumed_tasks[phase_name("split", depth)] = len(results)
        return results

    def rows(self, name: str, tables: TableBuilder) -> dict[int, TaskResult]:
        """Return the results of resumed tasks of a phase that spills rows, by task."""
        is_fingerprinted = name == "combine" or self.fingerprint["data"][1] is not None
        results = {
            segment.number: TaskResult(segment.attempt)
            for segment, nbytes in self._sizes.items()
            if segment.phase == name
            and nbytes == self._expected_bytes(segment, tables)
            and is_fingerprinted
        }
        self.resumed_tasks[name] = len(results)
        return results

    def close(self) -> None:
        """Release the folder for another run, unless it was removed."""
        if self.folder is not None:
            self.folder.suspend()

    def _results(self, depth: int, tables: TableBuilder) -> dict[int, TaskResult]:
        """Return the results of the splits whose segments are complete."""
        results = dict[int, TaskResult]()
        if self.folder is None:
            return results

        def read(segment: Segment) -> None:
            if result := self._result(segment, depth, tables):
                results[segment.number] = result

        segments = filter(lambda segment: segment.phase == phase_name("split", depth), self._sizes)
        pool.run_all(read, segments, self._store.concurrency)
        return results

    def _result(self, segment: Segment, depth: int, tables: TableBuilder) -> TaskResult | None:
        """Read the result of a split; None if its segment is incomplete."""
        partitioning = self._partitioning
        number, block = divmod(segment.number, partitioning.blocks)
        group = tables.group(depth, number)
        if block >= group.blocks:
            return None
        nbytes = group.tuples_of(block) * partitioning.spilled_per_tuple(depth)
        children = partitioning.children(number, depth)
        trailer = memoryview(bytearray(8 * (children + 1) + REPORT_BYTES))
        if self._sizes[segment] != nbytes + len(trailer):
            return None
        try:
            self._store.read(segment, nbytes, trailer)
            return TaskResult.parse(segment.attempt, bytes(trailer))
        except (NdtoolError, ValueError, TypeError):
            return None

    def _expected_bytes(self, segment: Segment, tables: TableBuilder) -> int | None:
        """Return the bytes of the complete segment of rows; None if no task has its number."""
        partitioning = self._partitioning
        kind = segment.phase.rstrip("0123456789")
        depth = int(segment.phase[len(kind) :]) - 1 if kind == "replay" else partitioning.levels
        segments = partitioning.blocks if kind == "replay" else partitioning.ranges
        number, index = divmod(segment.number, segments)
        group, segment_tuples = tables.group(depth, number), partitioning.segment_tuples(depth)
        if index * segment_tuples >= group.tuples:
            return None
        if kind == "combine":
            return partitioning.row_count(number) * partitioning.rows.width
        return min(segment_tuples, group.tuples - index * segment_tuples) * partitioning.rows.width


def _read_manifest(store: SharedStore) -> dict[str, Any] | None:
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
