"""Samples what an attempt takes of its devices: the most memory, and how busy they were.

A look every half second sees what is held for longer than that; what torch's allocator keeps, it sees.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from worker.gpus import gpu
from worker.messages import Device


@dataclass
class _Card:
    """What was seen of one device so far, in bytes and percent."""

    device: Device
    by_processes: int | None = None
    by_device: int | None = None
    total: int | None = None
    percents: list[int] = field(default_factory=list)

    def take(self, sample: gpu.Sample, tree: Collection[int]) -> None:
        ours = [held for pid, held in sample.by_process.items() if pid in tree]
        if ours:
            self.by_processes = max(self.by_processes or 0, sum(ours))
        if sample.used is not None:
            self.by_device = max(self.by_device or 0, sample.used)
        self.total = sample.total or self.total
        if sample.percent is not None:
            self.percents.append(sample.percent)

    def record(self) -> dict[str, Any]:
        peak, source = self.by_device, "device"
        if self.by_processes is not None:
            peak, source = self.by_processes, "processes"
        return {
            "index": self.device.index,
            "uuid": self.device.uuid,
            "memory_peak_bytes": peak,
            "memory_source": source,
            "memory_total_bytes": self.total,
            "utilisation_mean_percent": round(sum(self.percents) / len(self.percents), 1) if self.percents else None,
            "utilisation_max_percent": max(self.percents, default=None),
        }


class UsageSampler:
    """A thread that samples for as long as the context lasts. ``tree`` gives the processes that are the attempt's."""

    def __init__(self, devices: Sequence[Device], interval_s: float, tree: Callable[[], Collection[int]]) -> None:
        self._cards = [_Card(device) for device in devices]
        self._interval_s, self._tree = interval_s, tree
        self._over = threading.Event()
        self._samples = 0
        self._seconds = 0.0
        self._began = 0.0
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)

    def __enter__(self) -> UsageSampler:
        self._began = time.monotonic()
        if self._cards:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._over.set()
        if self._cards:
            self._thread.join()
        self._seconds = time.monotonic() - self._began

    def _run(self) -> None:
        with gpu.session():
            while True:
                self._sample()
                if self._over.wait(self._interval_s):
                    return

    def _sample(self) -> None:
        found = [gpu.sample(card.device.uuid) for card in self._cards]
        tree = self._tree() if any(sample and sample.by_process for sample in found) else ()
        for card, sample in zip(self._cards, found, strict=True):
            if sample is not None:
                card.take(sample, tree)
        self._samples += 1

    def record(self) -> dict[str, Any]:
        """What was seen, as ``messages.UsageEvent`` describes it, but for the Xid errors."""
        return {
            "seconds": round(self._seconds, 3),
            "interval_s": self._interval_s,
            "samples": self._samples,
            "gpus": [card.record() for card in self._cards],
        }
