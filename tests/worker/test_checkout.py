"""Checkouts from real repositories: exact trees, exact probes, submodules, and addresses that git could misread."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from filelock import FileLock

from tests.support import git_server, small_disk
from tests.worker.support import Repository, wait_for
from worker.errors import EnvironmentFault, InfrastructureFault, Stopped
from worker.messages import CellSpec, SuiteSpec
from worker.sources import git as worker_git
from worker.sources.checkout import check_out
from worker.sources.git import GitError, git
from worker.sources.mirror import Source, commit_in_mirror


def checked_out(cell: CellSpec, tmp_path: Path, name: str = "tree", stop: threading.Event | None = None) -> Path:
    check_out(cell, Source(tmp_path / "cache"), tmp_path / name, stop or threading.Event())
    return tmp_path / name


def mirror_in(tmp_path: Path) -> Path:
    (mirror,) = (tmp_path / "cache" / "mirrors").glob("*.git")
    return mirror


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


def test_a_probe_of_every_kind_of_change(repository: Repository, tmp_path: Path) -> None:
    """Modes, renames, removed and new files, no newline at the end, a link, names that git quotes: byte for byte."""
    lines = b"".join(b"line %d\n" % number for number in range(40))
    repository.commit({"run.sh": "#!/bin/sh\n", "old name": lines, "gone": "x\n", "end": "a\nb\n", "turn": "a file\n"})
    head = repository.git("rev-parse", "HEAD").decode().strip()
    (repository.path / "run.sh").chmod(0o755)
    (repository.path / "old name").rename(repository.path / 'new\tn\u00e4me "q"')
    for name in ("gone", "turn"):
        (repository.path / name).unlink()
    (repository.path / "turn").symlink_to("end")
    repository.commit(
        {"end": "a\nb", "empty": "", "deep/er/x": b"\x00\xff\r\n", 'new\tn\u00e4me "q"': lines + b"more\n"}
    )
    probe = repository.git("diff", "--binary", "--full-index", "--find-renames", head, "HEAD")
    assert b"rename from" in probe
    tree, wanted = repository.tree(), repository.git("ls-tree", "-r", "HEAD")
    repository.git("reset", "--quiet", "--hard", head)
    made = checked_out(repository.cell(tree=tree, probe=base64.b64encode(probe).decode()), tmp_path)
    assert git(made, "ls-tree", "-r", tree) == wanted
    assert git(made, "ls-files", "--modified", "--deleted", "--others") == b""
    assert (made / "run.sh").stat().st_mode & 0o111
    assert (made / "end").read_bytes() == b"a\nb"
    assert (made / "turn").is_symlink()


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


def test_a_submodule_that_gitmodules_does_not_name_stays_empty(repository: Repository, tmp_path: Path) -> None:
    """As git leaves it; a file without any submodule is none either."""
    repository.commit({"a": "1", ".gitmodules": "[core]\n\tx = 1\n"})
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},lib")
    repository.git("commit", "--quiet", "-m", "gitlink")
    assert list((checked_out(repository.cell(), tmp_path) / "lib").iterdir()) == []


def declared(repository: Repository, path: str, text: str) -> CellSpec:
    """A cell whose tree has a submodule at ``path``, declared as ``text`` says."""
    repository.commit({"a": "1", ".gitmodules": text})
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},{path}")
    repository.git("commit", "--quiet", "-m", "gitlink")
    return repository.cell()


@pytest.mark.parametrize(
    "url",
    ["-ufile", "--upload-pack=touch ran", "ext::sh -c touch% ran", "fd::0", "../../../../../../../../../x", "ftp://h/x",
     "https://h\\nost/x", "ssh://-oProxyCommand=touch ran/x", "-oProxyCommand=x:y"],
)  # fmt: skip
def test_a_submodule_whose_address_git_could_run_is_refused(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """No worker can check the tree out, so it is `environment`, with path and address; nothing was run."""
    monkeypatch.chdir(tmp_path)
    cell = declared(repository, "lib", f'[submodule "x"]\n\tpath = lib\n\turl = "{url}"\n')
    with pytest.raises(EnvironmentFault, match=r"submodule 'lib' of .*address"):
        checked_out(cell, tmp_path)
    assert not list(tmp_path.rglob("ran"))


def test_a_submodules_path_is_no_option(repository: Repository, tmp_path: Path) -> None:
    """A folder may have such a name; git does not take it for anything else."""
    inner = Repository(tmp_path / "inner")
    commit = inner.commit({"deep": "down"})
    repository.commit({".gitmodules": f'[submodule "--x"]\n\tpath = --help\n\turl = {inner.path}\n'})
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{commit},--help")
    repository.git("commit", "--quiet", "-m", "gitlink")
    assert (checked_out(repository.cell(), tmp_path) / "--help/deep").read_text() == "down"


def crafted(repository: Repository, entries: list[tuple[str, str, bytes]]) -> CellSpec:
    """A cell whose tree holds what no git would put into an index: mode, name and object id of each entry."""
    raw = b"".join(f"{mode} {name}\0".encode() + bytes.fromhex(sha.decode()) for mode, name, sha in sorted(entries))
    tree = repository.git("hash-object", "-t", "tree", "-w", "--literally", "--stdin", stdin=raw).decode().strip()
    commit = repository.git("commit-tree", "-m", "crafted", tree).decode().strip()
    repository.git("update-ref", "refs/heads/crafted", commit)
    return repository.cell(commit=commit, tree=tree)


@pytest.mark.parametrize("name", [".git", ".GIT", "git~1", "..", ".gitmodules"])
def test_a_tree_with_paths_that_git_forbids_is_refused(repository: Repository, tmp_path: Path, name: str) -> None:
    """A link to a configuration or a hook elsewhere, or a path that leads up, is not even written."""
    repository.commit({"a": "1"})
    target = repository.git("hash-object", "-w", "--stdin", stdin=b"../elsewhere").strip()
    with pytest.raises(EnvironmentFault, match="invalid path"):
        checked_out(crafted(repository, [("120000", name, target)]), tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_link_and_a_folder_of_one_name_do_not_lead_out(repository: Repository, tmp_path: Path) -> None:
    """A tree that names a path twice, so that a file could be written through the link."""
    repository.commit({"f": "1"})
    out = tmp_path / "out"
    out.mkdir()
    link = repository.git("hash-object", "-w", "--stdin", stdin=str(out).encode()).strip()
    folder = repository.git("rev-parse", "HEAD^{tree}").strip()
    with contextlib.suppress(EnvironmentFault, InfrastructureFault):
        checked_out(crafted(repository, [("120000", "x", link), ("40000", "x", folder)]), tmp_path)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("target", ["/etc/passwd", "../../outside", "/nowhere", "../sub/../../x"])
def test_a_link_that_leads_out_of_the_tree_is_refused(repository: Repository, tmp_path: Path, target: str) -> None:
    """Whether or not something is there; the link and where it leads are named."""
    (repository.path / "data").mkdir()
    (repository.path / "data" / "link").symlink_to(target)
    repository.commit({"sub/a": "1"})
    with pytest.raises(EnvironmentFault, match=f"link data/link leads out of the tree, to {target}"):
        checked_out(repository.cell(), tmp_path)


def test_links_through_each_other_cannot_lead_out(repository: Repository, tmp_path: Path) -> None:
    """Each stays inside by its text; together they do not."""
    (repository.path / "a" / "b").mkdir(parents=True)
    (repository.path / "a" / "b" / "up").symlink_to("../..")
    (repository.path / "x").symlink_to("a/b/up/..")
    repository.commit({"f": "1"})
    with pytest.raises(EnvironmentFault, match="link x leads out"):
        checked_out(repository.cell(), tmp_path)


def test_a_submodules_link_may_lead_into_the_tree_around_it(repository: Repository, tmp_path: Path) -> None:
    """And no further."""
    inner = Repository(tmp_path / "inner")
    (inner.path / "up").symlink_to("../../a")
    inner.commit({})
    repository.git("submodule", "--quiet", "add", str(inner.path), "lib/sub")
    repository.commit({"a": "1"})
    assert (checked_out(repository.cell(), tmp_path) / "lib/sub/up").read_text() == "1"
    (inner.path / "out").symlink_to("../../../x")
    commit = inner.commit({})
    repository.git("update-index", "--cacheinfo", f"160000,{commit},lib/sub")
    repository.git("commit", "--quiet", "-m", "on")
    with pytest.raises(EnvironmentFault, match="link lib/sub/out leads out"):
        checked_out(repository.cell(), tmp_path, "again")


def test_a_probe_cannot_bring_a_link_that_leads_out(repository: Repository, tmp_path: Path) -> None:
    """It is part of the tree."""
    repository.commit({"f": "1\n"})
    (repository.path / "link").symlink_to("/etc")
    with pytest.raises(EnvironmentFault, match="link link leads out"):
        checked_out(with_probe(repository, {"f": b"2\n"}), tmp_path)


def test_a_probe_cannot_write_through_a_link(repository: Repository, tmp_path: Path) -> None:
    """Neither through one of the tree nor through one that it brings."""
    repository.commit({"f": "1\n"})
    (repository.path / "here").symlink_to(tmp_path)
    repository.commit({})
    patch = b"diff --git a/here/x b/here/x\nnew file mode 100644\n--- /dev/null\n+++ b/here/x\n@@ -0,0 +1 @@\n+out\n"
    with pytest.raises(GitError, match="beyond a symbolic link"):
        checked_out(repository.cell(probe=base64.b64encode(patch).decode()), tmp_path)
    up = patch.replace(b"here/x", b"../x")
    with pytest.raises(EnvironmentFault, match="invalid path"):
        checked_out(repository.cell(probe=base64.b64encode(up).decode()), tmp_path, "again")
    assert not (tmp_path / "x").exists()


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'1' * 64}\nsize 12345\n"


def test_files_left_in_lfs_are_told_before_a_test_reads_them(repository: Repository, tmp_path: Path) -> None:
    """How many, the first, and what to do; a suite that does without says so."""
    attributes = "*.bin filter=lfs diff=lfs merge=lfs -text\n"
    repository.commit({".gitattributes": attributes, "w/a.bin": POINTER, "w/b.bin": POINTER, "small.bin": "real"})
    with pytest.raises(EnvironmentFault, match=r"2 Git LFS pointer files .* the first w/a\.bin, .*lfs_pointers = true"):
        checked_out(repository.cell(), tmp_path)
    suite = SuiteSpec("gate", ("tests",), lfs_pointers=True)
    assert (checked_out(repository.cell(suite=suite), tmp_path, "again") / "w/a.bin").read_text() == POINTER


def test_a_pointer_that_no_attribute_gives_to_lfs_is_a_file(repository: Repository, tmp_path: Path) -> None:
    """As a fixture of somebody's tests may be."""
    repository.commit({"fixture.txt": POINTER})
    assert (checked_out(repository.cell(), tmp_path) / "fixture.txt").read_text() == POINTER


@pytest.mark.parametrize("url", ["--upload-pack=touch x", "ext::sh -c touch% x", "fd::0", "-u x", "a\nb", "relative/x"])
def test_an_address_that_git_could_run_is_refused(tmp_path: Path, url: str) -> None:
    """Options and transport helpers are no addresses."""
    with pytest.raises(EnvironmentFault, match="address"):
        commit_in_mirror(Source(tmp_path), url, "1" * 40, threading.Event())


@pytest.mark.parametrize("commit", ["--help", "main", "HEAD", "1" * 39])
def test_a_commit_is_a_full_object_id(tmp_path: Path, commit: str) -> None:
    """Nothing that moves, nothing that reads as an option."""
    with pytest.raises(InfrastructureFault, match="no full object id"):
        commit_in_mirror(Source(tmp_path), "/nowhere", commit, threading.Event())


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


def test_no_filter_of_the_tree_and_no_attributes_of_the_user_count(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A smudge filter is a command of whoever configured it; attributes of the user's own would shape the files."""
    config = tmp_path / "home" / ".config" / "git"
    config.mkdir(parents=True)
    (config / "attributes").write_text("* text eol=crlf\n")
    smudge = f'[filter "evil"]\n\tsmudge = "touch {tmp_path / "ran"}; cat"\n'
    (config / "config").write_text(smudge)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home" / ".config"))
    repository.commit({"a": b"1\n", ".gitattributes": "a filter=evil\n", ".gitconfig": smudge})
    assert (checked_out(repository.cell(), tmp_path) / "a").read_bytes() == b"1\n"
    assert not (tmp_path / "ran").exists()


def test_another_users_repository_is_read(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no configuration of the machine touched; the second git, which git starts for a path, reads ours."""
    repository.commit({"a": "1"})
    cell = repository.cell()
    monkeypatch.setattr(worker_git, "_KEPT", (*worker_git._KEPT, "GIT_TEST_ASSUME_DIFFERENT_OWNER"))
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert (checked_out(cell, tmp_path) / "a").read_text() == "1"


KILLED = ["packed-refs.lock", "shallow.lock", "index.lock", "HEAD.lock", "config.lock", "refs/heads/main.lock",
          "objects/info/commit-graph.lock", "objects/pack/tmp_pack_x", "objects/pack/tmp_idx_x",
          "objects/pack/.tmp-1-pack-x.pack", "objects/pack/pack-1.keep", "objects/ab/tmp_obj_x",
          "objects/tmp_objdir-incoming-1/x"]  # fmt: skip


def test_what_a_killed_git_left_is_removed(repository: Repository, tmp_path: Path) -> None:
    """Locks and half-fetched packs: under the host lock nobody else can own them."""
    repository.commit({"a": "1"})
    checked_out(repository.cell(), tmp_path)
    mirror = mirror_in(tmp_path)
    for name in KILLED:
        (mirror / name).parent.mkdir(parents=True, exist_ok=True)
        (mirror / name).touch()
    repository.commit({"a": "2"})
    assert (checked_out(repository.cell(), tmp_path, "again") / "a").read_text() == "2"
    assert not [name for name in KILLED if (mirror / name).exists()]


def test_a_fetch_is_whole_or_not_there(repository: Repository, tmp_path: Path) -> None:
    """Small fetches too come as a pack that is renamed into place: no commit without its trees after a kill."""
    repository.commit({"a": "1"})
    checked_out(repository.cell(), tmp_path)
    objects = mirror_in(tmp_path) / "objects"
    assert [path.name for path in objects.iterdir() if len(path.name) == 2] == []
    assert len(list((objects / "pack").glob("*.pack"))) == 1


@pytest.mark.parametrize("lost", ["blob", "tree", "pack", "everything"])
def test_a_mirror_that_lost_objects_is_made_anew(repository: Repository, tmp_path: Path, lost: str) -> None:
    """A full disk or a loss of power took them. The tree is whole, and so is the next."""
    repository.commit({"a": "1", "d/b": "2"})
    cell = repository.cell()
    checked_out(cell, tmp_path)
    mirror = mirror_in(tmp_path)
    (pack,) = (mirror / "objects" / "pack").glob("*.pack")
    if lost == "everything":
        (mirror / "HEAD").unlink()
    elif lost == "pack":
        pack.chmod(0o600)
        pack.write_bytes(b"\0" * pack.stat().st_size)
    else:
        name = {"blob": f"{cell.commit}:d/b", "tree": f"{cell.commit}:d"}[lost]
        gone = git(mirror, "rev-parse", name).decode().strip()
        content = pack.read_bytes()
        for path in pack.parent.glob("pack-*"):
            path.unlink()
        git(mirror, "unpack-objects", "-q", stdin=content)
        (mirror / "objects" / gone[:2] / gone[2:]).unlink()
    tree = checked_out(cell, tmp_path, "again")
    assert ((tree / "a").read_text(), (tree / "d/b").read_text()) == ("1", "2")


def test_who_waits_for_another_fetch_says_so_and_can_be_stopped(repository: Repository, tmp_path: Path) -> None:
    """The host lock is held by another worker meanwhile."""
    repository.commit({"a": "1"})
    said: list[str] = []
    source = Source(tmp_path / "cache", say=said.append)
    mirror = source.mirror(str(repository.path))
    mirror.parent.mkdir(parents=True)
    stop, cell = threading.Event(), repository.cell()

    def wait() -> None:
        with pytest.raises(Stopped):
            check_out(cell, source, tmp_path / "tree", stop)

    with FileLock(f"{mirror}.lock", thread_local=False):
        waiting = threading.Thread(target=wait)
        waiting.start()
        wait_for(lambda: said, "a word that it waits")
        stop.set()
        waiting.join(10)
        assert not waiting.is_alive()
    assert said == [f"another attempt fetches {repository.path}: waiting for it"]


FETCHER = """
import pathlib, sys, threading
from worker.sources.mirror import Source, commit_in_mirror
commit_in_mirror(Source(pathlib.Path(sys.argv[1])), sys.argv[2], sys.argv[3], threading.Event())
"""


def test_a_worker_that_is_killed_in_the_middle_of_a_pack(repository: Repository, tmp_path: Path) -> None:
    """kill -9: its git ends with it, what came of the pack is removed, and the next checkout is whole."""
    commit = repository.commit({f"f{number}": os.urandom(1 << 16) for number in range(40)})
    with git_server.serving(repository.path.parent) as server:
        server.stall_after = 1 << 20
        cell = repository.cell(url=f"{server.url}/repository/.git")
        env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        command = [sys.executable, "-c", FETCHER, str(tmp_path / "cache"), cell.url, commit]
        process = subprocess.Popen(command, env=env)
        assert server.stalled.wait(30)
        mirror = mirror_in(tmp_path)
        wait_for(lambda: list(mirror.glob("objects/pack/tmp_pack_*")), "a half-fetched pack")
        process.kill()
        process.wait()
        server.stall_after = None
        tree = checked_out(cell, tmp_path)
        assert (tree / "f39").read_bytes() == (repository.path / "f39").read_bytes()
        assert not list(mirror.glob("objects/pack/tmp_*"))


FULL = """
import os, pathlib, sys, threading
from tests.worker.support import Repository
from worker.sources.checkout import check_out
from worker.errors import InfrastructureFault
from worker.sources.mirror import Source
disk = pathlib.Path(sys.argv[1])
repository = Repository(pathlib.Path(sys.argv[2]))
repository.commit({f"f{n}": os.urandom(1 << 20) for n in range(6)})
cell, source, never = repository.cell(), Source(disk / "cache"), threading.Event()
filler = disk / "filler"
for room in (3, 9):  # enough for nothing, enough for the mirror alone
    filler.write_bytes(bytes((20 - room) << 20))
    try:
        check_out(cell, source, disk / "tree", never)
    except InfrastructureFault as error:
        print(f"the disk of {disk}" in str(error) and "bytes free: make room" in str(error), repr(str(error)))
filler.unlink()
check_out(cell, source, disk / "tree", never)
print(all((disk / "tree" / f"f{n}").read_bytes() == (repository.path / f"f{n}").read_bytes() for n in range(6)))
"""


def test_a_full_disk_is_told_and_once_there_is_room_the_tree_is_whole(tmp_path: Path) -> None:
    """In the middle of a fetch and in the middle of the files, git's own words end the attempt as the worker's."""
    done = small_disk.run(tmp_path / "disk", 20, FULL, [str(tmp_path / "disk"), str(tmp_path / "repository")])
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["True", "True", "True"], done.stdout + done.stderr
