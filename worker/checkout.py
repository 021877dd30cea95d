"""A clean tree for one attempt: commit, probe and submodules, checked against the digest that the service planned."""

from __future__ import annotations

import base64
import os
import shutil
import threading
from pathlib import Path

from gitaccess.address import AddressRefused, resolve
from worker.disk import full
from worker.errors import EnvironmentFault, InfrastructureFault
from worker.git import GitError, git
from worker.messages import CellSpec
from worker.mirror import Source, commit_in_mirror, mend
from worker.submodules import submodules_of

_DEEPEST = 8
_LFS = b"version https://git-lfs.github.com/spec/v1\n"
_LFS_LARGEST = 1024


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
    _submodules(tree, tree, cell.url, source, stop, 0)
    _refuse_links_out(tree)
    if not cell.suite.lfs_pointers:
        _refuse_lfs_pointers(tree)


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


def _submodules(top: Path, tree: Path, url: str, source: Source, stop: threading.Event, depth: int) -> None:
    found = submodules_of(tree)
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
        _submodules(top, place, address, source, stop, depth + 1)


def _repositories(top: Path) -> list[Path]:
    """The tree and its submodules, those within them too."""
    found = [top]
    for folder in found:
        found += [folder / one.path for one in submodules_of(folder)]
    return found


def _listed(folder: Path, *arguments: str) -> list[str]:
    output = git(folder, "ls-files", "-z", *arguments)
    return [os.fsdecode(entry) for entry in output.split(b"\0") if entry]


def _refuse_links_out(top: Path) -> None:
    """What a test reads must come from the tree, and what the worker reads of it too."""
    root = os.path.realpath(top)
    for folder in _repositories(top):
        for entry in _listed(folder, "--stage"):
            mode, _, path = entry.partition("\t")
            end = os.path.realpath(folder / path) if mode.startswith("120000 ") else root
            if end != root and not end.startswith(root + os.sep):
                place = (folder / path).relative_to(top)
                raise EnvironmentFault(
                    f"the link {place} leads out of the tree, to {os.readlink(folder / path)}: commit one that stays "
                    "inside, or ask for data by the suite's `mounts`"
                )


def _refuse_lfs_pointers(top: Path) -> None:
    files = (folder / path for folder in _repositories(top) for path in _listed(folder, "--", ":(attr:filter=lfs)"))
    pointers = [place for place in files if _is_lfs_pointer(place)]
    if pointers:
        raise EnvironmentFault(
            f"the tree has {len(pointers)} Git LFS pointer file{'s' if len(pointers) > 1 else ''} whose content is not "
            f"in git, the first {pointers[0].relative_to(top)}, and git-lfs is not run: commit the content, give it to "
            "the worker as data (the suite's `mounts`), or set lfs_pointers = true where the suite does not need it"
        )


def _is_lfs_pointer(place: Path) -> bool:
    if place.is_symlink() or not place.is_file() or place.stat().st_size >= _LFS_LARGEST:
        return False
    with place.open("rb") as stream:
        return stream.read(len(_LFS)) == _LFS
