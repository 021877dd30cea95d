"""Stores an imported report: a job of one cell, whose one attempt has ended and had no worker."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from service.clock import now
from service.errors import ReportRefused, RuntimeInvalid
from service.imports.cases import Cases, cases
from service.imports.nodes import Nodes
from service.imports.reading import ReportUnreadable, read
from service.imports.rows import Rows
from service.imports.schemas import ImportInput
from service.imports.summary import Summary, environment, summarize
from service.jobs import changes
from service.jobs.service import tree_of
from service.matrix.expand import tree_name
from service.models import Attempt, Cell, Job, Tree
from service.repositories.mirror import Mirror
from service.results import artifacts, evidence
from service.states import AttemptState, CellState, JobState, Origin
from worker.encoding import encode
from worker.messages import Cause, RuntimeSpec, SuiteSpec

ARTIFACT = "junit.xml"
KIND = "import"
"""The kind of a cell that is never queued, so that no worker's kinds matter."""


@dataclass(frozen=True)
class Reading:
    """A report that was read, and the commit that it belongs to. ``tree`` is git's object id, ``digest`` that of what
    was observed."""

    commit: str
    tree: str
    runtime: RuntimeSpec
    cases: Cases
    digest: str
    summary: Summary
    environment: dict[str, Any]


def plan(about: ImportInput, content: bytes, mirror: Mirror) -> Reading:
    """The reading of a report. Nothing is stored.

    Raises:
        RuntimeInvalid: the runtime's id cannot be read.
        ReportRefused: the report cannot be taken.
        RefRefused, CommitUnreachable, MirrorFailed: the commit cannot be had.
    """
    try:
        runtime = RuntimeSpec.parse(about.runtime)
        report = read(content)
    except ReportUnreadable as error:
        raise ReportRefused(str(error)) from error
    except ValueError as error:
        raise RuntimeInvalid(str(error)) from error
    commit = mirror.resolve(about.commit)
    found, tree = cases(report, Nodes(mirror.files(commit))), mirror.tree(commit)
    record = environment(about, runtime, report, tree)
    seen = [(case.node_id, case.occurrence, case.outcome, case.failure_class) for case in found.last]
    digest = evidence.digest(tree, runtime.id, about.suite, seen, Origin.IMPORTED)
    return Reading(commit, tree, runtime, found, digest, summarize(report, found, now()), record)


def create(
    session: Session, repository_id: int, about: ImportInput, reading: Reading, rows: Rows, stored: artifacts.Stored
) -> Job:
    """The job of a reading, ended already. ``rows`` are its cases', ``stored`` is the report itself."""
    job = Job(
        repository_id=repository_id,
        state=JobState.WAITING,
        origin=Origin.IMPORTED,
        label=about.label,
        work_package=about.work_package,
        requested_by=about.requested_by,
        reason=about.reason,
        detail=reading.summary.detail or None,
        request={**about.model_dump(mode="json"), "report": stored.sha256},
        created_at=now(),
    )
    session.add(job)
    session.flush()
    cell = _cell(job, tree_of(session, repository_id, reading.commit, reading.tree), about, reading)
    session.add(cell)
    session.flush()
    attempt = _attempt(cell, reading)
    session.add(attempt)
    session.flush()
    artifacts.keep(session, attempt.id, ARTIFACT, stored)
    rows.store(session, attempt.id)
    changes.end_cell(session, cell, reading.summary.verdict)
    changes.settle(session, job.id, [cell])
    # The run elsewhere began and ended then, not when its report came in.
    job.started_at, job.ended_at, cell.ended_at = attempt.started_at, attempt.ended_at, attempt.ended_at
    session.flush()
    return job


def _cell(job: Job, tree: Tree, about: ImportInput, reading: Reading) -> Cell:
    return Cell(
        job_id=job.id,
        repository_id=job.repository_id,
        tree_id=tree.id,
        position=0,
        name=f"{tree_name(reading.commit, None)}/{reading.runtime.id}/{about.suite}",
        runtime=reading.runtime.id,
        suite=about.suite,
        kind=KIND,
        priority=0,
        suite_spec=encode(SuiteSpec(name=about.suite, paths=(), kind=KIND)),
        install=[],
        failure_rules=[],
        state=CellState.QUEUED,  # within this transaction alone: it ends in it
        queued_at=job.created_at,
    )


def _attempt(cell: Cell, reading: Reading) -> Attempt:
    told = reading.summary
    return Attempt(
        cell_id=cell.id,
        number=1,
        worker_id=None,
        token=secrets.token_hex(16),  # nobody gets to know it, so nobody can write
        state=AttemptState.ENDED,
        verdict=told.verdict,
        cause=Cause.FINISHED,
        detail=told.detail,
        claimed_at=cell.queued_at,
        started_at=told.started_at,
        ended_at=told.ended_at,
        lease_expires_at=cell.queued_at,
        counts=reading.cases.counts,
        collected=told.collected,
        environment=reading.environment,
        comparison_key=evidence.comparison_key(reading.environment),
        digest=reading.digest,
        log_tail=told.log_tail,
    )
