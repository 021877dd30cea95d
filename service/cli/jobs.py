"""The commands about jobs that exist: `watch`, `table`, `export`, `junit`, `cancel`, `approve`, `rerun`, `jobs`."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.options import JobId, Json, Url, path
from service.states import CellState

if TYPE_CHECKING:
    from service.jobs.schemas import CancelOutput


_Output = Annotated[Path | None, typer.Option(parser=path, help="The file to write. Default: standard output.")]


class Format(enum.StrEnum):
    """How a table is written."""

    TEXT = "text"
    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"


def watch(job: JobId, *, json: Json = False, url: Url = None) -> None:
    """Follow a job to its end. Exits 0 if it passed, 1 if a test failed, 2 if it is broken, 130 if it was cancelled."""
    from service.cli import watching
    from service.cli.connect import connect

    with connect(url) as client:
        raise typer.Exit(watching.follow(client, job, json=json))


def table(
    job: JobId,
    *,
    form: Annotated[Format, typer.Option("--format", help="How to write it.")] = Format.TEXT,
    json: Json = False,
    url: Url = None,
) -> None:
    """Print a job's table."""
    from service.cli import output
    from service.cli.connect import connect
    from service.cli.render import result_table

    with connect(url) as client:
        form = Format.JSON if json else form
        if form is Format.TEXT:
            result = client.table(job)
            output.show(result, result_table(result), json=False)
        else:
            written = client.table_text(job, form.value).rstrip("\n")
            typer.echo(output.clean_json(written) if form is Format.JSON else output.clean(written))


def export(
    job: JobId,
    *,
    output: _Output = None,
    url: Url = None,
) -> None:
    """Export a job's evidence: its table with the attempts and cases behind every row, as JSON that can be checked."""
    from service.cli.connect import connect
    from service.cli.output import clean_json
    from service.client.evidence import export as read

    with connect(url) as client:
        _write(clean_json(read(client, job).model_dump_json(indent=1)), output)


def junit(
    job: JobId,
    *,
    attempt: Annotated[
        int | None, typer.Option(help="Only this attempt's. Default: those that the table shows.", show_default=False)
    ] = None,
    output: _Output = None,
    url: Url = None,
) -> None:
    """Export a job's cases as JUnit XML, a suite for each cell."""
    from service.cli.connect import connect
    from service.cli.errors import UserError

    with connect(url) as client:
        if attempt is not None and client.cell(client.attempt(attempt).cell).job != job:
            raise UserError(f"--attempt {attempt} is not one of job {job}; `replaybench export {job}` lists them")
        _write(client.junit(job=job, attempt=attempt), output)


def _write(text: str, output: Path | None) -> None:
    from service.cli.errors import UserError

    if output is None:
        typer.echo(text.rstrip("\n"))
        return
    try:
        output.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{output} cannot be written: {error.strerror}; name another file with --output") from error


def cancel(job: JobId, *, json: Json = False, url: Url = None) -> None:
    """Cancel a job: what waits never starts, what runs is stopped as soon as its worker is told."""
    from service.cli import output
    from service.cli.connect import connect

    with connect(url) as client:
        made = client.cancel(job)
    output.show(made, _cancelled(made), json=json)


def _cancelled(made: CancelOutput) -> str:
    if made.state.ended:
        return f"job {made.id} {made.state}"
    running = sum(made.cells.get(state, 0) for state in CellState if state is not CellState.ENDED)
    cells = (
        "1 cell still runs, and its worker is" if running == 1 else f"{running} cells still run, and their workers are"
    )
    return (
        f"job {made.id} is being cancelled: {cells} told to stop within {made.told_within_s:.0f} s; "
        f"`replaybench watch {made.id}` follows it to its end"
    )


def approve(job: JobId, *, json: Json = False, url: Url = None) -> None:
    """Let the job of a fork's pull request run. Read its changes first: it is somebody else's code on your workers."""
    from service.cli import output
    from service.cli.connect import connect
    from service.cli.submission import user

    with output.refusing(), connect(url) as client:
        made = client.approve(job, user())
    output.show(made, f"job {made.id} {made.state}: {client.page(made.url)}", json=json)


def rerun(
    job: JobId,
    *,
    cell: Annotated[
        list[int] | None,
        typer.Option(
            help="A cell's number; several are allowed. Default: those that did not pass.", show_default=False
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it to its end, as `watch` does.")] = False,
    json: Json = False,
    url: Url = None,
) -> None:
    """Run cells of a job again."""
    from service.cli import output, watching
    from service.cli.connect import connect

    with output.refusing(), connect(url) as client:
        made = client.rerun(job, cell or None)
        if watch:
            raise typer.Exit(watching.follow(client, job, json=json))
    output.show(made, f"job {made.id} {made.state}: {client.page(made.url)}", json=json)


def jobs(
    *,
    limit: Annotated[int, typer.Option(help="How many.", min=1, max=200)] = 20,
    before: Annotated[int | None, typer.Option(help="Only jobs older than this one.", show_default=False)] = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """List the latest jobs, newest first."""
    from service.cli import output
    from service.cli.connect import connect
    from service.cli.render import jobs_table

    with connect(url) as client:
        page = client.jobs(limit=limit, before=before)
    output.show(page.items, jobs_table(page.items), json=json)
