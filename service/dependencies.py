"""What endpoints ask for: a transaction, the settings, the signed-in caller."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, Header, Request
from sqlalchemy.orm import Session

from service.database import Database
from service.errors import TokenMissing, TokenRefused
from service.settings import Settings
from service.tokens import Scope, Tokens, path

COOKIE = "replaybench_session"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def get_settings(request: Request) -> Settings:
    """The settings that the application was made with."""
    settings: Settings = request.app.state.settings
    return settings


def get_database(request: Request) -> Database:
    """The application's database."""
    database: Database = request.app.state.database
    return database


def _read(request: Request) -> Iterator[Session]:
    with get_database(request).read() as session:
        yield session


# Only for endpoints that answer a Response. FastAPI makes any other answer in a thread of the pool that requests share,
# while the transaction is open: when all those threads wait for a lock or a connection that this one holds, none is
# left to let it end. Such endpoints, and all that write, open their transaction themselves: `with database.write()`.
ReadSession = Annotated[Session, Depends(_read, scope="function")]
SettingsDep = Annotated[Settings, Depends(get_settings)]
DatabaseDep = Annotated[Database, Depends(get_database)]


IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        pattern=r"^[!-~]+$",
        description="Chosen by the caller. The same key and body again give the job that the first time made.",
    ),
]


def token_of(request: Request) -> str | None:
    """The caller's token: ``Authorization: Bearer …``, or a signed-in browser's cookie.

    A cookie goes along with requests that a page of another port of this host makes, SameSite or not; so one that
    changes something counts only where the browser says that our own page made the request.
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip()
    own = request.method in SAFE_METHODS or request.headers.get("sec-fetch-site") in {"same-origin", "none"}
    return request.cookies.get(COOKIE) if own else None


def _require(request: Request, scope: Scope) -> None:
    token = token_of(request)
    file = path(get_settings(request).data_dir, scope)
    if token is None:
        raise TokenMissing(
            f"Send 'Authorization: Bearer <{scope} token>'; the token is in the service's data directory, in the file "
            f"tokens/{file.name}."
        )
    tokens: Tokens = request.app.state.tokens
    if tokens.scope_of(token) is not scope:
        raise TokenRefused(f"The token sent is not the {scope} token of this service.")


def signed_in(request: Request) -> None:
    """Lets in who may submit and read.

    Raises:
        TokenMissing: there is no token.
        TokenRefused: it is not the submit token.
    """
    _require(request, Scope.SUBMIT)


def is_worker(request: Request) -> None:
    """Lets in workers.

    Raises:
        TokenMissing: there is no token.
        TokenRefused: it is not the worker token.
    """
    _require(request, Scope.WORKER)


def same_token(one: str, other: str) -> bool:
    """Compares in a time that tells nothing."""
    return hmac.compare_digest(one.encode(), other.encode())
