"""Whether a worker can serve a cell, decided before anything is built."""

from __future__ import annotations

from collections.abc import Collection

from worker.messages import Capabilities, RuntimeSpec, SuiteSpec


def misfit(
    capabilities: Capabilities, suite: SuiteSpec, runtime: RuntimeSpec, free: Collection[str] | None = None
) -> str | None:
    """Why the worker cannot serve the cell, or ``None`` if it can.

    ``free`` are the UUIDs of its free devices; without them, the worker's whole inventory is meant, so that the answer
    is about what it could ever serve.
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


def _device_misfit(
    capabilities: Capabilities, suite: SuiteSpec, runtime: RuntimeSpec, free: Collection[str] | None
) -> str | None:
    if not suite.devices:
        return None
    wanted = cuda_of(runtime)
    devices = [device for device in capabilities.devices if free is None or device.uuid in free]
    served = [device for device in devices if wanted is None or _major(device.cuda) >= wanted]
    if len(devices) >= suite.devices > len(served):
        return f"its driver serves CUDA {devices[0].cuda}, and {runtime.title} needs {wanted} or later"
    if len(served) < suite.devices:
        return f"has {len(served)} of the {suite.devices} CUDA devices needed"
    return None


def cuda_of(runtime: RuntimeSpec) -> int | None:
    """The major CUDA version that a torch build carries: ``cu129`` is 12. ``None`` where the build does not say.

    Within one major version any driver serves any minor one (NVIDIA's "minor version compatibility", from CUDA 11 on).
    """
    digits = (runtime.build or "").removeprefix("cu")
    if not (runtime.build or "").startswith("cu") or len(digits) < len("92"):
        return None
    return int(digits[:-1])


def _major(text: str) -> int:
    major = text.partition(".")[0]
    return int(major) if major.isdecimal() else 0
