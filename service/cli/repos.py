"""`replaybench repos`: the registered repositories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.options import Json, Limit, Url, path
from service.forges import Forge

if TYPE_CHECKING:
    from collections.abc import Iterable

    from service.repositories.schemas import CredentialInput, CredentialOutput, RepositoryOutput
    from service.statuses.schemas import ForgeInput, ForgeOutput

Name = Annotated[str, typer.Argument(help="The repository's name.", show_default=False)]
ForgeKind = Annotated[Forge | None, typer.Option("--forge", help="Where its commits get statuses.")]
ApiUrl = Annotated[str | None, typer.Option(help="The forge's API. Default: as usual at the git URL's host.")]
Project = Annotated[str | None, typer.Option(help="OWNER/NAME at the forge. Default: from the git URL.")]
Credential = Annotated[
    str | None,
    typer.Option(help="env:NAME or file:NAME of the service, or a token that its database then holds; - reads one."),
]

app = typer.Typer(help="The repositories whose commits may be tested.", no_args_is_help=True)


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="A short name: small letters, digits, dot, dash.", show_default=False)],
    location: Annotated[str, typer.Argument(metavar="GIT-URL", help="What git fetches from.", show_default=False)],
    *,
    forge: ForgeKind = None,
    api_url: ApiUrl = None,
    project: Project = None,
    credential: Credential = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Register a repository. With --forge, its commits get statuses there."""
    from service.cli import output
    from service.cli.connect import connect

    with output.refusing(), connect(url) as client:
        made = client.add_repository(name, location, _forge(forge, api_url, project, credential))
    told = f"; its commits get statuses from {made.forge.api_url} as {made.forge.project}" if made.forge else ""
    output.show(made, f"registered {made.url} as {made.name}{told}", json=json)


@app.command("list")
def list_(*, json: Json = False, url: Url = None) -> None:
    """List the registered repositories."""
    from service.cli import output
    from service.cli.connect import connect
    from service.cli.render import repositories_table

    with connect(url) as client:
        known = client.repositories()
    output.show(known, repositories_table(known), json=json)


@app.command()
def remove(
    name: Name,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Although it has jobs: cancel those that run, keep all as evidence.")
    ] = False,
    json: Json = False,
    url: Url = None,
) -> None:
    """Take a repository away, with its secrets. Its jobs and tables stay readable."""
    from service.cli import output
    from service.cli.connect import connect

    with connect(url) as client:
        gone = client.remove_repository(name, force=force)
    kept = f"; {'its job is' if gone.jobs == 1 else f'its {gone.jobs} jobs are'} kept" if gone.jobs else ""
    output.show(gone, f"removed repository {gone.name}{kept}", json=json)


@app.command()
def forge(
    name: Name,
    *,
    forge: ForgeKind = None,
    api_url: ApiUrl = None,
    project: Project = None,
    credential: Credential = None,
    remove: Annotated[bool, typer.Option("--remove", help="Forget it and its credential.")] = False,
    json: Json = False,
    url: Url = None,
) -> None:
    """Show, set or remove where a repository's commits get statuses."""
    from service.cli import output
    from service.cli.connect import connect

    with output.refusing(), connect(url) as client:
        wanted = _forge(forge, api_url, project, credential)
        if remove:
            client.remove_forge(name)
            output.show({"removed": name}, f"the commits of {name} get no statuses any more", json=json)
            return
        found = client.set_forge(name, wanted) if wanted is not None else _known(client.repositories(), name)
    readable = f"{found.forge}: {found.project} at {found.api_url}, credential {found.credential}"
    output.show(found, readable, json=json)


@app.command()
def credential(
    name: Name,
    *,
    token: Annotated[
        str | None, typer.Option(help="For https: - reads it from standard input; or env:NAME, file:NAME.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="The token's user name. Default: x-access-token.")] = None,
    ssh_key: Annotated[
        str | None, typer.Option(help="For ssh: a private key's FILE, - for standard input; or env:NAME, file:NAME.")
    ] = None,
    known_hosts: Annotated[
        Path | None,
        typer.Option(parser=path, help="A file as `ssh-keyscan HOST` makes it; else the machines' own are used."),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Forget it.")] = False,
    json: Json = False,
    url: Url = None,
) -> None:
    """Show, set or remove what opens a private repository. It is never shown again."""
    from service.cli import output
    from service.cli.connect import connect

    given = "--token" if ssh_key is None else "--ssh-key"
    with output.refusing(credential=given), connect(url) as client:
        if remove:
            client.remove_credential(name)
            output.show({"removed": name}, f"{name} has no credential any more", json=json)
            return
        wanted = _credential(token, user, ssh_key, known_hosts)
        found = client.set_credential(name, wanted) if wanted else _opens(client.repositories(), name)
    readable = f"{found.kind} for {found.host}, {found.credential}" + (f", as {found.user}" if found.user else "")
    output.show(found, readable, json=json)


@app.command()
def statuses(
    name: Annotated[str | None, typer.Argument(help="Of this repository alone.", show_default=False)] = None,
    *,
    limit: Limit = 20,
    json: Json = False,
    url: Url = None,
) -> None:
    """List what forges are told of commits, and what became of it."""
    from service.cli import output
    from service.cli.connect import connect
    from service.cli.render import statuses_table

    with output.refusing(repository="NAME"), connect(url) as client:
        page = client.statuses(repository=name, limit=limit)
    output.show(page.items, statuses_table(page.items), json=json)


@app.command()
def redeliver(
    status: Annotated[int, typer.Argument(metavar="STATUS", help="Its number in `repos statuses`.", min=1)],
    *,
    json: Json = False,
    url: Url = None,
) -> None:
    """Tell a forge a commit's status again."""
    from service.cli import output
    from service.cli.connect import connect

    with connect(url) as client:
        again = client.redeliver_status(status)
    output.show(again, f"status {again.id} is {again.state}", json=json)


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


def _forge(kind: Forge | None, api_url: str | None, project: str | None, credential: str | None) -> ForgeInput | None:
    """What the options say of a forge, if anything."""
    import sys

    from service.cli.errors import UserError
    from service.statuses.schemas import ForgeInput

    if kind is None:
        if any(option is not None for option in (api_url, project, credential)):
            raise UserError("--api-url, --project and --credential are about a --forge; name it")
        return None
    if credential is None:
        raise UserError(
            "--forge needs --credential: env:NAME, file:NAME, a token, or - to read one from standard input"
        )
    token = sys.stdin.readline().strip() if credential == "-" else credential
    return ForgeInput(forge=kind, api_url=api_url, project=project, credential=token)


def _credential(
    token: str | None, user: str | None, ssh_key: str | None, known_hosts: Path | None
) -> CredentialInput | None:
    """What the options say of a credential, if anything."""
    import sys

    from service.cli.errors import UserError
    from service.credentials import ENV, FILE
    from service.repositories.schemas import CredentialInput
    from service.states import CredentialKind

    if token is not None and ssh_key is not None:
        raise UserError("--token and --ssh-key: a repository has one credential; give one of them")
    given = token if token is not None else ssh_key
    if given is None:
        if user is not None or known_hosts is not None:
            raise UserError("--user goes with --token, and --known-hosts with --ssh-key; give that too")
        return None
    if given == "-":
        text = sys.stdin.read().strip()
    elif ENV.fullmatch(given) or FILE.fullmatch(given):
        text = given
    elif token is not None:
        raise UserError("--token: everybody on this machine sees its command lines; give - and pipe the token in")
    elif not given:
        raise UserError("--ssh-key '' names no file; name the private key's, or give - and pipe it in")
    else:
        text = _text(Path(given), "--ssh-key")
    more = {} if user is None else {"user": user}
    if known_hosts is not None:
        more["known_hosts"] = _text(known_hosts, "--known-hosts")
    kind = CredentialKind.TOKEN if token is not None else CredentialKind.SSH_KEY
    return CredentialInput(kind=kind, credential=text, **more)


def _text(file: Path, option: str) -> str:
    from service.cli.errors import UserError

    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{option} {str(file)!r} cannot be read: {error}") from error


def _opens(repositories: Iterable[RepositoryOutput], name: str) -> CredentialOutput:
    from service.cli.errors import UserError

    credential = _registered(repositories, name).credential
    if credential is None:
        raise UserError(f"repository {name!r} has no credential; give --token or --ssh-key")
    return credential


def _known(repositories: Iterable[RepositoryOutput], name: str) -> ForgeOutput:
    from service.cli.errors import UserError

    forge = _registered(repositories, name).forge
    if forge is None:
        raise UserError(f"repository {name!r} has no forge; give --forge and --credential")
    return forge


def _registered(repositories: Iterable[RepositoryOutput], name: str) -> RepositoryOutput:
    from service.cli.errors import UserError

    for repository in repositories:
        if repository.name == name:
            return repository
    raise UserError(f"repository {name!r} is not registered; `replaybench repos list` shows those that are")
