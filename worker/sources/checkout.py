"""A clean tree for one attempt: commit, probe and submodules, checked against the digest that the service planned."""

from __future__ import annotations

import base64
import os
import shutil
import threading
from pathlib import Path
from typing import NamedTuple

from worker.errors import EnvironmentFault, InfrastructureFault
from worker.gitaccess.address import AddressRefused, resolve
from worker.messages import CellSpec
from worker.runtimes.disk import full
from worker.sources.git import GitError, git
from worker.sources.mirror import Source, commit_in_mirror, mend
from worker.sources.tree_index import FILE, LINK, Entry, entries_of, submodules_of

_DEEPEST = 8
_LFS = b"version https://git-lfs.github.com/spec/v1\n"
_LFS_LARGEST = 1024


class Part(NamedTuple):
    """A tree or one of its submodules, with all that it holds. Of several the tree itself comes first."""

    folder: Path
    entries: list[Entry]


def check_out(cell: CellSpec, source: Source, tree: Path, stop: threading.Event) -> None:
    """Make ``tree`` the cell's tree.

    Raises:
        InfrastructureFault: the commit cannot be reached, the probe does not apply, or the tree that results is not
            the one that was planned.
        EnvironmentFault: the tree is one that no worker can check out whole: its links lead out of it, its submodules
            cannot be fetched, or its files lie in Git LFS.
        Stopped: the attempt was asked to end.
    """
    _write(source, cell.url, cell.commit, tree, stop, cell)
    parts = [Part(tree, entries_of(tree))]
    _submodules(parts, cell.url, source, stop, 0)
    _refuse_links_out(parts)
    if not cell.suite.lfs_pointers:
        _refuse_lfs_pointers(parts)


def _write(
    source: Source, url: str, commit: str, tree: Path, stop: threading.Event, cell: CellSpec | None = None
) -> None:
    """A commit's files at ``tree``, with the probe of ``cell`` and as that planned them."""
    for last in (False, True):
        mirror = commit_in_mirror(source, url, commit, stop)
        try:
            _borrow(mirror, commit, tree)
            if cell is not None:
                _probe(cell, tree)
            git(tree, "checkout-index", "--all", "--force", "-u")
        except GitError as error:
            if "invalid path" in str(error):  # ``.git/…``, ``..`` and the like, which git writes nowhere.
                raise EnvironmentFault(f"the tree of {commit} in {url} is none that git checks out: {error}") from error
            if last or not mend(source, url, commit, stop):
                raise GitError(f"{error}{full(tree)}") from error
        else:
            return


def _probe(cell: CellSpec, tree: Path) -> None:
    if cell.probe is not None:
        # On the index alone, as the service tried it: no end-of-line conversion has touched its blobs.
        git(tree, "apply", "--cached", "--binary", "-", stdin=base64.b64decode(cell.probe))
    digest = git(tree, "write-tree").decode().strip()
    if digest != cell.tree:
        raise InfrastructureFault(
            f"the tree of {cell.name} is {digest}, planned was {cell.tree}: submit the job again, "
            "and if it stays so compare the git versions of service and worker"
        )


def _borrow(mirror: Path, commit: str, tree: Path) -> None:
    """An empty repository at ``tree`` that borrows the mirror's objects, its index filled from the commit."""
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    git(tree, "init", "--quiet", "--template=")
    alternates = tree / ".git" / "objects" / "info" / "alternates"
    alternates.parent.mkdir(exist_ok=True)
    alternates.write_text(f"{mirror / 'objects'}\n")
    (tree / ".git" / "HEAD").write_text(f"{commit}\n")
    git(tree, "read-tree", commit)


def _submodules(parts: list[Part], url: str, source: Source, stop: threading.Event, depth: int) -> None:
    """Add the submodules of the last part, and theirs."""
    top, (tree, entries) = parts[0].folder, parts[-1]
    found = submodules_of(tree, entries)
    if found and depth >= _DEEPEST:
        raise EnvironmentFault(f"submodules of {url} are nested deeper than {_DEEPEST}")
    for one in found:
        place = tree / one.path
        if place.resolve() != top.resolve() / place.relative_to(top):
            raise EnvironmentFault(f"submodule {one.path!r} of {url} lies behind a symbolic link")
        try:
            address = resolve(url, one.url)
        except AddressRefused as error:
            raise EnvironmentFault(f"submodule {one.path!r} of {url}: {error}") from error
        _write(source, address, one.commit, place, stop)
        parts.append(Part(place, entries_of(place)))
        _submodules(parts, address, source, stop, depth + 1)


def _refuse_links_out(parts: list[Part]) -> None:
    """What a test reads must come from the tree, and what the worker reads of it too."""
    top = parts[0].folder
    root = os.path.realpath(top)
    links = (part.folder / entry.path for part in parts for entry in part.entries if entry.mode == LINK)
    for place in links:
        end = os.path.realpath(place)
        if end != root and not end.startswith(root + os.sep):
            raise EnvironmentFault(
                f"the link {place.relative_to(top)} leads out of the tree, to {os.readlink(place)}: commit one that "
                "stays inside, or ask for data by the suite's `mounts`"
            )


def _refuse_lfs_pointers(parts: list[Part]) -> None:
    top = parts[0].folder
    pointers = [place for part in parts for place in _in_lfs(part) if _is_lfs_pointer(place)]
    if pointers:
        raise EnvironmentFault(
            f"the tree has {len(pointers)} Git LFS pointer file{'s' if len(pointers) > 1 else ''} whose content is not "
            f"in git, the first {pointers[0].relative_to(top)}, and git-lfs is not run: commit the content, give it to "
            "the worker as data (the suite's `mounts`), or set lfs_pointers = true where the suite does not need it"
        )


def _in_lfs(part: Part) -> list[Path]:
    """The files that some attribute gives to LFS. git is asked only where one may."""
    attributes = (
        part.folder / entry.path
        for entry in part.entries
        if entry.path.rpartition("/")[2] == ".gitattributes" and entry.mode.startswith(FILE)
    )
    if not any(b"lfs" in path.read_bytes() for path in attributes):
        return []
    listed = git(part.folder, "ls-files", "-z", "--", ":(attr:filter=lfs)")
    return [part.folder / os.fsdecode(path) for path in listed.split(b"\0") if path]


def _is_lfs_pointer(place: Path) -> bool:
    if place.is_symlink() or not place.is_file() or place.stat().st_size >= _LFS_LARGEST:
        return False
    with place.open("rb") as stream:
        return stream.read(len(_LFS)) == _LFS
