"""Listens for Xid errors, the driver's word for what went wrong on a card. NVML keeps no history of them: it tells them
only to those who listen while they happen."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pynvml
import structlog

from worker.gpus import gpu

log = structlog.get_logger()

_WAIT_MS = 500
_AGAIN_S = 5.0


class XidWatch:
    """A thread that hands on every Xid error of some devices, as (uuid, number)."""

    def __init__(self, uuids: Sequence[str], on_xid: Callable[[str, int], None], stop: threading.Event) -> None:
        self._uuids, self._on_xid, self._stop = uuids, on_xid, stop
        self.listening = threading.Event()

    def start(self) -> None:
        """Begin to listen; where there is no device, or none that tells errors, nobody does."""
        if self._uuids:
            threading.Thread(target=self._run, name="xid-watch", daemon=True).start()

    def _run(self) -> None:
        while not self._stop.is_set():
            with gpu.session() as present:
                try:
                    if present and not self._listen():
                        log.info("no device here tells Xid errors")
                        return
                except pynvml.NVMLError as error:
                    log.warning("Xid errors are not heard for a moment", error=str(error))
            self._stop.wait(_AGAIN_S)

    def _listen(self) -> bool:
        events = pynvml.nvmlEventSetCreate()
        try:
            known = dict(found for uuid in self._uuids if (found := _registered(uuid, events)))
            if not known:
                return False
            self.listening.set()
            while not self._stop.is_set():
                self._wait(events, known)
        finally:
            pynvml.nvmlEventSetFree(events)
        return True

    def _wait(self, events: Any, known: dict[int, str]) -> None:
        try:
            event = pynvml.nvmlEventSetWait_v2(events, _WAIT_MS)
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_TIMEOUT:
                raise
            return
        uuid = known.get(_number(event.device))
        if uuid and event.eventType == pynvml.nvmlEventTypeXidCriticalError:
            log.error("Xid error", device=uuid, xid=event.eventData)
            self._on_xid(uuid, int(event.eventData))


def _registered(uuid: str, events: Any) -> tuple[int, str] | None:
    """Ask for a device's errors. A card that has fallen off the bus can no longer say its UUID, so its handle is
    remembered."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        asked = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & pynvml.nvmlEventTypeXidCriticalError
        if not asked:
            return None
        pynvml.nvmlDeviceRegisterEvents(handle, asked, events)
    except pynvml.NVMLError as error:
        log.warning("Xid errors of a device are not heard", device=uuid, error=str(error))
        return None
    return _number(handle), uuid


def _number(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
