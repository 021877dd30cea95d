"""What endpoints ask for: a transaction, the settings, the signed-in caller."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, Header, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy.orm import Session

from service.access.gate import Gate
from service.access.scopes import Caller, Scope
from service.audit import service as audit
from service.database import Database
from service.settings import Settings

COOKIE = "replaybench_session"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


# Those that only look something up are coroutines: FastAPI sends every other one through a thread of its own.


async def get_settings(request: Request) -> Settings:
    """The settings that the application was made with."""
    settings: Settings = request.app.state.settings
    return settings


def database_of(request: Request) -> Database:
    """The application's database. What a signed-in caller changes through it is in the audit."""
    database: Database = request.app.state.database

    def audited(session: Session) -> None:
        caller = known_caller(request)
        # What workers report is left out: it is a record of its own, and thousands of batches an hour.
        if caller is not None and request.state.scope is not Scope.WORKER:
            audit.ensure(session, caller, request.method, request.url.path)

    return database.before_commit(audited)


async def get_database(request: Request) -> Database:
    """``database_of``, for endpoints."""
    return database_of(request)


def known_caller(request: Request) -> Caller | None:
    """Who calls, where the endpoint asks for a scope."""
    return getattr(request.state, "caller", None)


async def get_caller(request: Request) -> Caller:
    """Who calls an endpoint that asks for a scope."""
    caller: Caller = request.state.caller
    return caller


def _read(request: Request) -> Iterator[Session]:
    with database_of(request).read() as session:
        yield session


# Only for endpoints that answer a Response. FastAPI makes any other answer in a thread of the pool that requests share,
# while the transaction is open: when all those threads wait for a lock or a connection that this one holds, none is
# left to let it end. Such endpoints, and all that write, open their transaction themselves: `with database.write()`.
ReadSession = Annotated[Session, Depends(_read, scope="function")]
SettingsDep = Annotated[Settings, Depends(get_settings)]
DatabaseDep = Annotated[Database, Depends(get_database)]
CallerDep = Annotated[Caller, Depends(get_caller)]


IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        pattern=r"^[!-~]+$",
        description="Chosen by the caller. The same key and body again give the job that the first time made.",
    ),
]


def address_of(request: Request) -> str:
    """Where the call comes from. Behind a proxy of this machine, uvicorn takes the address that the proxy names."""
    return request.client.host if request.client else ""


def _bearer(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token else None


def _cookie(request: Request) -> str | None:
    """A signed-in browser's token.

    A cookie goes along with requests that a page of another port of this host makes, SameSite or not; so one that
    changes something counts only where the browser says that our own page made the request.
    """
    own = request.method in SAFE_METHODS or request.headers.get("sec-fetch-site") in {"same-origin", "none"}
    return request.cookies.get(COOKIE) if own else None


def token_of(request: Request) -> str | None:
    """The token that a call carries, good or not."""
    bearer = _bearer(request)
    return _cookie(request) if bearer is None else bearer


def _require(request: Request, scope: Scope) -> None:
    gate: Gate = request.app.state.gate
    # Whoever's cookie is out of date reads on where all may read; a program is told that its token is refused.
    request.state.scope = scope
    request.state.caller = gate.admit(token_of(request), scope, address_of(request), optional=_bearer(request) is None)


# For the OpenAPI document alone: the gate reads the header by itself, and answers in our own words.
_token = HTTPBearer(scheme_name="token", description="A token of this service: docs/access.md.", auto_error=False)
Documented = Annotated[HTTPAuthorizationCredentials | None, Depends(_token)]


def signed_in(request: Request, _: Documented) -> None:
    """Lets in whose token has the scope ``read``; for what changes something, ``submit``."""
    _require(request, Scope.READ if request.method in SAFE_METHODS else Scope.SUBMIT)


def is_worker(request: Request, _: Documented) -> None:
    """Lets in whose token has the scope ``worker``."""
    _require(request, Scope.WORKER)


def is_enrolling(request: Request, _: Documented) -> None:
    """Lets in whose token is for one exchange into a worker's own."""
    _require(request, Scope.ENROLL)


def is_admin(request: Request, _: Documented) -> None:
    """Lets in whose token has the scope ``admin``."""
    _require(request, Scope.ADMIN)
