"""Makes ``.cache/venv-library``: the library as it is installed into a runtime, with a CPU torch, for its own tests."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from toolchain import ROOT, package_environment, run, say, stop, uv, works

VENV = ROOT / ".cache" / "venv-library"
PYTHON = VENV / "bin" / "python"
TORCH, LIGHTNING = "2.13.0", "2.6.6"
PYTEST = "pytest>=8.3"


def main() -> None:
    packages = _digest([Path(__file__), ROOT / "library" / "pyproject.toml"], sys.version)
    stamp = VENV / f".packages-{packages}"
    tool, env = uv(), package_environment()
    if not stamp.exists():
        _packages(tool, env)
        stamp.touch()
    sources = _digest(sorted(path for path in (ROOT / "library").rglob("*") if path.suffix in {".py", ".toml"}))
    stamp = VENV / f".library-{sources}"
    if not stamp.exists():
        for older in VENV.glob(".library-*"):
            older.unlink()
        run(
            tool, "pip", "install", "--quiet", "--python", PYTHON, "--no-deps", "--reinstall-package", "graphreplay",
            "./library", env=env,
        )  # fmt: skip
        stamp.touch()


def _packages(tool: Path, env: dict[str, str]) -> None:
    """The CPU build of torch from the configured sources, else from its own index, else the plain version."""
    say(f"making .cache/venv-library: torch {TORCH} for the CPU, lightning {LIGHTNING} (some 200 MB, once)")
    shutil.rmtree(VENV, ignore_errors=True)
    run(tool, "venv", "--quiet", "--python", sys.executable, VENV, env=env)
    install = (tool, "pip", "install", "--python", PYTHON, "--compile-bytecode")
    rest = (f"lightning=={LIGHTNING}", PYTEST)
    exact = works(*install, f"torch=={TORCH}+cpu", *rest, env=env)
    if not exact and not works(*install, "--torch-backend", "cpu", f"torch=={TORCH}", *rest, env=env):
        say("no CPU build of torch in reach; taking the plain one")
        run(*install, f"torch=={TORCH}", *rest, env=env)
    if not works(PYTHON, "-c", "import torch, lightning"):
        stop(f"torch {TORCH} was installed into {VENV} and does not import; see `{PYTHON} -c 'import torch'`")


def _digest(files: Iterable[Path], more: str = "") -> str:
    digest = hashlib.sha256(more.encode())
    for file in files:
        digest.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    main()
