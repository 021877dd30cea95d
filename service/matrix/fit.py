"""Whether a worker can serve a cell, and on which of its devices, decided before anything is built."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from service.matrix import pattern
from worker.messages import Capabilities, Device, RuntimeSpec, SuiteSpec

FIRST_COMPATIBLE = 11
"""Within one major version from this one on, any driver serves any minor version."""


def misfit(
    capabilities: Capabilities, suite: SuiteSpec, runtime: RuntimeSpec, free: Collection[str] | None = None
) -> str | None:
    """Why the worker cannot serve the cell, or ``None`` if it can.

    ``free`` are the UUIDs of its free devices; without them, all that are not drained are meant, so that the answer is
    about what it could serve as it stands.
    """
    if suite.kind not in capabilities.kinds:
        return f"serves {', '.join(capabilities.kinds) or 'nothing'}, not {suite.kind}"
    if runtime not in capabilities.host_runtimes and not capabilities.builds:
        return f"has no runtime {runtime.id} and builds none"
    missing = sorted(set(suite.mounts) - set(capabilities.mounts))
    if missing:
        return f"has no data mount {', '.join(missing)}"
    if suite.network and not capabilities.network:
        return "has no network, which the suite asks for"
    return _device_misfit(capabilities, suite, runtime, free)


def fitting(
    capabilities: Capabilities, suite: SuiteSpec, runtime: RuntimeSpec, free: Collection[str] | None = None
) -> list[Device]:
    """The devices that one of the cell's may be: free, not drained, of a model, memory and driver that fit."""
    wanted = cuda_of(_with_build(capabilities, runtime))
    return [
        device
        for device in capabilities.devices
        if not device.drained
        and (free is None or device.uuid in free)
        and _is_model(device, suite)
        and _has_memory(device, suite)
        and serves(device.cuda, wanted)
    ]


def choose(
    capabilities: Capabilities, suite: SuiteSpec, runtime: RuntimeSpec, free: Collection[str]
) -> tuple[str, ...] | None:
    """The devices to run the cell on; ``None`` where too few are free. None for a cell that needs none.

    Several are of one model where that can be had. Where models differ, the card with the least memory that suffices is
    taken, so that a larger one stays for who needs it.
    """
    found = fitting(capabilities, suite, runtime, free)
    if len(found) < suite.devices:
        return None
    models = [[device for device in found if device.model == model] for model in dict.fromkeys(d.model for d in found)]
    enough = [group for group in models if len(group) >= suite.devices]
    best: Sequence[Device] = min(enough, key=lambda group: group[0].memory_mib, default=found)
    return tuple(device.uuid for device in best[: suite.devices])


def _device_misfit(
    capabilities: Capabilities, suite: SuiteSpec, runtime: RuntimeSpec, free: Collection[str] | None
) -> str | None:
    if not suite.devices or len(fitting(capabilities, suite, runtime, free)) >= suite.devices:
        return None
    devices = [device for device in capabilities.devices if free is None or device.uuid in free]
    whole = [device for device in devices if not device.drained]
    models = [device for device in whole if _is_model(device, suite)]
    large = [device for device in models if _has_memory(device, suite)]
    if len(whole) < suite.devices:
        return "; ".join([f"has {len(whole)} of the {suite.devices} CUDA devices needed", *_drained(devices)])
    if len(models) < suite.devices:
        return f"has {len(models)} of the {suite.devices} needed of {' or '.join(suite.gpu)}: it has {_models(whole)}"
    if len(large) < suite.devices:
        asked = f"{suite.gpu_memory_gib:g} GiB"
        return f"has {len(large)} of the {suite.devices} needed with {asked}: it has {_models(models)}"
    wanted = cuda_of(_with_build(capabilities, runtime)) or (0, 0)
    needed = str(wanted[0]) if wanted[0] >= FIRST_COMPATIBLE else f"{wanted[0]}.{wanted[1]}"
    return f"its driver serves CUDA {large[0].cuda}, and {runtime.title} needs {needed} or later"


def _drained(devices: Sequence[Device]) -> list[str]:
    return [f"GPU {device.index} drained: {device.drained}" for device in devices if device.drained]


def _models(devices: Sequence[Device]) -> str:
    return ", ".join(dict.fromkeys(f"{device.model} with {device.memory_mib / 1024:.1f} GiB" for device in devices))


def _is_model(device: Device, suite: SuiteSpec) -> bool:
    return not suite.gpu or any(pattern.read(one).fits(device.model) for one in suite.gpu)


def _has_memory(device: Device, suite: SuiteSpec) -> bool:
    return device.memory_mib >= suite.gpu_memory_gib * 1024


def _with_build(capabilities: Capabilities, runtime: RuntimeSpec) -> RuntimeSpec:
    """The runtime with the build that it has on this worker, where its name leaves that open and the worker has it."""
    if runtime.build or runtime not in capabilities.host_runtimes:
        return runtime
    same = [
        spec
        for spec in capabilities.host_runtimes
        if spec.build
        and (spec.python, spec.torch) == (runtime.python, runtime.torch)
        and runtime.lightning in (None, spec.lightning)
    ]
    return same[0] if same else runtime


def cuda_of(runtime: RuntimeSpec) -> tuple[int, int] | None:
    """The CUDA version that a torch build carries: ``cu129`` is 12.9. ``None`` where the build does not say."""
    build = runtime.build or ""
    digits = build.removeprefix("cu")
    if not build.startswith("cu") or len(digits) < len("92"):
        return None
    return int(digits[:-1]), int(digits[-1])


def serves(driver: str, wanted: tuple[int, int] | None) -> bool:
    """Whether a driver whose newest CUDA is ``driver`` (``12.8``) runs what was built with CUDA ``wanted``.

    A newer driver always does. An older one does from CUDA 11 on where the major version is the same: a build for 12.9
    runs on a driver for 12.0, and one for 13.0 on no driver for 12 (NVIDIA, "CUDA Compatibility", "Minor Version
    Compatibility": driver 450 or later for 11.x, 525 for 12.x, 580 for 13.x). What such a driver cannot do is compile
    the newer version's PTX; torch's wheels carry machine code for the cards that they name. NVIDIA's packages for
    forward compatibility are not looked for.
    """
    if wanted is None:
        return True
    major, _, minor = driver.partition(".")
    if not (major.isascii() and major.isdecimal()):
        return False
    if wanted[0] >= FIRST_COMPATIBLE:
        return int(major) >= wanted[0]
    return (int(major), int(minor) if minor.isascii() and minor.isdecimal() else 0) >= wanted
