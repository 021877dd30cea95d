"""Damages bare mirrors as a full disk or a loss of power does."""

from __future__ import annotations

import subprocess
from pathlib import Path


def pack(mirror: Path) -> Path:
    """The file with all of its objects, which may be written to now."""
    (found,) = (mirror / "objects/pack").glob("*.pack")
    found.chmod(0o600)
    return found


def spoil(mirror: Path, name: str) -> None:
    """Zeroes in the middle of one object, as a loss of power leaves them."""
    told = ("git", "--git-dir", str(mirror))
    oid = subprocess.run([*told, "rev-parse", name], check=True, capture_output=True, text=True).stdout.strip()
    lines = subprocess.run(
        [*told, "verify-pack", "-v", str(pack(mirror))], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    size, start = next(line.split()[3:5] for line in lines if line.startswith(oid))
    content = bytearray(pack(mirror).read_bytes())
    content[int(start) + 4 : int(start) + int(size)] = bytes(int(size) - 4)
    pack(mirror).write_bytes(content)
