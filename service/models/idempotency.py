"""Keys of submissions that may be sent again."""

from __future__ import annotations

import datetime

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from service.models.base import Base


class IdempotencyKey(Base):
    """A key that a caller chose, the SHA-256 of the submission that came with it, and the job that this made.

    ``caller`` is whose token it came with: two callers may choose the same key and know nothing of each other.
    """

    __tablename__ = "idempotency_keys"

    caller: Mapped[str] = mapped_column(String(64), primary_key=True)
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    body_digest: Mapped[str] = mapped_column(String(64))
    job_id: Mapped[int | None] = mapped_column(ForeignKey("jobs.id"))
    expires_at: Mapped[datetime.datetime] = mapped_column(index=True)
