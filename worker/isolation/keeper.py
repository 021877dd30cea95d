"""The tiny parent of a test process: sees that nothing of it is left alive, whatever dies.

Run as ``python -I -S keeper.py ORDERS -- COMMAND...``, standard library only; ORDERS is the JSON form of ``Orders``.
Standard input is the lifeline from the worker: a byte on it is an order, its end means that the worker died, and then
everything is killed. Standard output carries one JSON line back when all is over. The command's output goes to the
keeper's standard error.

On Linux the keeper is a subreaper: whatever the command leaves behind, in its own session or not, becomes the keeper's
child and is killed before the keeper ends. Elsewhere only the command's process group can be reached.

A command that builds may wait for the output of what has ended: as long as an orphan holds the pipe, it is not at its
end. Where that is asked for, orphans are killed as soon as all that the command had started itself has ended.

Where the command is a sandbox, the keeper stays outside and sees all of it. The sandbox's first process writes down how
the command ended, since bubblewrap's own exit code does not tell a signal from an exit.
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
from dataclasses import dataclass, field
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LINUX = sys.platform.startswith("linux")
_SWEEP_S = 10.0
"""How long processes that do not die of SIGKILL (in uninterruptible sleep) are waited for."""
_TURN_S, _TURNS = 0.06, 6
_TELL_S = 2.0
"""How long a sandbox that ended is listened to: its first process dies with it, and the pipe ends."""
_LOOK_S = 0.5
"""How often orphans are looked for, where that is asked for."""
_OOM_SCORE = "500"
"""Where the machine runs out of memory, the kernel takes the test process before the worker."""


@dataclass
class Orders:
    """How to keep the command: seconds between TERM and KILL, the ``cgroup.procs`` files of the groups that it enters,
    its resource limits by their names (``NOFILE``), which word of it stands for the sandbox's status descriptor, and
    how many seconds orphans may outlive all that the command had started (``None``: as long as the command)."""

    grace: float = 0.0
    doors: list[str] = field(default_factory=list)
    rlimits: dict[str, int] = field(default_factory=dict)
    status_at: int | None = None
    orphans_s: float | None = None


def _prctl(option: int, value: int) -> None:
    if _LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _limit(orders: Orders) -> None:
    """Enter the groups and set the limits, in the process that becomes the command."""
    for door in orders.doors:
        Path(door).write_text("0")
    for name, value in {"CORE": 0, **orders.rlimits}.items():
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (most, most))
    if _LINUX:
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)


def _start(command: list[str], orders: Orders) -> int:
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
        _limit(orders)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execvp(command[0], command)  # noqa: S606 - no shell is the point
    except OSError as error:
        os.write(2, f"{error.filename or command[0]}: {error.strerror}\n".encode())
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
    return _below(root, _parents())


def _below(root: int, parents: dict[int, int]) -> list[int]:
    mine = {root}
    found: list[int] = []
    while True:
        fresh = [pid for pid, parent in parents.items() if parent in mine and pid not in mine]
        if not fresh:
            return found
        mine.update(fresh)
        found += fresh


def _above(pid: int, parents: dict[int, int]) -> list[int]:
    """A process and those above it, nearest first."""
    found = []
    while pid not in found and pid in parents:
        found.append(pid)
        pid = parents[pid]
    return found


def lives(pid: int) -> bool:
    """Whether a process exists and is not only waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


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


def _catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal; others would die of it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = status.partition("SigCgt:")[2].split(maxsplit=1)
    return bool(caught) and bool(int(caught[0], 16) >> (number - 1) & 1)


def _sleeping(pid: int) -> str:
    """What a process that cannot show its stacks is doing, by the kernel's word."""
    found = []
    for what in ("stat", "wchan"):
        try:
            found.append(Path(f"/proc/{pid}/{what}").read_text())
        except OSError:
            found.append("")
    state = found[0].rpartition(")")[2].split()[:1]
    return f"{_name(pid)} shows no stack; state {''.join(state) or '?'}, in {found[1].strip('0') or 'user code'}\n"


def _inner(pid: int) -> int | None:
    """The number of a process in the innermost namespace that it lives in."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    numbers = status.partition("NSpid:")[2].partition("\n")[0].split()
    return int(numbers[-1]) if numbers else None


class _Keeper:
    def __init__(self, command: list[str], orders: Orders, wakeup: int) -> None:
        self.grace = orders.grace
        self.wakeup = wakeup
        self.status: int | None = None
        self.kill_at: float | None = None
        self.lifeline = True
        self.ordered = self.broken = False
        self.orphans_s = orders.orphans_s
        self.alone_since: float | None = None
        self.orphans: dict[int, str] = {}
        """Those that were killed before the command's end, by number."""
        self.told: int | None = None
        """The descriptor by which a sandbox tells the command's end, as long as it may."""
        self.sandboxed = orders.status_at is not None
        tell = -1
        if orders.status_at is not None:
            self.told, tell = os.pipe()
            os.set_inheritable(tell, True)
            command = [*command[: orders.status_at], str(tell), *command[orders.status_at + 1 :]]
        self.pid = _start(command, orders)
        if self.sandboxed:
            os.close(tell)

    def wait(self) -> None:
        """Until the command has ended, by itself or by order."""
        while self.status is None:
            timeout = None if self.kill_at is None else max(0.0, self.kill_at - time.monotonic())
            if self.orphans_s is not None:
                timeout = _LOOK_S if timeout is None else min(timeout, _LOOK_S)
            told = [] if self.told is None else [self.told]
            ready = select.select([self.wakeup, *([0] if self.lifeline else []), *told], [], [], timeout)[0]
            if self.wakeup in ready:
                os.read(self.wakeup, 512)
            if 0 in ready:
                self._obey(os.read(0, 512))
            if self.told in ready:
                self._listen()
            if self.kill_at is not None and time.monotonic() >= self.kill_at:
                self._kill_all()
                self.kill_at = time.monotonic() + 0.2
            self._reap()
            if self.orphans_s is not None and self.status is None:
                self._end_orphans(self.orphans_s)

    def _end_orphans(self, grace_s: float) -> None:
        """Kill orphans that have outlived, for the grace, all that the command had started. One look at all processes
        decides: of two, a process that was started between them would seem to be nobody's."""
        parents, command = _parents(), self._group()
        own = _below(command, parents)
        orphans = set(_below(os.getpid(), parents)) - {*own, *_above(command, parents)}
        if any(map(lives, own)) or not any(map(lives, orphans)):
            self.alone_since = None
            return
        if self.alone_since is None:
            self.alone_since = time.monotonic()
        if time.monotonic() - self.alone_since >= grace_s:
            for pid in filter(lives, orphans):
                self.orphans.setdefault(pid, _name(pid))
                _signal(pid, signal.SIGKILL)

    def _obey(self, orders: bytes) -> None:
        if not orders:
            self.lifeline = False
        if not orders or b"K" in orders:
            self.ordered, self.kill_at = True, time.monotonic()
        elif b"T" in orders:
            _signal_group(self._group(), signal.SIGTERM)
            self.ordered, self.kill_at = True, time.monotonic() + self.grace
        elif b"D" in orders:
            self._dump()

    def _listen(self) -> None:
        """Take the command's wait status from the sandbox's first process."""
        assert self.told is not None  # noqa: S101 - it was ready
        line = os.read(self.told, 64)
        if line.strip().isdigit():
            self.status = int(line)
        os.close(self.told)
        self.told = None

    def _group(self) -> int:
        """The process group of the command. In a sandbox that is its second process's; before there is one, nothing
        has run that could want a word."""
        if not self.sandboxed:
            return self.pid
        return next((pid for pid in descendants(self.pid) if _inner(pid) == 2), self.pid)

    def _dump(self) -> None:
        """Have every process that can do so print its stacks, the first ones in turn, since they write to one stream.
        All are killed next, so none is spared the signal."""
        below = descendants(self.pid)
        for number, pid in enumerate(below[1:] if self.sandboxed else [self.pid, *below]):
            if _catches(pid, signal.SIGUSR1):
                _signal(pid, signal.SIGUSR1)
                time.sleep(_TURN_S if number < _TURNS else 0)
            else:
                os.write(2, _sleeping(pid).encode())

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
            if pid == self.pid and self.status is None:
                self._end(status)

    def _end(self, status: int) -> None:
        """The command is gone. Of a sandbox's own end the command's status counts, where it was told just before."""
        if self.told is not None and select.select([self.told], [], [], _TELL_S)[0]:
            self._listen()
        if self.status is None:
            self.status = status
            self.broken = self.sandboxed and not self.ordered and os.WIFEXITED(status)

    def _left(self) -> list[int]:
        """What lives on below: of a sandbox whose command has ended, all but the sandbox's own two processes."""
        found = descendants(os.getpid())
        return [pid for pid in found if pid != self.pid and _inner(pid) != 1] if self.sandboxed else found

    def sweep(self) -> list[str]:
        """Kill what the command left behind. Their names."""
        names = {pid: _name(pid) for pid in self._left()}
        _signal_group(self.pid, signal.SIGKILL)
        deadline = time.monotonic() + _SWEEP_S
        while self._reap() and time.monotonic() < deadline:
            for pid in self._left():
                names.setdefault(pid, _name(pid))
            for pid in descendants(os.getpid()):
                _signal(pid, signal.SIGKILL)
            time.sleep(0.005)
        return list({**names, **self.orphans}.values())


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
    keeper = _Keeper(arguments[2:], Orders(**json.loads(arguments[0])), wakeup)
    keeper.wait()
    left = keeper.sweep()
    code = os.waitstatus_to_exitcode(keeper.status or 0)
    report = {
        "exit": code if code >= 0 else None,
        "signal": -code if code < 0 else None,
        "left": left[:20],
        "broken": keeper.broken,
    }
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(report).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
