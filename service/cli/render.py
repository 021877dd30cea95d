"""The tables of the command line, made of the API's answers."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Group
from rich.table import Table

from service.access.schemas import TokenOutput
from service.cli.output import text
from service.compare.comparison import MEANING, Change, conclusion
from service.compare.markdown import alone, named, observed, sentence, words
from service.compare.markdown import counted as changes
from service.compare.schemas import CompareOutput, HistoryEntry
from service.jobs.schemas import CellOutput, JobOutput, PlanOutput
from service.repositories.schemas import RepositoryOutput
from service.results import table as log_table
from service.results.schemas import TableOutput
from service.states import CellState, JobState, Origin, SendState
from service.statuses.schemas import StatusOutput
from service.webhooks.schemas import DeliveryOutput, WebhookOutput
from service.workers.schemas import WorkerOutput
from worker.messages import Verdict

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
SENT: Mapping[str, str] = {SendState.DELIVERED: "green", SendState.GAVE_UP: "red"}


def grid(*columns: str) -> Table:
    """An empty table. Names are wrapped, never cut: they are there to be copied."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def counted(counts: Mapping[str, int]) -> str:
    """Counts as a table says them: ``18 failed, 9 passed``."""
    return log_table.result(counts, None)


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
    """A job's table, with the columns that it has in the log."""
    columns = log_table.columns(result)
    shown = grid(*(heading for heading, _ in columns))
    shown.caption = text(result.detail) if result.detail else None
    for row in result.rows:
        again = f" (attempt {row.attempts})" if row.attempts > 1 else ""
        style = STYLES.get(row.verdict or "", "")
        fields = zip((field for _, field in columns), log_table.cells(result, row), strict=True)
        shown.add_row(*(text(told + again, style) if field == "result" else text(told) for field, told in fields))
    return shown


_CHANGES: Mapping[str, str] = {Change.BROKEN: "red", Change.FAILING_DIFFERENTLY: "red", Change.FIXED: "green"}


def compare_text(found: CompareOutput) -> Group:
    """Two trees: the pairs, each case that does not pass as before, and what the words for a change mean."""
    pairs = grid("Runtime", "Suite", "Cases", "Note")
    for pair in found.pairs:
        cells = [pair.runtime_title, pair.suite, changes(pair.counts), pair.note]
        pairs.add_row(*(text(cell, "red" if pair.broke else "") for cell in cells))
    cases = grid("Change", "Runtime", "Suite", "Case", found.base.name, found.head.name)
    for case in found.cases:
        told = [case.runtime, case.suite, named(case), observed(case.base), observed(case.head)]
        cases.add_row(text(words(case.change), _CHANGES.get(case.change, "")), *map(text, told))
    meaning = [text(f"{words(change)}: {MEANING[Change(change)]}") for change in found.counts]
    last = text(conclusion(broke=found.broke, complete=found.complete), "red" if found.broke else "")
    notes = [text(line) for line in alone(found)]
    return Group(text(sentence(found)), pairs, *notes, *([cases] if found.cases else []), *meaning, text(""), last)


def history_table(entries: Sequence[HistoryEntry]) -> Table:
    """One case over trees, newest first; with the origin where one was imported."""
    imported = any(entry.origin is Origin.IMPORTED for entry in entries)
    origin = ["Origin"] if imported else []
    table = grid("Ended", "Tree", "Runtime", "Suite", *origin, "Outcome", "GPU", "Job", "Attempt")
    for entry in entries:
        failed = entry.failure_class is not None
        outcome = f"{entry.outcome} ({entry.failure_class})" if failed else str(entry.outcome)
        table.add_row(
            text(moment(entry.ended_at) if entry.ended_at else ""),
            text(entry.tree),
            text(entry.runtime_title),
            text(entry.suite),
            *([text(entry.origin)] if imported else []),
            text(outcome, "red" if failed else ""),
            *(text(value) for value in (entry.gpu, entry.job, entry.attempt)),
        )
    return table


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
    table = grid("Name", "URL", "Statuses", "Credential", "Registered")
    for item in repositories:
        forge = f"{item.forge.forge} {item.forge.project}" if item.forge else ""
        opens = f"{item.credential.kind} {item.credential.credential}" if item.credential else ""
        table.add_row(text(item.name), text(item.url), text(forge), text(opens), text(moment(item.created_at)))
    return table


def tokens_table(tokens: Sequence[TokenOutput]) -> Table:
    """The tokens that were ever made."""
    table = grid("Token", "Begins", "Name", "Scopes", "State", "Expires", "Last used", "Made by")
    for item in tokens:
        table.add_row(
            text(item.id),
            text(f"{item.prefix}…"),
            text(item.name),
            text(", ".join(item.scopes)),
            text(item.state, "" if item.state == "active" else "red"),
            text(moment(item.expires_at) if item.expires_at else "never"),
            text(moment(item.used_at) if item.used_at else "never"),
            text(item.created_by),
        )
    return table


def statuses_table(statuses: Sequence[StatusOutput]) -> Table:
    """What forges are told of commits."""
    table = grid("Status", "Repository", "Commit", "Context", "Says", "Job", "Delivery", "Detail")
    for item in statuses:
        table.add_row(
            text(item.id),
            text(item.repository),
            text(item.commit[:12]),
            text(item.context),
            text(f"{item.wanted}: {item.text}"),
            text(item.job),
            text(_sent(item), SENT.get(item.state, "")),
            text(item.detail),
        )
    return table


def webhooks_table(webhooks: Sequence[WebhookOutput]) -> Table:
    """The webhooks."""
    table = grid("Webhook", "URL", "Events", "Repository", "State")
    for item in webhooks:
        disabled = f"disabled {moment(item.disabled_at)}: {item.disabled_why}" if item.disabled_at else ""
        both = f"two secrets until {moment(item.old_secret_until)}" if item.old_secret_until else ""
        table.add_row(
            text(item.id),
            text(item.url),
            text(", ".join(item.events)),
            text(item.repository or "all"),
            text("; ".join(filter(None, [disabled, both])), "red" if disabled else ""),
        )
    return table


def deliveries_table(deliveries: Sequence[DeliveryOutput]) -> Table:
    """Events on their way to webhooks."""
    table = grid("Delivery", "Webhook", "Event", "Job", "Created", "Delivery", "Detail")
    for item in deliveries:
        table.add_row(
            text(item.id),
            text(f"{item.webhook} {item.url}"),
            text(item.event),
            text(item.job),
            text(moment(item.created_at)),
            text(_sent(item), SENT.get(item.state, "")),
            text(item.detail),
        )
    return table


def _sent(item: StatusOutput | DeliveryOutput) -> str:
    tried = f", {item.tries} tries" if item.tries > 1 else ""
    answer = f" ({item.status})" if item.status else ""
    due = f", next {moment(item.next_try_at)}" if item.next_try_at and item.tries else ""
    return f"{item.state}{answer}{tried}{due}"


def workers_table(workers: Sequence[WorkerOutput]) -> Table:
    """The workers, and what each can serve."""
    table = grid("Worker", "Host", "Heard from", "Kinds", "Devices", "Host runtimes")
    for item in workers:
        able = item.capabilities
        devices = [
            str(device.get("model", "?")) + (f" (drained: {device['drained']})" if device.get("drained") else "")
            for device in able.get("devices") or []
        ]
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
