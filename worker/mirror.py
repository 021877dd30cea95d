"""A bare mirror of each repository on this host, shared by all attempts and guarded by a host lock.

Objects are only ever added, so a tree may borrow them without a lock.
"""

from __future__ import annotations

import hashlib
import re
import threading
from pathlib import Path

from filelock import FileLock

from worker.errors import InfrastructureFault
from worker.git import GitError, fetch, git, succeeds

_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_LADDER = ((), ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"), ("+refs/*:refs/remote/*",))
"""What is fetched until the commit is there: the bare SHA, which a server may refuse, then branches and tags, then
everything (after a force-push only a pull request's ref may still lead to it)."""


def commit_in_mirror(cache: Path, url: str, commit: str, stop: threading.Event) -> Path:
    """The mirror of a repository, with the commit in it.

    Raises:
        InfrastructureFault: the commit cannot be reached; git's words are in the text.
    """
    if _SHA.fullmatch(commit) is None:
        raise InfrastructureFault(f"commit {commit!r} is no full object id: the service pins every ref to its SHA")
    if url.startswith("-") or "::" in url.split("/", 1)[0]:
        raise InfrastructureFault(f"repository address {url!r} is none that git may fetch from: register another one")
    mirror = cache / "mirrors" / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}.git"
    if _has(mirror, commit):
        return mirror
    mirror.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{mirror}.lock", thread_local=False):
        _prepare(mirror)
        _climb(mirror, url, commit, stop)
    return mirror


def _has(mirror: Path, commit: str) -> bool:
    return (mirror / "HEAD").exists() and succeeds(mirror, "cat-file", "-e", f"{commit}^{{commit}}")


def _prepare(mirror: Path) -> None:
    """Make the mirror, or remove what a killed git left locked: the host lock says that nobody writes here now."""
    if not (mirror / "HEAD").exists():
        mirror.mkdir(exist_ok=True)
        git(mirror, "init", "--quiet", "--bare", "--template=")
    for stale in [*mirror.glob("*.lock"), *mirror.glob("refs/**/*.lock"), *mirror.glob("objects/**/*.lock")]:
        stale.unlink(missing_ok=True)


def _climb(mirror: Path, url: str, commit: str, stop: threading.Event) -> None:
    said: list[str] = []
    for rung in _LADDER:
        if _has(mirror, commit):
            return
        try:
            fetch(mirror, url, rung or (f"+{commit}:refs/kept/{commit}",), stop)
        except GitError as error:
            said.append(str(error))
    if not _has(mirror, commit):
        raise InfrastructureFault(
            f"commit {commit} is not reachable in {url}: push it again, or submit another commit. {' | '.join(said)}"
        )
