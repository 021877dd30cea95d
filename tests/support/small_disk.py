"""A small disk for a child process: a tmpfs in a mount namespace of its own, which needs no root where users may."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def run(folder: Path, megabytes: int, code: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run Python code as it is where ``folder`` is a disk of that size. Its output and exit code."""
    folder.mkdir(exist_ok=True)
    namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--user", "--map-root-user"]
    tried = subprocess.run([*namespace, "mount", "-t", "tmpfs", "small", str(folder)], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip("no mount namespaces on this machine")
    mount = f'mount -t tmpfs -o size={megabytes}m small "$0" && exec "$@"'
    command = [*namespace, "sh", "-c", mount, str(folder), sys.executable, "-c", code, *arguments]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, check=False)
