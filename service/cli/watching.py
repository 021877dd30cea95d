"""Follows a job to its end."""

from __future__ import annotations

import sys

import typer
from rich.live import Live

from service.cli import output
from service.cli.live import Progress
from service.cli.render import result_table, stated
from service.client.client import Client
from service.results.table import ORDER
from service.states import JobState
from worker.messages import Outcome

EXIT_CODES = {JobState.PASSED: 0, JobState.FAILED: 1, JobState.BROKEN: 2, JobState.CANCELLED: 130}
LEFT = 130
FAILURES = (Outcome.FAILED, Outcome.ERROR, Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.NOT_OBSERVED)
QUIET = {JobState.PASSED, JobState.CANCELLED}  # of the latter, the cases that were not run are no news
MOST_FAILURES = 20
MOST_LETTERS = 400
TABLE_MARGIN = 6  # head, rules and summary


def follow(client: Client, job: int, *, json: bool = False) -> int:
    """Shows a job's progress until it has ended, then its table; returns the exit code that its state stands for.

    Ctrl-C ends the watching and not the job.
    """
    try:
        if sys.stdout.isatty() and not json:
            _live(client, job)
        else:
            _lines(client, job, err=json)
        return conclude(client, job, json=json)
    except KeyboardInterrupt:
        output.note(
            f"job {job} goes on; `replaybench watch {job}` follows it again, `replaybench cancel {job}` ends it"
        )
        return LEFT


def conclude(client: Client, job: int, *, json: bool = False) -> int:
    """Shows an ended job's table and first failures; returns the exit code that its state stands for."""
    ended, table = client.job(job), client.table(job)
    failures = [] if json or ended.state in QUIET else _failures(client, job)
    output.show(ended if json else table, result_table(table), json=json)
    for failure in failures:
        typer.echo(failure)
    if not json:
        why = f" ({ended.detail})" if ended.detail else ""
        typer.echo(output.line(f"job {job} {stated(ended)}{why}: {client.page(ended.url)}"))
    return EXIT_CODES[ended.state]


def _failures(client: Client, job: int) -> list[str]:
    """The first cases that did not pass, a line each."""
    found: list[str] = []
    for cell in client.cells(job):
        if cell.attempt is None or not any(cell.counts.get(outcome) for outcome in FAILURES):
            continue
        for outcome in FAILURES:
            for case in client.cases(cell.attempt, outcome=outcome.value):
                if len(found) == MOST_FAILURES:
                    return [*found, "… the job's page has all of them"]
                why = f"{case.failure_class}: {case.message}" if case.failure_class else case.message
                told = f"{ORDER[outcome].upper()} {case.node_id} in {cell.name}: {why}"
                found.append(output.line(told)[:MOST_LETTERS])
    return found


def _live(client: Client, job: int) -> None:
    progress = Progress()
    console = output.console()
    with Live(
        console=console,
        get_renderable=lambda: progress.render(max(5, console.height - TABLE_MARGIN)),
        refresh_per_second=5,
        transient=True,
    ):
        for snapshot in client.follow(job):
            progress.take(snapshot)


def _lines(client: Client, job: int, *, err: bool) -> None:
    progress = Progress(lambda words: typer.echo(output.line(words), err=err))
    for snapshot in client.follow(job):
        progress.take(snapshot)
        sys.stdout.flush()
