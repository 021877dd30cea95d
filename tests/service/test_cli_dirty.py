"""A working tree as a probe: what goes in, what stays out, and that the checkout is as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from service.cli import checkout, dirty
from service.cli.dirty import probe_of
from service.cli.errors import UserError
from tests.support import repository
from tests.support.repository import GitRepository


@pytest.fixture
def repo(tmp_path: Path) -> GitRepository:
    made = repository.make(tmp_path / "My Repo")
    made.commit("more", _dot_gitignore="*.log\n", gone="x", blob=bytes(range(256)))
    return made


def state(repo: GitRepository) -> tuple[bytes, str, str, set[str]]:
    """All that must not change: the index's bytes, HEAD, the status, the stored objects."""
    objects = {str(file) for file in (repo.path / ".git/objects").rglob("*") if file.is_file()}
    index = (repo.path / ".git/index").read_bytes()
    return index, repo.git("rev-parse", "HEAD"), repo.git("status", "--porcelain"), objects


def change(repo: GitRepository) -> None:
    """Every kind of change there is."""
    (repo.path / "tests/test_cases.py").write_text("def test_one(): pass\n")
    (repo.path / "blob").write_bytes(os.urandom(3000))
    (repo.path / "gone").unlink()
    (repo.path / "new folder").mkdir()
    (repo.path / "new folder/né w.bin").write_bytes(b"\0\xff" * 50)
    (repo.path / "staged").write_text("staged")
    repo.git("add", "staged")
    (repo.path / "run.sh").write_text("#!/bin/sh\n")
    (repo.path / "run.sh").chmod(0o755)
    (repo.path / "link").symlink_to("staged")
    (repo.path / "noise.log").write_text("ignored")


def test_the_patch_makes_the_working_tree_of_the_commit(repo: GitRepository, tmp_path: Path) -> None:
    """Staged, changed, deleted, new, executable, binary: all of it, and nothing that git ignores."""
    change(repo)
    before = state(repo)
    found = probe_of(checkout.read(repo.path / "tests"))
    assert state(repo) == before
    assert found.left_out == ()
    repo.git("worktree", "add", "--quiet", "--detach", str(tmp_path / "other"))
    other = GitRepository(tmp_path / "other")
    other.git("apply", "--index", "--binary", "-", stdin=found.patch)
    repo.git("add", "--all")
    assert other.git("write-tree") == repo.git("write-tree")
    assert b"noise.log" not in found.patch


def test_what_a_user_configured_for_reading_diffs_changes_nothing(repo: GitRepository) -> None:
    change(repo)
    plain = probe_of(checkout.read(repo.path)).patch
    for key, value in (
        ("diff.noprefix", "true"),
        ("color.ui", "always"),
        ("diff.context", "0"),
        ("diff.external", "x"),
    ):
        repo.git("config", key, value)
    assert probe_of(checkout.read(repo.path)).patch == plain


def test_nothing_changed_is_said(repo: GitRepository) -> None:
    (repo.path / "noise.log").write_text("ignored")
    with pytest.raises(UserError, match=r"does not differ from .*; submit without --dirty"):
        probe_of(checkout.read(repo.path))


def test_nested_repositories_are_left_out_and_named(repo: GitRepository) -> None:
    nested = GitRepository(repo.path / "vendored")
    nested.path.mkdir()
    nested.git("init", "--quiet")
    nested.commit("inner", file="x")
    with pytest.raises(UserError, match="but in vendored, which a probe leaves out"):
        probe_of(checkout.read(repo.path))
    (repo.path / "new").write_text("x")
    found = probe_of(checkout.read(repo.path))
    assert found.left_out == ("vendored",)
    assert b"vendored" not in found.patch


def test_too_much_is_refused_by_name(repo: GitRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    (repo.path / "huge.bin").write_bytes(os.urandom(5000))
    monkeypatch.setattr(dirty, "MOST_PATCH_BYTES", 2000)
    with pytest.raises(UserError, match=r"2000 are taken; add what need not be .*huge.bin 5000 bytes"):
        probe_of(checkout.read(repo.path))
    monkeypatch.setattr(dirty, "MOST_FILE_BYTES", 4000)
    with pytest.raises(UserError, match="4000 are looked at"):
        probe_of(checkout.read(repo.path))
