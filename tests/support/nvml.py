"""A stand-in for the driver's library: nvidia-ml-py runs over it as it is, structures and error numbers included.

What the stand-in tells lies in a JSON file, which every process that uses it reads at each call; a test writes it, and
so may a test under test. There is no seam for it in the worker: ``tests/support/standin/pynvml.py`` is found first on
the path of a worker process, and ``put_under`` sets it under the binding in this one.
"""

# ruff: noqa: N802, ARG002 - the functions have the library's names and arguments

from __future__ import annotations

import ctypes
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).with_name("standin")
VARIABLE = "STANDIN_NVML"
MIB = 1 << 20
SUCCESS, INVALID, NOT_SUPPORTED, NOT_FOUND, SMALL, TIMEOUT, LOST = 0, 2, 3, 6, 7, 10, 15
XID = 8


def card(number: int, **more: Any) -> dict[str, Any]:
    """A card as the stand-in tells of it: an idle H200, unless told otherwise."""
    return {
        "uuid": f"GPU-{number:08x}-0000-0000-0000-000000000000",
        "name": "NVIDIA H200",
        "total_mib": 143771,
        "used_mib": 600,
        "processes": [],
        "ecc": [0, 0],
        "rows": [0, 0, 0, 0],
        "mig": 0,
        "compute_mode": 0,
        "utilisation": 0,
        "lost": False,
        "xids": [],
        **more,
    }


class Cards:
    """The cards of a machine, to be changed under the feet of who looks at them."""

    def __init__(self, path: Path, *cards: dict[str, Any], driver: str = "580.95.05", cuda: int = 13000) -> None:
        self.path = path
        self._write({"driver": driver, "cuda": cuda, "gpus": list(cards)})

    def _write(self, state: dict[str, Any]) -> None:
        fresh = self.path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(state))
        fresh.rename(self.path)

    @property
    def uuids(self) -> list[str]:
        return [gpu["uuid"] for gpu in json.loads(self.path.read_text())["gpus"]]

    def set(self, number: int, **change: Any) -> None:
        """Change what is told of one card."""
        state = json.loads(self.path.read_text())
        state["gpus"][number] |= change
        self._write(state)

    def xid(self, number: int, xid: int) -> None:
        """Have the driver tell an error of one card to all who listen."""
        state = json.loads(self.path.read_text())
        state["gpus"][number]["xids"].append(xid)
        self._write(state)

    @property
    def env(self) -> dict[str, str]:
        """What puts the stand-in into a worker process, in front of what is on its path."""
        root = FOLDER.parents[2]
        return {VARIABLE: str(self.path), "PYTHONPATH": f"{FOLDER}:{root}"}

    def put_under(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Set the stand-in under this process's binding."""
        import pynvml  # noqa: PLC0415 - where it is replaced, this module is still being loaded

        monkeypatch.setattr(pynvml, "nvmlLib", Library(self.path))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})


def _put(pointer: Any, kind: Any, value: Any) -> int:
    ctypes.cast(pointer, ctypes.POINTER(kind))[0] = value
    return SUCCESS


def _text(buffer: Any, value: str) -> int:
    buffer.value = value.encode()
    return SUCCESS


class Library:
    """The functions of ``libnvidia-ml.so.1`` that the worker calls, with C's arguments and results."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sets: dict[int, dict[int, int]] = {}

    def _state(self) -> Any:
        return json.loads(self._path.read_text())

    def _card(self, handle: Any) -> Any:
        return self._state()["gpus"][ctypes.cast(handle, ctypes.c_void_p).value - 1]

    def nvmlInitWithFlags(self, flags: int) -> int:
        return SUCCESS

    def nvmlShutdown(self) -> int:
        return SUCCESS

    def nvmlErrorString(self, number: Any) -> bytes:
        return f"error {number}".encode()

    def nvmlSystemGetCudaDriverVersion_v2(self, version: Any) -> int:
        return _put(version, ctypes.c_int, self._state()["cuda"])

    def nvmlSystemGetDriverVersion(self, buffer: Any, length: Any) -> int:
        return _text(buffer, self._state()["driver"])

    def nvmlSystemGetProcessName(self, pid: Any, buffer: Any, length: Any) -> int:
        return NOT_FOUND

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        return _put(count, ctypes.c_uint, len(self._state()["gpus"]))

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        if self._state()["gpus"][index.value]["lost"]:
            return LOST
        return _put(handle, ctypes.c_void_p, index.value + 1)

    def nvmlDeviceGetHandleByUUID(self, uuid: Any, handle: Any) -> int:
        for number, gpu in enumerate(self._state()["gpus"], start=1):
            if gpu["uuid"].encode() == uuid.value:
                return LOST if gpu["lost"] else _put(handle, ctypes.c_void_p, number)
        return NOT_FOUND

    def nvmlDeviceGetUUID(self, handle: Any, buffer: Any, length: Any) -> int:
        return _text(buffer, self._card(handle)["uuid"])

    def nvmlDeviceGetName(self, handle: Any, buffer: Any, length: Any) -> int:
        return _text(buffer, self._card(handle)["name"])

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        gpu = self._card(handle)
        if gpu["total_mib"] is None:
            return NOT_SUPPORTED
        total, used = gpu["total_mib"] * MIB, gpu["used_mib"] * MIB
        memory._obj.total, memory._obj.used, memory._obj.free = total, used, total - used
        return SUCCESS

    def nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:
        found = self._card(handle)["utilisation"]
        if found is None:
            return NOT_SUPPORTED
        rates._obj.gpu = found
        return SUCCESS

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, found: Any) -> int:
        processes = self._card(handle)["processes"]
        room, count._obj.value = count._obj.value, len(processes)
        if len(processes) > room:
            return SMALL
        for place, (pid, mib) in enumerate(processes):
            found[place].pid = pid
            found[place].usedGpuMemory = (1 << 64) - 1 if mib is None else mib * MIB
        return SUCCESS

    def nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: Any, counter: Any, count: Any) -> int:
        ecc = self._card(handle)["ecc"]
        return NOT_SUPPORTED if ecc is None else _put(count, ctypes.c_ulonglong, ecc[counter.value])

    def nvmlDeviceGetRemappedRows(self, handle: Any, *counts: Any) -> int:
        rows = self._card(handle)["rows"]
        if rows is None:
            return NOT_SUPPORTED
        for count, value in zip(counts, rows, strict=True):
            _put(count, ctypes.c_uint, value)
        return SUCCESS

    def nvmlDeviceGetRetiredPagesPendingStatus(self, handle: Any, pending: Any) -> int:
        return _put(pending, ctypes.c_uint, self._card(handle).get("pages_pending", 0))

    def nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> int:
        mig = self._card(handle)["mig"]
        return NOT_SUPPORTED if mig is None else _put(current, ctypes.c_uint, mig)

    def nvmlDeviceGetComputeMode(self, handle: Any, mode: Any) -> int:
        return _put(mode, ctypes.c_uint, self._card(handle)["compute_mode"])

    def nvmlEventSetCreate(self, events: Any) -> int:
        number = len(self._sets) + 1
        self._sets[number] = {}
        return _put(events, ctypes.c_void_p, number)

    def nvmlEventSetFree(self, events: Any) -> int:
        return SUCCESS

    def nvmlDeviceGetSupportedEventTypes(self, handle: Any, kinds: Any) -> int:
        return _put(kinds, ctypes.c_ulonglong, self._card(handle).get("events", 0x1F))

    def nvmlDeviceRegisterEvents(self, handle: Any, kinds: Any, events: Any) -> int:
        if kinds.value != XID:
            return INVALID
        told = self._sets[ctypes.cast(events, ctypes.c_void_p).value or 0]
        told[ctypes.cast(handle, ctypes.c_void_p).value or 0] = len(self._card(handle)["xids"])
        return SUCCESS

    def nvmlEventSetWait_v2(self, events: Any, data: Any, wait_ms: Any) -> int:
        """Errors from before somebody listened are told to nobody, as the real library does it."""
        told = self._sets[ctypes.cast(events, ctypes.c_void_p).value or 0]
        deadline = time.monotonic() + wait_ms.value / 1000
        while time.monotonic() < deadline:
            gpus = self._state()["gpus"]
            for number, so_far in told.items():
                if so_far < len(gpus[number - 1]["xids"]):
                    told[number] += 1
                    data._obj.eventType, data._obj.eventData = XID, gpus[number - 1]["xids"][so_far]
                    return _put(data, ctypes.c_void_p, number)  # the handle is the first field
            time.sleep(0.01)
        return TIMEOUT
