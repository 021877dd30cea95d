"""What binds a quoted table to stored attempts: a digest over their observations, and a key of what may be compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from service.states import Origin


def digest(
    tree: str,
    runtime: str,
    suite: str,
    cases: Iterable[tuple[str, int, str, str | None]],
    origin: Origin = Origin.RUN,
) -> str:
    """The SHA-256 over a tree, runtime, suite and the last observations as (node id, occurrence, outcome, class).

    Durations and messages differ from run to run and are left out: the same results have the same digest. Imported
    ones never have that of a run of ours: for them the origin is part of it.
    """
    body: list[Any] = [tree, runtime, suite]
    body.append(sorted([list(case) for case in cases], key=lambda case: (case[0], case[1])))
    if origin is not Origin.RUN:
        body.append(origin)
    text = json.dumps(body, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def comparison_key(record: Mapping[str, Any]) -> str:
    """What must be equal before two attempts' bits may be compared: GPU models, driver, torch build and lightning.

    An imported record says what somebody told us, and nobody asserted: its key is never that of a run of ours.
    """
    models = "+".join(_models(record)) or "no GPU"
    parts = (models, record.get("driver") or "no driver", record.get("torch"), record.get("lightning"))
    told = f"{Origin.IMPORTED}: " if record.get("origin") == Origin.IMPORTED else ""
    return (told + " / ".join(str(part) if part else "none" for part in parts))[:400]


def gpu_of(record: Mapping[str, Any] | None) -> str | None:
    """The GPU models of an environment record, as a table shows them: ``NVIDIA H200``, ``2 x NVIDIA H200``."""
    models = _models(record or {})
    if not models:
        return None
    kinds = list(dict.fromkeys(models))
    return ", ".join(f"{models.count(kind)} x {kind}" if models.count(kind) > 1 else kind for kind in kinds)


def _models(record: Mapping[str, Any]) -> list[str]:
    gpus = record.get("gpus")
    return [str(gpu.get("model")) for gpu in gpus if isinstance(gpu, Mapping)] if isinstance(gpus, list) else []
