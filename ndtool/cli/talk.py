"""What a run says: results on stdout, talk on stderr, for people or as JSON.

Plain text is written without rich, so that a run away from a terminal does not load it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ndtool.arrays.storage import LOST
from ndtool.cli.console import Progress, put, say
from ndtool.cli.folding import lines
from ndtool.errors import NdtoolError, OutputError, Status, printable, redacted

if TYPE_CHECKING:
    from ndtool.analysis.verify import Comparison
    from ndtool.arrays.source import Entry, OperatorNode
    from ndtool.rules.inference import Inference
    from ndtool.rules.specs import Row
    from ndtool.rules.trace import Trace
    from ndtool.runs.convert import Conversion
    from ndtool.runs.jobs import Job

_LINE = 1000  # characters of a line of talk
_LISTED = 10  # members that are named


def _json(fields: dict[str, Any]) -> str:
    import json

    return json.dumps(fields) + "\n"


class Talk:
    """How one run talks: what its options ask for, and what it says as things happen.

    json: one object instead of words. quiet: errors only. trace: the shape inference; None to
    show it to people. data_on_stdout: whether the array itself goes there. arguments: the words of
    the command line.
    """

    def __init__(self) -> None:
        self.json = False
        self.quiet = False
        self.trace: bool | None = None
        self.data_on_stdout = False
        self._answered = False  # whether the one object was printed
        self.arguments: list[str] = []
        self._terminal = os.isatty(2)
        self._spoken = 0.0  # seconds that talking took

    def begin(self, job: Job, dry_run: bool) -> None:
        """Say what was inferred, and what is odd about the inputs."""
        started = time.perf_counter()
        self.warn(job.warnings)
        if self._shows_trace(dry_run):
            from ndtool.cli import records

            say(_trace(job.inference.trace, records.title(job.inference), 2))
        self._spoken = time.perf_counter() - started

    def end(self, job: Job, kept: tuple[str, ...] | None, dry_run: bool) -> None:
        """Say what was done and how long it took; kept: the members that stay in the archive."""
        seconds = time.perf_counter() - job.started - self._spoken
        if self.json:
            self.put_json(self._run_record(job, kept, seconds, dry_run))
        elif self._for_people() and dry_run:
            from ndtool.cli.records import sized

            size = sized(job.inference.nbytes)
            _tell(f"dry run: {_output(job.inference)}, {size}; nothing was written")
        elif self._for_people() and job.request.output not in (None, "-"):
            threads = f", {job.threads} thread" + "s" * (job.threads != 1)
            name, nbytes = job.request.output or "", job.inference.nbytes
            _tell(_wrote(name, _output(job.inference), nbytes, seconds, threads))
        if dry_run and job.planned and not (self.json or self.quiet):
            from ndtool.cli import records

            _tell(records.planned(job.planned))
        if job.planned and job.resumed and not (self.json or self.quiet):
            from ndtool.cli import records

            _tell(records.resumed(job.resumed, job.planned.tasks))
        if kept and not (dry_run or self.json or self.quiet):
            _tell(_kept(kept))

    def converted(self, conversion: Conversion, kept: tuple[str, ...] | None) -> None:
        """Say what was copied and how long it took; kept: the members that stay in the archive."""
        seconds = time.perf_counter() - conversion.started
        request, facts = conversion.request, conversion.facts
        if self.json:
            from ndtool.cli import records

            record = records.conversion_record(conversion, kept)
            self.put_json({**record, "seconds": seconds, "warnings": conversion.warnings})
        elif self._for_people() and request.output != "-":
            _tell(_wrote(request.output, facts.described, facts.nbytes, seconds))
        if kept and not (self.json or self.quiet):
            _tell(_kept(kept))

    def inferred(self, inference: Inference) -> None:
        """Print an inference as a result."""
        from ndtool.cli import records

        if self.json:
            self.put_json(records.inferred_record(inference))
            return
        put(_trace(inference.trace, records.title(inference), 1))
        put(lines(records.concluded(inference), 1))

    def answer(self, record: Callable[[], dict[str, Any]], words: Callable[[], str]) -> None:
        """Print what was asked for as a result."""
        if self.json:
            self.put_json(record())
        else:
            put(words())

    def verified(self, name: str, compared: Comparison) -> None:
        """Say that an output is what it must be, perhaps with small differences."""
        from ndtool.cli import figures

        if self.json:
            known = {"version": _version(), "output": redacted(name), "verified": True}
            self.put_json({**known, **figures.comparison_record(compared)})
        elif self._for_people():
            how = "bit for bit"
            if compared.different:
                how = f"within {compared.within} ulp, {compared.different} elements not bit for bit"
            _tell(f"verified {printable(name)}: {compared.described}, {how}")
            if compared.different:
                say(figures.comparison(compared, 2))

    def entries(self, entries: list[Entry], nodes: list[OperatorNode]) -> None:
        """Print what files hold: arrays, and the nodes of our operators."""
        from ndtool.cli import records

        if self.json:
            arrays = [records.entry_record(entry) for entry in entries]
            listed = [node._asdict() for node in nodes]
            self.put_json({"version": _version(), "arrays": arrays, "nodes": listed})
            return
        notes = records.notes_of(entries)
        titles = ("name", "array", "order", "bytes", *map(records.note_title, notes), "mappable")
        rows = [records.entry_cells(entry, notes) for entry in entries]
        put(table(titles, rows, ("name", "array", "mappable"), 1))
        if nodes:
            columns = records.NODE_COLUMNS
            put("\n")
            put(table(columns, list(map(records.node_cells, nodes)), columns[2:], 1))
        self.warn([entry.warning for entry in entries if entry.warning])

    def specs(self, rows: list[Row]) -> None:
        """Print what the standards accept."""
        from ndtool.cli import records

        if self.json:
            listed = [records.spec_record(row) for row in rows]
            self.put_json({"version": _version(), "specs": listed})
            return
        columns = records.SPEC_COLUMNS
        put(table(columns, [records.spec_cells(row) for row in rows], columns[2:], 1))

    def error(self, exc: NdtoolError) -> None:
        """Say what went wrong, and why where the shapes were the reason."""
        trace: Trace | None = getattr(exc, "trace", None)
        compared: Comparison | None = getattr(exc, "comparison", None)
        if self.json:
            from ndtool.cli import records

            steps = {} if trace is None else {"trace": records.steps(trace)}
            if compared is not None:
                from ndtool.cli import figures

                steps |= figures.comparison_record(compared)
            self._put_error({**exc.fields(), **steps})
            return
        if trace is not None and self._shows_trace(False):
            say(_trace(trace, trace.operator, 2))
        exc.message = printable(exc.message, _LINE)
        exc.places = tuple(printable(place, _LINE) for place in exc.places)
        exc.hint = printable(exc.hint, _LINE)
        if self._coloured():
            from ndtool.cli import styled

            say(styled.error(exc))
        else:
            say(f"error: {exc}\n")
        if compared is not None and not self.quiet:
            from ndtool.cli import figures

            say(figures.comparison(compared, 2))

    def written(self, name: str) -> None:
        """Say that a page or a picture is there."""
        if self._for_people():
            _tell(f"wrote {printable(name)}")

    def last_words(self) -> tuple[bytes, int, bytes]:
        """Return what to say at a lost page, to which stream, and what when the run is stopped."""
        clear = b"\r\x1b[K" if self._for_people() else b""
        exc = OutputError(LOST)
        text = _json(exc.fields()) if self.json else f"error: {exc}\n"
        return clear + text.encode(), 1 if self.json and not self.data_on_stdout else 2, clear

    def bug(self, traceback: str) -> None:
        """Ask for a report of what should not have happened."""
        message = (
            "this is a bug in ndtool: please report it to whoever gave you ndtool,"
            " with the command and the traceback"
        )
        if self.json:
            fields = {"error": "Bug", "status": int(Status.BUG), "message": message}
            self._put_error({**fields, "places": [], "hint": None, "traceback": traceback})
        else:
            say(f"{traceback}error: {message}\n")

    def progress(self, phase: Callable[[], str] = str) -> Progress:
        """Return what shows how much is done, to people only; phase: returns what is being done."""
        movable = os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
        return Progress(self._for_people() and movable, phase)

    def _for_people(self) -> bool:
        return self._terminal and not (self.quiet or self.json)

    def _shows_trace(self, dry_run: bool) -> bool:
        if self.json or self.trace is not None:
            return bool(self.trace) and not self.json
        return (self._terminal or dry_run) and not self.quiet

    def _coloured(self) -> bool:
        return self._terminal or bool(os.environ.get("FORCE_COLOR"))

    def warn(self, warnings: list[str]) -> None:
        """Say what is odd without being wrong."""
        if self.quiet or self.json:
            return
        for warning in warnings:
            text = printable(warning, _LINE)
            if self._coloured():
                from ndtool.cli import styled

                say(styled.warning(text))
            else:
                say(f"warning: {text}\n")

    def put_json(self, fields: dict[str, Any]) -> None:
        """Print the one object that is asked for."""
        text = _json(fields)
        if self.data_on_stdout:
            say(text)
        else:
            self._answered = True  # also where half of it went out
            put(text)

    def _put_error(self, fields: dict[str, Any]) -> None:
        """Print an error where the object that it stands for would have gone."""
        text = _json(fields)
        if self.data_on_stdout or self._answered:
            say(text)
            return
        try:
            put(text)
        except (OSError, OutputError):
            say(text)

    @staticmethod
    def _run_record(
        job: Job, kept: tuple[str, ...] | None, seconds: float, dry_run: bool
    ) -> dict[str, Any]:
        from ndtool.cli import records

        record = records.run_record(job)
        if kept is not None:
            record["output"]["kept"] = kept
        return {
            **record,
            "seconds": seconds,
            "threads": job.threads,
            "plan": job.planned and records.plan_record(job.planned),
            "dry_run": dry_run,
            "warnings": job.warnings,
        }


def _tell(line: str) -> None:
    say(lines([line], 2))


def _trace(trace: Trace, title: str, fd: int) -> str | bytes:
    """Return the rules of a shape inference as a table."""
    from ndtool.cli import records

    columns = records.TRACE_COLUMNS
    return table(columns, records.trace_cells(trace), columns, fd, title)


def table(
    columns: tuple[str, ...],
    rows: list[tuple[str, ...]],
    folded: tuple[str, ...],
    fd: int,
    title: str = "",
) -> str | bytes:
    """Return a table for a stream: one that fits into a terminal, or plain text."""
    if os.isatty(fd) or os.environ.get("FORCE_COLOR"):
        from ndtool.cli import styled

        return styled.table(columns, rows, folded, fd, title)
    from ndtool.cli import records

    return (title and title + "\n") + records.aligned(columns, rows)


def _output(inference: Inference) -> str:
    from ndtool.rules.shapes import described

    return described(inference.dtype, inference.plan.output)


def _wrote(name: str, what: str, nbytes: int, seconds: float, how: str = "") -> str:
    from ndtool.cli.records import lasted, sized

    return f"wrote {printable(name)}: {what}, {sized(nbytes)} in {lasted(seconds)}{how}"


def _kept(names: tuple[str, ...]) -> str:
    """Return which members stayed in the archive to which one was written."""
    listed = ", ".join(printable(name, 80) for name in names[:_LISTED])
    more = len(names) - _LISTED
    return f"kept {listed}" + (f" and {more} more" if more > 0 else "")


def _version() -> str:
    from ndtool import __version__

    return __version__
