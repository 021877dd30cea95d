"""Registers workers and grants them leases."""

from __future__ import annotations

import base64
import datetime
import secrets
from collections.abc import Iterator, Sequence

from sqlalchemy import func, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, joinedload

from service.access.scopes import Caller
from service.clock import elapsed_s, now
from service.errors import WorkerUnknown
from service.jobs import changes
from service.matrix.fit import choose, misfit
from service.models import Attempt, Cell, Repository, Tree, Worker
from service.repositories import credentials
from service.schemas import MOST_ID
from service.settings import Settings
from service.states import AttemptState, CellState, move_cell
from service.workers import reaper, reservation
from service.workers.enrolment import check_bound, check_contract
from service.workers.reservation import Reservation
from worker.encoding import decode, encode
from worker.messages import (
    Assignment,
    Capabilities,
    CellSpec,
    Claim,
    FailureRule,
    Heartbeat,
    Registered,
    Registration,
    RuntimeSpec,
    SuiteSpec,
)

HEARTBEATS_A_LEASE = 3
PAGE = 50
NEVER = datetime.datetime.min.replace(tzinfo=datetime.UTC)


def register(
    session: Session, body: Registration, settings: Settings, caller: Caller
) -> tuple[Registered, Sequence[int]]:
    """Notes a worker and what it can serve; also gives the attempts that an earlier start of it was running.

    Raises:
        ContractMismatch: it is of another release.
        WorkerMismatch: its token is bound to another name.
    """
    check_contract(body.contract, f"worker {body.name!r}")
    check_bound(caller, body.name)
    worker = _row(session, body)
    restarted = worker.boot != body.boot
    worker.boot, worker.host, worker.capabilities = body.boot, body.host, encode(body.capabilities)
    worker.contract, worker.token_id = body.contract, caller.token_id
    worker.registered_at = worker.seen_at = now()
    session.flush()
    left = reaper.running(session, worker.id) if restarted else []
    return Registered(worker.id, settings.lease_s / HEARTBEATS_A_LEASE), left


def _row(session: Session, body: Registration) -> Worker:
    """The worker's row, locked; a new one where there is none."""
    known = select(Worker).where(Worker.name == body.name).with_for_update()
    worker = session.scalar(known)
    if worker is not None:
        return worker
    worker = Worker(name=body.name, boot=body.boot, host=body.host, capabilities={}, registered_at=now(), seen_at=now())
    try:
        with session.begin_nested():
            session.add(worker)
    except IntegrityError:  # the same name was first, between the look and the insert
        return session.scalars(known).one()
    return worker


def seen(session: Session, worker_id: int, boot: str, caller: Caller) -> Worker:
    """Notes that a worker was heard from.

    Raises:
        WorkerUnknown: the worker is not registered under this boot nonce.
        WorkerMismatch: the token is bound to another worker.
        ContractMismatch: it registered with a service of another release, before this one was updated.
    """
    worker = session.get(Worker, worker_id, with_for_update=True) if 0 < worker_id <= MOST_ID else None
    if worker is None or worker.boot != boot:
        raise WorkerUnknown(f"worker {worker_id} is not registered under this start; register again")
    check_bound(caller, worker.name)
    check_contract(worker.contract, f"worker {worker.name!r}")
    worker.seen_at = now()
    return worker


def heartbeat(session: Session, body: Heartbeat, caller: Caller) -> None:
    """Notes that a worker was heard from, and how its devices are now where it says so.

    Raises:
        WorkerUnknown, WorkerMismatch, ContractMismatch: as ``seen``.
    """
    worker = seen(session, body.worker, body.boot, caller)
    if body.devices is not None:
        worker.capabilities = {**worker.capabilities, "devices": encode(body.devices)}


def claim(session: Session, body: Claim, settings: Settings, caller: Caller) -> Assignment | None:
    """Grants the worker a lease on the cell that is due to it, or nothing.

    The order is priority, then the repository with the fewest cells under way, then the one that was served longest
    ago, then the time of queueing. A cell is handed out only where the worker's runtimes, devices and mounts fit;
    devices that are kept for another one do not count.

    Raises:
        WorkerUnknown, WorkerMismatch, ContractMismatch: as ``seen``.
    """
    worker = seen(session, body.worker, body.boot, caller)
    capabilities = decode(Capabilities, worker.capabilities)
    kept = reservation.find(session, worker, capabilities, settings)
    assignment = _first(session, worker, capabilities, frozenset(body.free_devices), kept, settings)
    if kept is not None and not kept.noted and (assignment is None or assignment.cell.id != kept.cell):
        reservation.note(session, kept, worker)
    return assignment


def _first(
    session: Session,
    worker: Worker,
    capabilities: Capabilities,
    free: frozenset[str],
    kept: Reservation | None,
    settings: Settings,
) -> Assignment | None:
    """A lease on the first cell that can be had."""
    passed = []
    for cell_id, devices in _due(session, capabilities, free, kept):
        statement = select(Cell).where(Cell.id == cell_id, Cell.state == CellState.QUEUED)
        cell = session.scalar(statement.with_for_update(skip_locked=True, of=Cell))
        if cell is not None:
            return _grant(session, cell, worker, devices, settings)
        passed.append((statement, devices))
    # Whoever held these need not have claimed them: the sweep says of a cell why it waits. So look again, and wait.
    for statement, devices in passed:
        cell = session.scalar(statement.with_for_update(of=Cell))
        if cell is not None:
            return _grant(session, cell, worker, devices, settings)
    return None


def _due(
    session: Session, capabilities: Capabilities, free: frozenset[str], kept: Reservation | None
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The cells that fit, each with the devices that it gets, in the order in which they are due."""
    busy = dict(
        session.execute(
            select(Cell.repository_id, func.count())
            .where(Cell.state.in_((CellState.CLAIMED, CellState.PREPARING, CellState.RUNNING)))
            .group_by(Cell.repository_id)
        ).all()
    )
    waiting = (Cell.state == CellState.QUEUED, Cell.kind.in_(capabilities.kinds))
    turns = session.execute(
        select(Cell.priority, Cell.repository_id, func.min(Cell.queued_at))
        .where(*waiting)
        .group_by(Cell.priority, Cell.repository_id)
    ).all()
    repositories = {repository for _, repository, _ in turns}
    served = dict(
        session.execute(select(Repository.id, Repository.served_at).where(Repository.id.in_(repositories))).all()
    )

    def rank(turn: tuple[int, int, datetime.datetime]) -> tuple[int, int, datetime.datetime, datetime.datetime]:
        # One slot that runs cell after cell finds nobody busy: without turns the oldest job would keep it to its end.
        priority, repository, queued = turn
        return -priority, busy.get(repository, 0), served[repository] or NEVER, queued

    for priority, repository, _ in sorted(((*turn,) for turn in turns), key=rank):
        turn = (*waiting, Cell.priority == priority, Cell.repository_id == repository)
        page = select(Cell.id, Cell.queued_at, Cell.suite_spec, Cell.runtime).where(*turn)
        page = page.order_by(Cell.queued_at, Cell.id).limit(PAGE)
        rows = session.execute(page).all()
        while rows:
            for cell_id, _, spec, name in rows:
                suite, runtime = decode(SuiteSpec, spec), RuntimeSpec.parse(name)
                behind_it = kept is not None and priority <= kept.priority and cell_id != kept.cell
                usable = kept.spare(free) if kept is not None and behind_it else free
                if misfit(capabilities, suite, runtime, usable) is None:
                    yield cell_id, choose(capabilities, suite, runtime, usable) or ()
            last, queued = rows[-1][:2]
            behind = or_(Cell.queued_at > queued, (Cell.queued_at == queued) & (Cell.id > last))
            rows = session.execute(page.where(behind)).all() if len(rows) == PAGE else []


def _grant(session: Session, cell: Cell, worker: Worker, devices: tuple[str, ...], settings: Settings) -> Assignment:
    moment = now()
    number = session.scalar(select(func.count()).where(Attempt.cell_id == cell.id)) or 0
    attempt = Attempt(
        cell_id=cell.id,
        number=number + 1,
        worker_id=worker.id,
        token=secrets.token_hex(16),
        state=AttemptState.CLAIMED,
        claimed_at=moment,
        lease_expires_at=moment + datetime.timedelta(seconds=settings.lease_s),
        counts={},
    )
    session.add(attempt)
    cell.state = move_cell(cell.state, CellState.CLAIMED)
    cell.attempts_since_queued += 1
    cell.waiting_reason = cell.reserved_worker_id = None
    changes.settle(session, cell.job_id, [cell])
    session.execute(update(Repository).where(Repository.id == cell.repository_id).values(served_at=moment))
    tree = session.scalars(
        select(Tree).where(Tree.id == cell.tree_id).options(joinedload(Tree.repository), joinedload(Tree.probe))
    ).one()
    return Assignment(
        attempt.id,
        attempt.number,
        attempt.token,
        settings.lease_s,
        _spec(cell, tree),
        devices,
        credential=credentials.for_worker(session, tree.repository, settings),
        queued_s=elapsed_s(cell.queued_at, moment),
    )


def _spec(cell: Cell, tree: Tree) -> CellSpec:
    return CellSpec(
        id=cell.id,
        job=cell.job_id,
        name=cell.name,
        repository=tree.repository.name,
        url=tree.repository.url,
        commit=tree.commit,
        tree=tree.digest,
        probe=base64.b64encode(tree.probe.content).decode() if tree.probe else None,
        probe_digest=tree.probe_digest,
        runtime=RuntimeSpec.parse(cell.runtime),
        suite=decode(SuiteSpec, cell.suite_spec),
        install=tuple(cell.install),
        failure_rules=tuple(decode(FailureRule, rule) for rule in cell.failure_rules),
    )
