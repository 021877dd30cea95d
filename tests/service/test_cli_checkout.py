"""What the command line learns of the checkout it stands in."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from service.cli import checkout
from service.cli.checkout import is_own, same_place
from service.cli.errors import UserError
from service.cli.registry import match, short_name
from service.cli.submission import dirty
from service.repositories.schemas import RepositoryOutput
from tests.support import repository
from tests.support.repository import GitRepository


def registered(name: str, url: str) -> RepositoryOutput:
    return RepositoryOutput(id=1, name=name, url=url, created_at=datetime.datetime.now(datetime.UTC))


@pytest.fixture
def repo(tmp_path: Path) -> GitRepository:
    return repository.make(tmp_path / "My Repo")


def test_a_checkout_is_found_from_a_folder_within(repo: GitRepository) -> None:
    found = checkout.read(repo.path / "tests")
    assert (found.root, found.head) == (repo.path, repo.git("rev-parse", "HEAD").strip())
    assert (found.remotes, found.changed) == ((), ())


def test_changed_staged_and_new_files_make_it_dirty(repo: GitRepository) -> None:
    (repo.path / "replaybench.toml").write_text("schema = 2")
    (repo.path / "new file").write_text("")
    (repo.path / "staged").write_text("")
    repo.git("add", "staged")
    assert sorted(checkout.read(repo.path).changed) == ["new file", "replaybench.toml", "staged"]


def test_what_is_not_tested_is_named_but_not_without_end(repo: GitRepository) -> None:
    for number in range(7):
        (repo.path / f"n{number}").write_text("")
    found = checkout.read(repo.path)
    assert dirty(found) == (
        f"the checkout differs from its commit (n0, n1, n2, n3, n4 and 2 more); "
        f"what is tested is the commit {found.head[:7]}"
    )


def test_no_checkout_and_no_commit_are_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no checkout in .*give --repository and --tree"):
        checkout.read(tmp_path)
    empty = GitRepository(tmp_path)
    empty.git("init", "--quiet")
    with pytest.raises(UserError, match="no commit in"):
        checkout.read(tmp_path)


def test_refs_from_here_become_commits_and_others_stay(repo: GitRepository) -> None:
    first = repo.git("rev-parse", "HEAD").strip()
    second = repo.commit("second", more="1")
    found = checkout.read(repo.path)
    assert [found.resolve(ref) for ref in ("HEAD", "@", "HEAD~1", "main")] == [second, second, first, "main"]
    with pytest.raises(UserError, match="HEAD~9"):
        found.resolve("HEAD~9")


@pytest.mark.parametrize("ref", ["HEADLINE", "main", "-HEAD", "@feature", "v1", "0" * 40])
def test_only_head_and_its_kin_are_from_here(ref: str) -> None:
    assert not is_own(ref)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://git.example.org/team/x.git", "https://git.example.org/team/x"),
        ("git@git.example.org:team/x.git", "https://git.example.org/team/x"),
        ("ssh://git@GIT.example.org/team/x/", "https://someone:secret@git.example.org/team/x.git"),
        ("file:///srv/x", "/srv/x"),
        ("/srv/y/../x/.git", "/srv/x"),
    ],
)
def test_one_place_has_many_spellings(one: str, other: str) -> None:
    assert same_place(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://git.example.org/team/x", "https://git.example.org/team/y"),
        ("https://git.example.org/team/x", "https://other.example.org/team/x"),
        ("https://git.example.org/team/x", "https://git.example.org/Team/x"),
        ("/srv/x", "/srv/x2"),
    ],
)
def test_other_places_are_told_apart(one: str, other: str) -> None:
    assert not same_place(one, other)


def test_the_checkout_itself_goes_before_its_remotes(repo: GitRepository) -> None:
    repo.git("remote", "add", "origin", "git@git.example.org:team/x.git")
    found = checkout.read(repo.path)
    remote = registered("remote", "https://git.example.org/team/x")
    assert match([registered("other", "/srv/other"), remote], found) == "remote"
    assert match([remote, registered("here", f"file://{repo.path}")], found) == "here"
    assert match([registered("other", "/srv/other")], found) is None


def test_two_registered_remotes_need_a_choice(repo: GitRepository) -> None:
    repo.git("remote", "add", "origin", "https://git.example.org/a")
    repo.git("remote", "add", "fork", "https://git.example.org/b")
    known = [registered("a", "https://git.example.org/a"), registered("b", "https://git.example.org/b")]
    with pytest.raises(UserError, match="registered as a, b; give one as --repository"):
        match(known, checkout.read(repo.path))


@pytest.mark.parametrize(
    ("folder", "name"), [("My Repo", "my-repo"), ("..x", "x"), ("ünïcode", "n-code"), ("---", "repository")]
)
def test_a_short_name_is_made_of_the_folders(folder: str, name: str) -> None:
    assert short_name(folder) == name
