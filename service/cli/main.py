"""`replaybench`: the command line."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from service.cli import comparing, evidence, imports, jobs, parts, repos, tokens, webhooks, wording, workers
from service.cli.errors import UserError
from service.cli.submit import submit
from service.client.errors import ClientError, InputError, ProblemError

USAGE = 2


class _Commands(TyperGroup):
    """All commands. What typer says of a value that fits no option or argument is said as of any other value."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            from pydantic import ValidationError  # typer has it by now

            if isinstance(error.__cause__, ValidationError):
                error.message = _value_refused(error.message, error.__cause__.errors()[0])
            raise


def _value_refused(message: str, problem: Mapping[str, Any]) -> str:
    value, why = wording.shown(problem["input"]), wording.reason(message)
    return why if why == message or value in why else f"{value}: {why}"


app = typer.Typer(
    name="replaybench",
    cls=_Commands,
    help="Runs a commit's suites over a matrix of runtimes, and keeps the pass/fail tables as evidence.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

_START, _JOBS, _OPERATE = "Start", "Jobs", "Operate"

app.command(rich_help_panel=_START)(parts.up)
app.command(rich_help_panel=_JOBS)(submit)
for _command in (
    jobs.watch,
    jobs.table,
    comparing.compare,
    comparing.history,
    jobs.export,
    evidence.verify,
    jobs.junit,
    jobs.cancel,
    jobs.approve,
    jobs.rerun,
    jobs.jobs,
):
    _epilog = comparing.CHANGES if _command is comparing.compare else None
    app.command(rich_help_panel=_JOBS, epilog=_epilog)(_command)
app.command("import", rich_help_panel=_JOBS)(imports.import_report)
app.add_typer(repos.app, name="repos", rich_help_panel=_OPERATE)
app.add_typer(tokens.app, name="tokens", rich_help_panel=_OPERATE)
app.add_typer(webhooks.app, name="webhooks", rich_help_panel=_OPERATE)
app.add_typer(workers.app, name="workers", rich_help_panel=_OPERATE)
app.command(rich_help_panel=_OPERATE)(parts.serve)
app.add_typer(parts.worker, name="worker", rich_help_panel=_OPERATE)
app.add_typer(parts.db, name="db", rich_help_panel=_OPERATE)

_WAY_OUT_OF_401 = "set REPLAYBENCH_TOKEN to a token of that service, or REPLAYBENCH_URL to the address of yours"


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"replaybench {version('replaybench')}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Runs a command; what a user can put right ends in one message and exit code 2, never in a traceback."""
    try:
        app()
    except InputError as error:
        _refuse(wording.complaints(error.problems))
    except ProblemError as error:
        _refuse(_told(error))
    except (UserError, ClientError) as error:
        _refuse(str(error))


def _told(error: ProblemError) -> str:
    if error.problems:
        return f"{wording.refusals(error.problems)} ({error.status} {error.code})"
    return f"{error}; {_WAY_OUT_OF_401}" if error.status == HTTPStatus.UNAUTHORIZED else str(error)


def _refuse(message: str) -> None:
    from service.cli.output import clean

    typer.echo(f"replaybench: {clean(message)}", err=True)
    sys.exit(USAGE)


if __name__ == "__main__":
    main()
