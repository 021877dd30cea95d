"""The tiny parent of a test process: sees that nothing of it is left alive, whatever dies.

Run as ``python -I -S keeper.py GRACE -- COMMAND...``, standard library only. Standard input is the lifeline from the
worker: a byte on it is an order, its end means that the worker died, and then everything is killed. Standard output
carries one JSON line back when all is over. The command's output goes to the keeper's standard error.

On Linux the keeper is a subreaper: whatever the command leaves behind, in its own session or not, becomes the keeper's
child and is killed before the keeper ends. Elsewhere only the command's process group can be reached.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LINUX = sys.platform.startswith("linux")
_SWEEP_S = 10.0
"""How long processes that do not die of SIGKILL (in uninterruptible sleep) are waited for."""


def _prctl(option: int, value: int) -> None:
    if _LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _start(command: list[str]) -> int:
    """Fork the command into a session of its own."""
    keeper = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(127)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(2, 1)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execvp(command[0], command)  # noqa: S606 - no shell is the point
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _parents() -> dict[int, int]:
    """Every process's parent, read from /proc."""
    parents = {}
    for name in os.listdir("/proc") if _LINUX else []:
        if name.isdigit():
            try:
                stat = Path("/proc", name, "stat").read_bytes()
            except OSError:
                continue
            parents[int(name)] = int(stat.rpartition(b")")[2].split()[1])
    return parents


def descendants(root: int) -> list[int]:
    """Every process below one, nearest first. Empty elsewhere than on Linux."""
    parents, mine = _parents(), {root}
    found: list[int] = []
    while True:
        fresh = [pid for pid, parent in parents.items() if parent in mine and pid not in mine]
        if not fresh:
            return found
        mine.update(fresh)
        found += fresh


def _name(pid: int) -> str:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        line = ""
    return f"{line[:120] or 'process'} (pid {pid})"


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, number)


class _Keeper:
    def __init__(self, command: list[str], grace: float, wakeup: int) -> None:
        self.grace = grace
        self.wakeup = wakeup
        self.status: int | None = None
        self.kill_at: float | None = None
        self.lifeline = True
        self.pid = _start(command)

    def wait(self) -> None:
        """Until the command has ended, by itself or by order."""
        while self.status is None:
            timeout = None if self.kill_at is None else max(0.0, self.kill_at - time.monotonic())
            ready = select.select([self.wakeup, *([0] if self.lifeline else [])], [], [], timeout)[0]
            if self.wakeup in ready:
                os.read(self.wakeup, 512)
            if 0 in ready:
                self._obey(os.read(0, 512))
            if self.kill_at is not None and time.monotonic() >= self.kill_at:
                self._kill_all()
                self.kill_at = time.monotonic() + 0.2
            self._reap()

    def _obey(self, orders: bytes) -> None:
        if not orders:
            self.lifeline = False
        if not orders or b"K" in orders:
            self.kill_at = time.monotonic()
        elif b"T" in orders:
            _signal_group(self.pid, signal.SIGTERM)
            self.kill_at = time.monotonic() + self.grace
        elif b"D" in orders:
            _signal(self.pid, signal.SIGUSR1)

    def _kill_all(self) -> None:
        _signal_group(self.pid, signal.SIGKILL)
        for pid in descendants(os.getpid()):
            _signal(pid, signal.SIGKILL)

    def _reap(self) -> bool:
        """Take in what has died. Whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.pid:
                self.status = status

    def sweep(self) -> list[str]:
        """Kill what the command left behind. Their names."""
        _signal_group(self.pid, signal.SIGKILL)
        names: dict[int, str] = {}
        deadline = time.monotonic() + _SWEEP_S
        while self._reap() and time.monotonic() < deadline:
            for pid in descendants(os.getpid()):
                names.setdefault(pid, _name(pid))
                _signal(pid, signal.SIGKILL)
            time.sleep(0.005)
        return list(names.values())


def main(arguments: list[str]) -> None:
    """Keep one command from its start to the last of its processes."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    wakeup, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    os.set_inheritable(wakeup, False)
    keeper = _Keeper(arguments[2:], float(arguments[0]), wakeup)
    keeper.wait()
    left = keeper.sweep()
    code = os.waitstatus_to_exitcode(keeper.status or 0)
    report = {"exit": code if code >= 0 else None, "signal": -code if code < 0 else None, "left": left[:20]}
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(report).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
