"""Files that are whole or not there, whenever the process or the machine stops.

A file is replaced by a complete one: encoded first, written beside it under another name, flushed
to the disk, renamed over it, and the folder flushed. There is no other way that cuts the old file.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

#: What the names of unfinished files end with.
UNFINISHED = ".ecokv-tmp"

#: A full disk and the like: the next file will not fare better.
_DISK = frozenset(
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EROFS", "EIO", "EFBIG")
    if hasattr(errno, name)
)


def is_disk_failure(error: OSError) -> bool:
    """Whether writing anything else would fail too."""
    return error.errno in _DISK


def digest(data: bytes) -> str:
    """Hex SHA-256."""
    return hashlib.sha256(data).hexdigest()


def read_if_there(path: str | Path) -> bytes | None:
    """The bytes of a file, None if there is none."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def unfinished_name(path: str | Path) -> str:
    """Where ``path`` is written before it is renamed.

    Always the same name, so that what a killed run left behind is known and used again; short, so
    that every name that fits the file system has one.
    """
    folder, name = os.path.split(os.path.realpath(path))
    return os.path.join(folder, "." + digest(os.fsencode(name))[:24] + UNFINISHED)


def remove_unfinished(path: str | Path) -> None:
    """Remove what a killed run left of ``path``."""
    try:
        os.unlink(unfinished_name(path))
    except OSError:
        return


def replace_file(path: str | Path, data: bytes | Iterable[bytes]) -> None:
    """Give ``path`` the content ``data``, durably; on any failure the old file is as it was.
    Large content may come in pieces.

    A link is followed, and the permissions of an old file are kept. Raises OSError.
    """
    target = os.path.realpath(path)
    temporary = unfinished_name(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(temporary, flags, 0o666)
        try:
            _keep_permissions(target, handle)
            for piece in (data,) if isinstance(data, bytes) else data:
                write_all(handle, piece)
            flush(handle)
        finally:
            os.close(handle)
        os.replace(temporary, target)
    except BaseException:
        remove_unfinished(path)
        raise
    flush_folder(os.path.dirname(target))


def _keep_permissions(target: str, handle: int) -> None:
    if not hasattr(os, "fchmod"):
        return
    try:
        os.fchmod(handle, stat.S_IMODE(os.stat(target).st_mode))
    except OSError:  # no old file, or a file system without permissions
        return


def write_all(handle: int, data: bytes) -> None:
    """Write every byte; one call may take fewer. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def append_bytes(handle: int, data: bytes) -> None:
    """Add to the end of a file, durably; on failure what was added is taken off again.

    ``handle`` is open for appending. Raises OSError.
    """
    before = os.fstat(handle).st_size
    try:
        write_all(handle, data)
        flush(handle)
    except OSError:
        os.ftruncate(handle, before)
        raise


def flush(handle: int) -> None:
    """Everything written is on the disk when this returns."""
    if sys.platform == "darwin":  # fsync leaves it in the drive there
        import fcntl

        try:
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
            return
        except OSError:
            pass
    os.fsync(handle)


def flush_folder(folder: str) -> None:
    """A new name in ``folder`` is on the disk when this returns, where the system can tell."""
    if os.name == "nt":
        return
    handle = os.open(folder or ".", os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(handle)
