"""How much room a disk has, and a word for those that have none."""

from __future__ import annotations

import shutil
from pathlib import Path

_NEXT_TO_NOTHING = 4 << 20


def free(path: Path) -> int:
    """Bytes that may still be written where a path is or will be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def full(path: Path) -> str:
    """A word on the disk below a path, where next to nothing is free there; else nothing. git does not always tell."""
    left = free(path)
    return f" (the disk of {path} has {left} bytes free: make room)" if left < _NEXT_TO_NOTHING else ""
