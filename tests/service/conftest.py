"""The fixtures of the service's tests."""

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
