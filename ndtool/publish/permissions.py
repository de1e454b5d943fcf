"""Owner, mode, ACL and attributes that a new file inherits from the file that it replaces."""

import errno
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager

_ACL = "system.posix_acl_access"
_ENTRY = struct.Struct("<2HI")  # tag, permissions, ID; the first entry follows a 4-byte version
_GROUP, _MASK, _OTHER = 0x04, 0x10, 0x20
_UNSUPPORTED_ERRNOS = (errno.EOPNOTSUPP, errno.ENODATA, errno.ENOSYS)


def inherit(fd: int, path: str, current: os.stat_result) -> None:
    """Copy the owner, mode, ACL and user attributes of `path` to a new file of mode 0600.

    No user gains permissions: if the group cannot be set, the new group gets at most the
    permissions of others; if the ACL cannot be set, the mode grants at most the same. Raises
    OSError.
    """
    mode = stat.S_IMODE(current.st_mode) & 0o777
    same_group = _set_owner(fd, current)
    acl = b""
    with _optional():
        acl = os.getxattr(path, _ACL)
    entries = {tag: permissions for tag, permissions, _ in _ENTRY.iter_unpack(acl[4:])}
    if not acl:
        with _optional():
            os.removexattr(fd, _ACL)  # inherited from the folder's default ACL
        group, other = mode >> 3 & 7, mode & 7
    else:
        group, other = entries[_GROUP], entries[_OTHER]
    if not same_group:
        group &= other
    if not (acl and _set_acl(fd, acl, group)):
        group &= entries.get(_MASK, 7)
        os.fchmod(fd, mode & 0o700 | group << 3 | other)
    with _optional(errno.EPERM, errno.EACCES):
        for name in os.listxattr(path):
            if name.startswith("user."):
                os.setxattr(fd, name, os.getxattr(path, name))


@contextmanager
def _optional(*errnos: int) -> Iterator[None]:
    """Ignore errors of attributes that the system lacks, and other `errnos`."""
    try:
        yield
    except AttributeError:
        pass
    except OSError as exc:
        if exc.errno not in (*_UNSUPPORTED_ERRNOS, *errnos):
            raise


def _set_owner(fd: int, current: os.stat_result) -> bool:
    """Set the owner and group of a file, or only the group; return whether the group is set."""
    created = os.fstat(fd)
    if (created.st_uid, created.st_gid) == (current.st_uid, current.st_gid):
        return True
    for owner in (current.st_uid, -1):  # only root may change the owner of a file
        try:
            os.fchown(fd, owner, current.st_gid)
            return True
        except OSError:
            pass
    return created.st_gid == current.st_gid


def _set_acl(fd: int, acl: bytes, group: int) -> bool:
    """Set an ACL with permissions `group` for the owning group; False if not possible."""
    raw = bytearray(acl)
    for offset in range(4, len(raw), _ENTRY.size):
        tag, _, entry_id = _ENTRY.unpack_from(raw, offset)
        if tag == _GROUP:
            _ENTRY.pack_into(raw, offset, tag, group, entry_id)
    try:
        os.setxattr(fd, _ACL, raw)
    except OSError as exc:
        if exc.errno not in (*_UNSUPPORTED_ERRNOS, errno.EPERM):
            raise
        return False
    return True
