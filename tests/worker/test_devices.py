"""Devices are leased by file locks, so that no two workers of a host share a card."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker import gpu
from worker.devices import DevicePool
from worker.messages import Device

TWO = tuple(Device(index, f"GPU-{index}", "H200", 1, "580", "13.0") for index in range(2))


def test_what_is_kept_is_not_free_until_it_is_released(tmp_path: Path) -> None:
    """Also for another worker's pool on the same host."""
    mine, others = DevicePool(TWO, tmp_path), DevicePool(TWO, tmp_path)
    with mine.choosing() as lease:
        assert lease.uuids == ("GPU-0", "GPU-1")
        lease.keep(1)
    with others.choosing() as second:
        assert second.uuids == ("GPU-1",)
        second.keep(1)
    with mine.choosing() as third:
        assert third.uuids == ()
    lease.release()
    with others.choosing() as fourth:
        assert fourth.uuids == ("GPU-0",)
        fourth.release()
    second.release()


def test_a_claim_that_breaks_gives_all_back(tmp_path: Path) -> None:
    """Nothing stays locked behind an error."""
    pool = DevicePool(TWO, tmp_path)
    try:
        with pool.choosing():
            raise RuntimeError
    except RuntimeError:
        pass
    with pool.choosing() as lease:
        assert len(lease.uuids) == 2
        lease.release()


def test_the_inventory_is_a_list_of_devices_or_empty() -> None:
    """A machine without a GPU has none, which is no error."""
    for device in gpu.inventory():
        assert device.uuid.startswith("GPU-")
        assert gpu.memory(device.uuid) is not None
    assert gpu.memory("GPU-of-no-machine") is None


def test_who_fails_to_choose_holds_nothing(tmp_path: Path) -> None:
    """Whatever went wrong meanwhile."""
    pool = DevicePool(TWO, tmp_path)
    with pytest.raises(KeyboardInterrupt), pool.choosing():
        raise KeyboardInterrupt
    with pool.choosing() as lease:
        assert lease.uuids == ("GPU-0", "GPU-1")
        lease.release()
