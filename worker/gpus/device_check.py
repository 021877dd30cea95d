"""Asserts that a runtime's torch sees the very devices that were leased, once for each runtime and device.

Importing torch takes seconds, so what was seen is remembered as long as the worker lives.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from worker.errors import EnvironmentFault
from worker.isolation.process import FREE, Confinement, run_kept
from worker.messages import Device

_CODE = """
import json, torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
print()
print(json.dumps([
    f"GPU-{getattr(torch.cuda.get_device_properties(index), 'uuid', '')} {torch.cuda.get_device_name(index)}"
    for index in range(count)
]))
"""
_SECONDS = 300.0


class DeviceChecks:
    """What this worker process has seen to be right."""

    def __init__(self) -> None:
        self._seen: set[tuple[Path, tuple[str, ...]]] = set()

    def assert_visible(
        self,
        python: Path,
        runtime: Path,
        devices: Sequence[Device],
        *,
        env: Mapping[str, str],
        stop: threading.Event,
        confinement: Confinement = FREE,
    ) -> None:
        """Refuse a torch that does not see the leased devices. ``python`` is the overlay's; what is remembered is
        remembered of ``runtime``, which torch belongs to: of the overlay itself, where that brings one.

        Raises:
            EnvironmentFault: with what was leased and what torch sees.
        """
        key = (runtime, tuple(device.uuid for device in devices))
        if not devices or key in self._seen:
            return
        _, output = run_kept(
            [str(python), "-c", _CODE],
            env=env,
            cwd=python.parent,
            stop=stop,
            timeout_s=_SECONDS,
            confinement=confinement,
        )
        try:
            names = json.loads(output.strip().rsplit("\n", 1)[-1])
        except ValueError as error:
            raise EnvironmentFault(f"torch in {runtime} cannot look for devices: {output.strip()[-2000:]}") from error
        expected = [f"{device.uuid} {device.model}" for device in devices]
        if not _same(names, expected):
            raise EnvironmentFault(
                f"torch in {runtime} sees the devices {names}, leased were {expected}: compare the CUDA of this torch "
                f"build with the driver's ({devices[0].cuda}, driver {devices[0].driver})"
            )
        self._seen.add(key)


def _same(seen: Sequence[str], leased: Sequence[str]) -> bool:
    """By UUID and model; by model alone where this torch tells no UUID (before 2.4)."""
    if any(name.startswith("GPU- ") for name in seen):
        return [name.partition(" ")[2] for name in seen] == [name.partition(" ")[2] for name in leased]
    return list(seen) == list(leased)
