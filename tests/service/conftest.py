"""The fixtures of the service's tests, and which of them are quick."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fixtures import (
    broker_url,
    database_url,
    postgres_server,
    registered,
    repo,
    service,
    sqlite_template,
    sqlite_url,
)

__all__ = [
    "broker_url",
    "database_url",
    "postgres_server",
    "registered",
    "repo",
    "service",
    "sqlite_template",
    "sqlite_url",
]

HERE = Path(__file__).parent
SLOW = frozenset({"test_hooks", "test_statuses", "test_webhooks"})
"""Files whose tests wait for other servers. Of them only two services at once are quick on Postgres, for its locks."""


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test with many inputs the first one is quick on Postgres, and the others are long: it is the test that is to
    be seen on both databases, and each input on one. Of some files almost all is long there."""
    seen: set[str] = set()
    for item in items:
        if not isinstance(item, pytest.Function) or HERE not in item.path.parents:
            continue
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if parameters.get("database_url") != "postgres":
            continue
        name = f"{item.path}::{item.originalname}"
        if name in seen or (item.path.stem in SLOW and "two_services" not in name):
            item.add_marker(pytest.mark.long)
        seen.add(name)
