"""`replaybench workers`: who serves cells, and how a machine becomes one of them."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.options import Json, Url

app = typer.Typer(help="List the workers, and let new ones in.", invoke_without_command=True)


@app.callback()
def list_(context: typer.Context, *, json: Json = False, url: Url = None) -> None:
    """List the workers, and what each can serve; with a command, let new ones in."""
    if context.invoked_subcommand is not None:
        return
    from service.cli import output
    from service.cli.connect import connect
    from service.cli.render import workers_table

    with connect(url) as client:
        known = client.workers()
    output.show(known, workers_table(known), json=json)


@app.command()
def enroll(
    name: Annotated[str, typer.Argument(help="The worker's name, for good.", show_default=False)],
    *,
    minutes: Annotated[int, typer.Option(help="How long the token is good.", min=1, max=10_080)] = 60,
    json: Json = False,
    url: Url = None,
) -> None:
    """Make a token that the worker NAME exchanges for one of its own, once. Enrolling a name again ends its earlier
    token as soon as the new one is exchanged.
    """
    from service.cli import output
    from service.cli.connect import connect
    from service.words import number
    from service.workers.schemas import EnrolmentInput

    with output.refusing():
        asked = EnrolmentInput(worker=name, minutes=minutes)
    with connect(url) as client:
        made = client.enroll_worker(asked)
    if not json:
        command = f"replaybench worker --enroll TOKEN --service {client.url}"
        output.note(f"good once, for {number(minutes, 'minute')}; on the worker's machine: {command}")
    output.show(made, made.token, json=json)
