"""What NVML tells of this machine's GPUs. A machine without the library or the driver has none, which is no error.

Each call starts NVML and lets it go again, which costs next to nothing while ``worker.gpus.xids`` holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from worker.messages import Device

T = TypeVar("T")

MIB = 1 << 20
_MODES = {0: "default", 1: "exclusive-thread", 2: "prohibited", 3: "exclusive-process"}
_NO_SUCH_THING = frozenset(
    {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NO_PERMISSION}
)
_UNKNOWN = "unknown"


class DeviceGone(Exception):
    """The driver no longer answers for a device. The text says what it said."""


@dataclass(frozen=True)
class Owner:
    """A process that computes on a device. ``used_mib`` is ``None`` where the driver does not tell."""

    pid: int
    command: str
    used_mib: int | None

    def __str__(self) -> str:
        held = "" if self.used_mib is None else f", {self.used_mib} MiB"
        return f"{self.command} (pid {self.pid}{held})"


@dataclass(frozen=True)
class Look:
    """One look at a device. Fields are as in ``Device``; memory is ``None`` where the device has none of its own."""

    total_mib: int | None
    used_mib: int | None
    owners: tuple[Owner, ...]
    ecc_volatile: int | None
    ecc_aggregate: int | None
    rows_pending: bool
    rows_failed: bool
    mig: bool
    compute_mode: str

    @property
    def free_mib(self) -> int | None:
        return None if self.total_mib is None or self.used_mib is None else self.total_mib - self.used_mib


@dataclass(frozen=True)
class Sample:
    """What a device is used for at a moment: bytes in use, bytes by process where told, percent of the last moment."""

    used: int | None
    total: int | None
    by_process: dict[int, int]
    percent: int | None


@contextmanager
def session() -> Iterator[bool]:
    """NVML, for as long as the context lasts. Whether it is there."""
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
    """The devices of this machine, in the driver's order. One that cannot be read has no UUID and is drained."""
    with session() as present:
        if not present:
            return ()
        version = _asked(pynvml.nvmlSystemGetCudaDriverVersion_v2, default=0)
        cuda = f"{version // 1000}.{version % 1000 // 10}"
        driver = _text(_asked(pynvml.nvmlSystemGetDriverVersion, default=_UNKNOWN))
        count = _asked(pynvml.nvmlDeviceGetCount, default=0)
        return tuple(_device(index, driver, cuda) for index in range(count))


def _device(index: int, driver: str, cuda: str) -> Device:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid, model = _text(pynvml.nvmlDeviceGetUUID(handle)), _text(pynvml.nvmlDeviceGetName(handle))
        found = _look(handle)
    except pynvml.NVMLError as error:
        return Device(index, "", _UNKNOWN, 0, driver, cuda, drained=f"the driver cannot read it: {error}")
    return described(Device(index, uuid, model, found.total_mib or 0, driver, cuda), found)


def described(device: Device, look: Look) -> Device:
    """The device with what a look says of it."""
    return Device(
        index=device.index,
        uuid=device.uuid,
        model=device.model,
        memory_mib=look.total_mib or device.memory_mib,
        driver=device.driver,
        cuda=device.cuda,
        memory_free_mib=look.free_mib,
        ecc_volatile=look.ecc_volatile,
        ecc_aggregate=look.ecc_aggregate,
        rows_pending=look.rows_pending,
        rows_failed=look.rows_failed,
        mig=look.mig,
        compute_mode=look.compute_mode,
        xids=device.xids,
        drained=device.drained,
    )


def look(uuid: str) -> Look:
    """A look at one device now.

    Raises:
        DeviceGone: the driver is gone, or does not answer for it.
    """
    with session() as present:
        if not present:
            raise DeviceGone("the driver or its library is gone")
        try:
            return _look(_handle(uuid))
        except pynvml.NVMLError as error:
            raise DeviceGone(str(error)) from error


def sample(uuid: str) -> Sample | None:
    """What a device is used for now, or nothing where the driver does not answer for it."""
    with session() as present:
        if not present:
            return None
        try:
            handle = _handle(uuid)
            memory = _asked(pynvml.nvmlDeviceGetMemoryInfo, handle)
            rates = _asked(pynvml.nvmlDeviceGetUtilizationRates, handle)
            found = _asked(pynvml.nvmlDeviceGetComputeRunningProcesses, handle, default=[])
        except pynvml.NVMLError:
            return None
        held = {one.pid: int(one.usedGpuMemory) for one in found if one.usedGpuMemory is not None}
        return Sample(
            used=int(memory.used) if memory else None,
            total=int(memory.total) if memory else None,
            by_process=held,
            percent=int(rates.gpu) if rates else None,
        )


def _handle(uuid: str) -> Any:
    return pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())


def _look(handle: Any) -> Look:
    memory = _asked(pynvml.nvmlDeviceGetMemoryInfo, handle)
    pending, failed = _rows(handle)
    owners = _asked(pynvml.nvmlDeviceGetComputeRunningProcesses, handle, default=[])
    return Look(
        total_mib=int(memory.total) // MIB if memory else None,
        used_mib=int(memory.used) // MIB if memory else None,
        owners=tuple(_owner(process) for process in owners),
        ecc_volatile=_ecc(handle, pynvml.NVML_VOLATILE_ECC),
        ecc_aggregate=_ecc(handle, pynvml.NVML_AGGREGATE_ECC),
        rows_pending=pending,
        rows_failed=failed,
        mig=_asked(pynvml.nvmlDeviceGetMigMode, handle, default=[0, 0])[0] == pynvml.NVML_DEVICE_MIG_ENABLE,
        compute_mode=_MODES.get(_asked(pynvml.nvmlDeviceGetComputeMode, handle, default=0), _UNKNOWN),
    )


def _ecc(handle: Any, counter: int) -> int | None:
    found: int | None = _asked(
        pynvml.nvmlDeviceGetTotalEccErrors, handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, counter
    )
    return found


def _rows(handle: Any) -> tuple[bool, bool]:
    """Whether replacements of bad memory wait for a reset, and whether one failed. Cards before Ampere retire pages."""
    remapped = _asked(pynvml.nvmlDeviceGetRemappedRows, handle)
    if remapped is not None:
        return bool(remapped[2]), bool(remapped[3])
    return bool(_asked(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle, default=0)), False


def _asked(question: Callable[..., T], *arguments: Any, default: Any = None) -> Any:
    """The answer, or the default where this device or driver knows no such thing.

    Raises:
        NVMLError: something else is wrong with it.
    """
    try:
        return question(*arguments)
    except pynvml.NVMLLibraryMismatchError:
        return default
    except pynvml.NVMLError as error:
        if error.value not in _NO_SUCH_THING:
            raise
        return default


def _owner(process: Any) -> Owner:
    used = process.usedGpuMemory
    return Owner(process.pid, _command(process.pid), None if used is None else int(used) // MIB)


def _command(pid: int) -> str:
    """What a process runs. One of another container has no such number here, or it means another one."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        words = ""
    if words:
        return words[:120]
    try:
        return _text(pynvml.nvmlSystemGetProcessName(pid))
    except pynvml.NVMLError:
        return "a process that is not seen from here"


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
