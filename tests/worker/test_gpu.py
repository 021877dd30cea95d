"""The inventory by NVML, over a stand-in for the driver's library where this machine has no GPU."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from tests.support.nvml import Cards, card
from tests.worker.support import wait_for, wait_for_thread
from worker.gpus import gpu
from worker.gpus.xids import XidWatch


def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *of: dict[str, object]) -> Cards:
    made = Cards(tmp_path / "cards.json", *of)
    made.put_under(monkeypatch)
    return made


def test_the_inventory_is_a_list_of_devices_or_empty() -> None:
    """On the machine that this runs on. Without a library or driver there is none, which is no error."""
    for device in gpu.inventory():
        assert device.uuid.startswith("GPU-")
        assert gpu.look(device.uuid).total_mib == device.memory_mib
    with pytest.raises(gpu.DeviceGone):
        gpu.look("GPU-of-no-machine")
    assert gpu.sample("GPU-of-no-machine") is None


def test_a_card_is_told_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Model, memory, driver, its CUDA, error counters, mode."""
    cards(tmp_path, monkeypatch, card(0, ecc=[1, 7], rows=[0, 2, 1, 0], compute_mode=3))
    (device,) = gpu.inventory()
    assert (device.index, device.model, device.memory_mib, device.memory_free_mib) == (
        0, "NVIDIA H200", 143771, 143171,
    )  # fmt: skip
    assert (device.driver, device.cuda) == ("580.95.05", "13.0")
    assert (device.ecc_volatile, device.ecc_aggregate, device.rows_pending, device.rows_failed) == (1, 7, True, False)
    assert (device.compute_mode, device.mig) == ("exclusive-process", False)


def test_a_small_card_without_ecc_mig_or_memory_of_its_own_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it does not know is nothing, and no error. Older cards tell retired pages."""
    old = card(0, ecc=None, rows=None, mig=None, pages_pending=1)
    cards(tmp_path, monkeypatch, old, card(1, total_mib=None, utilisation=None))
    first, second = gpu.inventory()
    assert (first.ecc_volatile, first.ecc_aggregate, first.rows_pending, first.mig) == (None, None, True, False)
    assert (second.memory_mib, second.memory_free_mib) == (0, None)
    assert gpu.sample(second.uuid) == gpu.Sample(None, None, {}, None)


def test_a_card_that_is_lost_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is listed with what the driver says of it."""
    here = cards(tmp_path, monkeypatch, card(0, lost=True), card(1))
    first, second = gpu.inventory()
    assert (first.uuid, first.drained) == ("", "the driver cannot read it: GPU is lost")
    assert (second.uuid, second.drained) == (here.uuids[1], "")
    with pytest.raises(gpu.DeviceGone, match="GPU is lost"):
        gpu.look(here.uuids[0])


def test_who_computes_on_a_card_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By command and number; one of another container by number alone."""
    here = cards(tmp_path, monkeypatch, card(0, processes=[[os.getpid(), 512], [2**22 + 1, None]]))
    ours, unseen = gpu.look(here.uuids[0]).owners
    assert str(ours).endswith(f"(pid {os.getpid()}, 512 MiB)")
    assert Path(sys.executable).name in ours.command
    assert str(unseen) == f"a process that is not seen from here (pid {2**22 + 1})"


def test_errors_are_heard_while_somebody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of each card, none from before; a card that tells none is left out."""
    here = cards(tmp_path, monkeypatch, card(0, xids=[48]), card(1), card(2, events=0))
    heard: list[tuple[str, int]] = []
    stop = threading.Event()
    watch = XidWatch(here.uuids, lambda uuid, xid: heard.append((uuid, xid)), stop)
    watch.start()
    assert watch.listening.wait(10)
    here.xid(1, 31)
    here.xid(0, 79)
    here.set(0, lost=True)
    here.xid(1, 13)
    wait_for(lambda: len(heard) == 3, "the errors")
    stop.set()
    wait_for_thread("xid-watch")
    assert sorted(heard) == sorted([(here.uuids[1], 31), (here.uuids[0], 79), (here.uuids[1], 13)])
