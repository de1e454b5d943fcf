"""Files beside an open file, which refers to them by name: external data, and shards of a model."""

import os

from ndtool.errors import printable, refuse
from ndtool.storage import locations
from ndtool.storage.local import File


def locate(storage: File, path: str, name: str, label: str, kind: str) -> str:
    """Return the location of a file in the folder of an open file, or below.

    path: of the open file. name: relative to its folder. label, kind: what refers to the file, and
    to what, for messages. Raises InputError for another path, and for a link out of the folder.
    """
    location = locations.sibling(storage, path, name)
    is_invalid = not name or name[0] == "/" or ".." in name.split("/") or "\0" in name
    if is_invalid or location is None or locations.is_url(name):
        refuse(
            label,
            f"the location of {kind} is {printable(repr(name))}: expected a"
            " relative path inside the model's folder",
        )
    # In a cache, the model and its files may be links to files of another folder.
    folders = (os.path.realpath(os.path.dirname(path)), os.path.dirname(os.path.realpath(path)))
    real_path = os.path.realpath(location)
    is_inside = any(os.path.commonpath([real_path, folder]) == folder for folder in folders)
    if not is_inside and not locations.is_url(location):
        refuse(label, f"{kind} is in {printable(location)}, a link out of the model's folder")
    return location
