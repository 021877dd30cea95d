"""Writes down what forges are to show: in the transaction of the job's own change, and only what changed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service import credentials
from service.clock import now
from service.errors import ForgeIncomplete, NotFound, TargetRefused
from service.jobs.views import shown_attempt
from service.models import Attempt, Cell, CommitStatus, ForgeLink, Job, Repository, Tree, Trigger
from service.outgoing import outbox
from service.outgoing.address import AddressRefused, Private, check_literal, target
from service.settings import Settings
from service.states import COMMIT_STATES, CellState, CommitState, JobState, Origin, SendState, job_state
from service.statuses import text
from service.statuses.forge import Unguessable, api_of, project_of
from service.statuses.schemas import ForgeInput
from worker.messages import Verdict

MOST_POSTS = 500
"""Beyond so many, a commit's context is told only ends: GitHub takes 1,000 and then no end either."""


ASKED_AGAIN = 100

_IN_ORDER = (CommitStatus.commit, CommitStatus.context == text.PLAN_CONTEXT, CommitStatus.context)
"""How statuses are locked where several are: a job asks for those of its cells, then for that of its plan."""


@dataclass
class _Commit:
    """What a job's cells on one commit come to."""

    cells: list[tuple[CellState, Verdict | None]] = field(default_factory=list)
    suites: set[str] = field(default_factory=set)


def note(session: Session, job: Job) -> None:
    """Asks for the statuses that follow from a job's cells, one for each commit that it tests without a probe.

    What a probe does to a commit is nothing that the commit did, and what was imported nothing that we saw it do.
    """
    if job.origin is Origin.IMPORTED or session.get(ForgeLink, job.repository_id) is None:
        return
    commits = _commits(session, job)
    states = {
        commit: COMMIT_STATES[job_state(found.cells, cancelled=job.cancel_requested_at is not None)]
        for commit, found in commits.items()
    }
    counts = _counts(session, job, [commit for commit, state in states.items() if state.final])
    for commit, state in sorted(states.items()):  # in one order, since the rows are locked
        found = commits[commit]
        context = text.context(found.suites, job.request)
        sentence = text.sentence(state, counts[commit], (verdict for _, verdict in found.cells))
        _want(session, job, commit, context, state, sentence)


def note_plan(session: Session, job: Job) -> None:
    """Asks for the status of a plan, of a job that a hook started: where it failed, or waits for a person.

    Whoever pushed would else wait for a check that never comes. All other states of a plan are told only where one of
    these was told before.
    """
    if session.get(ForgeLink, job.repository_id) is None:
        return
    commit = session.scalar(select(Trigger.commit).where(Trigger.job_id == job.id))
    if commit is None:
        return
    told = JobState.PASSED if job.planned else job.state
    if told in {JobState.BROKEN, JobState.WAITING} or _known(session, job, commit, text.PLAN_CONTEXT) is not None:
        _want(session, job, commit, text.PLAN_CONTEXT, COMMIT_STATES[told], text.plan_sentence(told, job.detail))


def _commits(session: Session, job: Job) -> dict[str, _Commit]:
    commits: defaultdict[str, _Commit] = defaultdict(_Commit)
    rows = session.execute(
        select(Tree.commit, Cell.suite, Cell.state, Cell.verdict)
        .join(Tree, Tree.id == Cell.tree_id)
        .where(Cell.job_id == job.id, Tree.probe_digest.is_(None))
    )
    for commit, suite, state, verdict in rows:
        commits[commit].cells.append((state, verdict))
        commits[commit].suites.add(suite)
    return commits


def _counts(session: Session, job: Job, commits: Iterable[str]) -> defaultdict[str, Counter[str]]:
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    wanted = list(commits)
    if not wanted:
        return counts
    shown = shown_attempt(Cell.job_id == job.id).subquery()
    rows = session.execute(
        select(Tree.commit, Attempt.counts)
        .join(Cell, Cell.tree_id == Tree.id)
        .join(shown, shown.c.cell_id == Cell.id)
        .join(Attempt, Attempt.id == shown.c.attempt_id)
        .where(Cell.job_id == job.id, Tree.probe_digest.is_(None), Tree.commit.in_(wanted))
    )
    for commit, found in rows:
        counts[commit].update(found)
    return counts


def _want(session: Session, job: Job, commit: str, context: str, state: CommitState, sentence: str) -> None:
    row = _known(session, job, commit, context)
    if row is None:
        moment = now()
        made = CommitStatus(
            repository_id=job.repository_id, commit=commit, context=context, job_id=job.id, wanted=state, text=sentence,
            changed_at=moment, target=f"forge:{job.repository_id}", state=SendState.WAITING, since=moment,
            due_at=moment,
        )  # fmt: skip
        try:
            with session.begin_nested():
                session.add(made)
        except IntegrityError:  # another job of the commit was first
            row = _known(session, job, commit, context)
        else:
            return
    if row is not None:
        _change(row, job, state, sentence)


def _known(session: Session, job: Job, commit: str, context: str) -> CommitStatus | None:
    """The status that there is, locked."""
    return session.scalar(
        select(CommitStatus)
        .where(
            CommitStatus.repository_id == job.repository_id,
            CommitStatus.commit == commit,
            CommitStatus.context == context,
        )
        .with_for_update(of=CommitStatus)
    )


def _change(row: CommitStatus, job: Job, state: CommitState, sentence: str) -> None:
    if row.job_id > job.id:  # a newer job speaks for the commit
        return
    if (row.job_id, row.wanted, row.text) == (job.id, state, sentence):
        return
    if row.posts >= MOST_POSTS and not state.final:
        return
    moment = now()
    row.job_id, row.wanted, row.text, row.changed_at = job.id, state, sentence, moment
    row.revision += 1
    if row.state is SendState.WAITING:  # what is being tried again keeps its pace
        row.since = moment
    else:
        outbox.ask(row, moment)


def link(session: Session, repository: Repository, body: ForgeInput, settings: Settings) -> ForgeLink:
    """Says where a repository's commits get their statuses. What was given up lately is tried again.

    Raises:
        TargetRefused: the API's address is not called.
        ForgeIncomplete: the repository's URL does not tell what is left out, or the credential cannot go there.
    """
    try:
        api_url = (body.api_url or api_of(body.forge, repository.url)).rstrip("/")
        project = body.project or project_of(body.forge, repository.url, api_url)
        if not {".", ".."}.isdisjoint(project.split("/")):
            raise Unguessable(f"project {project!r} leads elsewhere; give it as OWNER/NAME")
        if "?" in api_url or "#" in api_url:
            raise AddressRefused(f"api_url {api_url!r} has a query or a fragment; leave it out")
        check_literal(api_url, Private.parse(settings.private_targets))
        credentials.check(body.credential, target(api_url).host, settings)
    except AddressRefused as error:
        raise TargetRefused(str(error)) from error
    except (Unguessable, credentials.CredentialUnusable) as error:
        raise ForgeIncomplete(str(error)) from error
    _ask_again(session, repository.id)
    found = session.get(ForgeLink, repository.id)
    if found is None:
        found = ForgeLink(repository_id=repository.id)
        session.add(found)
    found.forge, found.api_url, found.project, found.credential = body.forge, api_url, project, body.credential
    found.paused_until = None
    session.flush()
    return found


def unlink(session: Session, repository: Repository) -> None:
    """Tells the forge of no more. What waits is given up."""
    waiting = (CommitStatus.repository_id == repository.id, CommitStatus.state == SendState.WAITING)
    session.scalars(select(CommitStatus.id).where(*waiting).order_by(*_IN_ORDER).with_for_update()).all()
    session.execute(
        update(CommitStatus)
        .where(*waiting)
        .values(state=SendState.GAVE_UP, detail="the repository has no forge any more", claim=None, claimed_until=None)
    )
    found = session.get(ForgeLink, repository.id)
    if found is not None:
        session.delete(found)


def _ask_again(session: Session, repository_id: int) -> None:
    given_up = (CommitStatus.repository_id == repository_id, CommitStatus.state == SendState.GAVE_UP)
    latest = select(CommitStatus.id).where(*given_up).order_by(CommitStatus.id.desc()).limit(ASKED_AGAIN)
    rows = session.scalars(
        select(CommitStatus)
        .where(CommitStatus.id.in_(session.scalars(latest).all()), *given_up)
        .order_by(*_IN_ORDER)
        .with_for_update(of=CommitStatus)
    )
    moment = now()
    for row in rows.all():
        outbox.ask(row, moment)


def resend(session: Session, status_id: int) -> CommitStatus:
    """Sends a status again, whatever became of it.

    Raises:
        NotFound: there is none of this number.
    """
    row = session.get(CommitStatus, status_id, with_for_update=True)
    if row is None:
        raise NotFound(f"there is no status {status_id}")
    outbox.ask(row, now())
    row.shown = None
    row.revision += 1
    return row
