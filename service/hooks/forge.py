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
    """One kind of forge. Of each header the first that is there counts."""

    event: tuple[str, ...]
    delivery: tuple[str, ...]
    signature: tuple[str, ...]
    addresses: Callable[[Mapping[str, Any]], list[str]]
    read: Callable[[str, Mapping[str, Any]], Heard]
    signed: bool = True


_GITEA = Forge(
    ("x-gitea-event", "x-forgejo-event"),
    ("x-gitea-delivery", "x-forgejo-delivery"),
    ("x-gitea-signature", "x-forgejo-signature", "x-hub-signature-256"),
    github.addresses,
    github.read,
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


def payload(body: bytes, content_type: str) -> Mapping[str, Any]:
    """The payload of a body: JSON, or a form whose field ``payload`` is JSON.

    Raises:
        Malformed: it is neither.
    """
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind == "application/x-www-form-urlencoded":
            fields = parse_qs(body.decode(), max_num_fields=20)
            text = fields.get("payload", [""])[0]
        elif kind in {"application/json", ""}:
            text = body.decode()
        else:
            raise Malformed(f"Content-Type {kind[:80]!r}: send application/json or application/x-www-form-urlencoded")
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, Malformed) else Malformed(f"the body is no JSON: {error}") from error
    if not isinstance(found, Mapping):
        raise Malformed("the payload is no JSON object")
    return found


def same_repository(one: str, other: str) -> bool:
    """Whether two addresses name one repository: scheme, user, port and ``.git`` are left out of account."""
    return _plain(one) == _plain(other)


def _plain(address: str) -> tuple[str, str]:
    if "://" not in address and ":" in address.partition("/")[0]:  # git@host:path
        host, _, path = address.partition(":")
        address = f"ssh://{host}/{path}"
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
    except ValueError:
        return address, ""
    return host, parts.path.strip("/").removesuffix(".git")
