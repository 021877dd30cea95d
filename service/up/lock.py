"""One embedded system for each data directory."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

from service.up.errors import UpError


@contextlib.contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    """Holds a data directory for this process. The kernel lets go of it when the process dies, however that happens.

    Raises:
        UpError: another process holds it, or the directory cannot be written.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(data_dir / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UpError(
            f"data directory {str(data_dir)!r} cannot be written ({error.strerror}); name another with --data-dir"
        ) from error
    with os.fdopen(descriptor, "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UpError(_taken(data_dir, file.read().strip())) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _taken(data_dir: Path, pid: str) -> str:
    where = address(data_dir)
    return (
        f"data directory {str(data_dir)!r} is in use by process {pid or '?'}"
        + (f", which serves {where}" if where else "")
        + "; stop it first, or name another with --data-dir"
    )


def note_file(data_dir: Path) -> Path:
    """Where a running system notes its address."""
    return data_dir / "up.json"


def write_note(data_dir: Path, url: str) -> None:
    """Notes the address for the command line, all at once."""
    draft = data_dir / "up.json.new"
    draft.write_text(json.dumps({"url": url, "pid": os.getpid()}) + "\n")
    draft.replace(note_file(data_dir))


def address(data_dir: Path) -> str | None:
    """The address that the system of a data directory noted."""
    try:
        note = json.loads(note_file(data_dir).read_text())
    except (OSError, ValueError):
        return None
    url = note.get("url") if isinstance(note, dict) else None
    return url if isinstance(url, str) else None
