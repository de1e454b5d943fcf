"""The reporter of a run: results on stdout, messages on stderr, as text or as JSON.

Plain text is written without rich, which then need not be loaded away from terminals.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from ndtool import __version__
from ndtool.analysis import records as json_records
from ndtool.cli import records
from ndtool.cli.console import Progress, write_stderr, write_stdout, write_stdout_blocks
from ndtool.cli.folding import columns, lines
from ndtool.cli.records import duration
from ndtool.errors import (
    NdtoolError,
    OutputError,
    Status,
    format_columns,
    format_count,
    format_size,
    printable,
)
from ndtool.redaction import LONG, foreign, in_fields, redacted
from ndtool.rules.shapes import described
from ndtool.storage.descriptors import LOST

if TYPE_CHECKING:
    from ndtool.analysis.verify import Comparison
    from ndtool.arrays.source import MemberInfo, OperatorNode
    from ndtool.formats.outputs import Output
    from ndtool.rules.inference import Inference
    from ndtool.rules.specs import Row
    from ndtool.rules.trace import Trace
    from ndtool.runs.calls import OpenCall
    from ndtool.runs.convert import Conversion
    from ndtool.runs.steps import Outcome, Prepared

_LINE = 1000  # characters of a message
_LISTED = 10  # preserved members to list
_SUMMARY = 4  # lines of a summary of a trace


def _json(fields: dict[str, Any], strip: Callable[[str], str] = redacted) -> str:
    """Return one JSON object; strip: the function that removes secrets from texts."""
    return "".join(_json_parts(fields, strip)) + "\n"


def _json_parts(value: Any, strip: Callable[[str], str] = redacted) -> Iterator[str]:
    """Yield the JSON text of a value in parts; an iterator becomes a list."""
    import json

    if isinstance(value, Iterator):
        yield "["
        for number, item in enumerate(value):
            yield ", " * bool(number)
            yield from _json_parts(item, strip)
        yield "]"
    elif isinstance(value, dict) and any(isinstance(item, Iterator) for item in value.values()):
        for number, (key, item) in enumerate(value.items()):
            yield f"{', ' if number else '{'}{json.dumps(key)}: "
            yield from _json_parts(item, strip)
        yield "}"
    else:
        yield json.dumps(in_fields(value, strip))


def _message(text: str) -> str:
    """Return a message on one line, without secrets of URLs."""
    return printable(foreign(text, LONG), _LINE)


class Reporter:
    """Prints results to stdout and messages to stderr, as the options of the command say.

    json, quiet, trace, verbose: the options; trace is None for a summary on terminals.
    data_on_stdout: whether the array goes to stdout. arguments: the words of the command line.
    """

    def __init__(self) -> None:
        self.json = False
        self.quiet = False
        self.trace: bool | None = None
        self.verbose = False
        self.data_on_stdout = False
        self._answered = False  # whether the JSON object was printed
        self.arguments: list[str] = []
        self._terminal = os.isatty(2)
        self._reporting = 0.0  # seconds spent on reporting

    def begin(self, call: OpenCall, dry_run: bool) -> None:
        """Print warnings and the trace of a call."""
        started = time.perf_counter()
        self.warn(call.warnings)
        if self._shows_trace(dry_run):
            if self.trace:
                write_stderr(_trace(call.reported.trace, records.title(call.reported), 2))
            else:
                write_stderr(_summary(records.summary(call.reported)))
        self._reporting = time.perf_counter() - started

    def prepared(self, ready: Prepared) -> None:
        """Print the details of a run, with --verbose."""
        if self.verbose and not (self.json or self.quiet):
            from ndtool.cli.details import details

            started = time.perf_counter()
            write_stderr(lines(details(ready), 2))
            self._reporting += time.perf_counter() - started

    def end(self, call: OpenCall, target: Output | None, outcome: Outcome, dry_run: bool) -> None:
        """Print the outcome of a run and its duration."""
        from ndtool.cli import records

        seconds = time.perf_counter() - call.started - self._reporting
        inference, output, plan = call.inference, call.request.output, outcome.plan
        if self.json:
            warnings = [*call.warnings, *(target.warnings if target else ()), *outcome.warnings]
            self.put_json(
                {
                    **json_records.run_record(call, outcome),
                    "seconds": seconds,
                    "threads": call.threads,
                    "plan": records.plan_record(plan),
                    "dry_run": dry_run,
                    "warnings": warnings,
                }
            )
        elif self._is_interactive() and dry_run:
            size = format_size(inference.nbytes)
            _say_line(f"dry run: {_output(inference)}, {size}; nothing was written")
        elif self._is_interactive() and output not in (None, "-"):
            threads = f", {format_count(call.threads, 'thread')}"
            _say_line(_wrote(output or "", _output(inference), inference.nbytes, seconds, threads))
        if self.json or self.quiet:
            return
        if dry_run and not self.verbose:
            for line in (records.plan_text(plan), *records.cost_text(plan)):
                _say_line(line)
        if outcome.resumed:
            _say_line(records.resumed_text(outcome.resumed, plan.tasks))
        if outcome.preserved and not dry_run:
            _say_line(_preserved(outcome.preserved))

    def converted(self, conversion: Conversion, preserved: tuple[str, ...] | None) -> None:
        """Print the outcome of a conversion and its duration; preserved: the preserved members."""
        seconds = time.perf_counter() - conversion.started
        request, metadata = conversion.request, conversion.metadata
        if self.json:
            self.put_json(json_records.conversion_record(conversion, preserved, seconds))
        elif self._is_interactive() and request.output != "-":
            _say_line(_wrote(request.output, metadata.described, metadata.nbytes, seconds))
        if preserved and not (self.json or self.quiet):
            _say_line(_preserved(preserved))

    def inferred(self, inference: Inference) -> None:
        """Print an inference as a result."""
        if self.json:
            self.put_json(json_records.infer_record(inference))
            return
        write_stdout(_trace(inference.trace, records.title(inference), 1))
        write_stdout(lines(records.conclusion(inference), 1))

    def answer(
        self, record: Callable[[], dict[str, Any]], text: Callable[[], Iterable[str]]
    ) -> None:
        """Print a result; record, text: functions that return it as JSON and as text."""
        if self.json:
            self.put_json(record())
        else:
            write_stdout_blocks(text())

    def verified(self, name: str, compared: Comparison) -> None:
        """Print that an output is verified, and how far elements differ within the tolerance."""
        from ndtool.cli import figures

        if self.json:
            self.put_json(json_records.verification_record(name, compared))
        elif self._is_interactive():
            accuracy = "bit for bit"
            if compared.different:
                accuracy = (
                    f"within {compared.within} ulp, {compared.different} elements with other bits"
                )
            _say_line(f"verified {printable(name)}: {compared.described}, {accuracy}")
            if compared.different:
                write_stderr(figures.comparison(compared, 2))

    def entries(self, entries: list[MemberInfo], nodes: list[OperatorNode]) -> None:
        """Print the arrays in files, and the nodes of our operators."""
        if self.json:
            self.put_json(json_records.inspection_record(entries, nodes))
            return
        notes = records.all_notes(entries)
        titled = (note.removesuffix("_version").removesuffix("_type") for note in notes)
        titles = ("name", "array", "order", "bytes", *titled, "mappable")
        rows = [records.entry_cells(entry, notes) for entry in entries]
        write_stdout(table(titles, rows, ("name", "array", "mappable"), 1))
        if nodes:
            columns = records.NODE_COLUMNS
            write_stdout("\n")
            write_stdout(table(columns, list(map(records.node_cells, nodes)), columns[2:], 1))
        self.warn([entry.warning for entry in entries if entry.warning])

    def specs(self, rows: list[Row]) -> None:
        """Print rows of the standards."""
        if self.json:
            spec_records = [{"spec": row.spec, **row._asdict()} for row in rows]
            self.put_json({"version": __version__, "specs": spec_records})
            return
        columns = records.SPEC_COLUMNS
        write_stdout(table(columns, [records.spec_cells(row) for row in rows], columns[2:], 1))

    def error(self, exc: NdtoolError) -> None:
        """Print an error, with its trace and comparison if any."""
        trace: Trace | None = getattr(exc, "trace", None)
        compared: Comparison | None = getattr(exc, "comparison", None)
        if self.json:
            steps = {} if trace is None else {"trace": json_records.trace_records(trace)}
            record = json_records.comparison_record(compared)
            self._put_error({**exc.fields(), **steps, **record})
            return
        if trace is not None and self._shows_trace(False):
            if self.trace:
                write_stderr(_trace(trace, trace.operator, 2))
            else:
                write_stderr(_summary([records.broken_rule(trace)]))
        exc.message = _message(exc.message)
        exc.places = tuple(map(_message, exc.places))
        exc.hint = _message(exc.hint)
        if self._is_coloured():
            from ndtool.cli import styled

            write_stderr(styled.error(exc))
        else:
            write_stderr(f"error: {exc}\n")
        if compared is not None and not self.quiet:
            from ndtool.cli import figures

            write_stderr(figures.comparison(compared, 2))

    def written(self, name: str) -> None:
        """Print that a report or picture was written."""
        if self._is_interactive():
            _say_line(f"wrote {printable(name)}")

    def final_messages(self) -> tuple[bytes, int, bytes]:
        """Return the bytes for a lost mapped page, their stream, and the bytes for a signal."""
        clear = b"\r\x1b[K" if self._is_interactive() else b""
        exc = OutputError(LOST)
        text = _json(exc.fields()) if self.json else f"error: {exc}\n"
        return clear + text.encode(), 1 if self.json and not self.data_on_stdout else 2, clear

    def bug(self, traceback: str) -> None:
        """Print an unexpected exception, and ask for a bug report."""
        message = "this is a bug in ndtool: please report it with the command and the traceback"
        traceback = foreign(traceback)
        if self.json:
            fields = {"error": "Bug", "status": int(Status.BUG), "message": message}
            self._put_error({**fields, "places": [], "hint": None, "traceback": traceback})
        else:
            write_stderr(f"{traceback}error: {message}\n")

    def progress(self) -> Progress:
        """Return a progress bar, shown on terminals only."""
        movable = os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
        return Progress(self._is_interactive() and movable)

    def _is_interactive(self) -> bool:
        return self._terminal and not (self.quiet or self.json)

    def _shows_trace(self, dry_run: bool) -> bool:
        if self.json or self.trace is not None:
            return bool(self.trace) and not self.json
        return (self._terminal or dry_run) and not self.quiet

    def _is_coloured(self) -> bool:
        return self._terminal or bool(os.environ.get("FORCE_COLOR"))

    def warn(self, warnings: list[str]) -> None:
        """Print warnings, unless --quiet or --json is given."""
        if self.quiet or self.json:
            return
        for warning in warnings:
            text = _message(warning)
            if self._is_coloured():
                from ndtool.cli import styled

                write_stderr(styled.warning(text))
            else:
                write_stderr(f"warning: {text}\n")

    def put_json(self, fields: dict[str, Any]) -> None:
        """Print the JSON object; its lists may be iterators."""
        if self.data_on_stdout:
            write_stderr(_json(fields))
        else:
            self._answered = True  # even if only a part of it is printed
            write_stdout_blocks(chain(_json_parts(fields), "\n"))

    def _put_error(self, fields: dict[str, Any]) -> None:
        """Print an error as JSON, in place of the result."""
        text = _json(fields, partial(foreign, shortest=LONG))
        if self.data_on_stdout or self._answered:
            write_stderr(text)
            return
        try:
            write_stdout(text)
        except (OSError, OutputError):
            write_stderr(text)


def _say_line(line: str) -> None:
    write_stderr(lines([line], 2))


def _summary(summary: list[str]) -> str | bytes:
    """Return the summary of a trace, at most four lines of a terminal."""
    if lines(summary, 2).count("\n") > _SUMMARY:  # first without the numbers of the rule
        summary = [line.rpartition(" = ")[0] if n == 1 else line for n, line in enumerate(summary)]
    if lines(summary, 2).count("\n") > _SUMMARY:
        summary = [printable(line, max(columns(2), 20)) for line in summary]
    if os.isatty(2) or os.environ.get("FORCE_COLOR"):
        from ndtool.cli import styled

        return styled.summary(summary)
    return lines(summary, 2)


def _trace(trace: Trace, title: str, fd: int) -> str | bytes:
    """Return a trace as a table."""
    columns = records.TRACE_COLUMNS
    return table(columns, records.trace_cells(trace), columns, fd, title)


def table(
    columns: tuple[str, ...],
    rows: list[tuple[str, ...]],
    folded: tuple[str, ...],
    fd: int,
    title: str = "",
) -> str | bytes:
    """Return a table for a stream: wrapped to a terminal, or plain text."""
    if os.isatty(fd) or os.environ.get("FORCE_COLOR"):
        from ndtool.cli import styled

        return styled.table(columns, rows, folded, fd, title)
    return (title and title + "\n") + format_columns([columns, *rows])


def _output(inference: Inference) -> str:
    return described(inference.dtype, inference.plan.output)


def _wrote(name: str, described: str, nbytes: int, seconds: float, suffix: str = "") -> str:
    return (
        f"wrote {printable(name)}: {described}, {format_size(nbytes)} in"
        f" {duration(seconds)}{suffix}"
    )


def _preserved(names: tuple[str, ...]) -> str:
    """Return the line about preserved members of an archive."""
    listed = ", ".join(printable(name, 80) for name in names[:_LISTED])
    more = len(names) - _LISTED
    return f"preserved {listed}" + (f" and {more} more" if more > 0 else "")
