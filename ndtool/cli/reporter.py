"""The reporter of a command: results on stdout, messages on stderr, as text or as JSON.

Output to files and pipes is plain text, for which rich is not imported.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from ndtool.cli.console import Progress, format_duration, format_table, write_stderr, write_stdout
from ndtool.cli.wrapping import terminal_columns, wrap_lines
from ndtool.errors import (
    NdtoolError,
    OutputError,
    Status,
    argument_name,
    format_count,
    format_size,
    printable,
)
from ndtool.redaction import MIN_EMBEDDED_SECRET, redact_json, redact_secrets, redact_urls
from ndtool.rules.shapes import format_type
from ndtool.storage.descriptors import LOST_INPUT_MESSAGE

if TYPE_CHECKING:
    from ndtool.analysis.answers import Answer
    from ndtool.analysis.verify import Comparison, Verification
    from ndtool.notebook import Table
    from ndtool.rules.inference import Inference
    from ndtool.rules.trace import Trace
    from ndtool.runs.calls import OpenCall
    from ndtool.runs.convert import Conversion
    from ndtool.runs.plan import Plan
    from ndtool.runs.steps import Outcome, PreparedRun

_MAX_MESSAGE_LENGTH = 1000  # characters
_MAX_LISTED_MEMBERS = 10
_MAX_SUMMARY_LINES = 4  # of the summary of a trace


def _json_text(fields: dict[str, Any], redact: Callable[[str], str] = redact_urls) -> str:
    """Return a JSON object as a line; redact: the function that removes secrets from strings."""
    import json

    return json.dumps(redact_json(fields, redact)) + "\n"


def _message_line(text: str) -> str:
    """Return a message on one line, without secrets of URLs."""
    return printable(redact_secrets(text, MIN_EMBEDDED_SECRET), _MAX_MESSAGE_LENGTH)


class Reporter:
    """Prints results to stdout and messages to stderr, according to the command's options.

    json, quiet, trace, verbose: the options; trace is None for a summary on terminals.
    data_on_stdout: whether the array is written to stdout. arguments: the words of the command
    line.
    """

    def __init__(self) -> None:
        self.json = False
        self.quiet = False
        self.trace: bool | None = None
        self.verbose = False
        self.data_on_stdout = False
        self._is_json_printed = False
        self._warnings = dict[str, None]()  # those that were printed
        self.arguments: list[str] = []
        self._terminal = os.isatty(2)

    def report_call(self, call: OpenCall, dry_run: bool) -> None:
        """Print warnings and the trace of a call."""
        self.print_warnings(call.warnings)
        if self._shows_trace(dry_run):
            from ndtool.analysis.infer import inferred

            answer = inferred(call.reported)
            if self.trace:
                self._print_tables([answer.rules()], 2)
            else:
                write_stderr(_format_summary(answer.summary))

    def report_plan(self, prepared: PreparedRun) -> None:
        """Print the details of a run if --verbose is set."""
        if self.verbose and not (self.json or self.quiet):
            executor = f"executor: {_describe_executor(prepared)}"
            write_stderr(wrap_lines([*plan_lines(prepared.plan), executor], 2))

    def report_outcome(self, call: OpenCall, outcome: Outcome, dry_run: bool) -> None:
        """Print the outcome of a run and its duration."""
        seconds = time.perf_counter() - call.started
        inference, output, plan = call.inference, call.request.output, outcome.plan
        if self.json:
            from ndtool.analysis.infer import run_report

            self.print_json(run_report(call, outcome, seconds, dry_run).to_dict())
        elif self._is_interactive() and dry_run:
            size = format_size(inference.nbytes)
            _print_line(f"dry run: {_output_type(inference)}, {size}; nothing was written")
        elif output is not None:
            threads = f", {format_count(call.threads, 'thread')}"
            self._print_written(output, _output_type(inference), inference.nbytes, seconds, threads)
        if self.json or self.quiet:
            return
        if dry_run and not self.verbose:
            write_stderr(wrap_lines(plan_lines(plan), 2))
        if outcome.resumed:
            counts = [
                format_count(count, f"{phase} task") for phase, count in outcome.resumed.items()
            ]
            _print_line(f"resumed: {', '.join(counts)}")
        self._print_preserved(() if dry_run else outcome.preserved)

    def report_conversion(self, conversion: Conversion, preserved: tuple[str, ...] | None) -> None:
        """Print the outcome of a conversion and its duration; preserved: the preserved members."""
        name, metadata = conversion.output_name, conversion.metadata
        if self.json:
            from ndtool.analysis.inspect import converted

            self.print_json(converted(conversion, preserved).to_dict())
        seconds = time.perf_counter() - conversion.started
        self._print_written(name, metadata.description, metadata.nbytes, seconds)
        self._print_preserved(preserved)

    def _print_written(
        self, name: str, description: str, nbytes: int, seconds: float, suffix: str = ""
    ) -> None:
        if self._is_interactive() and name != "-":
            size, duration = format_size(nbytes), format_duration(seconds)
            _print_line(f"wrote {printable(name)}: {description}, {size} in {duration}{suffix}")

    def _print_preserved(self, names: tuple[str, ...] | None) -> None:
        """Print the preserved members of the output's file."""
        if names and not (self.json or self.quiet):
            listed = ", ".join(printable(name, 80) for name in names[:_MAX_LISTED_MEMBERS])
            omitted = len(names) - _MAX_LISTED_MEMBERS
            _print_line(f"preserved {listed}" + (f" and {omitted} more" if omitted > 0 else ""))

    def print_answer(self, answer: Answer) -> None:
        """Print an answer as a JSON object or as tables."""
        if self.json:
            self.print_json(answer.to_dict())
        else:
            self._print_tables(answer.tables(), 1)

    def _print_tables(self, tables: list[Table], fd: int) -> None:
        """Print tables with an empty line between them."""
        for n, table in enumerate(tables):
            for text in ("\n" * bool(n), *format_table(table, fd)):
                (write_stdout if fd == 1 else write_stderr)(text)

    def report_verification(self, answer: Verification) -> None:
        """Print that an output is verified, with the distances of elements within the tolerance."""
        if self.json:
            self.print_answer(answer)
        elif answer.comparison is not None and self._is_interactive():
            name = printable(answer.output or "the output")
            _print_line(f"verified {name}: {answer.comparison.accuracy}")
            if answer.comparison.different:
                self._print_tables(answer.comparison.tables(), 2)

    def report_error(self, exc: NdtoolError) -> None:
        """Print an error, with its trace and its comparison if it has them."""
        trace: Trace | None = getattr(exc, "trace", None)
        comparison: Comparison | None = getattr(exc, "comparison", None)
        if self.json:
            fields = exc.fields()
            if trace is not None:
                from ndtool.analysis.answers import json_value

                fields["trace"] = json_value(trace.steps)
            if comparison is not None:
                fields |= comparison.to_dict()
            self._print_json_error(fields)
            return
        if trace is not None and self._shows_trace(False):
            if self.trace:
                self._print_tables([trace.table()], 2)
            else:
                rule, numbers, result = trace.steps[-1]
                write_stderr(_format_summary([f"{trace.operator}: {rule}: {numbers}: {result}"]))
        exc.message = _message_line(exc.message)
        exc.places = tuple(map(_message_line, exc.places))
        exc.hint = _message_line(exc.hint)
        self._print_message(f"error: {exc}\n")
        if comparison is not None and not self.quiet:
            self._print_tables(comparison.tables(), 2)

    def report_file(self, name: str) -> None:
        """Print that a report or picture was written."""
        if self._is_interactive():
            _print_line(f"wrote {printable(name)}")

    def handle_signals(self) -> None:
        """Install the signal handlers of a command that reads files.

        SIGBUS prints an error: a page of a mapped file can no longer be read. Other signals end the
        process without a message, and erase the progress bar.
        """
        from ndtool.machine import signals

        erase_line = b"\r\x1b[K" if self._is_interactive() else b""
        exc = OutputError(LOST_INPUT_MESSAGE)
        text = _json_text(exc.fields()) if self.json else f"error: {exc}\n"
        fd = 1 if self.json and not self.data_on_stdout else 2
        signals.install_handlers(erase_line + text.encode(), fd, erase_line)

    def report_bug(self, traceback: str) -> None:
        """Print the traceback of an unexpected exception, and a request for a bug report."""
        message = "this is a bug in ndtool: please report it with the command and the traceback"
        traceback = redact_secrets(traceback)
        if self.json:
            fields = {"error": "Bug", "status": int(Status.BUG), "message": message}
            self._print_json_error({**fields, "places": [], "hint": None, "traceback": traceback})
        else:
            write_stderr(f"{traceback}error: {message}\n")

    def progress(self) -> Progress:
        """Return a progress bar, shown on terminals only."""
        can_move_cursor = os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
        return Progress(self._is_interactive() and can_move_cursor)

    def _is_interactive(self) -> bool:
        return self._terminal and not (self.quiet or self.json)

    def _shows_trace(self, dry_run: bool) -> bool:
        if self.json or self.trace is not None:
            return bool(self.trace) and not self.json
        return (self._terminal or dry_run) and not self.quiet

    def _print_message(self, message: str) -> None:
        """Print an error or a warning, coloured on a terminal."""
        if not (self._terminal or os.environ.get("FORCE_COLOR")):
            write_stderr(message)
            return
        from ndtool.cli import styled

        write_stderr(styled.format_message(message))

    def print_warnings(self, warnings: Iterable[str]) -> None:
        """Print warnings that were not printed before, unless --quiet or --json is set."""
        if self.quiet or self.json:
            return
        new = dict.fromkeys(warning for warning in warnings if warning not in self._warnings)
        self._warnings |= new
        for warning in new:
            self._print_message(f"warning: {_message_line(warning)}\n")

    def print_json(self, fields: dict[str, Any]) -> None:
        """Print a JSON object."""
        if self.data_on_stdout:
            write_stderr(_json_text(fields))
        else:
            self._is_json_printed = True  # even if the write fails half-way
            write_stdout(_json_text(fields))

    def _print_json_error(self, fields: dict[str, Any]) -> None:
        """Print an error as a JSON object: on stdout, or on stderr if stdout has other content."""
        text = _json_text(fields, partial(redact_secrets, min_length=MIN_EMBEDDED_SECRET))
        if self.data_on_stdout or self._is_json_printed:
            write_stderr(text)
            return
        try:
            write_stdout(text)
        except (OSError, OutputError):
            write_stderr(text)


def _print_line(line: str) -> None:
    write_stderr(wrap_lines([line], 2))


def _format_summary(summary: list[str]) -> str | bytes:
    """Return the summary of a trace, at most four lines of a terminal."""
    if wrap_lines(summary, 2).count("\n") > _MAX_SUMMARY_LINES:  # omit the numbers of the rule
        summary = [line.rpartition(" = ")[0] if n == 1 else line for n, line in enumerate(summary)]
    if wrap_lines(summary, 2).count("\n") > _MAX_SUMMARY_LINES:
        summary = [printable(line, max(terminal_columns(2), 20)) for line in summary]
    if os.isatty(2) or os.environ.get("FORCE_COLOR"):
        from ndtool.cli import styled

        return styled.format_summary(summary)
    return wrap_lines(summary, 2)


def _output_type(inference: Inference) -> str:
    return format_type(inference.dtype, inference.plan.output)


def plan_lines(plan: Plan) -> list[str]:
    """Return a run's plan as lines of text: how, bytes, memory, requests of external execution."""
    byte_counts = [
        f"{format_size(getattr(plan, kind))} {kind}" for kind in ("read", "written", "spilled")
    ]
    execution = plan.way
    if plan.partitioning is not None:
        execution += f", {format_count(plan.partitions, 'partition')}"
        execution += f", {format_count(plan.blocks, 'block')}"
    memory = f"memory {format_size(plan.memory)}"
    lines = [f"plan: {execution}; {', '.join(byte_counts)}, {memory}; {plan.reason}"]
    if plan.partitioning is not None:
        counts = ", ".join(f"{count} {kind}" for kind, count in plan.requests.items()) or "none"
        lines.append(f"requests: {counts}")
    return lines


def _describe_executor(prepared: PreparedRun) -> str:
    """Describe the threads or the cluster that executes a plan."""
    from ndtool.machine.threads import limit_threads

    call, request = prepared.call, prepared.call.request
    threads = format_count(call.threads, "thread")
    if prepared.plan.way == "direct":
        team_size = limit_threads(call.threads, prepared.call.inference.nbytes)
        return f"{team_size} of {threads}, at most one for each MiB of output"
    if not request.on_cluster:
        directories = ", ".join(map(argument_name, call.spill_directories or ["TMPDIR"]))
        return f"{threads} of this process; temporary files in {directories}"
    if request.workers is not None:
        return f"a Dask cluster of {format_count(request.workers, 'worker')} on this machine"
    return f"the Dask cluster of {argument_name(str(request.scheduler))}"
