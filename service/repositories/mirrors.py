"""Where the service has its mirrors, and what opens private repositories for them."""

from __future__ import annotations

from pathlib import Path

from service.database import Database
from service.repositories import credentials
from service.repositories.mirror import Mirror
from service.settings import Settings


def mirror_of(database: Database, settings: Settings, repository_id: int, url: str) -> Mirror:
    """The mirror of a repository in the service's data directory. Its credential is looked up for each fetch."""
    home = Path(settings.data_dir).resolve() / "mirrors"
    return Mirror(
        home,
        repository_id,
        url,
        settings.git_timeout_s,
        lambda: credentials.for_mirror(database, settings, repository_id),
    )
