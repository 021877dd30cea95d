"""`replaybench repos`: the registered repositories."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.options import Json, Url

app = typer.Typer(help="The repositories whose commits may be tested.", no_args_is_help=True)


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="A short name: small letters, digits, dot, dash.", show_default=False)],
    location: Annotated[str, typer.Argument(metavar="GIT-URL", help="What git fetches from.", show_default=False)],
    *,
    json: Json = False,
    url: Url = None,
) -> None:
    """Register a repository."""
    from pydantic import ValidationError

    from service.cli import output
    from service.cli.connect import connect
    from service.cli.errors import UserError

    with connect(url) as client:
        try:
            made = client.add_repository(name, location)
        except ValidationError as error:
            problem = error.errors()[0]
            raise UserError(f"{problem['loc'][0]} {problem['input']!r}: {problem['msg']}") from error
    output.show(made, f"registered {made.url} as {made.name}", json=json)


@app.command("list")
def list_(*, json: Json = False, url: Url = None) -> None:
    """List the registered repositories."""
    from service.cli import output
    from service.cli.connect import connect
    from service.cli.render import repositories_table

    with connect(url) as client:
        known = client.repositories()
    output.show(known, repositories_table(known), json=json)


@app.command("hook-secret")
def hook_secret(
    name: Annotated[str, typer.Argument(help="The repository's name.", show_default=False)],
    *,
    json: Json = False,
    url: Url = None,
) -> None:
    """Make a secret for a repository's webhook; it is told this once. The one before it counts until the next."""
    from service.cli import output
    from service.cli.connect import connect

    with connect(url) as client:
        made = client.add_hook_secret(name)
        address = client.page("/hooks/FORGE")
    output.show(made, f"{made.secret}\nAddress: {address}, where FORGE is github, gitlab, gitea or forgejo", json=json)
