"""Which registered repository a checkout belongs to."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from service.cli.checkout import Checkout, same_place
from service.cli.errors import UserError
from service.client.client import Client, is_loopback
from service.client.errors import ProblemError
from service.repositories.schemas import RepositoryOutput


def repository_of(client: Client, checkout: Checkout, note: Callable[[str], None]) -> str:
    """The name of the registered repository that a checkout belongs to. A service on this machine gets it registered
    where nothing matches, since it can read the checkout itself.

    Raises:
        UserError: nothing matches, or several do.
    """
    found = match(client.repositories(), checkout)
    if found is not None:
        return found
    if not is_loopback(client.url):
        raise UserError(
            f"no repository registered at {client.url} is {checkout.root} or one of its remotes "
            f"{list(checkout.remotes)}; register one with `replaybench repos add NAME URL`, or give --repository"
        )
    added = _register(client, checkout)
    note(f"registered {added.url} as repository {added.name!r}")
    return added.name


def match(known: Sequence[RepositoryOutput], checkout: Checkout) -> str | None:
    """The repository whose URL is this checkout, else the one whose URL is a remote of it.

    Raises:
        UserError: several remotes are registered.
    """
    here = [item.name for item in known if same_place(item.url, str(checkout.root))]
    if here:
        return here[0]
    remote = [item.name for item in known if any(same_place(item.url, url) for url in checkout.remotes)]
    if len(remote) > 1:
        raise UserError(f"remotes of this checkout are registered as {', '.join(remote)}; give one as --repository")
    return remote[0] if remote else None


def short_name(folder: str) -> str:
    """A repository's short name, made of a folder's."""
    return re.sub(r"[^a-z0-9._-]+", "-", folder.lower()).strip("-._")[:90] or "repository"


def _register(client: Client, checkout: Checkout) -> RepositoryOutput:
    name = short_name(checkout.root.name)
    for number in range(1, 100):
        try:
            return client.add_repository(name if number == 1 else f"{name}-{number}", str(checkout.root))
        except ProblemError as error:
            if error.code != "repository-exists":
                raise
    raise UserError(
        f"repositories {name} to {name}-99 exist; register with `replaybench repos add NAME {checkout.root}`"
    )
