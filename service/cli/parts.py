"""The commands that run the system or a part of it: `up`, `serve`, `worker`, `db`."""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer

from service.cli.options import DataDir

db = typer.Typer(help="The database.", no_args_is_help=True)
worker = typer.Typer(invoke_without_command=True)


def up(
    *,
    data_dir: DataDir = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="The service's port; 0 takes a free one. Default: REPLAYBENCH_PORT, else 8321.", min=0, max=65535
        ),
    ] = None,
    no_worker: Annotated[bool, typer.Option("--no-worker", help="Only broker and service.")] = False,
) -> None:
    """Run the whole system on this machine's loopback interface: broker, service, one worker, SQLite."""
    import os

    from service.cli import output
    from service.cli.connect import load_settings
    from service.cli.errors import UserError
    from service.up import embedded
    from service.up.errors import UpError
    from service.variables import unread

    known = load_settings()
    for sentence in unread(os.environ):
        output.note(sentence)
    try:
        code = embedded.run(
            data_dir or known.data_dir,
            known.port if port is None else port,
            worker=not no_worker,
            say=typer.echo,
        )
    except UpError as error:
        raise UserError(str(error)) from error
    raise typer.Exit(code)


def serve(
    *,
    host: Annotated[
        str | None, typer.Option(help="Default: REPLAYBENCH_HOST, else 127.0.0.1.", show_default=False)
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Default: REPLAYBENCH_PORT, else 8321.", min=0, max=65535, show_default=False)
    ] = None,
) -> None:
    """Run the service alone, on DATABASE_URL and BROKER_URL."""
    import gc
    import os

    import structlog
    import uvicorn

    from service.app import create_app
    from service.cli.connect import load_settings
    from service.logs import configure
    from service.variables import unread

    known = load_settings()
    chosen = {"host": host or known.host, "port": known.port if port is None else port}
    known = known.model_copy(update=chosen)
    configure(known.log_level)
    for sentence in unread(os.environ):
        structlog.get_logger().warning("setting-unread", detail=sentence)
    app = create_app(known)
    # What is loaded by now stays for good. To look through it for garbage stops everybody for a tenth of a second.
    gc.collect()
    gc.freeze()
    uvicorn.run(
        app,
        host=known.host,
        port=known.port,
        log_level=known.log_level,
        timeout_graceful_shutdown=3,  # a live stream would otherwise hold a stop for as long as somebody watches
    )


@worker.callback()
def run_worker(
    context: typer.Context,
    *,
    enroll: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", help="Exchange an enrolment token, and end; - reads one.", show_default=False),
    ] = None,
    service: Annotated[
        str | None, typer.Option(metavar="URL", help="The service to enroll with.", show_default=False)
    ] = None,
) -> None:
    """Run a worker alone, or look after what it keeps on this machine. Its settings are BROKER_URL, and those that its
    enrolment left: else REPLAYBENCH_SERVICE_URL and REPLAYBENCH_WORKER_TOKEN_FILE.
    """
    asked = [word for pair in (("--enroll", enroll), ("--service", service)) if pair[1] is not None for word in pair]
    if context.invoked_subcommand is None:
        _become_worker(*map(str, asked))
    if asked:
        context.fail(f"{asked[0]} goes with no command; leave out {context.invoked_subcommand}")


@worker.command()
def gpus() -> None:
    """Print this machine's cards as JSON: what each has, why it is drained, and who computes on it."""
    _become_worker("gpus")


@worker.command()
def clear(
    card: Annotated[str, typer.Argument(metavar="CARD", help="Its index or its UUID.", show_default=False)],
) -> None:
    """Let a card whose fault stays have cells again, once the cause is gone."""
    _become_worker("clear", card)


@worker.command()
def spools() -> None:
    """List, as JSON, what attempts had to say and the service could not take."""
    _become_worker("spools")


@worker.command()
def deliver() -> None:
    """Send those spools that are of this worker to the service once more."""
    _become_worker("deliver")


def _become_worker(*words: str) -> NoReturn:
    import os
    import sys

    os.execv(sys.executable, [sys.executable, "-P", "-m", "worker", *words])  # noqa: S606 -- no shell is wanted


@db.command("upgrade")
def upgrade() -> None:
    """Bring the database's tables to this version."""
    from service.cli.connect import load_settings
    from service.database import upgrade as run

    known = load_settings()
    run(known.database)
    typer.echo("the database is up to date")
