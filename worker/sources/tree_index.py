"""What a tree holds, read from its index alone: a tree's files may be links to anywhere."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from worker.sources.git import GitError, git

LINK, SUBMODULE, FILE = "120000", "160000", "100"
"""Modes as git writes them; a file's begins so."""


@dataclass(frozen=True)
class Entry:
    """A path of an index, with its mode and object id as git writes them."""

    mode: str
    sha: str
    path: str


@dataclass(frozen=True)
class Submodule:
    """A submodule: where it goes, and its commit. ``url`` is as the tree spells it."""

    path: str
    commit: str
    url: str


def entries_of(tree: Path) -> list[Entry]:
    """Everything in the index of a tree."""
    found = []
    for line in filter(None, git(tree, "ls-files", "--stage", "-z").split(b"\0")):
        meta, _, path = line.partition(b"\t")
        mode, sha, _ = meta.decode().split()
        found.append(Entry(mode, sha, os.fsdecode(path)))
    return found


def submodules_of(tree: Path, entries: Sequence[Entry]) -> list[Submodule]:
    """The submodules of a tree. A gitlink that ``.gitmodules`` does not name is left out, as git leaves it empty.

    Raises:
        GitError: ``.gitmodules`` is no configuration.
    """
    links = {entry.path: entry.sha for entry in entries if entry.mode == SUBMODULE}
    declared = [entry.sha for entry in entries if entry.path == ".gitmodules" and entry.mode.startswith(FILE)]
    urls = _urls(tree, declared[0]) if links and declared else {}
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
    for entry in filter(None, os.fsdecode(output).split("\0")):
        key, _, value = entry.partition("\n")
        name, _, what = key.removeprefix("submodule.").rpartition(".")
        values.setdefault(name, {})[what] = value
    return {value["path"]: value["url"] for value in values.values() if {"path", "url"} <= value.keys()}
