"""A real card, where there is one: what the driver tells of a process that holds memory on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nvml import MIB
from tests.worker.support import wait_for, wait_for_thread
from worker.gpus import gpu
from worker.gpus.device_faults import FaultBook
from worker.gpus.devices import DevicePool
from worker.gpus.health import DeviceHealth
from worker.gpus.usage import UsageSampler
from worker.gpus.xids import XidWatch
from worker.isolation.survivors import end_survivors
from worker.messages import Device

HOLDS = """
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
for done in (
    cuda.cuInit(0),
    cuda.cuDeviceGet(ctypes.byref(device), 0),
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
    cuda.cuCtxSetCurrent(context),
    cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 30)),
):
    assert done == 0, done
print("holds", flush=True)
time.sleep(120)
"""


@pytest.fixture
def device() -> Device:
    """A card that nobody uses."""
    found = [device for device in gpu.inventory() if device.uuid and not gpu.look(device.uuid).owners]
    if not found:
        pytest.skip("needs a CUDA device")
    return found[0]


@pytest.fixture
def holder(device: Device, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds a GiB on it, and has its home in an attempt's folder."""
    env = {
        **os.environ,
        "HOME": str(tmp_path / "attempts" / "boot" / "5" / "home"),
        "CUDA_VISIBLE_DEVICES": device.uuid,
    }
    with subprocess.Popen([sys.executable, "-c", HOLDS], env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"holds\n"
        yield process
        process.kill()


@pytest.mark.gpu
def test_a_real_card_is_told_whole_and_fit(device: Device, tmp_path: Path) -> None:
    """Model, memory, counters; the gate lets it pass, and errors are listened for."""
    assert device.model.startswith(("NVIDIA", "Tesla", "Quadro"))
    assert device.memory_mib > 1024
    assert device.cuda.split(".")[0].isdecimal()
    health = DeviceHealth([device], FaultBook(tmp_path), attempts=tmp_path, free_percent=90, grace_s=5)
    assert health.check(device.uuid) == ""
    stop = threading.Event()
    watch = XidWatch([device.uuid], health.note_xid, stop)
    watch.start()
    assert watch.listening.wait(20)
    stop.set()
    wait_for_thread("xid-watch")


@pytest.mark.gpu
def test_who_holds_a_real_cards_memory_is_measured_named_and_ended(
    device: Device, holder: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """A GiB of a live attempt; when that is over, its leftover is killed and the card is fit."""
    attempts = tmp_path / "attempts"
    live = attempts / "boot" / "5"
    live.mkdir(parents=True)
    health = DeviceHealth([device], FaultBook(tmp_path / "devices"), attempts=attempts, free_percent=0, grace_s=20)
    with UsageSampler([device], 0.05, lambda: {holder.pid}) as sampler:
        wait_for(lambda: sampler.record()["samples"] > 3, "samples")
    (card,) = sampler.record()["gpus"]
    assert (card["memory_source"], card["memory_peak_bytes"] >= 1024 * MIB) == ("processes", True)
    assert f"(pid {holder.pid}, " in health.check(device.uuid)
    health.recheck(DevicePool((device,), tmp_path / "devices"))
    assert health.devices()[0].drained.startswith("in use by ")
    words = health.after(device.uuid, None, lambda: end_survivors(live))
    assert words.endswith(f"killed {holder.pid}")
    assert holder.wait(10) == -signal.SIGKILL
    assert health.devices()[0].drained == ""
