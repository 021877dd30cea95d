"""`replaybench compare` and `replaybench history`."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.options import Json, Url
from service.compare.comparison import MEANING

if TYPE_CHECKING:
    from service.client.client import Client
    from service.compare.schemas import CompareOutput

CHANGES = "\n\n".join(
    ["What becomes of a case:", *(f"{change.replace('-', ' ')}: {meaning}" for change, meaning in MEANING.items())]
)
"""The help's last words: a line for each change."""
BROKE, NOT_COMPARED = 1, 2
PAGE = 1000

Repository = Annotated[
    str | None,
    typer.Option(help="A registered repository. Default: the one that this checkout belongs to.", show_default=False),
]


class Format(enum.StrEnum):
    """How a comparison is written."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"


def compare(
    base: Annotated[
        str | None,
        typer.Argument(
            metavar="BASE",
            help="The tree before: a commit, branch or tag, as for `submit --tree`; or bb3c0b8+probe:1f2e3d.",
            show_default=False,
        ),
    ] = None,
    head: Annotated[
        str | None, typer.Argument(metavar="HEAD", help="The tree now, to compare with BASE.", show_default=False)
    ] = None,
    *,
    job: Annotated[
        int | None, typer.Option(help="Only this job's attempts; its own trees by default.", min=1, show_default=False)
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="How to write it.")] = Format.TEXT,
    json: Json = False,
    repository: Repository = None,
    url: Url = None,
) -> None:
    """Compare two trees case by case. Exits 1 if something broke, 2 if nothing did but not all could be compared.

    Not compared is also a case that passed in BASE, and is skipped, gone, not observed or expected to fail in HEAD.
    What one tree alone was asked for is told, and does not count.
    """
    from service.cli import output
    from service.cli.connect import connect
    from service.cli.errors import UserError
    from service.cli.render import compare_text

    if job is None and (base is None or head is None):
        raise UserError("compare needs two trees, BASE and HEAD, or --job with a job that has two")
    if base is not None and head is None:
        raise UserError(
            f"compare --job {job} takes both trees, BASE and HEAD, or none for the job's own; {base} is one"
        )
    base, head = (name and _resolved(name) for name in (base, head))
    with connect(url) as client:
        name = repository if repository or job else _here(client)
        found = _whole(client, name, base, head, job)
    if json or form is Format.JSON:
        typer.echo(output.clean_json(found.model_dump_json(indent=2)))
    elif form is Format.MARKDOWN:
        from service.compare.markdown import markdown

        typer.echo(output.clean(markdown(found)).rstrip("\n"))
    else:
        output.show(found, compare_text(found), json=False)
    raise typer.Exit(BROKE if found.broke else 0 if found.complete else NOT_COMPARED)


def _here(client: Client) -> str:
    from service.cli import checkout, output
    from service.cli.registry import repository_of

    return repository_of(client, checkout.read(Path.cwd()), output.note)


def _resolved(name: str) -> str:
    """A tree's name as it is to be sent: what is meant from this checkout, like HEAD~1, becomes a commit here."""
    from service.cli import checkout

    ref, plus, probe = name.partition("+probe:")
    return f"{checkout.read(Path.cwd()).resolve(ref)}{plus}{probe}" if checkout.is_own(ref) else name


def _whole(
    client: Client, repository: str | None, base: str | None, head: str | None, job: int | None
) -> CompareOutput:
    """The comparison with every page of its cases."""
    after, cases = None, []
    while True:
        page = client.compare(repository=repository, base=base, head=head, job=job, after=after, limit=PAGE)
        cases += page.cases
        if page.next is None:
            return page.model_copy(update={"cases": cases})
        after = page.next.partition("=")[2]


def history(
    node_id: Annotated[str, typer.Argument(metavar="NODE_ID", help="As pytest names it.", show_default=False)],
    *,
    suite: Annotated[str | None, typer.Option(help="Only of this suite.", show_default=False)] = None,
    repository: Repository = None,
    limit: Annotated[int, typer.Option(help="How many.", min=1, max=500)] = 50,
    before: Annotated[
        int | None, typer.Option(help="Only observations older than this one.", min=1, show_default=False)
    ] = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Show what became of one case over trees and runtimes, newest first."""
    from service.cli import output
    from service.cli.connect import connect
    from service.cli.render import history_table

    with connect(url) as client:
        page = client.history(repository or _here(client), node_id, suite=suite, before=before, limit=limit)
    output.show(page.items, history_table(page.items), json=json)
    if page.next:
        output.note(f"older ones follow: add --{page.next.replace('=', ' ')}")
    if not page.items:
        output.note("no deciding attempt has observed this case; give the node id as a job's page shows it")
