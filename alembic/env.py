"""Runs the migrations on the database that ``service.database`` names."""

from __future__ import annotations

from alembic import context

from service.database import Database
from service.models import Base

url = context.config.attributes["url"]
database = Database(url)
with database.engine.connect() as connection:
    if connection.dialect.name == "sqlite":
        # SQLite alters a table by copying it, which foreign keys would stop.
        connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
        connection.commit()
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=True,
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()
    connection.commit()
database.close()
