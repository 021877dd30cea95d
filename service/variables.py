"""Warns of variables that nobody reads: a misspelled setting would otherwise be a default in silence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from pydantic import AliasChoices

from service.settings import Settings

PREFIX = "REPLAYBENCH_"
OTHERS = frozenset(
    {
        "REPLAYBENCH_BUILDS",
        "REPLAYBENCH_BUILD_FAILURE_S",
        "REPLAYBENCH_BUILD_TIMEOUT_S",
        "REPLAYBENCH_CACHE_DIR",
        "REPLAYBENCH_CPU_SLOTS",
        "REPLAYBENCH_DEAF_S",
        "REPLAYBENCH_DRAIN_S",
        "REPLAYBENCH_ENROLMENT_FILE",
        "REPLAYBENCH_FILE_SIZE_CAP_MIB",
        "REPLAYBENCH_FLUSH_S",
        "REPLAYBENCH_FREE_BYTES",
        "REPLAYBENCH_GPU_FREE_PERCENT",
        "REPLAYBENCH_GPU_GRACE_S",
        "REPLAYBENCH_GPU_RECHECK_S",
        "REPLAYBENCH_GPU_SAMPLE_S",
        "REPLAYBENCH_HOST_RUNTIMES",
        "REPLAYBENCH_KILL_GRACE_S",
        "REPLAYBENCH_LABELS",
        "REPLAYBENCH_LOG_CAP_BYTES",
        "REPLAYBENCH_LOG_HEAD_BYTES",
        "REPLAYBENCH_MEMORY_CAP_MIB",
        "REPLAYBENCH_MOUNTS",
        "REPLAYBENCH_NETWORK",
        "REPLAYBENCH_OPEN_FILES_CAP",
        "REPLAYBENCH_PASS_ENV",
        "REPLAYBENCH_PROCESSES_CAP",
        "REPLAYBENCH_RUNTIMES_CAP_BYTES",
        "REPLAYBENCH_SANDBOX",
        "REPLAYBENCH_SANDBOX_PATHS",
        "REPLAYBENCH_SERVICE_URL",
        "REPLAYBENCH_STOP_GRACE_S",
        "REPLAYBENCH_TOKEN",
        "REPLAYBENCH_URL",
        "REPLAYBENCH_UV",
        "REPLAYBENCH_WORKER_NAME",
        "REPLAYBENCH_WORKER_TOKEN",
        "REPLAYBENCH_WORKER_TOKEN_FILE",
    }
)
"""What the command line and workers read. A test compares them with the worker's own settings."""


def own() -> frozenset[str]:
    """The variables with our prefix that the service reads."""
    names = []
    for name, field in Settings.model_fields.items():
        alias = field.validation_alias
        names.append(str(alias.choices[0]) if isinstance(alias, AliasChoices) else f"{PREFIX}{name.upper()}")
    return frozenset(name for name in names if name.startswith(PREFIX))


def unread(names: Iterable[str]) -> list[str]:
    """A sentence for each variable with our prefix that nobody reads, with the name that was probably meant."""
    known = own() | OTHERS
    said = []
    for name in sorted(set(names)):
        if name.startswith(PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            said.append(f"{name} is no setting and is not read" + (f"; did you mean {near[0]}?" if near else ""))
    return said
