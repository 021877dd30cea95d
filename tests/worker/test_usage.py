"""What an attempt takes of its devices is sampled, and the sampling ends."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.support.nvml import MIB, Cards, card
from tests.worker.support import wait_for
from worker.gpus import gpu
from worker.gpus.usage import UsageSampler


def test_the_most_memory_and_how_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the attempt's own processes where the driver names them, else of the device."""
    cards = Cards(tmp_path / "cards.json", card(0), card(1, processes=[[30, None]], used_mib=700, utilisation=None))
    cards.put_under(monkeypatch)
    looks = threading.Semaphore(0)
    real = gpu.sample

    def counted(uuid: str) -> gpu.Sample | None:
        looks.release()
        return real(uuid)

    def seen() -> None:
        """A whole look at both since now: one may be under way."""
        for _ in range(4):
            assert looks.acquire(timeout=10)
        while looks.acquire(blocking=False):
            pass

    monkeypatch.setattr(gpu, "sample", counted)
    with UsageSampler(gpu.inventory(), 0.01, lambda: {10, 11}) as sampler:
        seen()
        cards.set(0, processes=[[10, 3000], [11, 500], [99, 9999]], used_mib=14099, utilisation=80)
        seen()
        seen()
        cards.set(0, processes=[[10, 100]], used_mib=700, utilisation=20)
        seen()
        seen()
    assert not any(thread.name == "usage" for thread in threading.enumerate())
    record = sampler.record()
    first, second = record["gpus"]
    assert (first["memory_peak_bytes"], first["memory_source"]) == (3500 * MIB, "processes")
    assert first["memory_total_bytes"] == 143771 * MIB
    assert (first["utilisation_max_percent"], 0 < first["utilisation_mean_percent"] < 80) == (80, True)
    assert (second["memory_peak_bytes"], second["memory_source"]) == (700 * MIB, "device")
    assert (second["utilisation_mean_percent"], second["utilisation_max_percent"]) == (None, None)
    assert record["samples"] >= 4


def test_a_card_that_is_gone_in_the_middle_ends_no_sampling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was seen before stays."""
    cards = Cards(tmp_path / "cards.json", card(0))
    cards.put_under(monkeypatch)
    with UsageSampler(gpu.inventory(), 0.01, set) as sampler:
        wait_for(lambda: sampler.record()["samples"] > 1, "a sample")
        cards.set(0, lost=True)
        before = sampler.record()["samples"]
        wait_for(lambda: sampler.record()["samples"] > before + 2, "samples of nothing")
    assert sampler.record()["gpus"][0]["memory_peak_bytes"] == 600 * MIB


def test_without_a_device_nothing_is_sampled() -> None:
    """And nothing is started."""
    with UsageSampler((), 0.01, set) as sampler:
        assert not any(thread.name == "usage" for thread in threading.enumerate())
    assert sampler.record()["gpus"] == []
