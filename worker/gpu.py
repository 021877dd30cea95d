"""What NVML tells of this machine's GPUs. A machine without the library or the driver has none, which is no error."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pynvml

from worker.messages import Device

_MIB = 1 << 20
_COME_BACK_S = 5.0
_SLACK_MIB = 64


@dataclass(frozen=True)
class MemoryLook:
    """One look at a device's memory: what is used, and the processes that hold it."""

    used_mib: int
    owners: tuple[str, ...]


@contextmanager
def _nvml() -> Iterator[bool]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield False
        return
    try:
        yield True
    finally:
        pynvml.nvmlShutdown()


def inventory() -> tuple[Device, ...]:
    """The devices of this machine, in the driver's order."""
    with _nvml() as present:
        if not present:
            return ()
        version = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        cuda = f"{version // 1000}.{version % 1000 // 10}"
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        return tuple(_device(index, driver, cuda) for index in range(pynvml.nvmlDeviceGetCount()))


def _device(index: int, driver: str, cuda: str) -> Device:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return Device(
        index=index,
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        model=_text(pynvml.nvmlDeviceGetName(handle)),
        memory_mib=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) // _MIB,
        driver=driver,
        cuda=cuda,
    )


def memory(uuid: str) -> MemoryLook | None:
    """A look at one device's memory now, or nothing where it cannot be had."""
    with _nvml() as present:
        if not present:
            return None
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
            used = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) // _MIB
            owners = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except pynvml.NVMLError:
            return None
        return MemoryLook(used, tuple(_owner(process) for process in owners))


def not_given_back(uuid: str, before: MemoryLook) -> str:
    """Wait a moment for a device's memory to come back. What is still held, and by whom; empty when all is well."""
    deadline = time.monotonic() + _COME_BACK_S
    while True:
        look = memory(uuid)
        if look is None or look.used_mib <= before.used_mib + _SLACK_MIB:
            return ""
        if time.monotonic() > deadline:
            owners = ", ".join(look.owners) or "nobody that the driver names"
            return f"device {uuid} holds {look.used_mib} MiB, {before.used_mib} MiB before: {owners}"
        time.sleep(0.1)


def _owner(process: object) -> str:
    pid, used = getattr(process, "pid", 0), getattr(process, "usedGpuMemory", None)
    try:
        name = _text(pynvml.nvmlSystemGetProcessName(pid))
    except pynvml.NVMLError:
        name = "unknown"
    return f"{name} (pid {pid}, {(used or 0) // _MIB} MiB)"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
