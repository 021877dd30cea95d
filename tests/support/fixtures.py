"""Fixtures that several test folders share; a folder's ``conftest.py`` imports those that it needs.

There is no ``tests/conftest.py``: the tests of the library run in environments that hold none of this.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from service.database import upgrade
from tests.support import broker, postgres, repository, running_service
from tests.support.repository import GitRepository
from tests.support.running_service import RunningService


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A Postgres server with a migrated database named ``replaybench_template``."""
    with postgres.running() as url:
        upgrade(postgres.create(url, "replaybench_template"))
        yield url


@pytest.fixture(scope="session")
def broker_url() -> Iterator[str]:
    """A Redis-compatible server's URL."""
    with broker.running() as url:
        yield url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of an empty, migrated SQLite database."""
    file = tmp_path_factory.mktemp("template") / "replaybench.db"
    upgrade(f"sqlite:///{file}")
    return file


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """The URL of an empty, migrated SQLite database. A file to which the database does not matter says so by

    ``from tests.support.fixtures import sqlite_url as database_url``.
    """
    return f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'replaybench.db')}"


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an empty, migrated database: the test runs on SQLite and on Postgres."""
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite_url")
        return
    server = request.getfixturevalue("postgres_server")
    name = f"test_{uuid4().hex}"
    yield postgres.create(server, name, "replaybench_template")
    postgres.drop(server, name)


@pytest.fixture
def service(tmp_path: Path, database_url: str, broker_url: str) -> Iterator[RunningService]:
    """A running service on an empty database, with short periods."""
    with running_service.running(tmp_path / "data", database_url, broker_url, sweep_s=0.2, lease_s=20) as it:
        yield it


@pytest.fixture
def repo(tmp_path: Path) -> GitRepository:
    """A repository of one commit."""
    return repository.make(tmp_path / "repo")


@pytest.fixture
def registered(service: RunningService, repo: GitRepository) -> GitRepository:
    """The repository, registered with the service as ``demo``."""
    service.post("/repositories", {"name": "demo", "url": str(repo.path)}, 201)
    return repo
