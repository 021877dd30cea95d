"""The fixtures of the tests of the whole system."""

from tests.support.fixtures import broker_url, database_url, postgres_server, registered, repo, service

__all__ = ["broker_url", "database_url", "postgres_server", "registered", "repo", "service"]
