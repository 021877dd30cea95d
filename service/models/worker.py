"""Workers: who may claim cells."""

from __future__ import annotations

import datetime
from typing import Any

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from service.models.base import Base, Key


class Worker(Base):
    """A worker by its stable name. ``boot`` is the nonce of its latest start: calls of an earlier start are refused.

    ``contract`` is what that start speaks. ``token_id`` is the stored token that it registered with, if it was one:
    when that is revoked, what the worker runs is taken from it.
    """

    __tablename__ = "workers"

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    name: Mapped[str] = mapped_column(String(200), unique=True)
    boot: Mapped[str] = mapped_column(String(64))
    host: Mapped[str] = mapped_column(String(255))
    capabilities: Mapped[dict[str, Any]]
    registered_at: Mapped[datetime.datetime]
    seen_at: Mapped[datetime.datetime]
    contract: Mapped[int] = mapped_column(default=0, server_default="0")
    token_id: Mapped[int | None] = mapped_column(ForeignKey("access_tokens.id"), index=True)
