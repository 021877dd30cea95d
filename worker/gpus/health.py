"""Which of this worker's cards are fit for a cell, and why the others are not: those are drained.

A card is looked at before a cell is claimed for it, again before its tests start, after they have ended, and while it
is idle. What goes by itself (somebody else's process, memory that comes back) drains it for as long as it lasts; an Xid
or a memory error until an operator clears it (``worker.gpus.device_faults``).
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from worker.gpus import gate, gpu
from worker.gpus.device_faults import FaultBook
from worker.gpus.devices import DevicePool
from worker.isolation.survivors import attempt_of, end_survivors
from worker.messages import Device

log = structlog.get_logger()

_SLACK_MIB = 64
_POLL_S = 0.1
_SHOWN_XIDS = 20
_XIDS = {
    48: "double-bit ECC error",
    62: "internal micro-controller halt",
    63: "bad memory to be replaced",
    64: "bad memory could not be replaced",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "the GPU's firmware does not answer",
    120: "error in the GPU's firmware",
    154: "a reset is needed",
}


class DeviceHealth:
    """The health of this worker's cards. Safe to use from several threads."""

    def __init__(
        self, devices: Sequence[Device], book: FaultBook, *, attempts: Path, free_percent: float, grace_s: float
    ) -> None:
        self._devices = {device.uuid or f"unread-{device.index}": device for device in devices}
        self._book, self._attempts = book, attempts
        self._free_percent, self._grace_s = free_percent, grace_s
        self._owed: dict[str, int] = {}
        self._kept: dict[str, str] = {}
        self._xids: dict[str, list[int]] = {uuid: [] for uuid in self._devices}
        self._lock = threading.Lock()
        self.on_change: Callable[[], None] = lambda: None

    @classmethod
    def of_no_device(cls) -> DeviceHealth:
        """That of a machine without any."""
        return cls((), FaultBook(Path(os.devnull)), attempts=Path(os.devnull), free_percent=0.0, grace_s=0.0)

    def devices(self) -> tuple[Device, ...]:
        """All cards, with what was last seen of them."""
        with self._lock:
            return tuple(self._devices.values())

    def xids(self, uuid: str) -> tuple[int, ...]:
        """The errors that the driver told of a card so far."""
        with self._lock:
            return tuple(self._xids[uuid])

    def check(self, uuid: str, *, idle: bool = True) -> str:
        """Why a card gets no cell, looked at now; empty where it may have one. Whether it is then said to be drained.

        ``idle`` says that the caller holds the card and nothing of its own should run there.
        """
        look: gpu.Look | None = None
        try:
            look = self._look(uuid, idle=idle)
            reason = self._judge(uuid, look, idle=idle)
        except gpu.DeviceGone as gone:
            reason = self._lasting(uuid) or f"the driver no longer answers for it: {gone}"
        return self._note(uuid, look if idle else None, reason)

    def note_xid(self, uuid: str, xid: int) -> None:
        """Take in an error that the driver told of a card, busy or not."""
        if not gate.harmless(xid):
            known = f" ({_XIDS[xid]})" if xid in _XIDS else ""
            self._keep(uuid, f"Xid {xid}{known}")
        with self._lock:
            device = self._devices[uuid]
            self._xids[uuid].append(xid)
            shown = tuple(self._xids[uuid][-_SHOWN_XIDS:])
            self._devices[uuid] = dataclasses.replace(device, xids=shown, drained=self._lasting(uuid) or device.drained)
        self.on_change()

    def broken(self, uuid: str) -> str:
        """The fault that stays on a card, without a new look; empty where there is none."""
        reason = self._lasting(uuid)
        return f"{self._title(uuid)} drained: {reason}" if reason else ""

    def used(self, uuid: str) -> int | None:
        """The card's memory in use now, MiB."""
        try:
            return gpu.look(uuid).used_mib
        except gpu.DeviceGone:
            return None

    def after(self, uuid: str, before_mib: int | None, end_left: Callable[[], list[int]]) -> str:
        """See that a card is given back after a cell: nobody on it, memory as before. ``end_left`` kills what the cell
        may have left. What was wrong, for a person; empty where all is well."""
        words = []
        look = self._settled(uuid, before_mib)
        if look is not None:
            words.append(
                f"{self._title(uuid)} was not given back within {self._grace_s:g} s: {_held(look, before_mib)}"
            )
            if killed := end_left():
                words.append(f"killed {', '.join(map(str, killed))}")
                look = self._settled(uuid, before_mib)
        if look is not None and before_mib is not None:
            self._owed[uuid] = before_mib
        words.append(self.check(uuid))
        return "; ".join(filter(None, words))

    def _settled(self, uuid: str, before_mib: int | None) -> gpu.Look | None:
        """Wait a grace for a card to be as before. The last look at one that is not."""
        deadline = time.monotonic() + self._grace_s
        while True:
            try:
                look = gpu.look(uuid)
            except gpu.DeviceGone:
                return None
            if not look.owners and not _owes(look, before_mib):
                return None
            if time.monotonic() >= deadline:
                return look
            time.sleep(_POLL_S)

    def _look(self, uuid: str, *, idle: bool) -> gpu.Look:
        """A look, after what earlier attempts left on the card is ended."""
        look = gpu.look(uuid)
        folders = {attempt_of(owner.pid, self._attempts) for owner in look.owners} if idle else set()
        left = [folder for folder in folders if folder is not None and not folder.exists()]
        killed = [pid for folder in left for pid in end_survivors(folder)]
        if not killed:
            return look
        log.warning("left by earlier attempts and killed", device=uuid, pids=killed)
        return self._settled(uuid, None) or gpu.look(uuid)

    def _judge(self, uuid: str, look: gpu.Look, *, idle: bool) -> str:
        if (lasting := self._lasting(uuid)) or not idle:
            return lasting
        fault = gate.fault_of(look, ecc_before=self._book.errors(uuid), free_percent=self._free_percent)
        if fault is None and _owes(look, self._owed.get(uuid)):
            return f"the last cell's memory is not given back: {_held(look, self._owed.get(uuid))}"
        if fault is None:
            self._owed.pop(uuid, None)
            self._book.note_errors(uuid, look.ecc_volatile)
            return ""
        if fault.stays:
            self._keep(uuid, fault.reason)
            return self._lasting(uuid)
        return fault.reason

    def _keep(self, uuid: str, reason: str) -> None:
        self._book.keep(uuid, reason)
        if not self._book.fault(uuid):  # its disk is full: then this process remembers
            self._kept[uuid] = reason

    def _lasting(self, uuid: str) -> str:
        return self._book.fault(uuid) or self._kept.get(uuid, "")

    def _title(self, uuid: str) -> str:
        return f"GPU {self._devices[uuid].index}"

    def _note(self, uuid: str, look: gpu.Look | None, reason: str) -> str:
        with self._lock:
            before = self._devices[uuid]
            device = gpu.described(before, look) if look else before
            self._devices[uuid] = dataclasses.replace(device, drained=reason)
        if reason != before.drained:
            log.warning("device drained" if reason else "device is fit again", device=uuid, reason=reason)
            self.on_change()
        return f"{self._title(uuid)} drained: {reason}" if reason else ""

    def recheck_in_background(self, pool: DevicePool, every_s: float, stop: threading.Event) -> None:
        """Look at idle cards now and then: whether one that was drained is fit again, or an idle one no longer is."""

        def again() -> None:
            while not stop.wait(every_s):
                self.recheck(pool)

        if self._devices:
            threading.Thread(target=again, name="device-recheck", daemon=True).start()

    def recheck(self, pool: DevicePool) -> None:
        """Look at all cards once; at one that is leased only whether it is there, and has no fault that stays."""
        with pool.looking() as idle:
            for device in self.devices() if idle is not None else ():
                if device.uuid and idle is not None:
                    self.check(device.uuid, idle=device.uuid in idle)


def _owes(look: gpu.Look, before_mib: int | None) -> bool:
    return before_mib is not None and look.used_mib is not None and look.used_mib > before_mib + _SLACK_MIB


def _held(look: gpu.Look, before_mib: int | None) -> str:
    owners = ", ".join(map(str, look.owners)) or "nobody that the driver names"
    memory = "" if before_mib is None else f"{look.used_mib} MiB in use, {before_mib} MiB before: "
    return f"{memory}{owners}"
