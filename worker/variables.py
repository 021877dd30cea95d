"""Warns of variables that nobody reads: a misspelled setting would otherwise be a default in silence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from worker.settings import Settings

PREFIX = "REPLAYBENCH_"
OTHERS = frozenset(
    {
        "REPLAYBENCH_ADDRESS_RATE",
        "REPLAYBENCH_ARTIFACT_CAP_BYTES",
        "REPLAYBENCH_BODY_CAP_BYTES",
        "REPLAYBENCH_CELL_CAP",
        "REPLAYBENCH_CLAIMED_S",
        "REPLAYBENCH_CLAIM_CAP",
        "REPLAYBENCH_CREDENTIAL_ENV",
        "REPLAYBENCH_DATA_DIR",
        "REPLAYBENCH_DELIVERY_GIVE_UP_S",
        "REPLAYBENCH_DELIVERY_S",
        "REPLAYBENCH_DELIVERY_TIMEOUT_S",
        "REPLAYBENCH_ENROLMENT_FILE",
        "REPLAYBENCH_GIT_TIMEOUT_S",
        "REPLAYBENCH_HOOK_BODY_CAP_BYTES",
        "REPLAYBENCH_HOOK_SECRETS",
        "REPLAYBENCH_HOST",
        "REPLAYBENCH_IDEMPOTENCY_S",
        "REPLAYBENCH_LEASE_S",
        "REPLAYBENCH_LOG_LEVEL",
        "REPLAYBENCH_OVERTIME_S",
        "REPLAYBENCH_PLAN_GIVE_UP_S",
        "REPLAYBENCH_PORT",
        "REPLAYBENCH_PREPARING_S",
        "REPLAYBENCH_PRIVATE_TARGETS",
        "REPLAYBENCH_PROBE_CAP_BYTES",
        "REPLAYBENCH_PUBLIC_READING",
        "REPLAYBENCH_PUBLIC_URL",
        "REPLAYBENCH_RESERVE_AFTER_S",
        "REPLAYBENCH_SCHEDULE_S",
        "REPLAYBENCH_SUBMIT_TOKEN",
        "REPLAYBENCH_SWEEP_S",
        "REPLAYBENCH_TOKEN",
        "REPLAYBENCH_TOKEN_RATE",
        "REPLAYBENCH_URL",
    }
)
"""What the service and the command line read. A test compares them with the service's own settings."""


def own() -> frozenset[str]:
    """The variables with our prefix that the worker reads."""
    names = (str(field.validation_alias) for field in Settings.model_fields.values())
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
