"""The credential of a private repository: for the service's own mirror, and for a worker with its lease."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from service import credentials
from service.clock import now
from service.credentials import SSH_KEY, TOKEN, CredentialUnusable
from service.database import Database
from service.errors import CredentialRefused, MirrorFailed, NotFound
from service.models import Repository, RepositoryCredential
from service.outgoing.address import SETTING, Private, literal
from service.repositories.schemas import CredentialInput, CredentialOutput
from service.settings import Settings
from service.states import CredentialKind
from worker.gitaccess.access import Credential
from worker.gitaccess.address import AddressRefused, Place, check
from worker.messages import GitCredential

FORMS = {CredentialKind.TOKEN: TOKEN, CredentialKind.SSH_KEY: SSH_KEY}
SCHEMES = {CredentialKind.TOKEN: ("https", "http"), CredentialKind.SSH_KEY: ("ssh",)}


def put(session: Session, repository: Repository, body: CredentialInput, settings: Settings) -> RepositoryCredential:
    """Gives a repository its credential, in place of the one before.

    Raises:
        CredentialRefused: it is not of its form, or may not be sent to the repository's address.
    """
    place = _place(repository.url, body.kind, settings)
    try:
        credentials.check(body.credential, place.host, settings, FORMS[body.kind])
    except CredentialUnusable as error:
        raise CredentialRefused(str(error)) from error
    found = session.get(RepositoryCredential, repository.id, with_for_update=True)
    if found is None:
        found = RepositoryCredential(repository_id=repository.id)
        session.add(found)
    found.kind, found.credential, found.changed_at = body.kind, body.credential.strip(), now()
    found.user = body.user if body.kind is CredentialKind.TOKEN else ""
    found.known_hosts = body.known_hosts.strip() if body.kind is CredentialKind.SSH_KEY else ""
    session.flush()
    return found


def _place(url: str, kind: CredentialKind, settings: Settings) -> Place:
    try:
        place = check(url)
    except AddressRefused as error:
        raise CredentialRefused(str(error)) from error
    if place is None or place.scheme not in SCHEMES[kind]:
        wanted = "https://" if kind is CredentialKind.TOKEN else "ssh://… or user@host:path"
        raise CredentialRefused(f"{url} takes no {kind}: register the repository as {wanted}, under another name")
    if place.scheme == "http" and not _may_be_read_by_others(place.host, settings):
        raise CredentialRefused(
            f"{url} would carry the token readable by everybody on the way; register https, or name {place.host} in "
            f"{SETTING}"
        )
    return place


def _may_be_read_by_others(host: str, settings: Settings) -> bool:
    private = Private.parse(settings.private_targets)
    address = literal(host)
    return private.names(host, address) if address else host in private.hosts


def remove(session: Session, repository: Repository) -> None:
    """Forgets a repository's credential.

    Raises:
        NotFound: it has none.
    """
    found = session.get(RepositoryCredential, repository.id, with_for_update=True)
    if found is None:
        raise NotFound(f"repository {repository.name!r} has no credential")
    session.delete(found)


def outputs(session: Session) -> Mapping[int, CredentialOutput]:
    """What is shown of every credential, by its repository's number."""
    rows = session.execute(select(RepositoryCredential, Repository.url).join(RepositoryCredential.repository))
    return {row.repository_id: output(row, url) for row, url in rows}


def output(row: RepositoryCredential, url: str) -> CredentialOutput:
    """What is shown of a credential: never itself."""
    place = check(url)
    return CredentialOutput(
        kind=row.kind,
        credential=credentials.shown(row.credential),
        user=row.user,
        host=place.host if place else "",
        known_hosts=bool(row.known_hosts),
        changed_at=row.changed_at,
    )


def for_worker(session: Session, repository: Repository, settings: Settings) -> GitCredential | None:
    """What goes along with a lease; nothing for a repository without a credential."""
    row = session.get(RepositoryCredential, repository.id)
    if row is None:
        return None
    try:
        place = _place(repository.url, row.kind, settings)
        text = credentials.resolve(row.credential, place.host, settings, FORMS[row.kind])
    except (CredentialUnusable, CredentialRefused) as error:
        return GitCredential(fault=f"repository {repository.name}: {error}")
    key = row.kind is CredentialKind.SSH_KEY
    return GitCredential(row.user, "" if key else text, text if key else "", row.known_hosts)


def for_mirror(database: Database, settings: Settings, repository_id: int) -> Credential | None:
    """What the service's own git needs; nothing for a repository without a credential.

    Raises:
        MirrorFailed: the credential is not there, or may not be sent.
    """
    with database.read() as session:
        repository = session.get_one(Repository, repository_id)
        given = for_worker(session, repository, settings)
    if given is None:
        return None
    place = check(repository.url)
    if given.fault or place is None:
        raise MirrorFailed(given.fault or f"{repository.url} takes no credential")
    return Credential(place, given.user, given.token, given.ssh_key, given.known_hosts)
