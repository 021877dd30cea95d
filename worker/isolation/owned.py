"""Makes and removes files where tested code may write: through nothing that it left there in their stead.

A test or a build backend can put a link, a pipe or a folder where the worker is about to make a file. Nobody of it runs
while these are called, so what is made here is the worker's own until the next process starts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path
from typing import BinaryIO

_MOST = 1 << 20


def fresh_file(path: Path) -> BinaryIO:
    """A new and empty file at a path, open for writing and reading, instead of whatever is there.

    Raises:
        OSError: it cannot be made.
    """
    remove(path)
    return open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w+b", buffering=0)


def real_folder(path: Path) -> None:
    """See that there is a folder at a path, and no link or file in its stead.

    Raises:
        OSError: it cannot be made.
    """
    if path.is_symlink() or not path.is_dir():
        remove(path)
        path.mkdir()


def usable(path: Path) -> bool:
    """Whether a folder that was made here is there still, no link in its stead, and open to this user."""
    return not path.is_symlink() and path.is_dir() and os.access(path, os.R_OK | os.W_OK | os.X_OK)


def read_file(path: Path) -> bytes:
    """The first MiB of a plain file; of nothing else, for a link leads anywhere and a pipe is waited for.

    Raises:
        OSError: it is none, or cannot be read.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(f"{path} is no plain file")
        return stream.read(_MOST)


def remove(path: Path) -> None:
    """Remove what is at a path, whole, where this user may: folders too that were closed to their own user."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        _open_up(path)
        shutil.rmtree(path, ignore_errors=True)


def _open_up(folder: Path) -> None:
    """Give this user back the right to list and change a folder and those below it."""
    with contextlib.suppress(OSError):
        folder.chmod(stat.S_IRWXU)
    for place, names, _ in os.walk(folder):
        for name in names:
            below = Path(place, name)
            if not below.is_symlink():
                with contextlib.suppress(OSError):
                    below.chmod(stat.S_IRWXU)
