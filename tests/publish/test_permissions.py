"""Replaced files: owner, mode and ACL are inherited, and no user gains permissions."""

import errno
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from limits import IS_ROOT, fail_with
from outputs import temporary_sink

from ndtool.errors import OutputError
from ndtool.publish import newfile, sinks, targets

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
NOBODY = 0xFFFFFFFF
USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32


def acl(*entries: tuple[int, int] | tuple[int, int, int]) -> bytes:
    """Return an ACL of (tag, permissions) or (tag, permissions, id) in the system's format."""
    rows = [(*entry, NOBODY)[:3] for entry in entries]
    return struct.pack("<I", 2) + b"".join(struct.pack("<2HI", *row) for row in rows)


SHARED = acl((USER_OBJ, 6), (USER, 6, 1234), (GROUP_OBJ, 0), (MASK, 6), (OTHER, 0))
BROAD = acl((USER_OBJ, 6), (USER, 4, 1234), (GROUP_OBJ, 6), (GROUP, 6, 99), (MASK, 6), (OTHER, 4))

pytestmark = pytest.mark.usefixtures("tmpfile_mode")


@pytest.fixture(autouse=True)
def existing_file(workdir: Path) -> Iterator[None]:
    umask = os.umask(0)
    Path("x.npy").write_bytes(b"old")
    yield
    os.umask(umask)


def get_attribute(path: str, name: str) -> bytes | None:
    try:
        return os.getxattr(path, name)
    except OSError:
        return None


def set_attribute(path: str, name: str, value: bytes) -> None:
    try:
        os.setxattr(path, name, value)
    except (OSError, AttributeError) as exc:
        pytest.skip(f"the file system has no {name}: {exc}")


def mode(path: str = "x.npy") -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def save_output(path: str = "x.npy") -> None:
    with temporary_sink(path, np.frombuffer(b"new", "u1")) as out:
        out.write(0, memoryview(b"new"))
        sinks.commit(out)


@pytest.mark.parametrize("raw", [SHARED, BROAD])
def test_an_acl_is_preserved(raw: bytes) -> None:
    set_attribute("x.npy", ACCESS, raw)
    before = mode()
    save_output()
    assert (mode(), get_attribute("x.npy", ACCESS)) == (before, raw)
    assert Path("x.npy").read_bytes().endswith(b"new")


@pytest.mark.parametrize(("raw", "expected"), [(SHARED, 0o600), (BROAD, 0o644)])
@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EPERM])
def test_an_acl_that_cannot_be_set_grants_its_group_nothing_more(
    raw: bytes, expected: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_attribute("x.npy", ACCESS, raw)
    monkeypatch.setattr(os, "setxattr", fail_with(code))
    save_output()
    assert (mode(), get_attribute("x.npy", ACCESS)) == (expected, None)


@pytest.mark.parametrize("previous_mode", [0o600, 0o640, 0o666])
def test_a_default_acl_grants_no_permissions_to_a_replaced_file(previous_mode: int) -> None:
    set_attribute(".", DEFAULT, BROAD)
    os.chmod("x.npy", previous_mode)
    assert get_attribute("x.npy", ACCESS) is None
    save_output()
    assert (mode(), get_attribute("x.npy", ACCESS)) == (previous_mode, None)


@pytest.mark.parametrize("mask", [0, 0o077])
def test_a_new_file_gets_the_default_acl_of_its_folder(mask: int) -> None:
    set_attribute(".", DEFAULT, BROAD)
    os.umask(mask)
    Path("plain").write_bytes(b"")
    save_output("new.npy")
    assert mode("new.npy") == mode("plain")
    assert get_attribute("new.npy", ACCESS) == get_attribute("plain", ACCESS)


@pytest.mark.parametrize(
    ("previous_mode", "expected"), [(0o640, 0o600), (0o660, 0o600), (0o644, 0o644), (0o775, 0o755)]
)
def test_a_group_that_cannot_be_set_gains_no_permissions(
    previous_mode: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chmod("x.npy", previous_mode)
    patch_group(monkeypatch)
    save_output()
    assert mode() == expected
    set_attribute("x.npy", ACCESS, BROAD)
    save_output()
    assert (mode(), get_attribute("x.npy", ACCESS)) == (0o644, None)


def patch_group(monkeypatch: pytest.MonkeyPatch) -> None:
    real_stat = os.stat

    def stat_with_other_group(path: str, **kwargs: object) -> os.stat_result:
        status = real_stat(path, **kwargs)  # type: ignore[arg-type]
        return os.stat_result((*status[:5], status.st_gid + 1, *status[6:]))

    monkeypatch.setattr(targets.os, "stat", stat_with_other_group)
    monkeypatch.setattr(os, "fchown", fail_with(errno.EPERM))


@pytest.mark.skipif(not IS_ROOT, reason="only root may change a file's owner")
def test_owner_and_group_are_preserved() -> None:
    os.chown("x.npy", 1234, 4321)
    os.chmod("x.npy", 0o640)
    save_output()
    status = os.stat("x.npy")
    assert (status.st_uid, status.st_gid, mode()) == (1234, 4321, 0o640)


def test_other_users_cannot_read_an_output_before_its_mode_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    os.chmod("x.npy", 0o600)
    modes = []
    real_inherit = newfile._inherit

    def inherit(fd: int, path: str, existing: os.stat_result) -> None:
        modes.append(stat.S_IMODE(os.fstat(fd).st_mode))
        real_inherit(fd, path, existing)

    monkeypatch.setattr(newfile, "_inherit", inherit)
    save_output()
    assert modes == [0o600]


def test_systems_and_file_systems_without_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    os.chmod("x.npy", 0o640)
    for name in ("getxattr", "setxattr", "removexattr"):
        monkeypatch.setattr(os, name, fail_with(errno.EOPNOTSUPP))
    save_output()
    assert mode() == 0o640
    for name in ("getxattr", "setxattr", "removexattr"):
        monkeypatch.delattr(os, name)
    save_output()
    assert mode() == 0o640


@pytest.mark.parametrize("call", ["getxattr", "removexattr", "fchmod"])
def test_unknown_permissions_are_not_guessed(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, call, fail_with(errno.EIO))
    with pytest.raises(OutputError, match=r"^x.npy: Input/output error$"):
        save_output()
    assert os.listdir() == ["x.npy"]
    assert Path("x.npy").read_bytes() == b"old"
