"""What a token allows, and who calls with it. Pure: no database, no framework."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class Scope(enum.StrEnum):
    """What a token allows. A wider scope brings the narrower along; ``worker`` stands apart from the others, and so
    does ``enroll``, which is good for one exchange into a worker token and is never asked for by name."""

    READ = "read"
    SUBMIT = "submit"
    WORKER = "worker"
    ADMIN = "admin"
    ENROLL = "enroll"


class AskedScope(enum.StrEnum):
    """What a token may be asked for with."""

    READ = "read"
    SUBMIT = "submit"
    WORKER = "worker"
    ADMIN = "admin"


_BRINGS = {
    Scope.READ: {Scope.READ},
    Scope.SUBMIT: {Scope.READ, Scope.SUBMIT},
    Scope.WORKER: {Scope.WORKER},
    Scope.ADMIN: {Scope.READ, Scope.SUBMIT, Scope.ADMIN},
    Scope.ENROLL: {Scope.ENROLL},
}


def granted(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """These scopes with all that they bring along."""
    return frozenset().union(*(_BRINGS[scope] for scope in scopes))


@dataclass(frozen=True)
class Caller:
    """Who calls. ``scopes`` is all that is granted; ``key`` is what a rate limit counts a token by.

    ``prefix`` is the visible beginning of a stored token. The tokens of the data directory and of the environment show
    none: an operator's own may be short. ``expires_in_s`` is how long the token is still good, where it expires;
    ``token_id`` is a stored one's number, and ``worker`` the name of the only worker that may use it, where there is
    one.
    """

    name: str
    scopes: frozenset[Scope]
    key: str
    address: str = ""
    prefix: str | None = None
    expires_in_s: int | None = None
    token_id: int | None = None
    worker: str | None = None

    def may(self, scope: Scope) -> bool:
        """Whether the caller's token allows this."""
        return scope in self.scopes


def public(address: str) -> Caller:
    """Somebody without a token, where reading is public."""
    return Caller("public", granted([Scope.READ]), "", address)
