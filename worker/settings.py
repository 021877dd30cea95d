"""The worker's settings, read once from the environment into one frozen object, loud on garbage."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AnyHttpUrl, Field, TypeAdapter, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from worker import enrolment


class SettingsError(ValueError):
    """A setting is missing or makes no sense. The text names the variable, its value and what to do."""


def _alias(name: str, **more: Any) -> Any:
    return Field(validation_alias=name, **more)


def cache_dir() -> Path:
    """The cache folder, where nothing else of the settings is needed."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "replaybench"
    return Path(os.environ.get("REPLAYBENCH_CACHE_DIR") or default)


class Settings(BaseSettings):
    """Everything that an operator can set. Lease times are not among them: the service tells those."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_ignore_empty=True, case_sensitive=True)

    broker_url: str = _alias("BROKER_URL")
    service_url: str = _alias("REPLAYBENCH_SERVICE_URL")
    token_value: str = _alias("REPLAYBENCH_WORKER_TOKEN", default="", repr=False)
    token_file: Path | None = _alias("REPLAYBENCH_WORKER_TOKEN_FILE", default=None)
    name: str = _alias("REPLAYBENCH_WORKER_NAME", default_factory=socket.gethostname)
    cache_dir: Path = _alias("REPLAYBENCH_CACHE_DIR", default_factory=cache_dir)
    uv: str = _alias("REPLAYBENCH_UV", default="uv")
    host_runtimes: Annotated[tuple[Path, ...], NoDecode] = _alias("REPLAYBENCH_HOST_RUNTIMES", default=())
    labels: Annotated[tuple[str, ...], NoDecode] = _alias("REPLAYBENCH_LABELS", default=())
    pass_env: Annotated[tuple[str, ...], NoDecode] = _alias("REPLAYBENCH_PASS_ENV", default=())
    mounts: Annotated[dict[str, Path], NoDecode] = _alias("REPLAYBENCH_MOUNTS", default={})
    builds: bool = _alias("REPLAYBENCH_BUILDS", default=True)
    network: bool = _alias("REPLAYBENCH_NETWORK", default=True)
    cpu_slots: int = _alias("REPLAYBENCH_CPU_SLOTS", default=1, ge=1)
    gpu_free_percent: float = _alias("REPLAYBENCH_GPU_FREE_PERCENT", default=90.0, ge=0, le=100)
    gpu_grace_s: float = _alias("REPLAYBENCH_GPU_GRACE_S", default=5.0, ge=0)
    gpu_recheck_s: float = _alias("REPLAYBENCH_GPU_RECHECK_S", default=30.0, gt=0)
    gpu_sample_s: float = _alias("REPLAYBENCH_GPU_SAMPLE_S", default=0.5, gt=0)
    log_head_bytes: int = _alias("REPLAYBENCH_LOG_HEAD_BYTES", default=1 << 20, ge=0)
    log_cap_bytes: int = _alias("REPLAYBENCH_LOG_CAP_BYTES", default=4 << 20, ge=1024)
    flush_s: float = _alias("REPLAYBENCH_FLUSH_S", default=0.15, gt=0)
    sandbox: Literal["auto", "on", "off"] = _alias("REPLAYBENCH_SANDBOX", default="auto")
    sandbox_paths: Annotated[tuple[Path, ...], NoDecode] = _alias("REPLAYBENCH_SANDBOX_PATHS", default=())
    memory_cap_mib: int = _alias("REPLAYBENCH_MEMORY_CAP_MIB", default=0, ge=0)
    processes_cap: int = _alias("REPLAYBENCH_PROCESSES_CAP", default=0, ge=0)
    file_size_cap_mib: int = _alias("REPLAYBENCH_FILE_SIZE_CAP_MIB", default=64 << 10, ge=0)
    open_files_cap: int = _alias("REPLAYBENCH_OPEN_FILES_CAP", default=64 << 10, ge=0)
    kill_grace_s: float = _alias("REPLAYBENCH_KILL_GRACE_S", default=5.0, ge=0)
    stop_grace_s: float = _alias("REPLAYBENCH_STOP_GRACE_S", default=20.0, ge=0)
    drain_s: float = _alias("REPLAYBENCH_DRAIN_S", default=0.0, ge=0)
    deaf_s: float = _alias("REPLAYBENCH_DEAF_S", default=60.0, gt=0)
    build_timeout_s: float = _alias("REPLAYBENCH_BUILD_TIMEOUT_S", default=3600.0, gt=0)
    build_failure_s: float = _alias("REPLAYBENCH_BUILD_FAILURE_S", default=900.0, ge=0)
    free_bytes: int = _alias("REPLAYBENCH_FREE_BYTES", default=1 << 30, ge=0)
    runtimes_cap_bytes: int = _alias("REPLAYBENCH_RUNTIMES_CAP_BYTES", default=0, ge=0)

    @field_validator("service_url")
    @classmethod
    def _http(cls, value: str) -> str:
        TypeAdapter(AnyHttpUrl).validate_python(value)
        return value.rstrip("/")

    @field_validator("host_runtimes", "sandbox_paths", mode="before")
    @classmethod
    def _paths(cls, value: Any) -> Any:
        return tuple(part for part in value.split(os.pathsep) if part) if isinstance(value, str) else value

    @field_validator("labels", "pass_env", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("mounts", mode="before")
    @classmethod
    def _mounts(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        pairs = [part.partition("=") for part in value.split(",") if part.strip()]
        if any(not name.strip() or not path.startswith("/") for name, _, path in pairs):
            raise ValueError("expected name=/absolute/path, several with commas between")
        return {name.strip(): path for name, _, path in pairs}

    @model_validator(mode="after")
    def _has_token(self) -> Settings:
        if not self.token_value and self.token_file is None:
            raise ValueError(
                "set REPLAYBENCH_WORKER_TOKEN or REPLAYBENCH_WORKER_TOKEN_FILE to the worker token, or enroll this "
                "worker with `replaybench worker --enroll`"
            )
        return self

    @property
    def token(self) -> str:
        """The worker token, from its variable or its file."""
        if self.token_value:
            return self.token_value
        assert self.token_file is not None  # noqa: S101 - the validator above saw to it
        try:
            return str(self.token_file.read_text(encoding="utf-8")).strip()
        except OSError as error:
            raise SettingsError(
                f"REPLAYBENCH_WORKER_TOKEN_FILE={str(self.token_file)!r} cannot be read ({error.strerror}): "
                "start the service once, which writes it, or name another file"
            ) from error

    @property
    def key(self) -> str:
        """Who this worker is, at which service, as part of a file's name."""
        return hashlib.sha256(f"{self.service_url} {self.name}".encode()).hexdigest()[:16]

    @property
    def uv_command(self) -> str:
        """The uv to run: the one named, found on PATH or beside this interpreter."""
        beside = Path(sys.executable).parent / self.uv
        found = shutil.which(self.uv) or (str(beside) if beside.exists() else None)
        if found is None:
            raise SettingsError(f"REPLAYBENCH_UV={self.uv!r} is not on PATH: install uv, or set it to uv's full path")
        return found


def load() -> Settings:
    """The settings of this process's environment.

    Raises:
        SettingsError: one or more variables are missing or wrong; every one of them is named.
    """
    try:
        return Settings(**enrolment.kept(enrolment.place()))  # type: ignore[arg-type]  # by their variables' names
    except ValidationError as error:
        raise SettingsError("\n".join(_complaint(item) for item in error.errors())) from None
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _complaint(item: Any) -> str:
    key = str(item["loc"][0]) if item["loc"] else ""
    reason: str = item["msg"].removeprefix("Value error, ")
    if item["type"] == "missing":
        return f"{key} is not set: set it in the worker's environment"
    if not key:
        return reason
    return f"{key}={item['input']!r}: {reason}; correct it in the worker's environment, or unset it for the default"
