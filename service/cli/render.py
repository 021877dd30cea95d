"""The tables of the command line, made of the API's answers."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from service.cli.output import text
from service.jobs.schemas import CellOutput, JobOutput, PlanOutput
from service.repositories.schemas import RepositoryOutput
from service.results.schemas import TableOutput, TableRow
from service.states import CellState, JobState, Origin
from service.workers.schemas import WorkerOutput
from worker.messages import Outcome, Verdict

STYLES: Mapping[str, str] = {
    JobState.PASSED: "green",
    JobState.FAILED: "red",
    JobState.BROKEN: "magenta",
    JobState.RUNNING: "cyan",
    CellState.PREPARING: "cyan",
    CellState.CLAIMED: "cyan",
    Verdict.CRASHED: "red",
    Verdict.TIMED_OUT: "red",
    Verdict.ENVIRONMENT: "magenta",
    Verdict.INFRASTRUCTURE: "magenta",
}
_ORDER = (
    Outcome.FAILED,
    Outcome.ERROR,
    Outcome.CRASHED,
    Outcome.TIMED_OUT,
    Outcome.NOT_OBSERVED,
    Outcome.XPASSED,
    Outcome.PASSED,
    Outcome.SKIPPED,
    Outcome.XFAILED,
)


def grid(*columns: str) -> Table:
    """An empty table. Names are wrapped, never cut: they are there to be copied."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def counted(counts: Mapping[str, int]) -> str:
    """Counts as a table says them: ``18 failed, 9 passed``."""
    known = [(outcome.value, counts[outcome]) for outcome in _ORDER if counts.get(outcome)]
    return ", ".join(f"{number} {name}" for name, number in known)


def seconds(value: float | None) -> str:
    """A duration for a person."""
    if value is None:
        return ""
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"


def word(cell: CellOutput) -> str:
    """A cell's state in one word: its verdict where it has one."""
    return cell.verdict.value if cell.state is CellState.ENDED and cell.verdict else cell.state.value


def stated(job: JobOutput) -> str:
    """A job's state, and where its results were made elsewhere, that they were imported."""
    return f"{job.state} (imported)" if job.origin is Origin.IMPORTED else job.state.value


def plan_table(plan: PlanOutput) -> Table:
    """The cells of a dry run."""
    table = grid(f"Cell ({len(plan.cells)})", "Kind")
    for cell in plan.cells:
        table.add_row(text(cell.name), text(cell.kind))
    return table


def result_table(result: TableOutput) -> Table:
    """A job's table; columns that vary not at all are left out."""
    suites, lightnings = len(result.suites) > 1, len(result.lightnings) > 1
    imported = any(row.origin is Origin.IMPORTED for row in result.rows)
    head = ["Tree", "Runtime", *(["Lightning"] if lightnings else []), *(["Suite"] if suites else [])]
    head += ["Origin"] if imported else []
    skips = any(row.skip_reasons for row in result.rows)
    table = grid(*head, "Result", "Duration", "GPU", *(["Skipped because"] if skips else []))
    for row in result.rows:
        varying = [*([row.lightning] if lightnings else []), *([row.suite] if suites else [])]
        varying += [row.origin] if imported else []
        style = STYLES.get(row.verdict or "", "")
        cells = [row.tree, row.runtime, *varying]
        reasons = "; ".join(f"{number} x {reason}" for reason, number in row.skip_reasons.items())
        facts = [seconds(row.duration_s), row.gpu, *([reasons] if skips else [])]
        table.add_row(*map(text, cells), text(_result(row), style), *map(text, facts))
    return table


def _result(row: TableRow) -> str:
    flaky = "; flaky" if row.flaky else ""
    return row.result + flaky + (f"; attempt {row.attempts}" if row.attempts > 1 else "")


def jobs_table(jobs: Sequence[JobOutput]) -> Table:
    """The latest jobs."""
    table = grid("Job", "State", "Repository", "Trees", "Cases", "Label", "By", "Created")
    for job in jobs:
        table.add_row(
            text(job.id),
            text(stated(job), STYLES.get(job.state, "")),
            text(job.repository),
            text(", ".join(job.trees)),
            text(counted(job.counts)),
            text(job.label),
            text(job.requested_by),
            text(moment(job.created_at)),
        )
    return table


def repositories_table(repositories: Sequence[RepositoryOutput]) -> Table:
    """The registered repositories."""
    table = grid("Name", "URL", "Registered")
    for item in repositories:
        table.add_row(text(item.name), text(item.url), text(moment(item.created_at)))
    return table


def workers_table(workers: Sequence[WorkerOutput]) -> Table:
    """The workers, and what each can serve."""
    table = grid("Worker", "Host", "Heard from", "Kinds", "Devices", "Host runtimes")
    for item in workers:
        able = item.capabilities
        devices = [str(device.get("model", "?")) for device in able.get("devices") or []]
        table.add_row(
            text(item.name),
            text(item.host),
            text(moment(item.seen_at) if item.live else f"{moment(item.seen_at)} (away)", "" if item.live else "red"),
            text(", ".join(able.get("kinds") or [])),
            text(", ".join(devices)),
            text(str(len(able.get("host_runtimes") or []))),
        )
    return table


def moment(when: datetime.datetime) -> str:
    """A time on the clock of whoever reads it."""
    if when.tzinfo is None:
        when = when.replace(tzinfo=datetime.UTC)
    return when.astimezone().strftime("%Y-%m-%d %H:%M:%S")
