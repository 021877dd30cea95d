"""Runs git so that nothing outside the command line configures it, and nothing in a repository makes it run code."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from worker.errors import InfrastructureFault
from worker.process import run_kept

_QUICK_S = 120.0
_SLOW_S = 1800.0
_OPTIONS = (
    "core.hooksPath=/dev/null",
    "core.autocrlf=false",
    "core.safecrlf=false",
    "core.fsmonitor=false",
    "apply.whitespace=nowarn",
    "protocol.ext.allow=never",
    "safe.directory=*",
    "gc.auto=0",
    "maintenance.auto=false",
    "advice.detachedHead=false",
    "init.defaultBranch=main",
)
_KEPT = ("GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "GIT_SSH_COMMAND", "GIT_SSH")


class GitError(InfrastructureFault):
    """git failed; the text carries its own words."""


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The worker's environment without git's own variables and without the worker's secrets."""
    env = {
        key: value
        for key, value in environ.items()
        if (not key.startswith("GIT_") or key in _KEPT) and not key.startswith(("REPLAYBENCH_", "BROKER_", "DATABASE_"))
    }
    return env | {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }


def _command(folder: Path, arguments: Sequence[str]) -> list[str]:
    options = [word for option in _OPTIONS for word in ("-c", option)]
    return ["git", *options, "-C", str(folder), *arguments]


def git(folder: Path, *arguments: str, stdin: bytes | None = None) -> bytes:
    """Run a quick local command. What it printed.

    Raises:
        GitError: it failed.
    """
    done = subprocess.run(
        _command(folder, arguments),
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        env=environment(os.environ),
        timeout=_QUICK_S,
        check=False,
    )
    if done.returncode:
        raise GitError(f"git {arguments[0]}: {done.stderr.decode(errors='replace').strip()[-2000:]}")
    return done.stdout


def succeeds(folder: Path, *arguments: str) -> bool:
    """Whether a quick local command succeeds."""
    try:
        git(folder, *arguments)
    except GitError:
        return False
    return True


def fetch(folder: Path, url: str, refspecs: Sequence[str], stop: threading.Event) -> None:
    """Fetch from a registered address; may take long, and ends when the attempt is to stop.

    Raises:
        GitError: it failed.
        Stopped: the attempt was asked to end.
    """
    arguments = ["fetch", "--quiet", "--no-tags", "--force", "--no-recurse-submodules", "--", url, *refspecs]
    env = environment(os.environ)
    code, output = run_kept(_command(folder, arguments), env=env, cwd=folder, stop=stop, timeout_s=_SLOW_S)
    if code:
        raise GitError(f"git fetch of {url}: {output.strip()[-2000:]}")
