"""Outputs that are no arrays, such as HTML reports."""

from ndtool.arrays.source import ArrayMetadata
from ndtool.errors import OutputError, printable
from ndtool.publish.sinks import Container, FileSink
from ndtool.publish.targets import Target, existing
from ndtool.rules import dtypes
from ndtool.storage import locations


def create(path: str, content: bytes, clobber: bool, sync: bool = False) -> FileSink:
    """Return a sink with the content of a file."""
    metadata = ArrayMetadata(dtypes.from_name("uint8"), (0,), "C", (0,), {})
    return FileSink(_target(path, clobber, sync), metadata, Container(content, 0))


def check(path: str, clobber: bool) -> None:
    """Raise the errors of `create` that can be detected without writing."""
    _target(path, clobber, False).require_folder()


def _target(path: str, clobber: bool, sync: bool) -> Target:
    if locations.is_url(path):
        raise OutputError(f"{printable(path)}: expected a file on this machine")
    target = Target(path, None, existing(path), clobber, sync, only=True)
    if target.is_store or not target.is_file:
        raise OutputError(f"{printable(path)} is not a regular file: expected one")
    target.require_replaceable()
    return target
