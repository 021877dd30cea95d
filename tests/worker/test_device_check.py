"""A runtime whose torch does not see the leased devices is refused before any test runs on it."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from worker.errors import EnvironmentFault
from worker.gpus.device_check import DeviceChecks
from worker.messages import Device

ONE = (Device(0, "GPU-0", "NVIDIA H200", 1, "580.1", "13.0"),)
PYTHON = Path(sys.executable)


def check(checks: DeviceChecks, folder: Path, torch: str) -> None:
    (folder / "torch.py").write_text(torch)
    env = dict(os.environ) | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    checks.assert_visible(PYTHON, Path("/runtime"), ONE, env=env, stop=threading.Event())


def torch(*names: str, uuids: tuple[str, ...] = ()) -> str:
    return (
        "import types\n"
        f"class cuda:\n    device_count = staticmethod(lambda: {len(names)})\n"
        f"    is_available = staticmethod(lambda: {bool(names)})\n"
        f"    get_device_name = staticmethod(lambda index: {names!r}[index])\n"
        f"    get_device_properties = staticmethod(lambda index: types.SimpleNamespace("
        f"**({{'uuid': {uuids!r}[index]}} if {bool(uuids)} else {{}})))\n"
    )


def test_what_was_seen_right_is_remembered(tmp_path: Path) -> None:
    """The second attempt on the same runtime and device imports no torch."""
    checks = DeviceChecks()
    check(checks, tmp_path, torch("NVIDIA H200", uuids=("0",)))
    check(checks, tmp_path, "raise SystemExit('not to be imported')")


def test_a_torch_that_tells_no_uuid_is_held_to_the_model(tmp_path: Path) -> None:
    """As torch before 2.4 does not."""
    check(DeviceChecks(), tmp_path, torch("NVIDIA H200"))


@pytest.mark.parametrize(
    ("module", "complaint"),
    [
        (torch(), r"sees the devices \[\], leased were \['GPU-0 NVIDIA H200'\].*driver's \(13\.0"),
        (torch("NVIDIA T4"), r"NVIDIA T4'\], leased were"),
        (torch("NVIDIA H200", uuids=("1",)), r"\['GPU-1 NVIDIA H200'\], leased were"),
        ("raise OSError('libcudart.so.12')", r"libcudart\.so\.12"),
    ],
)
def test_a_runtime_that_sees_others_is_refused(tmp_path: Path, module: str, complaint: str) -> None:
    """With what was leased, what is seen, and what to compare."""
    with pytest.raises(EnvironmentFault, match=complaint):
        check(DeviceChecks(), tmp_path, module)
