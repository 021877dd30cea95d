"""The service's settings: read once from the environment, frozen, loud on garbage."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.outgoing.address import Private


class SettingsError(Exception):
    """A setting is wrong. The text names each key, its value and what it must be."""


def _data_dir() -> Path:
    home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(home) / "replaybench"


def _named(value: object) -> object:
    if value == "":  # Path("") is the current directory
        raise ValueError("an empty value names no directory; name one, or unset it for the default")
    return value


def _targets(text: str) -> str:
    Private.parse(text)
    return text


def variable(name: str) -> str:
    """A variable of the environment that an operator allowed to be named; empty where it is not set."""
    return os.environ.get(name, "")


class Settings(BaseSettings):
    """Everything that an operator can set. Durations are in seconds.

    A token that is set takes the place of the one in the data directory: 24 characters at least, no spaces.
    ``token_rate`` and ``address_rate`` are calls a minute, of a token and of an address without one; 0: any number.
    ``lease_s`` is how long an attempt lives without a word from its worker; a worker speaks three times in that span.
    ``claimed_s`` is how long it may take a worker from the claim to its first word of work, ``preparing_s`` from the
    claim to the tests' start, ``overtime_s`` to end an attempt beyond its suite's own limit: a worker that speaks and
    does not get on.
    ``claim_cap`` is how often a cell is handed out before broken workers alone decide it. ``reserve_after_s`` is how
    long a cell that needs several devices waits before they are kept free for it. ``delivery_timeout_s`` has a bound,
    since a claim on what is being sent lapses.
    """

    model_config = SettingsConfigDict(env_prefix="REPLAYBENCH_", frozen=True, extra="ignore")

    data_dir: Annotated[Path, BeforeValidator(_named)] = Field(default_factory=_data_dir)
    database_url: str = Field(
        "", validation_alias=AliasChoices("DATABASE_URL", "database_url"), description="default: SQLite in the data dir"
    )
    broker_url: str = Field(
        "redis://127.0.0.1:6379/0", validation_alias=AliasChoices("BROKER_URL", "broker_url"), min_length=1
    )
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8321
    submit_token: Annotated[str, Field(pattern=r"^$|^[!-~]{24,}$")] = ""
    worker_token: Annotated[str, Field(pattern=r"^$|^[!-~]{24,}$")] = ""
    public_reading: bool = False
    token_rate: Annotated[int, Field(ge=0)] = 6000
    address_rate: Annotated[int, Field(ge=0)] = 600
    lease_s: Annotated[float, Field(gt=0)] = 45.0
    claimed_s: Annotated[float, Field(gt=0)] = 120.0
    preparing_s: Annotated[float, Field(gt=0)] = 7200.0
    overtime_s: Annotated[float, Field(gt=0)] = 600.0
    sweep_s: Annotated[float, Field(gt=0)] = 2.0
    idempotency_s: Annotated[float, Field(gt=0)] = 86_400.0
    claim_cap: Annotated[int, Field(ge=1)] = 3
    reserve_after_s: Annotated[float, Field(ge=0)] = 120.0
    cell_cap: Annotated[int, Field(ge=1)] = 1000
    probe_cap_bytes: Annotated[int, Field(ge=1)] = 8 * 2**20
    body_cap_bytes: Annotated[int, Field(ge=1)] = 64 * 2**20
    artifact_cap_bytes: Annotated[int, Field(ge=1)] = 64 * 2**20
    hook_secrets: Annotated[str, Field(pattern=r"^$|^[!-+\--~]{16,200}(,[!-+\--~]{16,200})?$")] = ""
    hook_body_cap_bytes: Annotated[int, Field(ge=1)] = 25 * 2**20
    schedule_s: Annotated[float, Field(gt=0)] = 30.0
    git_timeout_s: Annotated[float, Field(gt=0)] = 300.0
    plan_give_up_s: Annotated[float, Field(gt=0)] = 3600.0
    public_url: Annotated[str, Field(pattern=r"^$|^https?://[!-~]+$")] = ""
    private_targets: Annotated[str, AfterValidator(_targets)] = ""
    credential_env: Annotated[str, Field(pattern=r"^$|^[A-Za-z_]\w*@[\w.:-]+(,[A-Za-z_]\w*@[\w.:-]+)*$")] = (
        "GITHUB_TOKEN@api.github.com,GITLAB_TOKEN@gitlab.com"
    )
    delivery_s: Annotated[float, Field(gt=0)] = 1.0
    delivery_timeout_s: Annotated[float, Field(gt=0, le=30)] = 15.0
    delivery_give_up_s: Annotated[float, Field(gt=0)] = 86_400.0
    log_level: Annotated[str, Field(pattern="^(debug|info|warning|error)$")] = "info"

    @property
    def database(self) -> str:
        """The database's URL; SQLite in the data directory where none is set."""
        return self.database_url or f"sqlite:///{self.data_dir / 'replaybench.db'}"

    def page(self, path: str) -> str | None:
        """The address of a page for people elsewhere; none where nobody set how they reach this service."""
        return f"{self.public_url.rstrip('/')}{path}" if self.public_url else None

    @property
    def url(self) -> str:
        """Where a service with these settings answers on this machine."""
        return f"http://{self.host}:{self.port}"


def load() -> Settings:
    """The settings of this process.

    Raises:
        SettingsError: a value does not fit.
    """
    try:
        return Settings()
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            key = str(problem["loc"][0]) if problem["loc"] else "?"
            name = key if key.isupper() else f"REPLAYBENCH_{key.upper()}"
            lines.append(f"{name}={problem['input']!r}: {problem['msg'].removeprefix('Value error, ')}")
        raise SettingsError("; ".join(lines) + ". Change it in the environment and start again.") from error
