"""docs/settings.md names every setting of service and worker, and none that is not there."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import AliasChoices
from pydantic_settings import BaseSettings

from service.settings import Settings as ServiceSettings
from worker.settings import Settings as WorkerSettings

ROOT = Path(__file__).resolve().parent.parent.parent
NOT_SETTINGS = {"REPLAYBENCH_URL", "REPLAYBENCH_TOKEN"}


def variables(settings: type[BaseSettings]) -> set[str]:
    """The environment variables that a settings class reads."""
    prefix = settings.model_config.get("env_prefix", "")
    names = set()
    for name, field in settings.model_fields.items():
        alias = field.validation_alias
        first = alias.choices[0] if isinstance(alias, AliasChoices) else alias
        names.add(str(first) if first else f"{prefix}{name}".upper())
    return names


def test_the_page_names_every_setting() -> None:
    """A setting that is added or removed changes the page too."""
    page = (ROOT / "docs/settings.md").read_text()
    told = set(re.findall(r"^\| `([A-Z_]+)` \|", page, re.MULTILINE))
    assert told - NOT_SETTINGS == variables(ServiceSettings) | variables(WorkerSettings)
