"""Keeps devices free for a cell that needs several and has waited: cells that need one would take each as it is freed.

A cell that has waited for long is noted for one worker that could serve it. Until it is granted, by that worker or any
other, the worker and those that share its devices hand these to no cell of the same or a lower priority.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.clock import now
from service.matrix.fit import fitting, misfit
from service.models import Cell, Worker
from service.settings import Settings
from service.states import CellState
from worker.encoding import decode
from worker.messages import Capabilities, RuntimeSpec, SuiteSpec

PAGE = 50
"""Waiting cells that are read at once, those due first. One of them is all that a worker keeps for, mostly the first;
but before it there may be any number that no worker can serve."""


@dataclass(frozen=True)
class Reservation:
    """What a worker keeps devices for. ``fit`` are the UUIDs of its devices that the cell may run on, free or not."""

    cell: int
    priority: int
    devices: int
    fit: frozenset[str]
    noted: bool

    def spare(self, free: frozenset[str]) -> frozenset[str]:
        """The free devices that other cells may have: what the cell cannot use, or what is more than it needs."""
        kept = sorted(self.fit & free)[: self.devices]
        return free - frozenset(kept)


def find(session: Session, worker: Worker, capabilities: Capabilities, settings: Settings) -> Reservation | None:
    """What this worker has to keep devices for; nothing is written yet."""
    kinds = [kind for kind in capabilities.kinds if SuiteSpec("", (), kind=kind).devices > 1]
    if not kinds:
        return None
    own = frozenset(device.uuid for device in capabilities.devices)
    for cell_id, priority, spec, name, holder in _waiting(session, kinds, settings):
        suite, runtime = decode(SuiteSpec, spec), RuntimeSpec.parse(name)
        if misfit(capabilities, suite, runtime) is not None:
            continue
        held = frozenset(_held_by(session, holder, suite, runtime, settings)) if holder != worker.id else own
        if held and not held & own:
            continue  # another host keeps its devices for this cell
        fit = frozenset(device.uuid for device in fitting(capabilities, suite, runtime))
        return Reservation(cell_id, priority, suite.devices, fit, noted=bool(held) and holder is not None)
    return None


def _waiting(session: Session, kinds: list[str], settings: Settings) -> Iterator[Any]:
    """The cells of some kinds that have waited for long, those due first."""
    long_ago = now() - datetime.timedelta(seconds=settings.reserve_after_s)
    statement = (
        select(Cell.id, Cell.priority, Cell.suite_spec, Cell.runtime, Cell.reserved_worker_id)
        .where(Cell.state == CellState.QUEUED, Cell.kind.in_(kinds), Cell.queued_at < long_ago)
        .order_by(Cell.priority.desc(), Cell.queued_at, Cell.id)
        .limit(PAGE)
    )
    read = 0
    while rows := session.execute(statement.offset(read)).all():
        yield from rows
        if len(rows) < PAGE:
            return
        read += PAGE


def _held_by(
    session: Session, holder: int | None, suite: SuiteSpec, runtime: RuntimeSpec, settings: Settings
) -> Iterator[str]:
    """The devices of the worker that keeps them for the cell; none where it is gone or can serve it no more."""
    worker = session.get(Worker, holder) if holder is not None else None
    if worker is None or worker.seen_at < now() - datetime.timedelta(seconds=settings.lease_s):
        return
    capabilities = decode(Capabilities, worker.capabilities)
    if misfit(capabilities, suite, runtime) is None:
        yield from (device.uuid for device in capabilities.devices)


def note(session: Session, reservation: Reservation, worker: Worker) -> None:
    """Write down that this worker keeps devices for the cell. A cell that somebody holds is left for the next time: who
    waits for it here may hold what they wait for."""
    cell = session.scalar(
        select(Cell)
        .where(Cell.id == reservation.cell, Cell.state == CellState.QUEUED)
        .with_for_update(skip_locked=True, of=Cell)
    )
    if cell is not None:
        cell.reserved_worker_id = worker.id
