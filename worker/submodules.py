"""What a tree says of its submodules, read from the index alone: a tree's files may be links to anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from worker.git import GitError, git


@dataclass(frozen=True)
class Submodule:
    """A submodule: where it goes, and its commit. ``url`` is as the tree spells it."""

    path: str
    commit: str
    url: str


def submodules_of(tree: Path) -> list[Submodule]:
    """The submodules of a tree whose index is filled. A gitlink that ``.gitmodules`` does not name is left out, as git
    leaves it empty.

    Raises:
        GitError: ``.gitmodules`` is no configuration.
    """
    links: dict[str, str] = {}
    declared = ""
    for entry in git(tree, "ls-files", "--stage", "-z").split(b"\0"):
        meta, _, path = entry.partition(b"\t")
        if meta.startswith(b"160000 "):
            links[path.decode(errors="surrogateescape")] = meta.split()[1].decode()
        elif path == b".gitmodules" and meta.startswith(b"100"):
            declared = meta.split()[1].decode()
    urls = _urls(tree, declared) if links and declared else {}
    return [Submodule(path, commit, urls[path]) for path, commit in links.items() if path in urls]


def _urls(tree: Path, blob: str) -> dict[str, str]:
    """What ``.gitmodules`` says: path to address."""
    words = ["config", "--blob", blob, "--no-includes", "--null", "--get-regexp", r"^submodule\..*\.(path|url)$"]
    try:
        output = git(tree, *words)
    except GitError as error:
        if str(error) == "git config: ":  # It names no submodule, which git tells by its exit code alone.
            return {}
        raise
    values: dict[str, dict[str, str]] = {}
    for entry in filter(None, output.decode(errors="surrogateescape").split("\0")):
        key, _, value = entry.partition("\n")
        name, _, what = key.removeprefix("submodule.").rpartition(".")
        values.setdefault(name, {})[what] = value
    return {value["path"]: value["url"] for value in values.values() if {"path", "url"} <= value.keys()}
