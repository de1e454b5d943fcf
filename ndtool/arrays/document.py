"""A page or a picture as a file, which takes its name as arrays do: whole, or not at all."""

from ndtool.arrays import places
from ndtool.arrays.sink import FileSink, Frame
from ndtool.arrays.source import Facts
from ndtool.arrays.targets import Target, existing
from ndtool.errors import OutputError, printable
from ndtool.rules import dtypes


def create(path: str, content: bytes, *, clobber: bool = True, sync: bool = False) -> FileSink:
    """Return a Sink that is complete; see `names.create`."""
    target, shape = _target(path, clobber, sync), (len(content),)
    facts = Facts(dtypes.from_name("uint8"), shape, "C", shape, {})
    sink = FileSink(target, facts, Frame(b"", facts.nbytes))
    try:
        sink.write(0, memoryview(content))
    except BaseException:
        sink.abort()
        raise
    return sink


def check(path: str, *, clobber: bool = True) -> None:
    """Raise what `create` would, as far as that shows without writing."""
    _target(path, clobber, False).require_folder()


def _target(path: str, clobber: bool, sync: bool) -> Target:
    if places.is_url(path):
        raise OutputError(f"{printable(path)}: expected a file on this machine")
    target = Target(path, None, existing(path), clobber, sync)
    if target.is_store or not target.is_file:
        raise OutputError(f"{printable(path)} is no file that can be replaced: expected one")
    target.require_replaceable()
    return target
