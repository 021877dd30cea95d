"""The bodies of the token endpoints."""

from __future__ import annotations

import datetime
from typing import Annotated

from pydantic import AwareDatetime, Field, computed_field, field_validator

from service.access.scopes import Scope
from service.clock import now
from service.schemas import Input, Output


class TokenInput(Input):
    """Asks for a token. It is good for ``days``, for ever where that is ``null``."""

    name: Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,100}$", examples=["ci of graphreplay"])]
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=4, examples=[["submit"]])]
    days: Annotated[int | None, Field(ge=1, le=3650)] = 90

    @field_validator("scopes")
    @classmethod
    def _asked_for(cls, scopes: list[Scope]) -> list[Scope]:
        if Scope.ENROLL in scopes:
            raise ValueError("enroll is no scope to ask for; `replaybench workers enroll NAME` makes such a token")
        return scopes


class TokenOutput(Output):
    """A token as it is listed: never the token itself. ``worker`` is the only worker that may use it, if any."""

    id: int
    name: str
    prefix: str
    scopes: list[Scope]
    created_at: AwareDatetime
    created_by: str
    expires_at: AwareDatetime | None
    revoked_at: AwareDatetime | None
    used_at: AwareDatetime | None
    worker: str | None = None

    @computed_field  # type: ignore[prop-decorator]  # mypy knows no decorators on properties
    @property
    def state(self) -> str:
        """``active``, ``expired`` or ``revoked``."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now() else "active"


class NewToken(TokenOutput):
    """A token that was just made: the only answer that ever holds ``token``."""

    token: str


def expiry(days: int | None) -> datetime.datetime | None:
    """When a token that is made now ends."""
    return None if days is None else now() + datetime.timedelta(days=days)
