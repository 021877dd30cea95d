"""Makes ``.venv``: the application with its tools for development, as ``uv.lock`` has them. Needs Python alone.

The lock's versions and hashes are taken, and the packages come from whatever index or wheelhouse this machine is
configured with: `uv sync` would insist on the index that the lock names.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from toolchain import ROOT, package_environment, run, say, uv

VENV = ROOT / ".venv"


def main() -> None:
    began = time.monotonic()
    tool, env = uv(), package_environment()
    python = _environment(tool, env)
    requirements = ROOT / ".cache" / "requirements.txt"
    requirements.parent.mkdir(exist_ok=True)
    run(
        tool,
        "export",
        "--quiet",
        "--frozen",
        "--no-emit-project",
        "--python",
        python,
        "--output-file",
        requirements,
        env=env,
    )
    say("installing the application's packages into .venv")
    run(tool, "pip", "sync", "--python", python, "--compile-bytecode", requirements, env=env)
    run(tool, "pip", "install", "--quiet", "--python", python, "--no-deps", "--editable", ".", env=env)
    link = VENV / "bin" / "uv"  # where the worker looks when there is none on PATH
    link.unlink(missing_ok=True)
    link.symlink_to(tool)
    for stamp in sys.argv[1:]:
        Path(stamp).touch()
    say(f"done in {time.monotonic() - began:.0f} s")


def _environment(tool: Path, env: dict[str, str]) -> Path:
    """The environment's Python: what is there, where it is of this version and still starts, else a fresh one."""
    python = VENV / "bin" / "python"
    ask = "import sys; print(*sys.version_info[:2])"
    try:
        known = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False).stdout.split()
    except OSError:
        known = []
    if known != [str(number) for number in sys.version_info[:2]]:
        say(f"making .venv for Python {sys.version_info.major}.{sys.version_info.minor}")
        run(tool, "venv", "--quiet", "--clear", "--python", sys.executable, VENV, env=env)
    return python


if __name__ == "__main__":
    main()
