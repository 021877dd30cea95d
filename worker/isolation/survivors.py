"""Ends what outlived its keeper: processes of sessions of their own whose keeper was killed outright.

A process is told by its environment alone: the home and temporary folder that a test process is given lie in the
attempt's folder, whose name holds a nonce of the worker that made it. Where somebody only looks around in there (a
working directory), nothing is touched. Elsewhere than on Linux nothing is found.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

_ROUNDS = 20
_PAUSE_S = 0.05


def end_survivors(folder: Path) -> list[int]:
    """Kill the processes whose HOME or TMPDIR lies in ``folder``, until none is left. Their ids."""
    marks = tuple(f"{name}={folder}/".encode() for name in ("HOME", "TMPDIR"))
    killed: list[int] = []
    for _ in range(_ROUNDS if sys.platform.startswith("linux") else 0):
        found = [pid for pid in _processes() if _kill(pid, marks)]
        if not found:
            break
        killed += found
        time.sleep(_PAUSE_S)
    return list(dict.fromkeys(killed))


def attempt_of(pid: int, root: Path) -> Path | None:
    """The attempt's folder, two below ``root``, that a process was given its home or temporary folder in; nothing where
    it was given none, or cannot be read."""
    marks = tuple(f"{name}={root}/".encode() for name in ("HOME", "TMPDIR"))
    with contextlib.suppress(OSError):
        for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if variable.startswith(marks):
                parts = os.fsdecode(variable.partition(b"=")[2]).removeprefix(f"{root}/").split("/")
                return root.joinpath(*parts[:2]) if len(parts) > 2 else None
    return None


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def _kill(pid: int, marks: tuple[bytes, ...]) -> bool:
    """Kill a process if it is marked. Held by a descriptor meanwhile, so that its number cannot come to mean another;
    one that is not this user's cannot be read, and is left alone."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(OSError))
        held = os.pidfd_open(pid)
        stack.callback(os.close, held)
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if any(variable.startswith(marks) for variable in variables):
            signal.pidfd_send_signal(held, signal.SIGKILL)
            return True
    return False
