"""A clean tree for one attempt: commit, probe and submodules, checked against the digest that the service planned."""

from __future__ import annotations

import base64
import threading
from pathlib import Path
from urllib.parse import urlsplit

from worker.errors import InfrastructureFault
from worker.git import GitError, git
from worker.messages import CellSpec
from worker.mirror import commit_in_mirror

_DEEPEST = 8


def check_out(cell: CellSpec, cache: Path, tree: Path, stop: threading.Event) -> None:
    """Make ``tree`` the cell's tree.

    Raises:
        InfrastructureFault: the commit cannot be reached, the probe does not apply, or the tree that results is not
            the one that was planned.
    """
    mirror = commit_in_mirror(cache, cell.url, cell.commit, stop)
    _borrow(mirror, cell.commit, tree)
    if cell.probe is not None:
        # On the index alone, as the service tried it: no end-of-line conversion has touched its blobs.
        git(tree, "apply", "--cached", "--binary", "-", stdin=base64.b64decode(cell.probe))
    digest = git(tree, "write-tree").decode().strip()
    if digest != cell.tree:
        raise InfrastructureFault(
            f"the tree of {cell.name} is {digest}, planned was {cell.tree}: submit the job again, "
            "and if it stays so compare the git versions of service and worker"
        )
    git(tree, "checkout-index", "--all", "--force", "-u")
    _submodules(tree, cell.url, cache, stop, 0)


def _borrow(mirror: Path, commit: str, tree: Path) -> None:
    """An empty repository at ``tree`` that borrows the mirror's objects, its index filled from the commit."""
    tree.mkdir(parents=True, exist_ok=True)
    git(tree, "init", "--quiet", "--template=")
    alternates = tree / ".git" / "objects" / "info" / "alternates"
    alternates.parent.mkdir(exist_ok=True)
    alternates.write_text(f"{mirror / 'objects'}\n")
    (tree / ".git" / "HEAD").write_text(f"{commit}\n")
    git(tree, "read-tree", commit)


def _submodules(tree: Path, url: str, cache: Path, stop: threading.Event, depth: int) -> None:
    if not (tree / ".gitmodules").is_file():
        return
    if depth >= _DEEPEST:
        raise InfrastructureFault(f"submodules of {url} are nested deeper than {_DEEPEST}")
    urls = _submodule_urls(tree)
    for path, commit in _gitlinks(tree):
        if path not in urls:
            continue  # A gitlink that .gitmodules does not name: git leaves it empty too.
        place = _absolute(url, urls[path])
        mirror = commit_in_mirror(cache, place, commit, stop)
        _borrow(mirror, commit, tree / path)
        git(tree / path, "checkout-index", "--all", "--force", "-u")
        _submodules(tree / path, place, cache, stop, depth + 1)


def _gitlinks(tree: Path) -> list[tuple[str, str]]:
    """Path and commit of each submodule in the index."""
    found = []
    for entry in git(tree, "ls-files", "--stage", "-z").split(b"\0"):
        meta, _, path = entry.partition(b"\t")
        if meta.startswith(b"160000 "):
            found.append((path.decode(errors="surrogateescape"), meta.split()[1].decode()))
    return found


def _submodule_urls(tree: Path) -> dict[str, str]:
    """What ``.gitmodules`` says: path to address."""
    try:
        output = git(tree, "config", "--file", ".gitmodules", "--null", "--get-regexp", r"^submodule\..*\.(path|url)$")
    except GitError:
        return {}
    values: dict[str, dict[str, str]] = {}
    for entry in filter(None, output.decode(errors="surrogateescape").split("\0")):
        key, _, value = entry.partition("\n")
        name, _, what = key.removeprefix("submodule.").rpartition(".")
        values.setdefault(name, {})[what] = value
    return {value["path"]: value["url"] for value in values.values() if {"path", "url"} <= value.keys()}


def _absolute(parent: str, url: str) -> str:
    """A submodule's address, relative ones resolved against the parent's. A repository from elsewhere may not reach
    into this machine's own file system."""
    if url.startswith(("./", "../")):
        return _joined(parent, url)
    if _is_local(url) and not _is_local(parent):
        raise InfrastructureFault(f"submodule address {url!r} is a local path, but its parent {parent!r} is not")
    return url


def _joined(parent: str, url: str) -> str:
    parts = parent.rstrip("/").split("/")
    for step in url.split("/"):
        if step == "..":
            parts.pop()
        elif step != ".":
            parts.append(step)
    return "/".join(parts)


def _is_local(url: str) -> bool:
    scheme = urlsplit(url).scheme
    # ``host:path`` is ssh; a colon after a slash belongs to a path.
    return scheme == "file" or (not scheme and ":" not in url.split("/", 1)[0])
