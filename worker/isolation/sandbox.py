"""Puts a command into a sandbox of bubblewrap's, where that works, and says why where it does not.

Inside there are a read-only system, private ``/tmp`` and ``/run``, namespaces of its own for processes, IPC, host name
and (unless asked for) network, the leased cards alone, and what the command is given. Whether it works is tried at the
worker's start by really running one: it may be installed and not allowed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from worker.isolation.environment import allowed
from worker.isolation.sandbox_view import View, arguments

_INIT = Path(__file__).with_name("sandbox_init.py")
_PLUGIN = Path(__file__).parent.with_name("plugin")
_TRY_S = 30.0
_LOOK = "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix, sys.exec_prefix]))"
_PARTS = ("bin", "lib", "lib64", "libexec", "include", "pyvenv.cfg")
"""What an interpreter needs of its prefix, where the whole holds more than an installation."""

STATUS = "STATUS"

_NAMESPACES = ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")


@dataclass(frozen=True)
class Sandbox:
    """A bubblewrap that works here. ``hidden`` is what no command may see, ``extra`` what every one may read."""

    command: str
    version: str
    hidden: tuple[Path, ...] = ()
    extra: tuple[Path, ...] = ()

    @property
    def title(self) -> str:
        return f"bubblewrap {self.version}"

    def prefix(self, python: Path, view: View, env: Mapping[str, str]) -> tuple[str, ...]:
        """The words to put before a command, one of which (STATUS) stands for a descriptor. ``python`` runs the
        sandbox's first process, and is seen there with all that belongs to it; it is also run outside, so it must be
        nothing that a tree could have changed."""
        readable = (*view.readable, *self.extra, *interpreter_places(python, self.hidden), _INIT, _PLUGIN)
        seen = View(view.writable, readable, view.temporary, view.devices, view.network)
        return (
            self.command,
            *_NAMESPACES,
            *(() if view.network else ("--unshare-net",)),
            *(("--cap-drop", "ALL") if os.getuid() == 0 else ()),
            *("--die-with-parent", "--as-pid-1"),
            *arguments(seen, self.hidden, env),
            "--",
            *(str(python.resolve()), "-I", "-S", str(_INIT), STATUS, "--"),
        )


@dataclass(frozen=True)
class Found:
    """What came of looking for a sandbox; ``why`` tells where there is none."""

    sandbox: Sandbox | None
    why: str = ""

    @property
    def title(self) -> str:
        """As the environment's record tells it."""
        return self.sandbox.title if self.sandbox else f"none: {self.why}"


def find_sandbox(hidden: tuple[Path, ...] = (), extra: tuple[Path, ...] = ()) -> Found:
    """Try bubblewrap with all that a test process would get."""
    command = shutil.which("bwrap")
    if not sys.platform.startswith("linux") or command is None:
        return Found(None, "bwrap is not installed (package bubblewrap)")
    # Started by root, a bwrap that is setuid or not makes no difference; what works here works for every command.
    try:
        version = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=_TRY_S, check=False)
        sandbox = Sandbox(command, version.stdout.strip().rpartition(" ")[2] or "of unknown version", hidden, extra)
        words = sandbox.prefix(Path(sys.executable), View(writable=()), {})
        tried = subprocess.run(
            [*words[: words.index("--")], "--", "/bin/sh", "-c", "exit 42"],
            capture_output=True, text=True, timeout=_TRY_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return Found(None, f"{command} does not run: {error}")
    if tried.returncode != 42:
        return Found(None, f"{command} is not allowed here: {tried.stderr.strip()[-500:] or tried.returncode}")
    return Found(sandbox)


def interpreter_places(python: Path, hidden: tuple[Path, ...] = ()) -> tuple[Path, ...]:
    """Where an interpreter and its standard library lie."""
    links = _links(python)
    try:
        status = python.stat()
        prefixes = _prefixes(python, (links[-1], status.st_dev, status.st_ino, status.st_mtime_ns))
    except (OSError, ValueError, subprocess.TimeoutExpired):  # It will say itself why it does not run.
        prefixes = ()
    places = [*links, *(part for prefix in prefixes for part in _parts(prefix, hidden))]
    return tuple(dict.fromkeys(places))


@lru_cache(maxsize=256)
def _prefixes(python: Path, _: tuple[Path, int, int, int]) -> tuple[Path, ...]:
    """What an interpreter calls its prefixes. A runtime that is built anew may be another interpreter's, so the second
    argument tells which file it is.

    Raises:
        OSError, ValueError, TimeoutExpired: it does not say.
    """
    command, env = [str(python), "-I", "-c", _LOOK], allowed(os.environ)  # Its packages run code of their own at start.
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TRY_S, env=env, check=False)
    return tuple(sorted({Path(prefix) for prefix in json.loads(done.stdout)}))


def _links(path: Path) -> list[Path]:
    """A path and every link on its way to the file."""
    found = [path]
    while path.is_symlink() and len(found) < 20:
        path = Path(os.path.normpath(path.parent / path.readlink()))
        found.append(path)
    return found


def _parts(prefix: Path, hidden: tuple[Path, ...]) -> list[Path]:
    """A prefix as a whole, or its parts where it also holds what nobody may see, as a home folder does."""
    kept = (*hidden, Path.home())
    if any(path.is_relative_to(prefix) for path in kept):
        return [prefix / part for part in _PARTS]
    return [prefix]
