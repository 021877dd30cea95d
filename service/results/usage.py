"""What an attempt took of its GPUs, as people read it. Pure: the record comes from a worker, and may be odd."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GIB = 2**30


@dataclass(frozen=True)
class CardUsage:
    """One GPU's line: ``3.0 of 140.4 GiB``, ``45 % on average, 90 % at most``, ``Xid 31``. Empty where not known."""

    name: str
    memory: str
    busy: str
    xids: str

    def __str__(self) -> str:
        return ", ".join(
            filter(None, [f"{self.name}: {self.memory}" if self.memory else self.name, self.busy, self.xids])
        )


def cards_of(record: Mapping[str, Any] | None) -> list[CardUsage]:
    """Each GPU of a record as ``messages.UsageEvent`` describes it."""
    gpus = (record or {}).get("gpus")
    return [_card(gpu) for gpu in gpus if isinstance(gpu, Mapping)] if isinstance(gpus, list) else []


def _card(gpu: Mapping[str, Any]) -> CardUsage:
    xids = gpu.get("xids")
    return CardUsage(
        name=f"GPU {gpu.get('index', '?')}",
        memory=_memory(gpu),
        busy=_busy(_number(gpu, "utilisation_mean_percent"), _number(gpu, "utilisation_max_percent")),
        xids=", ".join(f"Xid {xid}" for xid in dict.fromkeys(map(str, xids))) if isinstance(xids, list) else "",
    )


def _memory(gpu: Mapping[str, Any]) -> str:
    peak, total = _number(gpu, "memory_peak_bytes"), _number(gpu, "memory_total_bytes")
    if peak is None:
        return ""
    of_total = f" of {total / GIB:.1f}" if total else ""
    whole = "" if gpu.get("memory_source") == "processes" else ", the whole device's"
    return f"{peak / GIB:.1f}{of_total} GiB of memory at most{whole}"


def _busy(mean: float | None, most: float | None) -> str:
    return "" if mean is None or most is None else f"busy {mean:g} % on average, {most:g} % at most"


def _number(gpu: Mapping[str, Any], key: str) -> float | None:
    value = gpu.get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
