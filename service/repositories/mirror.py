"""A bare mirror of a registered repository: commits are found in it, files read, probes tried. Nothing of it is run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import structlog
from filelock import FileLock

from service.errors import CommitUnreachable, MirrorFailed, ProbeRefused
from service.repositories import damage, git
from worker.gitaccess.access import Credential

log = structlog.get_logger()

MOST_CHANGED_BYTES = 256 * 1024
"""Of the names of what changed. All are held against every pattern of a tree, which is anybody's."""
LEFT_BY_A_KILL = ("*.lock", "refs/**/*.lock", "objects/**/*.lock", "objects/pack/*.keep", "objects/**/tmp_*")
"""Below a mirror: locks of a git that was killed, and what it had fetched so far."""

NAMESPACES = ("refs/heads/", "refs/tags/", "refs/pull/", "refs/merge-requests/")

Answer = Callable[[git.GitFailed], bool]
"""Whether a failure of git is what was asked for, and no fault."""


def no_answer(_: git.GitFailed) -> bool:
    """Of a command that fails for faults alone."""
    return False


def says_no(error: git.GitFailed) -> bool:
    """Of a command that says no by its status, and says it too where it could not read what it has."""
    return error.status == 1 and not damage.of_words(error)


def refuses_probe(error: git.GitFailed) -> bool:
    """Of ``git apply``, which has one status for a patch that does not fit and a file that it cannot read."""
    return damage.ended(error) and damage.PASSES.search(error.reason) is None and not damage.of_words(error)


@dataclass(frozen=True)
class Mirror:
    """The mirror of one repository, made on first use. ``home`` holds all mirrors and git's configuration.

    ``credential`` looks up what opens a private one; it is asked for each time that git speaks with the repository.
    Whatever is asked of a commit raises ``MirrorFailed`` where git cannot tell: "there is none" is told only where git
    says so. A mirror that turns out to be damaged is fetched anew, once, and asked again. ``draft`` marks the one that
    is fetched for that.
    """

    home: Path
    repository_id: int
    url: str
    timeout_s: float
    credential: Callable[[], Credential | None] = lambda: None
    draft: bool = False

    @property
    def path(self) -> Path:
        """The bare repository."""
        return self.home / f"{self.repository_id}{'.new' if self.draft else ''}.git"

    @property
    def remains(self) -> tuple[Path, Path, Path]:
        """All that may lie there of it: the mirror, and what a kill left of one that took a damaged one's place."""
        return self.path, replace(self, draft=True).path, self.path.with_suffix(".old")

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
        """A file of a commit, or ``None`` where it has none.

        Raises:
            MirrorFailed: git cannot tell.
        """
        blob = self._blob(commit, file)
        return None if blob is None else self._sound("cat-file", "blob", blob, commits=(commit,))

    def size(self, commit: str, file: str) -> int | None:
        """How many bytes a file of a commit has, or ``None`` where there is none.

        Raises:
            MirrorFailed: git cannot tell.
        """
        blob = self._blob(commit, file)
        return None if blob is None else int(self._sound("cat-file", "-s", blob, commits=(commit,)))

    def files(self, commit: str) -> list[str]:
        """The paths of a commit's files.

        Raises:
            MirrorFailed: git cannot tell.
        """
        listed = self._sound("ls-tree", "-r", "-z", "--name-only", commit, commits=(commit,))
        return [name for name in listed.decode(errors="replace").split("\0") if name]

    def tree(self, commit: str, probe: bytes | None = None) -> str:
        """Git's object id of a commit's tree, with a probe put on it in a temporary index.

        Raises:
            ProbeRefused: the probe does not apply; the text is git's own reason.
            MirrorFailed: git cannot tell.
        """
        of = (commit,)
        if probe is None:
            return self._sound("rev-parse", "--verify", f"{commit}^{{tree}}", commits=of).decode().strip()
        with tempfile.TemporaryDirectory(dir=self.home) as folder:
            objects = Path(folder) / "objects"
            objects.mkdir()
            scratch = {
                "GIT_INDEX_FILE": str(Path(folder) / "index"),
                "GIT_OBJECT_DIRECTORY": str(objects),
                "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(self.path / "objects"),
            }
            self._sound("read-tree", commit, extra=scratch, commits=of)
            apply = ("apply", "--cached", "--binary", "--whitespace=nowarn", "-")
            try:
                self._sound(*apply, stdin=probe, extra=scratch, commits=of, answer=refuses_probe)
            except git.GitFailed as error:
                raise ProbeRefused(f"the probe does not apply to {commit[:12]}: {error.reason}") from error
            return self._sound("write-tree", extra=scratch, commits=of).decode().strip()

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
        """Whether a commit has another in its history, or is it. One that is not in the mirror is in nobody's.

        Raises:
            MirrorFailed: git cannot tell.
        """
        if self._commit(commit) is None or self._commit(other) is None:
            return False
        try:
            self._sound("merge-base", "--is-ancestor", other, commit, commits=(commit, other), answer=says_no)
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
            told = self._ask_for_head()
        except git.GitFailed as error:
            raise MirrorFailed(f"git cannot read {self.url}: {error.reason}") from error
        if not told:
            raise MirrorFailed(f"{self.url} has no commit on its default branch; push one")
        return told[0]

    def _ask_for_head(self) -> list[str]:
        words = ("ls-remote", "--quiet", "--", self.url, "HEAD")
        try:
            return self._ask(*words).decode().split()
        except git.GitFailed as error:  # of a damaged mirror git reads not even the configuration
            if not damage.of_words(error):
                raise
            with self._locked():
                self._renew(error)
            return self._ask(*words).decode().split()

    def _make(self) -> None:
        if (self.path / "HEAD").exists():
            return
        with self._locked():
            git.prepare(self.home)
            try:
                git.run(self.home, "init", "--quiet", "--bare", "--", str(self.path), timeout_s=self.timeout_s)
            except git.GitFailed as error:
                raise self._failed(error) from error

    def _fetch_refs(self) -> None:
        specs = [f"+{space}*:{space}*" for space in ("refs/heads/", "refs/tags/")]
        with self._locked():
            try:
                self._ask("fetch", "--quiet", "--prune", "--no-write-fetch-head", "--", self.url, *specs)
            except git.GitFailed as error:
                if self.draft or not damage.of_words(error):
                    raise MirrorFailed(f"git cannot fetch {self.url}: {error.reason}") from error
                self._renew(error)

    def _fetch_sha(self, sha: str) -> bool:
        """Some servers hand out a bare SHA that no branch holds; those that don't are asked for every ref they have."""
        for wanted in (sha, "+refs/*:refs/remotes/all/*"):
            with self._locked():
                try:
                    self._ask("fetch", "--quiet", "--no-write-fetch-head", "--", self.url, wanted)
                except git.GitFailed as error:
                    if damage.ended(error):
                        continue
                    raise MirrorFailed(f"git cannot fetch {self.url}: {error.reason}") from error
            if self._commit(sha):
                return True
        return False

    def _commit(self, name: str) -> str | None:
        words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        try:
            return self._sound(*words, answer=says_no).decode().strip()
        except git.GitFailed:
            return None

    def _blob(self, commit: str, file: str) -> str | None:
        """The object of a commit's file. A folder is none, and neither is a submodule."""
        listed = self._sound("ls-tree", "-z", commit, "--", file, commits=(commit,)).decode(errors="replace")
        found = [entry.partition("\t") for entry in listed.split("\0") if entry]
        kinds = [about.split() for about, _, name in found if name == file]
        return kinds[0][2] if kinds and kinds[0][1] == "blob" else None

    def _sound(
        self,
        *arguments: str,
        commits: tuple[str, ...] = (),
        answer: Answer = no_answer,
        stdin: bytes | None = None,
        extra: dict[str, str] | None = None,
    ) -> bytes:
        """What git reads of the mirror: of one that is damaged once it was fetched anew, with ``commits`` in it.

        Raises:
            GitFailed: what ``answer`` takes for an answer.
            MirrorFailed: every other failure of git.
            CommitUnreachable: one of ``commits`` was lost with the damaged mirror.
        """

        def ask() -> bytes | git.GitFailed:
            try:
                return self._git(*arguments, stdin=stdin, extra=extra)
            except git.GitFailed as error:
                if answer(error):
                    raise
                return error

        found = ask()
        if isinstance(found, git.GitFailed) and damage.of_reading(found) and not self.draft:
            with self._locked():
                found = ask()  # somebody else may have fetched it anew meanwhile
                if isinstance(found, git.GitFailed) and damage.of_reading(found):
                    self._renew(found, commits)
                    found = ask()
        if isinstance(found, git.GitFailed):
            raise self._failed(found) from found
        return found

    def _renew(self, why: git.GitFailed, commits: tuple[str, ...] = ()) -> None:
        """Puts a mirror that was fetched just now in the place of a damaged one, which is locked.

        Raises:
            CommitUnreachable: one of ``commits`` was in the damaged one alone.
            MirrorFailed: the repository did not answer; then the damaged one stays, whose other commits may be sound.
        """
        log.warning("mirror-damaged", repository=self.repository_id, reason=why.reason)
        fresh, (_, draft, old) = replace(self, draft=True), self.remains
        for left in (draft, old):
            shutil.rmtree(left, ignore_errors=True)
        fresh._make()
        fresh._fetch_refs()
        lost = [commit for commit in commits if fresh._commit(commit) is None and not fresh._fetch_sha(commit)]
        if self.path.exists():
            self.path.rename(old)
        draft.rename(self.path)
        shutil.rmtree(old, ignore_errors=True)
        if lost:
            raise CommitUnreachable(
                f"commit {lost[0]} was in the service's mirror alone, which was damaged: {self.url} offers it no more; "
                "push it again, or name another"
            )

    def _failed(self, error: git.GitFailed) -> MirrorFailed:
        """What a caller is told of git's failure, with the way out."""
        return MirrorFailed(
            f"git cannot read the service's mirror of {self.url}: {error.reason}; ask again, and if it stays so have "
            f"the operator look at the service's load, its disk and {self.home.name}/{self.path.name} there"
        )

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
