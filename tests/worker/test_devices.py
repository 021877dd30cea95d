"""Devices are leased by file locks, so that no two workers of a host share a card."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.gpus.devices import ChoosingBusy, DevicePool
from worker.messages import Device

TWO = tuple(Device(index, f"GPU-{index}", "H200", 1, "580", "13.0") for index in range(2))


def test_what_is_kept_is_not_free_until_it_is_released(tmp_path: Path) -> None:
    """Also for another worker's pool on the same host."""
    mine, others = DevicePool(TWO, tmp_path), DevicePool(TWO, tmp_path)
    with mine.choosing() as lease:
        assert lease.uuids == ("GPU-0", "GPU-1")
        lease.keep(lease.uuids[:1])
    with others.choosing() as second:
        assert second.uuids == ("GPU-1",)
        second.keep(second.uuids[:1])
    with mine.choosing() as third:
        assert third.uuids == ()
    lease.release()
    with others.choosing() as fourth:
        assert fourth.uuids == ("GPU-0",)
        fourth.release()
    second.release()


def test_a_worker_stopped_while_it_chooses_stops_no_other(tmp_path: Path) -> None:
    """Who waits for it gives up after a while, says where to look, and holds nothing."""
    mine, others = DevicePool(TWO, tmp_path), DevicePool(TWO, tmp_path)
    with mine.choosing() as lease:
        with pytest.raises(ChoosingBusy, match=r"choosing\.lock"), others.choosing(0.1):
            raise AssertionError("two chose at once")
        lease.release()
    with others.choosing(0.1) as again:
        assert again.uuids == ("GPU-0", "GPU-1")
        again.release()


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


def test_nobody_holds_one_card_and_waits_for_another(tmp_path: Path) -> None:
    """Two workers of a host that each want both cards: who finds only one of them gives it back at once."""
    mine, others = DevicePool(TWO, tmp_path), DevicePool(TWO, tmp_path)
    with mine.choosing() as one:
        one.keep(["GPU-1"])
    with others.choosing() as wanting:
        assert wanting.uuids == ("GPU-0",)
        wanting.release()
    one.release()
    with mine.choosing() as both:
        assert both.uuids == ("GPU-0", "GPU-1")
        both.release()


def test_a_look_holds_what_is_free_and_never_waits(tmp_path: Path) -> None:
    """While somebody chooses there is no look, and a look keeps nothing."""
    mine, others = DevicePool(TWO, tmp_path), DevicePool(TWO, tmp_path)
    with mine.choosing() as lease:
        lease.keep(["GPU-0"])
        with others.looking() as seen:
            assert seen is None
    with others.looking() as seen:
        assert seen == ("GPU-1",)
    with others.choosing() as rest:
        assert rest.uuids == ("GPU-1",)
        rest.release()
    lease.release()


def test_a_card_that_cannot_be_read_is_never_leased(tmp_path: Path) -> None:
    """It has no UUID to name it by."""
    unread = Device(2, "", "unknown", 0, "580", "13.0", drained="the driver cannot read it")
    with DevicePool((*TWO, unread), tmp_path).choosing() as lease:
        assert lease.uuids == ("GPU-0", "GPU-1")
        lease.release()


def test_who_fails_to_choose_holds_nothing(tmp_path: Path) -> None:
    """Whatever went wrong meanwhile."""
    pool = DevicePool(TWO, tmp_path)
    with pytest.raises(KeyboardInterrupt), pool.choosing():
        raise KeyboardInterrupt
    with pool.choosing() as lease:
        assert lease.uuids == ("GPU-0", "GPU-1")
        lease.release()
