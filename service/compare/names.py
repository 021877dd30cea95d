"""Pins what names a tree by a branch or tag, as a submission does: in the repository as it is now."""

from __future__ import annotations

from dataclasses import replace

from service.compare import trees, views
from service.compare.views import Question
from service.database import Database
from service.errors import CommitUnreachable, RefRefused, TreeUnknown
from service.repositories.mirror import Mirror
from service.repositories.mirrors import mirror_of
from service.settings import Settings

PROBE = "+probe:"


def pinned(database: Database, settings: Settings, question: Question) -> Question:
    """The question with commits for branches and tags. What can be the beginning of a commit is taken for one.

    Raises:
        RepositoryUnknown, NotFound, ComparisonIncomplete: there is no such repository or job, or none is named.
        TreeUnknown: a name is no commit, branch or tag.
        MirrorFailed: the repository did not answer.
    """
    if not any(map(_moves, (question.base, question.head))):
        return question
    with database.read() as session:
        repository = views.repository_of(session, question)
    # git may take its time: nothing of the database is held meanwhile.
    mirror = mirror_of(database, settings, repository.id, repository.url)
    return replace(question, base=_pin(mirror, question.base), head=_pin(mirror, question.head))


def _moves(name: str | None) -> bool:
    return name is not None and trees.NAME.fullmatch(name.strip().lower()) is None


def _pin(mirror: Mirror, name: str | None) -> str | None:
    if name is None or not _moves(name):
        return name
    ref, plus, probe = name.strip().partition(PROBE)
    try:
        return f"{mirror.resolve(ref)}{plus}{probe}"
    except (RefRefused, CommitUnreachable) as error:
        raise TreeUnknown(
            f"tree {name!r} is no name of one; give a commit, branch or tag, or one with its probe, as "
            f"bb3c0b8{PROBE}1f2e3d ({error.detail})"
        ) from error
