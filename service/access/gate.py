"""The gate that every call passes: whose token it is, whether that is good for this, and whether it is not too much."""

from __future__ import annotations

import datetime
import math

from sqlalchemy import select

from service.access import secret, service
from service.access.rate import Rate, address_key
from service.access.scopes import Caller, Scope, granted, public
from service.clock import now
from service.database import Database
from service.errors import RateLimited, ScopeMissing, ServiceError, TokenExpired, TokenMissing, TokenRefused
from service.models import AccessToken
from service.settings import Settings
from service.tokens import FILES, Tokens, path

USE_NOTED_EVERY_S = 60


class Gate:
    """One for each service process. Counts calls in this process's memory, so two processes let through twice as many.

    A call with a good token is counted by the token; any other, a wrong token's too, by the address that it comes from.
    """

    def __init__(self, database: Database, tokens: Tokens, settings: Settings) -> None:
        self._database, self._tokens, self._settings = database, tokens, settings
        self._by_token, self._by_address = Rate(settings.token_rate), Rate(settings.address_rate)

    def admit(self, token: str | None, scope: Scope, address: str, *, optional: bool = False) -> Caller:
        """The caller, who may do what asks for the scope. ``optional``: a token that is refused counts as none.

        Raises:
            TokenMissing: there is no token.
            TokenRefused: it is unknown or revoked.
            TokenExpired: it was good once.
            ScopeMissing: it is good for other things.
            RateLimited: it is good, and called too often.
        """
        caller = self._caller(token, scope, address, optional=optional)
        require(caller, scope)
        if caller.key and scope is not Scope.WORKER:  # a worker that must wait loses its leases
            _not_too_often(self._by_token, caller.key, f"the token {caller.name!r}", self._settings.token_rate)
        return caller

    def _caller(self, token: str | None, scope: Scope, address: str, *, optional: bool) -> Caller:
        open_to_all = self._settings.public_reading and scope is Scope.READ
        if token is not None:
            try:
                return self.identify(token, address)
            except (TokenRefused, TokenExpired):
                if not (open_to_all and optional):
                    raise
        self.count(address)
        if not open_to_all:
            raise self._missing(scope)
        return public(address)

    def identify(self, token: str, address: str) -> Caller:
        """Whose token this is.

        Raises:
            TokenRefused: it is unknown or revoked.
            TokenExpired: it was good once.
            RateLimited: too many wrong tokens came from this address.
        """
        try:
            return self._of_file(token, address) or self._stored(token, address)
        except ServiceError:
            self.count(address)
            raise

    def holds(self, caller: Caller) -> bool:
        """Whether a caller who was let in would be let in still: a live stream is one call that lasts for hours."""
        if caller.token_id is None:
            return True
        with self._database.read() as session:
            row = session.get_one(AccessToken, caller.token_id)
        return row.revoked_at is None and (row.expires_at is None or row.expires_at > now())

    def _of_file(self, token: str, address: str) -> Caller | None:
        scope = self._tokens.scope_of(token)
        if scope is None:
            return None
        name = "worker" if scope is Scope.WORKER else "submit"
        return Caller(name, granted([scope]), f"file {name}", address)

    def _stored(self, token: str, address: str) -> Caller:
        # Looking a digest up takes a time that tells of the digest alone, and nobody can choose one.
        with self._database.read() as session:
            row = session.scalar(select(AccessToken).where(AccessToken.digest == secret.digest(token)))
        if row is None:
            raise TokenRefused("The token sent is none of this service.")
        if row.revoked_at is not None:
            raise TokenRefused(
                f"The token {row.prefix}… ({row.name}) was revoked at {row.revoked_at:%Y-%m-%d %H:%M} UTC."
            )
        moment = now()
        if row.expires_at is not None and row.expires_at <= moment:
            raise TokenExpired(
                f"The token {row.prefix}… ({row.name}) expired at {row.expires_at:%Y-%m-%d %H:%M} UTC; have an admin "
                "make another with `replaybench tokens create`."
            )
        if row.used_at is None or moment - row.used_at >= datetime.timedelta(seconds=USE_NOTED_EVERY_S):
            # A transaction of its own: a use is no part of the change that the call makes, and stays if that fails.
            with self._database.write() as session:
                service.note_use(session, row.id, moment, USE_NOTED_EVERY_S)
        left = None if row.expires_at is None else int((row.expires_at - moment).total_seconds())
        scopes = granted(Scope(scope) for scope in row.scopes)
        return Caller(row.name, scopes, f"token {row.id}", address, row.prefix, left, row.id, row.worker)

    def count(self, address: str) -> None:
        """Counts a call of somebody who has proven nothing.

        Raises:
            RateLimited: there were too many from this address.
        """
        who = f"the address {address} without a good token"
        _not_too_often(self._by_address, address_key(address), who, self._settings.address_rate)

    def _missing(self, scope: Scope) -> TokenMissing:
        if scope is Scope.ENROLL:
            return TokenMissing(
                "Send 'Authorization: Bearer <enrolment token>'; `replaybench workers enroll NAME` makes one."
            )
        file = path(self._settings.data_dir, scope if scope in FILES else Scope.SUBMIT)
        return TokenMissing(
            f"Send 'Authorization: Bearer <{scope} token>'; a token is in the service's data directory, in the file "
            f"tokens/{file.name}, and `replaybench tokens create` makes others."
        )


def require(caller: Caller, scope: Scope) -> None:
    """Lets a caller pass who may do what asks for the scope.

    Raises:
        ScopeMissing: the token is good for other things.
    """
    if not caller.may(scope):
        has = ", ".join(sorted(caller.scopes))
        raise ScopeMissing(f"This asks for the scope {scope}; the token {caller.name!r} has {has}.", scope=scope)


def _not_too_often(rate: Rate, key: str, who: str, most: int) -> None:
    wait = rate.take(key)
    if wait:
        seconds = math.ceil(wait)
        raise RateLimited(f"More than {most} calls a minute of {who}; try again in {seconds} s.", seconds)
