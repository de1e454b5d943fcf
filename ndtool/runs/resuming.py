"""What a run on a cluster takes up of one that was killed: pieces that are complete, and fit.

A manifest says what they are made of, and how that run was cut. What a task keeps follows from that
alone, whoever did it and when: so what is there counts as if a task had just been done.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from ndtool import __version__
from ndtool.arrays import grid
from ndtool.arrays.source import Facts, Source
from ndtool.engine import crew
from ndtool.errors import NdtoolError, called, redacted
from ndtool.rules.inference import Inference
from ndtool.runs import spilling
from ndtool.runs.cut import Cut, Rows
from ndtool.runs.spilling import Kept, Piece, Place
from ndtool.runs.tasks import NOTE, Done

Made = dict[str, Any]  # what pieces are made of, as JSON has it

LISTED = 100_000  # files of data that are looked at: a gather may read but few of them
_MANIFEST = "manifest"
_CALL = {
    "version": "it was of another version of ndtool",
    "call": "its operator, an attribute, a type or a shape was another",
    "rows": "data, or the output, had other chunks",
}


def made_of(
    inference: Inference, rows: Rows, named: dict[str, str], sources: dict[str, Source]
) -> Made:
    """Return what pieces are made of: a call, and inputs, each a name and what tells its bytes.

    named: the inputs by the names that workers know. Data are left out of a scatter's.
    """
    types = [(given.dtype, given.shape) for given in inference.inputs.values()]
    made: Made = {
        "version": __version__,
        "call": repr((inference.operator, inference.spec, inference.attributes, types)),
        "rows": (rows.over, rows.width, _file(sources["data"].facts)),
    }
    for role, name in named.items():
        if role != "data" or "updates" not in named:
            made[role] = (redacted(name), _told(role, name, sources[role]))
    again: Made = json.loads(json.dumps(made))
    return again


def other(found: Made, wanted: Made) -> str:
    """Say what of a call is another in what was found, nothing if nothing is."""
    for key, value in wanted.items():
        if found.get(key) != value:
            return _CALL.get(key) or f"{called(value[0])} is not what it was"
    return ""


def unknown(made: Made) -> str:
    """Return the input of which nothing tells whether it is what it was, "" where there is none."""
    roles = (role for role in ("indices", "updates") if role in made)
    return next((made[role][0] for role in roles if made[role][1] is None), "")


def _told(role: str, name: str, source: Source) -> Any:
    if role == "data" and grid.blocks(source.facts.shape, _file(source.facts)) > LISTED:
        return None
    told = source.told()
    if told is None and role == "indices" and name.lstrip()[:1] == "[":
        return "written out"
    return told


def _file(facts: Facts) -> tuple[int, ...]:
    """Return the shape of what is in one file of an array."""
    return tuple(facts.notes.get("shards") or facts.grid)


def describe(keep: Kept, made: Made, cut: Cut) -> bool:
    """Keep what another run needs to know that takes this one up; whether that can be."""
    if unknown(made):
        return False
    manifest = {"made": made, "block": cut.block, "step": cut.step}
    keep.note(_MANIFEST, json.dumps(manifest).encode())
    return True


class Left:
    """What a run that was killed left in a folder, and another one takes up.

    made: what pieces of that one are made of. place: None where nothing fits. reason: why not, ""
    where nothing was left. taken: how many tasks of each phase need not be done again.
    """

    def __init__(self, within: str, made: Made) -> None:
        self.made, self.reason = made, ""
        self.place: Place | None = None
        self.taken = {"split": 0}
        self._ends: dict[int, Done] = {}
        self._sizes: dict[Piece, int] = {}
        if name := unknown(made):
            self.reason = f"nothing tells whether {called(name)} is what it was"
            return
        insides, others = spilling.left(within)
        if others:
            self.reason = (
                f"{called(others[0])} is another machine's, or older than this start of it"
            )
        for inside in insides:
            keep = spilling.keep(inside)
            manifest = _read(keep)
            if manifest is None:
                continue
            self.reason = other(manifest["made"], made)
            if not self.reason and (place := spilling.again(inside)):
                self.place, self._keep, self._manifest = place, keep, manifest
                return

    def cut(self, cut: Cut) -> Cut:
        """Return how that run was cut."""
        return cut._replace(block=self._manifest["block"], step=tuple(self._manifest["step"]))

    def refuse(self, reason: str) -> None:
        """Take up nothing."""
        self.reason = reason
        self.close()
        self.place = None

    def look(self, cut: Cut) -> None:
        """See which pieces are there."""
        self._sizes = self._keep.pieces()
        pieces = (piece for piece in self._sizes if piece.phase == "split")
        crew.share(partial(self._look_at, cut), pieces, self._keep.at_once)
        self.taken["split"] = len(self._ends)

    def splits(self) -> dict[int, Done]:
        """Return what the tasks returned that split blocks."""
        return self._ends

    def sweeps(self, cut: Cut, counts: Sequence[int]) -> dict[int, Done]:
        """Return the same of those that gathered from parts; counts: how many rows of each."""
        is_known = self.made["data"][1] is not None
        found = {
            piece.number: Done(piece.attempt)
            for piece, nbytes in self._sizes.items()
            if piece.phase == "sweep" and nbytes == counts[piece.number] * cut.rows.width
            if is_known
        }
        self.taken["sweep"] = len(found)
        return found

    def close(self) -> None:
        """Let go of what is there, for another run, unless it was removed."""
        if self.place is not None:
            self.place.leave()

    def _look_at(self, cut: Cut, piece: Piece) -> None:
        """Take note of what a task returned, if all is there that it kept."""
        n = cut.tuples(piece.number)
        end = memoryview(bytearray(8 * (cut.parts + 1) + NOTE))
        if self._sizes[piece] != n * cut.pitch + len(end):
            return
        try:
            self._keep.read(piece, n * cut.pitch, end)
            done = Done.of(piece.attempt, bytes(end))
        except (NdtoolError, ValueError, TypeError):
            return
        self._ends[piece.number] = done


def _read(keep: Kept) -> dict[str, Any] | None:
    """Return a manifest, None where a run had not written it yet, or it is none of ours."""
    try:
        found = json.loads(keep.noted(_MANIFEST) or b"")
    except ValueError:
        return None
    match found:
        case {"made": dict(), "block": int(), "step": list()}:
            manifest: dict[str, Any] = found
            return manifest
    return None
