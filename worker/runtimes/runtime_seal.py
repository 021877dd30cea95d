"""Whether a built runtime is still what was installed: every file there and of its size, its interpreter the same.

A loss of power, a cleaner of caches or a test that installs into it leaves one that starts and fails in odd ways.
"""

from __future__ import annotations

import csv
import subprocess
from pathlib import Path

from worker.runtimes.runtime_facts import Runtime

_START_S = 60.0
_VERSION = "import platform; print(platform.python_version())"


def damage(runtime: Runtime, home: Path) -> str:
    """What is wrong with a runtime at ``home``; nothing if it is whole."""
    return _interpreter(runtime) or damaged_packages(home)


def damaged_packages(home: Path) -> str:
    """What is wrong with the packages of an environment; nothing if they are whole."""
    return next(filter(None, map(_packages, home.glob("lib/python*/site-packages"))), "")


def _interpreter(runtime: Runtime) -> str:
    try:
        done = subprocess.run(
            [str(runtime.interpreter), "-I", "-S", "-c", _VERSION],
            capture_output=True, text=True, env={}, timeout=_START_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"its interpreter does not start: {error}"
    version = done.stdout.strip()
    return "" if version == runtime.python else f"its interpreter is now Python {version or done.stderr.strip()[-200:]}"


def _packages(site: Path) -> str:
    found = {record.parent.name for record in site.glob("*.dist-info/RECORD")}
    if not found:
        return f"{site.relative_to(site.parents[2])} holds no package"
    for name in sorted(found):
        with (site / name / "RECORD").open(encoding="utf-8", newline="") as stream:
            for path, _, size in csv.reader(stream):
                if not size:
                    continue
                try:
                    there = (site / path).stat().st_size
                except OSError:
                    return f"{path} is missing"
                if there != int(size):
                    return f"{path} has {there} bytes instead of {size}"
    return ""
