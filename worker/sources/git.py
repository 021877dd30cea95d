"""Runs git so that nothing outside the command line configures it, and nothing in a repository makes it run code."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from worker.errors import InfrastructureFault
from worker.gitaccess.access import AccessFailed, Credential, lent, next_step
from worker.isolation.process import run_kept

_QUICK_S = 120.0
_SLOW_S = 1800.0
_CONFIG = Path(__file__).with_name("gitconfig")
_OPTIONS = (
    "core.hooksPath=/dev/null",
    # Unset, git looks for these two below the user's home, with no regard to which configuration it may read.
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.autocrlf=false",
    "core.safecrlf=false",
    "core.fsmonitor=false",
    "apply.whitespace=nowarn",
    "safe.directory=*",
    "credential.helper=",
    # A pack is renamed into place when it is whole. Loose objects come one by one, commits first: a git that is killed
    # between them would leave a commit that is there and its trees that are not.
    "fetch.unpackLimit=1",
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
        "GIT_CONFIG_GLOBAL": str(_CONFIG),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",
        "GIT_ASKPASS": "",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }


def _command(folder: Path, arguments: Sequence[str], more: Sequence[str] = ()) -> list[str]:
    options = [word for option in (*_OPTIONS, *more) for word in ("-c", option)]
    return ["git", *options, "-C", str(folder), *arguments]


def git(folder: Path, *arguments: str, stdin: bytes | None = None) -> bytes:
    """Run a quick local command. What it printed.

    Raises:
        GitError: it failed.
        InfrastructureFault: it did not end.
    """
    try:
        done = subprocess.run(
            _command(folder, arguments),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            env=environment(os.environ),
            timeout=_QUICK_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InfrastructureFault(
            f"git {arguments[0]} did not end within {_QUICK_S:g} s: look at this machine's disk"
        ) from error
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


def fetch(
    folder: Path, url: str, refspecs: Sequence[str], stop: threading.Event, credential: Credential | None = None
) -> None:
    """Fetch from a registered address; may take long, and ends when the attempt is to stop. A credential goes along
    where the address is at the place that it is for.

    Raises:
        GitError: it failed.
        Stopped: the attempt was asked to end.
    """
    arguments = ["fetch", "--quiet", "--no-tags", "--force", "--no-recurse-submodules", "--", url, *refspecs]
    env = environment(os.environ)
    wanted = credential if credential is not None and credential.is_for(url) else None
    try:
        with lent(wanted, os.environ) if wanted else contextlib.nullcontext() as access:
            code, output = run_kept(
                _command(folder, arguments, access.options if access else ()),
                env=env | dict(access.env) if access else env,
                cwd=folder,
                stop=stop,
                timeout_s=_SLOW_S,
                on_start=access.admit if access else None,
            )
    except AccessFailed as error:
        raise GitError(f"fetch of {url}: its credential cannot be used: {error}") from error
    if code:
        said = wanted.redact(output) if wanted else output
        raise GitError(f"git fetch of {url}: {said.strip()[-2000:]}{next_step(said, url)}")
