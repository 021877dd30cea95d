"""Fixtures that several test folders share; a folder's ``conftest.py`` imports those that it needs.

There is no ``tests/conftest.py``: the tests of the library run in environments that hold none of this.
"""

from __future__ import annotations

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


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty, migrated database: the test runs on SQLite and on Postgres."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'replaybench.db'}"
        upgrade(url)
        yield url
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
