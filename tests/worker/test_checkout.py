"""Checkouts from real repositories: exact trees, exact probes, submodules, and addresses that git could misread."""

from __future__ import annotations

import base64
import dataclasses
import threading
from pathlib import Path

import pytest

from tests.worker.support import Repository
from worker.checkout import check_out
from worker.errors import InfrastructureFault
from worker.git import GitError, git
from worker.messages import CellSpec
from worker.mirror import commit_in_mirror


def checked_out(cell: CellSpec, tmp_path: Path, name: str = "tree") -> Path:
    check_out(cell, tmp_path / "cache", tmp_path / name, threading.Event())
    return tmp_path / name


def with_probe(repository: Repository, change: dict[str, bytes]) -> CellSpec:
    """HEAD's cell with a probe that makes this change; the repository is left as it was."""
    head = repository.git("rev-parse", "HEAD").decode().strip()
    repository.commit(dict(change), "to be a probe")
    probe = repository.git("diff", "--binary", "--full-index", head, "HEAD")
    tree = repository.tree()
    repository.git("reset", "--quiet", "--hard", head)
    return repository.cell(tree=tree, probe=base64.b64encode(probe).decode())


def test_the_tree_is_the_commits(repository: Repository, tmp_path: Path) -> None:
    """Files, modes and links as committed, HEAD at the commit, nothing changed."""
    repository.commit({"a.txt": "one\n", "run.sh": "#!/bin/sh\n"})
    (repository.path / "run.sh").chmod(0o755)
    (repository.path / "link").symlink_to("a.txt")
    commit = repository.commit({})
    tree = checked_out(repository.cell(), tmp_path)
    assert (tree / "run.sh").stat().st_mode & 0o100
    assert (tree / "link").is_symlink()
    assert git(tree, "rev-parse", "HEAD").decode().strip() == commit
    assert git(tree, "status", "--porcelain") == b""


def test_a_second_checkout_needs_no_repository(repository: Repository, tmp_path: Path) -> None:
    """The mirror has the commit, so a warm checkout asks nobody."""
    repository.commit({"a": "1"})
    cell = repository.cell()
    checked_out(cell, tmp_path)
    repository.path.rename(tmp_path / "gone")
    assert (checked_out(cell, tmp_path, "again") / "a").read_text() == "1"


def test_a_commit_behind_a_force_push_is_found_by_its_other_ref(repository: Repository, tmp_path: Path) -> None:
    """What no branch leads to any more is fetched by SHA or, where the server refuses that, by all its refs."""
    repository.commit({"a": "1"})
    lost = repository.commit({"a": "2"})
    repository.git("update-ref", "refs/pull/1/head", lost)
    cell = repository.cell()
    repository.git("reset", "--quiet", "--hard", "HEAD~1")
    repository.git("config", "uploadpack.allowAnySHA1InWant", "false")
    assert (checked_out(cell, tmp_path) / "a").read_text() == "2"


def test_an_unreachable_commit_says_so(repository: Repository, tmp_path: Path) -> None:
    """With the commit, the address and git's own words."""
    repository.commit({"a": "1"})
    cell = repository.cell(commit="1" * 40)
    with pytest.raises(InfrastructureFault, match=r"1111 is not reachable in .*repository.*git fetch"):
        checked_out(cell, tmp_path)


@pytest.mark.parametrize("content", [b"one\r\ntwo\r\n", b"one\r\ntwo\n\n  trailing \t\r\n", b"\x00\x01\xff" * 99])
def test_a_probe_is_applied_exactly_as_sent(repository: Repository, tmp_path: Path, content: bytes) -> None:
    """CRLF, mixed ends of line, trailing blanks and binary content come out byte for byte."""
    repository.commit({"f": b"one\r\nzwei\r\n" if b"\0" not in content else b"\x00old", "other": "x"})
    tree = checked_out(with_probe(repository, {"f": content}), tmp_path)
    assert (tree / "f").read_bytes() == content


def test_a_probe_on_a_file_with_converted_ends_of_line(repository: Repository, tmp_path: Path) -> None:
    """The probe is applied to what is stored; the tree's own attributes then shape the files."""
    repository.commit({".gitattributes": "*.bat text eol=crlf\n", "a.bat": "one\n"})
    tree = checked_out(with_probe(repository, {"a.bat": b"one\ntwo\n"}), tmp_path)
    assert (tree / "a.bat").read_bytes() == b"one\r\ntwo\r\n"


def test_a_probe_that_does_not_apply_has_gits_reason(repository: Repository, tmp_path: Path) -> None:
    """The worker's git says why."""
    repository.commit({"f": "1\n"})
    cell = with_probe(repository, {"f": b"2\n"})
    repository.commit({"f": "3\n"})
    broken = repository.cell(probe=cell.probe)
    with pytest.raises(GitError, match="patch does not apply"):
        checked_out(broken, tmp_path)


def test_another_tree_than_planned_is_refused(repository: Repository, tmp_path: Path) -> None:
    """Both digests stand in the reason."""
    repository.commit({"a": "1"})
    cell = dataclasses.replace(repository.cell(), tree="2" * 40)
    with pytest.raises(InfrastructureFault, match=f"{repository.tree()}, planned was 2222"):
        checked_out(cell, tmp_path)


def test_submodules_come_along(repository: Repository, tmp_path: Path) -> None:
    """Nested ones too, by relative and by absolute address, each at its commit."""
    inner = Repository(tmp_path / "inner")
    inner.commit({"deep": "down"})
    middle = Repository(tmp_path / "middle")
    middle.git("submodule", "--quiet", "add", "../inner", "sub")
    middle.commit({"m": "1"})
    repository.git("submodule", "--quiet", "add", str(middle.path), "lib/middle")
    repository.commit({"a": "1"})
    tree = checked_out(repository.cell(), tmp_path)
    assert (tree / "lib/middle/sub/deep").read_text() == "down"
    assert git(tree, "status", "--porcelain") == b""


def test_a_remote_repository_may_not_name_local_submodules(repository: Repository, tmp_path: Path) -> None:
    """A hostile tree cannot have the worker read its own disk."""
    from worker.checkout import _absolute  # noqa: PLC0415 - no server of another host is at hand

    for url in ("/etc", "file:///etc"):
        with pytest.raises(InfrastructureFault, match="local path"):
            _absolute("https://example.org/a.git", url)
    assert _absolute("https://example.org/o/a.git", "../b.git") == "https://example.org/o/b.git"
    assert _absolute("git@example.org:o/a.git", "../b.git") == "git@example.org:o/b.git"


@pytest.mark.parametrize("url", ["--upload-pack=touch x", "ext::sh -c touch% x", "fd::0"])
def test_an_address_that_git_could_run_is_refused(tmp_path: Path, url: str) -> None:
    """Options and transport helpers are no addresses."""
    with pytest.raises(InfrastructureFault, match="none that git may fetch"):
        commit_in_mirror(tmp_path, url, "1" * 40, threading.Event())


@pytest.mark.parametrize("commit", ["--help", "main", "HEAD", "1" * 39])
def test_a_commit_is_a_full_object_id(tmp_path: Path, commit: str) -> None:
    """Nothing that moves, nothing that reads as an option."""
    with pytest.raises(InfrastructureFault, match="no full object id"):
        commit_in_mirror(tmp_path, "/nowhere", commit, threading.Event())


def test_hooks_and_foreign_configuration_do_nothing(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A configured hook folder and a global configuration are not looked at."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "post-checkout").write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    (hooks / "post-checkout").chmod(0o755)
    (tmp_path / "config").write_text(f"[core]\n\thooksPath = {hooks}\n\tautocrlf = true\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    repository.commit({"a": b"1\n"})
    tree = checked_out(repository.cell(), tmp_path)
    assert (tree / "a").read_bytes() == b"1\n"
    assert not (tmp_path / "ran").exists()


def test_stale_locks_of_a_killed_git_are_removed(repository: Repository, tmp_path: Path) -> None:
    """Under the host lock nobody else can own them."""
    repository.commit({"a": "1"})
    checked_out(repository.cell(), tmp_path)
    (mirror,) = (tmp_path / "cache" / "mirrors").glob("*.git")
    (mirror / "packed-refs.lock").touch()
    (mirror / "shallow.lock").touch()
    repository.commit({"a": "2"})
    assert (checked_out(repository.cell(), tmp_path, "again") / "a").read_text() == "2"
