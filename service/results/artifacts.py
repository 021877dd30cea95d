"""Keeps artifacts: bytes in the data directory under their SHA-256, a row for each name of an attempt."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from service.clock import now
from service.errors import NO_ROOM, ArtifactConflict, DiskFull, NotFound, TooLarge
from service.models import Artifact

DRAFT_S = 3600
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


@dataclass(frozen=True)
class Stored:
    """Bytes that lie in the data directory."""

    size: int
    sha256: str


def folder(data_dir: Path) -> Path:
    """Where artifacts lie."""
    return data_dir / "artifacts"


def file_of(data_dir: Path, sha256: str) -> Path:
    """The file of a digest."""
    return folder(data_dir) / sha256[:2] / sha256


async def receive(data_dir: Path, chunks: AsyncIterator[bytes], cap: int) -> Stored:
    """Writes a body to its place under its digest.

    Raises:
        TooLarge: there are more bytes than the cap.
        DiskFull: the data directory's disk has no room for them.
    """
    digest, size = hashlib.sha256(), 0
    with _draft(data_dir) as draft:
        with draft.open("wb") as out:
            async for chunk in chunks:
                size += len(chunk)
                if size > cap:
                    raise TooLarge(f"the artifact is larger than {cap} bytes; keep its head and tail")
                digest.update(chunk)
                out.write(chunk)
            out.flush()
            await run_in_threadpool(os.fsync, out.fileno())
        _publish(data_dir, draft, digest.hexdigest())
    return Stored(size, digest.hexdigest())


def store(data_dir: Path, content: bytes) -> Stored:
    """Writes bytes that are here already to their place under their digest.

    Raises:
        DiskFull: the data directory's disk has no room for them.
    """
    stored = Stored(len(content), hashlib.sha256(content).hexdigest())
    with _draft(data_dir) as draft:
        with draft.open("wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        _publish(data_dir, draft, stored.sha256)
    return stored


@contextlib.contextmanager
def _draft(data_dir: Path) -> Iterator[Path]:
    """A place to write to, gone afterwards. A disk without room is told as one, wherever in the block it shows."""
    draft = folder(data_dir) / f"draft-{secrets.token_hex(8)}"
    try:
        folder(data_dir).mkdir(parents=True, exist_ok=True)
        yield draft
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise DiskFull(
            f"no room for the artifact in {data_dir} ({error.strerror}); it is taken when there is"
        ) from error
    finally:
        draft.unlink(missing_ok=True)


def _publish(data_dir: Path, draft: Path, sha256: str) -> None:
    place = file_of(data_dir, sha256)
    place.parent.mkdir(exist_ok=True)
    draft.replace(place)


def sweep_drafts(data_dir: Path) -> int:
    """Removes what a killed service had begun to write; at the start, when nobody writes. Returns how many files.

    A draft that was written to within the last hour stays: another service may share the directory.
    """
    gone = 0
    for draft in folder(data_dir).glob("draft-*"):
        with contextlib.suppress(OSError):
            if time.time() - draft.stat().st_mtime > DRAFT_S:
                draft.unlink()
                gone += 1
    return gone


def check_name(name: str) -> None:
    """Says whether an artifact can have the name.

    Raises:
        NotFound: it cannot.
    """
    if not NAME.fullmatch(name):
        raise NotFound(f"an artifact's name has letters, digits, '.', '_' and '-', 200 at most, not {name[:200]!r}")


def keep(session: Session, attempt_id: int, name: str, stored: Stored) -> bool:
    """Notes the artifact; returns whether it is new. The same bytes again change nothing.

    Raises:
        ArtifactConflict: other bytes are stored under the name.
    """
    known = session.scalar(select(Artifact).where(Artifact.attempt_id == attempt_id, Artifact.name == name))
    if known is not None:
        if known.sha256 != stored.sha256:
            raise ArtifactConflict(f"attempt {attempt_id} has an artifact {name!r} of other bytes; choose another name")
        return False
    session.add(Artifact(attempt_id=attempt_id, name=name, size=stored.size, sha256=stored.sha256, created_at=now()))
    return True
