"""What a token allows, and who calls with it. Pure: no database, no framework."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class Scope(enum.StrEnum):
    """What a token allows. A wider scope brings the narrower along; only ``worker`` stands apart from the others."""

    READ = "read"
    SUBMIT = "submit"
    WORKER = "worker"
    ADMIN = "admin"


_BRINGS = {
    Scope.READ: {Scope.READ},
    Scope.SUBMIT: {Scope.READ, Scope.SUBMIT},
    Scope.WORKER: {Scope.WORKER},
    Scope.ADMIN: {Scope.READ, Scope.SUBMIT, Scope.ADMIN},
}


def granted(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """These scopes with all that they bring along."""
    return frozenset().union(*(_BRINGS[scope] for scope in scopes))


@dataclass(frozen=True)
class Caller:
    """Who calls. ``scopes`` is all that is granted; ``key`` is what a rate limit counts a token by.

    ``prefix`` is the visible beginning of a stored token. The tokens of the data directory and of the environment show
    none: an operator's own may be short. ``expires_in_s`` is how long the token is still good, where it expires;
    ``token`` is a stored one's number.
    """

    name: str
    scopes: frozenset[Scope]
    key: str
    address: str = ""
    prefix: str | None = None
    expires_in_s: int | None = None
    token: int | None = None

    def may(self, scope: Scope) -> bool:
        """Whether the caller's token allows this."""
        return scope in self.scopes


def public(address: str) -> Caller:
    """Somebody without a token, where reading is public."""
    return Caller("public", granted([Scope.READ]), "", address)
