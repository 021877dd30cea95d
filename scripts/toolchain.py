"""uv, and where it gets packages from: what every set-up script shares. Standard library only."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".tools"
UV_VERSION = "0.13.9"
OLDEST_UV = (0, 9)


def say(text: str) -> None:
    """Tells what is being done."""
    print(f"setup: {text}", flush=True)


def stop(text: str) -> None:
    """Ends the script with what is wrong and what to do."""
    sys.exit(f"setup: {text}")


def run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    """Runs a command whose failure ends the script, by its own message."""
    done = subprocess.run([str(part) for part in command], cwd=ROOT, env=env, check=False)
    if done.returncode:
        stop(
            f"`{' '.join(str(part) for part in command)}` failed with exit code {done.returncode} (its words are above)"
        )


def works(*command: str | Path, env: dict[str, str] | None = None) -> bool:
    """Whether a command succeeds; its words are kept back."""
    words = [str(part) for part in command]
    return subprocess.run(words, cwd=ROOT, env=env, capture_output=True, check=False).returncode == 0


def package_environment() -> dict[str, str]:
    """The environment for uv: with the index, wheelhouse and constraints that pip is configured with."""
    sys.path.insert(0, str(ROOT))
    from worker.runtimes.package_sources import uv_environment  # noqa: PLC0415 -- found only by the line above

    return {**os.environ, **uv_environment(os.environ), "UV_PYTHON_DOWNLOADS": "never"}


def uv() -> Path:
    """The path of uv; it is installed into ``.tools`` where it is missing, by pip and so from pip's own sources."""
    place = TOOLS / "uv"
    for found in (place / "bin" / "uv", place / "packages" / "bin" / "uv"):
        if _version(found) == UV_VERSION:
            return found
    say(f"installing uv {UV_VERSION} into .tools")
    shutil.rmtree(place, ignore_errors=True)
    wanted = f"uv=={UV_VERSION}"
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    if works(sys.executable, "-m", "venv", place):
        if works(place / "bin" / "python", *pip, wanted):
            return place / "bin" / "uv"
    elif works(sys.executable, *pip, "--target", place / "packages", wanted):  # Debian's Python without python3-venv
        return place / "packages" / "bin" / "uv"
    return _uv_on_path()


def _uv_on_path() -> Path:
    found = shutil.which("uv")
    version = _version(Path(found)) if found else ""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if found and numbers >= OLDEST_UV:
        say(f"pip could not install uv; using {found} ({version})")
        return Path(found)
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    stop(
        f"uv {UV_VERSION} could not be installed by pip of {sys.executable}, and there is none on PATH. "
        f"Look at `{name} -m pip install --target /tmp/uv uv=={UV_VERSION}`; where pip itself is missing, install it "
        f"(Debian and Ubuntu: `apt-get install python3-venv`), or put uv on PATH"
    )
    raise AssertionError("unreachable")


def _version(binary: Path) -> str:
    try:
        done = subprocess.run([str(binary), "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    words = done.stdout.split()
    return words[1] if done.returncode == 0 and len(words) > 1 else ""
