"""A card that is not fit is drained with its reason, comes back when it may, and what we left on it is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.nvml import Cards, card
from worker.gpus import gpu
from worker.gpus.device_faults import FaultBook
from worker.gpus.devices import DevicePool
from worker.gpus.health import DeviceHealth


class Machine:
    """A machine with two cards, and a worker's view of them."""

    def __init__(self, folder: Path) -> None:
        self.cards = Cards(folder / "cards.json", card(0), card(1))
        self.folder, self.attempts = folder, folder / "attempts"
        self.first, self.second = self.cards.uuids
        self.told = 0

    def worker(self) -> DeviceHealth:
        """A worker that starts now."""
        health = DeviceHealth(
            gpu.inventory(),
            FaultBook(self.folder / "devices"),
            attempts=self.attempts,
            free_percent=90,
            grace_s=0.3,
        )
        health.on_change = self.hear
        return health

    def hear(self) -> None:
        self.told += 1

    def pool(self) -> DevicePool:
        return DevicePool(gpu.inventory(), self.folder / "devices")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    made.cards.put_under(monkeypatch)
    return made


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"lost": True}, "GPU 0 drained: the driver no longer answers for it: GPU is lost"),
        ({"mig": 1}, "GPU 0 drained: MIG is on"),
        ({"compute_mode": 2}, "GPU 0 drained: its compute mode is prohibited"),
        ({"rows": [0, 0, 0, 1]}, "GPU 0 drained: bad memory could not be replaced"),
        ({"used_mib": 20000}, "GPU 0 drained: 123771 of 143771 MiB are free, 90 % must be"),
        ({"processes": [[os.getpid(), 77]]}, f"(pid {os.getpid()}, 77 MiB)"),
    ],
    ids=["lost", "mig", "compute-mode", "rows", "memory", "owner"],
)
def test_what_goes_by_itself_drains_a_card_for_as_long_as_it_lasts(
    machine: Machine, change: dict[str, Any], reason: str
) -> None:
    """Each with its reason, on this card alone, told once each way."""
    health = machine.worker()
    assert health.check(machine.first) == ""
    machine.cards.set(0, **change)
    assert reason in health.check(machine.first)
    assert reason.removeprefix("GPU 0 drained: ") in health.devices()[0].drained
    assert health.check(machine.second) == ""
    machine.cards.set(0, **{key: card(0)[key] for key in change})
    assert health.check(machine.first) == ""
    assert [device.drained for device in health.devices()] == ["", ""]
    assert machine.told == 2


@pytest.mark.parametrize("change", [{"compute_mode": 3}, {"rows": [0, 2, 1, 0]}, {"mig": None}, {"total_mib": None}])
def test_what_is_no_fault_drains_nothing(machine: Machine, change: dict[str, Any]) -> None:
    """Exclusive mode, rows that wait for a reset, and what a card does not know."""
    machine.cards.set(0, **change)
    assert machine.worker().check(machine.first) == ""


def test_a_memory_error_stays_until_it_is_cleared(machine: Machine) -> None:
    """Over restarts of the worker and for all workers of the host; errors from before the first look are no news."""
    machine.cards.set(0, ecc=[5, 9])
    health = machine.worker()
    assert health.check(machine.first) == ""
    machine.cards.set(0, ecc=[7, 11])
    assert "2 new uncorrected ECC errors (7 in all), 2" in health.check(machine.first)
    assert "2 new" in health.check(machine.first)
    other = machine.worker()
    assert "2 new" in other.check(machine.first)
    FaultBook(machine.folder / "devices").clear(machine.first)
    assert (health.check(machine.first), other.check(machine.first)) == ("", "")


def test_a_count_that_a_reset_began_anew_is_no_error(machine: Machine) -> None:
    """What is counted then is counted from there."""
    machine.cards.set(0, ecc=[5, 9])
    health = machine.worker()
    health.check(machine.first)
    machine.cards.set(0, ecc=[0, 9])
    assert health.check(machine.first) == ""
    machine.cards.set(0, ecc=[1, 10])
    assert "1 new uncorrected" in health.check(machine.first)


def test_an_xid_drains_at_once_and_stays(machine: Machine) -> None:
    """A program's own error is only counted."""
    health = machine.worker()
    health.note_xid(machine.second, 31)
    health.note_xid(machine.second, 13)
    assert health.check(machine.second) == ""
    assert health.devices()[1].xids == (31, 13)
    health.note_xid(machine.second, 79)
    health.note_xid(machine.second, 119)
    assert health.devices()[1].drained.startswith("Xid 79 (the GPU has fallen off the bus), 2")
    assert health.broken(machine.second).startswith("GPU 1 drained: Xid 79")
    assert (health.broken(machine.first), health.xids(machine.second)) == ("", (31, 13, 79, 119))
    assert "Xid 79" in machine.worker().check(machine.second)
    assert machine.told >= 4


def test_a_restart_of_the_machine_forgets_a_fault(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A card that is still broken says so again."""
    health = machine.worker()
    health.note_xid(machine.first, 48)
    assert health.check(machine.first)
    monkeypatch.setattr("worker.gpus.device_faults._boot", lambda: "another")
    assert machine.worker().check(machine.first) == ""


def test_a_full_disk_hides_no_fault(machine: Machine) -> None:
    """The worker that saw it remembers it, for itself."""
    health = machine.worker()
    (machine.folder / "devices").write_text("no folder")
    health.note_xid(machine.first, 48)
    assert "Xid 48" in health.check(machine.first)


def test_idle_cards_are_looked_at_again(machine: Machine) -> None:
    """One that is leased only for what stays: its cell is using it."""
    health, pool = machine.worker(), machine.pool()
    machine.cards.set(0, processes=[[os.getpid(), 77]])
    machine.cards.set(1, processes=[[os.getpid(), 77]])
    with pool.choosing() as lease:
        lease.keep([machine.second])
    health.recheck(pool)
    first, second = health.devices()
    assert (first.drained.startswith("in use by"), second.drained) == (True, "")
    machine.cards.set(0, processes=[])
    machine.cards.set(1, lost=True)
    health.recheck(pool)
    first, second = health.devices()
    assert (first.drained, second.drained[:36]) == ("", "the driver no longer answers for it:")
    lease.release()


def started(*, home: Path) -> subprocess.Popen[bytes]:
    code = "print(flush=True); import time; time.sleep(120)"
    process = subprocess.Popen([sys.executable, "-c", code], env={"HOME": str(home)}, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def frees(machine: Machine, process: subprocess.Popen[bytes]) -> Callable[[Path], list[int]]:
    """Kills as the worker does; the driver then takes the memory back."""
    from worker.isolation import survivors  # noqa: PLC0415 - what is replaced

    def end(folder: Path) -> list[int]:
        killed = survivors.end_survivors(folder)
        if process.pid in killed:
            process.wait(10)
            machine.cards.set(0, processes=[], used_mib=600)
        return killed

    return end


def test_what_an_earlier_attempt_left_on_a_card_is_ended(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ours, and its attempt is over. Of a stranger, or of an attempt that still runs, only the name is said."""
    over, live = machine.attempts / "boot" / "5", machine.attempts / "boot" / "6"
    live.mkdir(parents=True)
    left, stray, stranger = started(home=over / "home"), started(home=live / "home"), started(home=machine.folder)
    health = machine.worker()
    monkeypatch.setattr("worker.gpus.health.end_survivors", frees(machine, left))
    try:
        machine.cards.set(0, processes=[[left.pid, 900]], used_mib=1500)
        assert health.check(machine.first) == ""
        assert left.wait(10) == -signal.SIGKILL
        machine.cards.set(0, processes=[[stray.pid, 900], [stranger.pid, 1]])
        reason = health.check(machine.first)
        assert f"(pid {stray.pid}, 900 MiB)" in reason
        assert f"(pid {stranger.pid}, 1 MiB)" in reason
        assert (stray.poll(), stranger.poll()) == (None, None)
    finally:
        for process in (left, stray, stranger):
            process.kill()
            process.communicate()


def test_a_card_is_waited_for_after_a_cell_and_its_holders_are_ended(machine: Machine) -> None:
    """With their names; one that is given back is not drained."""
    folder = machine.attempts / "boot" / "5"
    left = started(home=folder / "home")
    health = machine.worker()
    machine.cards.set(0, processes=[[left.pid, 900]], used_mib=1500)
    try:
        words = health.after(machine.first, 600, lambda: frees(machine, left)(folder))
        assert f"GPU 0 was not given back within 0.3 s: 1500 MiB in use, 600 MiB before: {sys.executable}" in words
        assert words.endswith(f"; killed {left.pid}")
        assert health.devices()[0].drained == ""
    finally:
        left.kill()
        left.communicate()


def test_memory_that_nobody_gives_back_drains_the_card_until_it_is_back(machine: Machine) -> None:
    """Though most of it is free: somebody holds what the cell took."""
    health = machine.worker()
    machine.cards.set(0, used_mib=1500)
    words = health.after(machine.first, 600, list)
    assert "1500 MiB in use, 600 MiB before: nobody that the driver names" in words
    assert "GPU 0 drained: the last cell's memory is not given back" in words
    machine.cards.set(0, used_mib=610)
    assert health.check(machine.first) == ""
    assert health.after(machine.first, 600, list) == ""
