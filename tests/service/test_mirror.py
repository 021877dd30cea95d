"""The service's mirror of a repository: what git cannot tell is never told as "there is none", and damage mends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from service.errors import CommitUnreachable, ConfigurationMissing, MirrorFailed, ProbeRefused
from service.jobs import planning
from service.repositories import git
from service.repositories.mirror import Mirror
from tests.support.mirrors import pack, spoil
from tests.support.repository import GitRepository

FILE = "replaybench.toml"
Damage = Callable[[Mirror], None]


@pytest.fixture
def mirror(tmp_path: Path, repo: GitRepository) -> Mirror:
    """A mirror that has the repository's ``main``."""
    made = Mirror(tmp_path / "mirrors", 1, str(repo.path), 60.0)
    made.resolve("main")
    return made


DAMAGES: dict[str, Damage] = {
    "a file": lambda it: spoil(it.path, f"main:{FILE}"),
    "a tree": lambda it: spoil(it.path, "main^{tree}"),
    "a commit": lambda it: spoil(it.path, "main"),
    "a cut pack": lambda it: pack(it.path).write_bytes(pack(it.path).read_bytes()[:100]) and None,
    "no pack": lambda it: pack(it.path).unlink(),
    "no objects": lambda it: shutil.rmtree(it.path / "objects"),
    "a configuration of zeroes": lambda it: (it.path / "config").write_bytes(bytes(200)) and None,
}


@pytest.fixture(params=DAMAGES)
def damaged(request: pytest.FixtureRequest, mirror: Mirror) -> Mirror:
    """The mirror, after each kind of damage."""
    DAMAGES[request.param](mirror)
    return mirror


def probe(repo: GitRepository) -> bytes:
    """A probe on the file that is read first."""
    (repo.path / FILE).write_text((repo.path / FILE).read_text() + "# more\n")
    return repo.diff()


def test_a_damaged_mirror_is_fetched_anew_and_asked_again(damaged: Mirror, repo: GitRepository) -> None:
    """Whatever was damaged, and whichever question meets it first."""
    commit, broken = repo.git("rev-parse", "main").strip(), damaged.path.with_name("broken")
    patch = probe(repo)
    shutil.copytree(damaged.path, broken)
    tree = repo.git("rev-parse", "main^{tree}").strip()
    questions: dict[str, Callable[[], object]] = {
        "resolve main": lambda: damaged.resolve("main") == commit,
        "resolve its SHA": lambda: damaged.resolve(commit) == commit,
        "the default branch": lambda: damaged.default_head() == commit,
        "read": lambda: damaged.read(commit, FILE) == (repo.path / FILE).read_bytes(),
        "size": lambda: damaged.size(commit, FILE) == (repo.path / FILE).stat().st_size,
        "no such file": lambda: damaged.read(commit, "no") is None,
        "files": lambda: FILE in damaged.files(commit),
        "tree": lambda: damaged.tree(commit) == tree,
        "probe": lambda: damaged.tree(commit, patch) != tree,
        "contains": lambda: damaged.contains(damaged.resolve(commit), commit),
    }
    for name, question in questions.items():
        shutil.rmtree(damaged.path)
        shutil.copytree(broken, damaged.path)
        assert question(), name
        assert planning.configuration(damaged, damaged.resolve("main")).suites.keys() == {"unit", "other"}, name
        assert {path.name for path in damaged.home.glob("1*")} <= {"1.git", "1.git.lock", "1.new.git.lock"}, name


def test_a_commit_that_no_branch_holds_comes_along(mirror: Mirror, repo: GitRepository) -> None:
    """A mirror that is fetched anew has the commit that was asked for, or says that it is offered no more."""
    repo.git("checkout", "-q", "-b", "topic")
    head = repo.commit("theirs")
    repo.git("checkout", "-q", "main")
    repo.git("update-ref", "refs/pull/1/head", head)
    repo.git("branch", "-D", "topic")
    mirror.resolve(head)
    for _ in range(2):
        (mirror.path / "config").write_bytes(bytes(200))
        assert mirror.size(head, FILE)
    repo.git("update-ref", "-d", "refs/pull/1/head")
    repo.git("reflog", "expire", "--expire=now", "--all")
    repo.git("gc", "--quiet", "--prune=now")
    (mirror.path / "config").write_bytes(bytes(200))
    with pytest.raises(CommitUnreachable, match="push it again"):
        mirror.size(head, FILE)
    assert mirror.size(repo.git("rev-parse", "main").strip(), FILE)


def test_a_git_that_cannot_tell_is_told_as_that(mirror: Mirror, repo: GitRepository) -> None:
    """Out of time is neither a missing file nor a missing commit, and not a probe that does not apply."""
    commit, patch = repo.git("rev-parse", "main").strip(), probe(repo)
    hurried = replace(mirror, timeout_s=1e-9)
    questions: list[Callable[[], object]] = [
        lambda: hurried.resolve("main"),
        lambda: hurried.resolve(commit),
        lambda: hurried.read(commit, FILE),
        lambda: hurried.size(commit, FILE),
        lambda: hurried.files(commit),
        lambda: hurried.tree(commit),
        lambda: hurried.tree(commit, patch),
        lambda: hurried.contains(commit, commit),
        lambda: planning.configuration(hurried, commit),
        lambda: replace(hurried, repository_id=2).resolve("main"),
    ]
    for question in questions:
        with pytest.raises(MirrorFailed, match=r"no end after .*REPLAYBENCH_GIT_TIMEOUT_S"):
            question()
    assert mirror.read(commit, FILE)


def test_a_damaged_mirror_whose_repository_is_away_stays(mirror: Mirror, repo: GitRepository) -> None:
    """What of it is sound is read still, and what is not mends when the repository is there again."""
    commit = repo.git("rev-parse", "main").strip()
    spoil(mirror.path, f"main:{FILE}")
    repo.path.rename(repo.path.with_name("away"))
    with pytest.raises(MirrorFailed, match="git cannot fetch"):
        planning.configuration(mirror, commit)
    assert FILE in mirror.files(commit)
    repo.path.with_name("away").rename(repo.path)
    assert planning.configuration(mirror, commit)


def test_what_is_not_there_is_told_without_a_fetch(mirror: Mirror, repo: GitRepository) -> None:
    """A missing file, a folder and a probe that does not apply are answers, of a repository that is away too."""
    without = repo.git("rev-parse", "main").strip()
    repo.git("rm", "--quiet", FILE)
    missing = repo.commit("missing")
    mirror.resolve("main")
    repo.path.rename(repo.path.with_name("away"))
    with pytest.raises(ConfigurationMissing):
        planning.configuration(mirror, missing)
    assert (mirror.read(without, "tests"), mirror.size(without, "tests/no"), mirror.read(without, f"{FILE}/x")) == (
        None, None, None,
    )  # fmt: skip
    for patch in (b"hello\n", b"--- a/inflate: x\n+++ b/inflate: x\n@@ -1 +1 @@\n-x\n+y\n"):
        with pytest.raises(ProbeRefused):
            mirror.tree(without, patch)
    assert not mirror.contains(without, missing)
    assert not mirror.contains(without, "1" * 40)


@pytest.mark.parametrize("ended", [True, False])
def test_a_git_that_is_out_of_time_leaves_nothing_open(ended: bool) -> None:
    """Neither a process nor a pipe, also where it ended just when its time was over, or left a child with its pipes."""
    line = "sleep 600 >&2 & echo $!" + ("" if ended else "; exec sleep 600")
    process = subprocess.Popen(
        ["sh", "-c", line], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        if ended:
            process.wait()
        with pytest.raises(git.GitFailed, match="no end after"):
            git._end(process, (), b"", -1.0)
        assert process.returncode == (0 if ended else -signal.SIGKILL)
        assert all(pipe is not None and pipe.closed for pipe in (process.stdin, process.stdout, process.stderr))
    finally:
        os.kill(child, signal.SIGKILL)
