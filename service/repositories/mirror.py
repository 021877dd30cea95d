"""A bare mirror of a registered repository: commits are found in it, files read, probes tried. Nothing of it is run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from service.errors import CommitUnreachable, MirrorFailed, ProbeRefused
from service.repositories import git
from worker.gitaccess.access import Credential

MOST_CHANGED_BYTES = 256 * 1024
"""Of the names of what changed. All are held against every pattern of a tree, which is anybody's."""
LEFT_BY_A_KILL = ("*.lock", "refs/**/*.lock", "objects/**/*.lock", "objects/pack/*.keep", "objects/**/tmp_*")
"""Below a mirror: locks of a git that was killed, and what it had fetched so far."""

NAMESPACES = ("refs/heads/", "refs/tags/", "refs/pull/", "refs/merge-requests/")


@dataclass(frozen=True)
class Mirror:
    """The mirror of one repository, made on first use. ``home`` holds all mirrors and git's configuration.

    ``credential`` looks up what opens a private one; it is asked for each time that git speaks with the repository.
    """

    home: Path
    repository_id: int
    url: str
    timeout_s: float
    credential: Callable[[], Credential | None] = lambda: None

    @property
    def path(self) -> Path:
        """The bare repository."""
        return self.home / f"{self.repository_id}.git"

    def resolve(self, ref: str) -> str:
        """The SHA of a commit, branch or tag, as the repository has it now.

        A full SHA that is here already is not asked for again; anything that can move is fetched.

        Raises:
            CommitUnreachable: there is none.
            MirrorFailed: the repository did not answer.
        """
        git.check_ref(ref)
        self._make()
        if git.SHA.fullmatch(ref) and (known := self._commit(ref)):
            return known
        self._fetch_refs()
        for name in (*(f"{space}{ref}" for space in NAMESPACES), ref):
            if (name.startswith("refs/") or git.SHORT_SHA.fullmatch(ref)) and (known := self._commit(name)):
                return known
        if git.SHA.fullmatch(ref) and self._fetch_sha(ref) and (known := self._commit(ref)):
            return known
        raise CommitUnreachable(f"{ref!r} is no commit, branch or tag that {self.url} offers; push it, or name another")

    def read(self, commit: str, file: str) -> bytes | None:
        """A file of a commit, or ``None`` where it has none."""
        try:
            return self._git("cat-file", "blob", f"{commit}:{file}")
        except git.GitFailed:
            return None

    def size(self, commit: str, file: str) -> int | None:
        """How many bytes a file of a commit has, or ``None`` where there is none."""
        try:
            return int(self._git("cat-file", "-s", f"{commit}:{file}"))
        except git.GitFailed:
            return None

    def files(self, commit: str) -> list[str]:
        """The paths of a commit's files."""
        listed = self._git("ls-tree", "-r", "-z", "--name-only", commit)
        return [name for name in listed.decode(errors="replace").split("\0") if name]

    def tree(self, commit: str, probe: bytes | None = None) -> str:
        """Git's object id of a commit's tree, with a probe put on it in a temporary index.

        Raises:
            ProbeRefused: the probe does not apply; the text is git's own reason.
        """
        if probe is None:
            return self._git("rev-parse", "--verify", f"{commit}^{{tree}}").decode().strip()
        with tempfile.TemporaryDirectory(dir=self.home) as folder:
            objects = Path(folder) / "objects"
            objects.mkdir()
            scratch = {
                "GIT_INDEX_FILE": str(Path(folder) / "index"),
                "GIT_OBJECT_DIRECTORY": str(objects),
                "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(self.path / "objects"),
            }
            self._git("read-tree", commit, extra=scratch)
            try:
                self._git("apply", "--cached", "--binary", "--whitespace=nowarn", "-", stdin=probe, extra=scratch)
            except git.GitFailed as error:
                raise ProbeRefused(f"the probe does not apply to {commit[:12]}: {error.reason}") from error
            return self._git("write-tree", extra=scratch).decode().strip()

    def changed(self, base: str, commit: str, *, since_fork: bool) -> frozenset[str] | None:
        """The paths that differ between two commits, or ``None`` where that cannot be told, or is too much to tell.

        ``since_fork`` compares with the commit where both parted: only what ``commit``'s own side did.
        """
        try:
            if since_fork:
                base = self._git("merge-base", base, commit).decode().strip()
            names = self._git("diff-tree", "-r", "-z", "--name-only", "--no-renames", base, commit)
        except git.GitFailed:
            return None
        if len(names) > MOST_CHANGED_BYTES:
            return None
        return frozenset(names.decode(errors="replace").split("\0")) - {""}

    def contains(self, commit: str, other: str) -> bool:
        """Whether a commit has another in its history, or is it. One that is not in the mirror is in nobody's."""
        try:
            self._git("merge-base", "--is-ancestor", other, commit)
        except git.GitFailed:
            return False
        return True

    def default_head(self) -> str:
        """The commit that the repository's default branch has now.

        Raises:
            MirrorFailed: the repository did not answer, or has no commit.
        """
        self._make()
        try:
            told = self._ask("ls-remote", "--quiet", "--", self.url, "HEAD").decode().split()
        except git.GitFailed as error:
            raise MirrorFailed(f"git cannot read {self.url}: {error.reason}") from error
        if not told:
            raise MirrorFailed(f"{self.url} has no commit on its default branch; push one")
        return told[0]

    def _make(self) -> None:
        if (self.path / "HEAD").exists():
            return
        with self._locked():
            git.prepare(self.home)
            git.run(self.home, "init", "--quiet", "--bare", "--", str(self.path), timeout_s=self.timeout_s)

    def _fetch_refs(self) -> None:
        specs = [f"+{space}*:{space}*" for space in ("refs/heads/", "refs/tags/")]
        with self._locked():
            try:
                self._ask("fetch", "--quiet", "--prune", "--no-write-fetch-head", "--", self.url, *specs)
            except git.GitFailed as error:
                raise MirrorFailed(f"git cannot fetch {self.url}: {error.reason}") from error

    def _fetch_sha(self, sha: str) -> bool:
        """Some servers hand out a bare SHA that no branch holds; those that don't are asked for every ref they have."""
        for wanted in (sha, "+refs/*:refs/remotes/all/*"):
            with self._locked():
                try:
                    self._ask("fetch", "--quiet", "--no-write-fetch-head", "--", self.url, wanted)
                except git.GitFailed:
                    continue
            if self._commit(sha):
                return True
        return False

    def _commit(self, name: str) -> str | None:
        try:
            found = self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        except git.GitFailed:
            return None
        return found.decode().strip()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Nobody else writes to the mirror meanwhile, so what a killed git left there is in the way of nobody."""
        with FileLock(f"{self.path}.lock"):
            for stale in [path for pattern in LEFT_BY_A_KILL for path in self.path.glob(pattern)]:
                shutil.rmtree(stale, ignore_errors=True) if stale.is_dir() else stale.unlink(missing_ok=True)
            yield

    def _ask(self, *arguments: str) -> bytes:
        """A command that speaks with the repository."""
        where = ("--git-dir", str(self.path))
        return git.run(self.home, *where, *arguments, timeout_s=self.timeout_s, credential=self.credential())

    def _git(self, *arguments: str, stdin: bytes | None = None, extra: dict[str, str] | None = None) -> bytes:
        where = ("--git-dir", str(self.path))
        return git.run(self.home, *where, *arguments, timeout_s=self.timeout_s, stdin=stdin, extra=extra)
