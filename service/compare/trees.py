"""Finds the trees that somebody means: by a commit's beginning, by the name that is shown, or those of a job."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from service.errors import ComparisonIncomplete, TreeAmbiguous, TreeUnknown
from service.matrix.expand import tree_name
from service.models import Cell, Tree
from service.words import number

NAME = re.compile(r"(?P<commit>[0-9a-f]{4,64})(?:\+probe:(?P<probe>[0-9a-f]{1,64}))?")
SHOWN = 5
MEANT = {"base": "the tree that was before", "head": "the tree that is compared with base"}


def pair(
    session: Session, repository_id: int, job_id: int | None, base: str | None, head: str | None
) -> tuple[Tree, Tree]:
    """The two trees to compare; what is not named is the job's first tree and its second.

    Raises:
        ComparisonIncomplete: a tree is not named, and there is no job with two trees to take it from.
        TreeUnknown, TreeAmbiguous: a name means none, or several.
    """
    own = _of_job(session, job_id) if job_id is not None else []
    before = find(session, repository_id, base, own) if base else _own(own, 0, job_id)
    after = find(session, repository_id, head, own) if head else _own(own, 1, job_id)
    return before, after


def find(session: Session, repository_id: int, name: str, own: Sequence[Tree] = ()) -> Tree:
    """The tree of a name like ``bb3c0b8`` or ``bb3c0b8+probe:1f2e3d``; a job's ``own`` trees go first.

    Raises:
        TreeUnknown: there is none.
        TreeAmbiguous: there are several.
    """
    match = NAME.fullmatch(name.strip().lower())
    if match is None:
        raise TreeUnknown(f"tree {name!r} is no name of one; give a commit's beginning, or bb3c0b8+probe:1f2e3d")
    commit, probe = match["commit"], match["probe"]
    known = own or session.scalars(_beginning(repository_id, commit)).all()
    of_commit = [tree for tree in known if tree.commit.startswith(commit)]
    found = [
        tree
        for tree in of_commit
        if (tree.probe_digest is None if probe is None else (tree.probe_digest or "").startswith(probe))
    ]
    names = ", ".join(tree_name(tree.commit, tree.probe_digest) for tree in (found or of_commit)[:SHOWN])
    if len(found) > 1:
        raise TreeAmbiguous(f"tree {name!r} may be {names}; give more of the commit or the probe")
    if not found:
        where = "the job has no" if own else "no job has tested a"
        raise TreeUnknown(f"{where} tree {name!r}" + (f"; there is {names}" if names else ""))
    return found[0]


def _beginning(repository_id: int, commit: str) -> Select[Tree]:
    return (
        select(Tree)
        .where(Tree.repository_id == repository_id, Tree.commit >= commit, Tree.commit < commit + "g")
        .order_by(Tree.id)
        .limit(1000)
    )


def _of_job(session: Session, job_id: int) -> Sequence[Tree]:
    first = (
        select(Cell.tree_id, func.min(Cell.position).label("position"))
        .where(Cell.job_id == job_id)
        .group_by(Cell.tree_id)
        .subquery()
    )
    return session.scalars(select(Tree).join(first, first.c.tree_id == Tree.id).order_by(first.c.position)).all()


def _own(own: Sequence[Tree], index: int, job_id: int | None) -> Tree:
    if index < len(own):
        return own[index]
    word = ("base", "head")[index]
    if job_id is None:
        raise ComparisonIncomplete(f"{word} is not named ({MEANT[word]}); name a tree, or a job that has two")
    raise ComparisonIncomplete(f"job {job_id} has {number(len(own), 'tree')}, so {word} must be named: {MEANT[word]}")
