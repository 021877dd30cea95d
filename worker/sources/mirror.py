"""A bare mirror of each repository on this host, shared by all attempts and guarded by a host lock.

Objects are only ever added, so a tree may borrow them without a lock. What was fetched with a credential lies in a
mirror of that registered repository alone: no other tree gets at it by naming its address as a submodule's.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from worker.errors import EnvironmentFault, InfrastructureFault
from worker.gitaccess.access import Credential
from worker.gitaccess.address import AddressRefused, check
from worker.host_lock import locked
from worker.runtimes.disk import full
from worker.sources.git import GitError, fetch, git, succeeds

_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_LADDER = ((), ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"), ("+refs/*:refs/remote/*",))
"""What is fetched until the commit is there: the bare SHA, which a server may refuse, then branches and tags, then
everything (after a force-push only a pull request's ref may still lead to it)."""

_LEFT_BY_A_KILL = (
    "*.lock", "refs/**/*.lock", "objects/**/*.lock", "objects/pack/*.keep", "objects/**/tmp_*", "objects/**/.tmp-*",
)  # fmt: skip
"""Below a mirror: locks of a git that was killed, and what it had fetched so far."""


_DAMAGED = re.compile(
    r"not a GIT packfile|did not send all necessary objects|bad object|corrupt|garbage at end|inflate|unable to read"
)


@dataclass(frozen=True)
class Source:
    """From where an attempt's trees come: the mirrors' folder, and the registered repository with its credential.
    ``fault`` says why the service could not hand the credential out, if so."""

    cache: Path
    repository: str = ""
    credential: Credential | None = None
    fault: str = ""
    say: Callable[[str], None] = lambda _: None

    def mirror(self, url: str) -> Path:
        """The mirror of an address."""
        private = self.credential is not None and self.credential.is_for(url)
        key = f"{url}\0{self.repository}" if private else url
        return self.cache / "mirrors" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.git"


def commit_in_mirror(source: Source, url: str, commit: str, stop: threading.Event) -> Path:
    """The mirror of a repository, with the commit in it.

    Raises:
        EnvironmentFault: the address is none that git may fetch from.
        InfrastructureFault: the commit cannot be reached; git's words are in the text.
        Stopped: the attempt was asked to end.
    """
    if _SHA.fullmatch(commit) is None:
        raise InfrastructureFault(f"commit {commit!r} is no full object id: the service pins every ref to its SHA")
    try:
        check(url)
    except AddressRefused as error:
        raise EnvironmentFault(str(error)) from error
    mirror = source.mirror(url)
    if _has(mirror, commit):
        return mirror
    mirror.parent.mkdir(parents=True, exist_ok=True)
    with locked(Path(f"{mirror}.lock"), stop, lambda: source.say(f"another attempt fetches {url}: waiting for it")):
        if not _has(mirror, commit):
            _prepare(mirror)
            if not _climb(mirror, source, url, commit, stop):
                source.say(f"the mirror of {url} on this machine is damaged: it is fetched anew")
                shutil.rmtree(mirror, ignore_errors=True)
                _prepare(mirror)
                _climb(mirror, source, url, commit, stop, fresh=True)
    return mirror


def mend(source: Source, url: str, commit: str, stop: threading.Event) -> bool:
    """Put a mirror aside that lacks objects of a commit which it has, after a full disk or a loss of power: the next
    fetch makes another. Whether it was so."""
    mirror = source.mirror(url)
    with locked(Path(f"{mirror}.lock"), stop):
        if not mirror.exists() or succeeds(mirror, "rev-list", "--objects", "--quiet", "--no-walk", commit):
            return False
        source.say(f"the mirror of {url} on this machine is damaged: it is fetched anew")
        shutil.rmtree(mirror, ignore_errors=True)
        return True


def _has(mirror: Path, commit: str) -> bool:
    return (mirror / "HEAD").exists() and succeeds(mirror, "cat-file", "-e", f"{commit}^{{commit}}")


def _prepare(mirror: Path) -> None:
    """Make the mirror, or remove what a killed git left: the host lock says that nobody writes here now."""
    if not (mirror / "HEAD").exists():
        shutil.rmtree(mirror, ignore_errors=True)
        mirror.mkdir()
        git(mirror, "init", "--quiet", "--bare", "--template=")
    for stale in [path for pattern in _LEFT_BY_A_KILL for path in mirror.glob(pattern)]:
        shutil.rmtree(stale, ignore_errors=True) if stale.is_dir() else stale.unlink(missing_ok=True)


def _climb(mirror: Path, source: Source, url: str, commit: str, stop: threading.Event, *, fresh: bool = False) -> bool:
    """Fetch until the commit is there. Whether it is: not, where the mirror is damaged and not ``fresh``.

    Raises:
        InfrastructureFault: the commit cannot be had.
    """
    if source.fault:
        raise InfrastructureFault(source.fault)
    said: list[str] = []
    for rung in _LADDER:
        try:
            fetch(mirror, url, rung or (f"+{commit}:refs/kept/{commit}",), stop, source.credential)
        except GitError as error:
            said.append(str(error))
        if _has(mirror, commit):
            return True
    if not fresh and any(_DAMAGED.search(text) for text in said):
        return False
    if room := full(mirror):
        raise InfrastructureFault(f"commit {commit} of {url} cannot be fetched{room}: {said[-1]}")
    raise InfrastructureFault(
        f"commit {commit} is not reachable in {url}: push it again, or submit another commit. "
        + " | ".join(dict.fromkeys(said))
    )
