"""Migrations: up, down and up again, one head, and no difference to the models. On both databases."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect

from service.database import Database, alembic_config, downgrade, upgrade
from service.models import Base


def tables(url: str) -> set[str]:
    """The names of a database's tables."""
    database = Database(url)
    names = set(inspect(database.engine).get_table_names())
    database.close()
    return names - {"alembic_version"}


def test_there_is_one_head(database_url: str) -> None:
    """Two would leave it open what `upgrade` means."""
    assert len(ScriptDirectory.from_config(alembic_config(database_url)).get_heads()) == 1


def test_up_down_and_up_again(database_url: str) -> None:
    """Down leaves no table behind, and up makes them all, twice being the same as once."""
    everything = set(Base.metadata.tables)
    assert tables(database_url) == everything
    downgrade(database_url, "base")
    assert tables(database_url) == set()
    upgrade(database_url)
    upgrade(database_url)
    assert tables(database_url) == everything


def test_the_migrations_make_what_the_models_say(database_url: str) -> None:
    """Columns, types, keys and indexes: nothing is left to generate."""
    database = Database(database_url)
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "render_as_batch": True})
        differences = compare_metadata(context, Base.metadata)
    database.close()
    assert differences == []


@pytest.mark.parametrize("prefix", ["postgres://", "postgresql://", "postgresql+psycopg://"])
def test_a_postgres_url_as_operators_write_it(postgres_server: str, prefix: str) -> None:
    """Each spelling reaches the driver that is installed."""
    database = Database(prefix + postgres_server.split("://", 1)[1])
    assert database.answers()
    database.close()


def test_a_sqlite_files_folder_is_made(tmp_path: Path) -> None:
    """The data directory need not exist at the first start."""
    url = f"sqlite:///{tmp_path / 'a' / 'b' / 'replaybench.db'}"
    upgrade(url)
    assert tables(url) == set(Base.metadata.tables)
