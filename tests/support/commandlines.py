"""All commands of the command line, and runs of many of them in one process."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click
from command import python

from ndtool.cli import program

# Runs commands one after the other; returns the status of each, and all its output.
_SCRIPT = """
import json, os, socket, sys, tempfile
from ndtool import __main__ as main
from ndtool.storage import failures
from ndtool.outofcore import cluster
failures.BACKOFF, cluster.ANSWER_TIMEOUT = 0, 0.5
look_up = socket.getaddrinfo
def here_only(host, *rest, **options):  # no name server is asked: it may take minutes not to answer
    if host not in ("127.0.0.1", "localhost"):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return look_up(host, *rest, **options)
socket.getaddrinfo = here_only
reports, originals = [], [os.dup(1), os.dup(2)]
for words, env in json.load(sys.stdin):
    os.environ.update(env)
    with tempfile.TemporaryFile() as file:
        for fd in (1, 2):
            os.dup2(file.fileno(), fd)
        status = int(main._run(words))
        for fd in (1, 2):
            os.dup2(originals[fd - 1], fd)
        file.seek(0)
        text = file.read().decode("utf-8", "replace")
    for name in os.listdir("."):
        if name.endswith((".html", ".svg")):
            with open(name) as page:
                text += page.read()
            os.unlink(name)
    for name in env:
        del os.environ[name]
    reports.append([status, text])
print(json.dumps(reports))
"""


def run_commands(
    calls: Iterable[tuple[Sequence[str], dict[str, str]]], **options: Any
) -> list[tuple[int, str]]:
    """Run commands, each with some variables; return the status and all output of each, pages included.

    Pages are removed. options: of the process.
    """
    result = python(_SCRIPT, stdin=json.dumps(list(calls)).encode(), **options)
    assert result.status == 0, result.err
    report: list[tuple[int, str]] = result.json
    return report


def all_commands(
    group: Any = None, path: tuple[str, ...] = ()
) -> Iterator[tuple[click.Command, tuple[str, ...]]]:
    """Yield all commands with their words."""
    for name, make in (group or program.program()).factories.items():
        command = make()
        if isinstance(command, click.Group):
            yield from all_commands(command, (*path, name))
        else:
            yield command, (*path, name)
