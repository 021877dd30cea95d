"""Finds an interpreter of a minor version on this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


def find_interpreter(minor: str) -> str | None:
    """A path of Python ``minor`` (``3.11``): the running one, one on PATH, pyenv's; nothing where uv has to look."""
    if minor == f"{sys.version_info.major}.{sys.version_info.minor}":
        own = Path(sys.base_prefix) / "bin" / f"python{minor}"
        if own.exists():
            return str(own)
    for candidate in _candidates(minor):
        if _answers(candidate, minor):
            return str(candidate)
    return None


def _candidates(minor: str) -> Iterator[Path]:
    on_path = shutil.which(f"python{minor}")
    if on_path and "shims" not in Path(on_path).parts:
        yield Path(on_path)
    roots = {os.environ.get("PYENV_ROOT"), str(Path.home() / ".pyenv"), _pyenv_root()}
    for root in sorted(filter(None, roots)):
        found = [path for path in Path(root, "versions").glob(f"{minor}.*") if (path / "bin" / "python").exists()]
        for path in sorted(found, key=_numbers, reverse=True):
            yield path / "bin" / "python"


def _pyenv_root() -> str | None:
    pyenv = shutil.which("pyenv")
    return str(Path(pyenv).resolve().parent.parent) if pyenv else None


def _numbers(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.name)]


def _answers(interpreter: Path, minor: str) -> bool:
    """Whether it runs and is of that version: a shim may stand for one that is not installed."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run(
            [str(interpreter), "-I", "-c", code], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.stdout.strip() == minor
