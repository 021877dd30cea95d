"""`replaybench tokens`: who may read, submit, work and administer."""

from __future__ import annotations

from typing import Annotated

import typer

from service.access.scopes import AskedScope, Scope
from service.cli.options import Json, Url

app = typer.Typer(help="The tokens with which people, programs and workers come in.", no_args_is_help=True)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Who will hold it: a person, a program.", show_default=False)],
    *,
    scope: Annotated[list[AskedScope], typer.Option(help="What it allows; may be given several times.")],
    days: Annotated[int, typer.Option(help="How long it is good; 0: for ever.", min=0, max=3650)] = 90,
    direct: Annotated[
        bool, typer.Option("--direct", help="Write to this machine's DATABASE_URL, past the service.")
    ] = False,
    json: Json = False,
    url: Url = None,
) -> None:
    """Make a token and print it, this once."""
    from service.access.schemas import TokenInput
    from service.cli import output
    from service.cli.connect import connect
    from service.cli.direct import make_token

    with output.refusing():
        asked = TokenInput(name=name, scopes=[Scope(one) for one in scope], days=days or None)
    if direct:
        made = make_token(asked)
    else:
        with connect(url) as client:
            made = client.create_token(asked)
    if not json:
        output.note(
            f"token {made.id} ({made.name}) is shown this once; what the service keeps cannot be turned into it"
        )
    output.show(made, made.token, json=json)


@app.command("list")
def list_(*, json: Json = False, url: Url = None) -> None:
    """List every token that was ever made, by its visible beginning."""
    from service.cli import output
    from service.cli.connect import connect
    from service.cli.render import tokens_table

    with connect(url) as client:
        known = client.tokens()
    output.show(known, tokens_table(known), json=json)


@app.command()
def revoke(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="Its number or its beginning.", show_default=False)],
    *,
    json: Json = False,
    url: Url = None,
) -> None:
    """End a token for good. The next call with it is refused."""
    from service.cli import output
    from service.cli.connect import connect
    from service.cli.errors import UserError

    with connect(url) as client:
        beginning = token.rstrip("….")
        fitting = [one for one in client.tokens() if token == str(one.id) or beginning == one.prefix]
        if len(fitting) != 1:
            raise UserError(f"token {token!r} is {len(fitting)} tokens; `replaybench tokens list` shows their numbers")
        ended = client.revoke_token(fitting[0].id)
    output.show(ended, f"revoked token {ended.id} ({ended.name}, {ended.prefix}…)", json=json)
