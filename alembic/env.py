"""Runs the migrations on the database that ``service.database`` names."""

from __future__ import annotations

from typing import Literal

import sqlalchemy as sa
from alembic import context

from service.database import Database
from service.models import Base
from service.models.base import UTCDateTime


def render_item(kind: str, item: object, _: object) -> str | Literal[False]:
    """Migrations name plain types, so that they run the same when our own types have changed."""
    if kind == "type" and isinstance(item, UTCDateTime):
        return "sa.DateTime(timezone=True)"
    if kind == "type" and isinstance(item, sa.Enum):
        return f"sa.String({item.length})"
    return False


url = context.config.attributes["url"]
database = Database(url)
with database.engine.connect() as connection:
    if connection.dialect.name == "sqlite":
        # SQLite alters a table by copying it, which foreign keys would stop. Within a transaction the pragma does
        # nothing, and SQLAlchemy begins one before its first statement: so the driver's own connection is asked.
        connection.connection.cursor().execute("PRAGMA foreign_keys=OFF")
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=True,
        compare_type=True,
        render_item=render_item,
    )
    with context.begin_transaction():
        context.run_migrations()
    connection.commit()
database.close()
