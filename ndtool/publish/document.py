"""HTML reports and images as output files, published as arrays are: complete or not at all."""

from ndtool.arrays.source import ArrayMetadata
from ndtool.errors import OutputError, printable
from ndtool.publish import sinks
from ndtool.publish.sinks import Container, FileSink
from ndtool.publish.targets import Target, existing
from ndtool.rules import dtypes
from ndtool.storage import locations


def create(path: str, content: bytes, *, clobber: bool = True, sync: bool = False) -> FileSink:
    """Return a Sink with the content written, ready for `commit`; see `outputs.create`."""
    target, shape = _target(path, clobber, sync), (len(content),)
    metadata = ArrayMetadata(dtypes.from_name("uint8"), shape, "C", shape, {})
    sink = FileSink(target, metadata, Container(b"", metadata.nbytes))
    try:
        sink.write(0, memoryview(content))
    except BaseException:
        sink.abort()
        raise
    return sink


def publish(path: str, content: bytes) -> None:
    """Write and publish one file."""
    sink = create(path, content)
    try:
        sinks.commit(sink)
    finally:
        sink.abort()


def check(path: str, *, clobber: bool = True) -> None:
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
