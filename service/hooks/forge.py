"""The forges that may call: which headers they send, how they sign, and who reads their payloads. Pure."""

from __future__ import annotations

import enum
import hashlib
import hmac
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from service.hooks import github, gitlab
from service.hooks.events import Heard, Malformed

LONGEST_ID = 200


class Provider(enum.StrEnum):
    """The last part of a hook's address."""

    GITHUB = "github"
    GITLAB = "gitlab"
    GITEA = "gitea"
    FORGEJO = "forgejo"


@dataclass(frozen=True)
class Forge:
    """One kind of forge. Of each header the first that is there counts.

    ``signs_field``: of a form it signs what stands in the field, and not the body that this is sent in.
    """

    event: tuple[str, ...]
    delivery: tuple[str, ...]
    signature: tuple[str, ...]
    addresses: Callable[[Mapping[str, Any]], list[str]]
    read: Callable[[str, Mapping[str, Any]], Heard]
    signed: bool = True
    signs_field: bool = False


_GITEA = Forge(
    ("x-gitea-event", "x-forgejo-event"),
    ("x-gitea-delivery", "x-forgejo-delivery"),
    ("x-gitea-signature", "x-forgejo-signature", "x-hub-signature-256"),
    github.addresses,
    github.read,
    signs_field=True,
)
FORGES: Mapping[Provider, Forge] = {
    Provider.GITHUB: Forge(
        ("x-github-event",), ("x-github-delivery",), ("x-hub-signature-256",), github.addresses, github.read
    ),
    Provider.GITLAB: Forge(
        ("x-gitlab-event",),
        ("idempotency-key", "x-gitlab-event-uuid"),  # the first stays the same when a delivery is tried again
        ("x-gitlab-token",),
        gitlab.addresses,
        gitlab.read,
        signed=False,
    ),
    Provider.GITEA: _GITEA,
    Provider.FORGEJO: _GITEA,
}


def header(headers: Mapping[str, str], names: Iterable[str]) -> str:
    """The first of these headers that is there; empty if none is."""
    return next((headers[name] for name in names if headers.get(name)), "")


def proven(forge: Forge, headers: Mapping[str, str], body: bytes, secrets: Iterable[str]) -> bool:
    """Whether one of the secrets signed these very bytes (HMAC SHA-256), or for GitLab was sent along.

    Every comparison takes the same time, and all are made.
    """
    sent = header(headers, forge.signature).encode()
    found = False
    for secret in secrets:
        key = secret.encode()
        expected = hmac.new(key, body, hashlib.sha256).hexdigest().encode() if forge.signed else key
        # Both sides are hashed, so that not even the length of a secret shows.
        given = sent.removeprefix(b"sha256=") if forge.signed else sent
        same = hmac.compare_digest(hashlib.sha256(given).digest(), hashlib.sha256(expected).digest())
        found = found or (same and bool(secret))
    return found


def unwrapped(body: bytes, content_type: str) -> bytes:
    """The JSON in a body: the body itself, or in a form the field ``payload``.

    Raises:
        Malformed: it is neither.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind in {"application/json", ""}:
        return body
    if kind != "application/x-www-form-urlencoded":
        raise Malformed(f"Content-Type {kind[:80]!r}: send application/json or application/x-www-form-urlencoded")
    try:
        return parse_qs(body, max_num_fields=20).get(b"payload", [b""])[0]
    except ValueError as error:
        raise Malformed(f"the form cannot be read: {error}") from error


def payload(text: bytes) -> Mapping[str, Any]:
    """What the JSON says.

    Raises:
        Malformed: it is none, or no object.
    """
    try:
        found = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the body is no JSON: {error}") from error
    if not isinstance(found, Mapping):
        raise Malformed("the payload is no JSON object")
    return found


def likeness(one: str, other: str) -> int:
    """How much two addresses name one repository: 0 where they do not, and the more the more of them is the same.

    Forges have one repository under several: scheme, user, port, ``.git`` and a name's case are left out of account.
    But a host may have two servers at two ports, so an address that is the same in these too comes first.
    """
    known, told = _taken_apart(one), _taken_apart(other)
    if known is None or told is None or known.repository != told.repository:
        return 0
    return 1 + ((known.scheme, known.port) == (told.scheme, told.port)) + (known.path == told.path)


LONGEST_ADDRESS = 2000
PORTS = {"https": 443, "http": 80, "ssh": 22, "git": 9418}


@dataclass(frozen=True)
class _Address:
    scheme: str
    host: str
    port: int | None
    path: str

    @property
    def repository(self) -> tuple[str, str]:
        return (self.host, self.path.casefold() if self.host else self.path)


def _taken_apart(address: str) -> _Address | None:
    if not 0 < len(address) <= LONGEST_ADDRESS:  # no such address is registered, and the standard library keeps copies
        return None
    if "://" not in address and ":" in address.partition("/")[0]:  # git@host:path
        host, _, path = address.partition(":")
        address = f"ssh://{host}/{path}"
    try:
        parts = urlsplit(address)
        port = parts.port or PORTS.get(parts.scheme)
    except ValueError:
        return None
    return _Address(parts.scheme, parts.hostname or "", port, parts.path.strip("/").removesuffix(".git"))
