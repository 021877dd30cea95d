"""Follows a job to its end."""

from __future__ import annotations

import sys

import typer
from rich.live import Live

from service.cli import output
from service.cli.live import Progress
from service.cli.render import result_table
from service.client.client import Client
from service.states import JobState

EXIT_CODES = {JobState.PASSED: 0, JobState.FAILED: 1, JobState.BROKEN: 2, JobState.CANCELLED: 130}
LEFT = 130
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
        ended = client.job(job)
        table = client.table(job)
    except KeyboardInterrupt:
        output.note(
            f"job {job} goes on; `replaybench watch {job}` follows it again, `replaybench cancel {job}` ends it"
        )
        return LEFT
    output.show(ended if json else table, result_table(table), json=json)
    if not json:
        typer.echo(f"job {job} {ended.state}: {client.page(ended.url)}")
    return EXIT_CODES[ended.state]


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
