"""What the service does by itself, every few seconds: reap leases, wake for what still waits, say why a cell waits."""

from __future__ import annotations

import threading

import structlog
from kombu.exceptions import OperationalError as BrokerError
from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError as DatabaseError
from sqlalchemy.orm import Session

from service.database import Database
from service.dispatch.broker import Broker
from service.dispatch.clock_steps import Clocks, Look
from service.jobs import changes, idempotency
from service.matrix.fit import misfit
from service.models import Cell, Worker
from service.pulse import PATIENCE_S, Pulse
from service.settings import Settings
from service.states import CellState
from service.workers import reaper
from service.workers.views import live_after
from worker.encoding import decode
from worker.messages import Capabilities, RuntimeSpec, SuiteSpec

log = structlog.get_logger()

LOOKED_AT = 500
"""Waiting cells that one sweep explains; the next one goes on behind them, and begins anew at the end."""


class Sweep:
    """A thread that runs the sweep until it is stopped. Every step is idempotent: two services may sweep at once."""

    def __init__(self, database: Database, broker: Broker, settings: Settings, clocks: Clocks | None = None) -> None:
        self._database, self._broker, self._settings = database, broker, settings
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sweep", daemon=True)
        self._pulse = Pulse(self._thread, settings.sweep_s + PATIENCE_S)
        self.pulses = (self._pulse,)
        self._clocks = clocks or Clocks()
        self._steady_since = self._clocks.steady()
        self._explained = 0

    def start(self) -> None:
        """Begins to sweep."""
        self._pulse.start()

    def stop(self) -> None:
        """Ends the thread and waits for it."""
        self._pulse.stop()
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._settings.sweep_s):
            self._pulse.beat()
            try:
                self.once()
            except DatabaseError as error:
                log.warning("sweep-failed", error=str(error))
            except Exception:  # one wrong row must not end the reaping of all others
                log.exception("sweep-failed")

    def once(self) -> None:
        """One sweep: leases, then what waits."""
        look = self._clocks.look()
        self._lease(look)
        self._clocks.keep(look)
        # What a worker did while we were away still lies in its spool: give it a lease's time to tell.
        if self._clocks.steady() - self._steady_since > self._settings.lease_s:
            reaper.end_stuck(self._database, self._settings, look.moment, self._clocks.skipped_s)
        self._look_at_waiting()

    def _lease(self, look: Look) -> None:
        """After a silence of our own (a start, a database that was away) or a step of the clock in which leases are
        written, they get a full period first; else what is overdue ends.
        """
        silent = look.silence_s is None or look.silence_s > self._settings.lease_s / 2
        if not silent and not look.step_s:
            reaper.reap(self._database, self._settings, look.moment)
            return
        with self._database.write() as session:
            reaper.grant_all(session, self._settings, look.moment)
        if look.step_s:
            log.warning("clock-stepped", step_s=round(look.step_s, 3), leases_granted_s=self._settings.lease_s)
        if silent:
            self._steady_since = self._clocks.steady()

    def _look_at_waiting(self) -> None:
        with self._database.read() as session:
            waiting = dict(
                session.execute(
                    select(Cell.kind, func.count()).where(Cell.state == CellState.QUEUED).group_by(Cell.kind)
                ).all()
            )
            reasons, self._explained = explain(session, self._settings, self._explained) if waiting else ({}, 0)
            outdated = idempotency.any_expired(session)
        if reasons:
            with self._database.write() as session:
                note(session, reasons)
        if outdated:
            with self._database.write() as session:
                idempotency.forget(session)
        self._wake(waiting)

    def _wake(self, waiting: dict[str, int]) -> None:
        """One wake-up for each kind that waits, unless one lies in its queue unread."""
        try:
            self._broker.send(kind for kind in sorted(waiting) if not self._broker.waiting(kind))
        except BrokerError as error:
            log.warning("broker-away", error=str(error))


def explain(session: Session, settings: Settings, behind: int = 0) -> tuple[dict[int, str | None], int]:
    """For waiting cells behind one whose reason changed: why no live worker can serve them, or ``None`` if one can; and
    behind which cell to go on, 0 where these were the last."""
    since = live_after(settings)
    workers = [
        (worker.name, decode(Capabilities, worker.capabilities))
        for worker in session.scalars(select(Worker).where(Worker.seen_at >= since).order_by(Worker.name))
    ]
    cells = session.execute(
        select(Cell.id, Cell.suite_spec, Cell.runtime, Cell.waiting_reason, Worker.name)
        .outerjoin(Worker, Worker.id == Cell.reserved_worker_id)
        .where(Cell.state == CellState.QUEUED, Cell.id > behind)
        .order_by(Cell.id)
        .limit(LOOKED_AT)
    ).all()
    reasons = {}
    for cell_id, spec, runtime, before, keeper in cells:
        suite = decode(SuiteSpec, spec)
        reason = _reason(workers, suite, RuntimeSpec.parse(runtime))
        if reason is None and keeper is not None:
            reason = f"waits for {suite.devices} free CUDA devices; worker {keeper} keeps its own free for it"
        if reason != before:
            reasons[cell_id] = reason
    return reasons, cells[-1].id if len(cells) == LOOKED_AT else 0


def _reason(workers: list[tuple[str, Capabilities]], suite: SuiteSpec, runtime: RuntimeSpec) -> str | None:
    if not workers:
        return "no worker is alive; start one with `replaybench worker`"
    misfits = [(name, misfit(capabilities, suite, runtime)) for name, capabilities in workers]
    if any(reason is None for _, reason in misfits):
        return None
    return "no live worker can serve it: " + "; ".join(f"{name} {reason}" for name, reason in misfits[:5])


def note(session: Session, reasons: dict[int, str | None]) -> None:
    """Writes the reasons to the cells that still wait, and tells their jobs' readers."""
    cells = session.scalars(
        select(Cell)
        .where(Cell.id.in_(list(reasons)), Cell.state == CellState.QUEUED)
        .order_by(Cell.id)
        .with_for_update(of=Cell)
    ).all()
    by_job: dict[int, list[Cell]] = {}
    for cell in cells:
        cell.waiting_reason = reasons[cell.id]
        by_job.setdefault(cell.job_id, []).append(cell)
    for job_id, changed in sorted(by_job.items()):
        changes.touch(session, job_id, changed)
