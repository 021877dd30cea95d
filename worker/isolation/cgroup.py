"""Control groups: one for each pytest process and all that it starts, where the kernel lets this worker make some.

Version 2 where its folder is delegated to the worker (systemd's ``Delegate=yes``), else version 1 where its folders can
be written to. A group is told by its name, which holds the worker's nonce: what a killed worker left is found again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from worker.isolation.keeper import descendants
from worker.isolation.limits import Limits

_NEEDED = frozenset({"memory", "pids"})
_PREFIX = "replaybench-"
_CLOSE_S = 10.0
_MIB = 1 << 20
_MEMORY_FILES = (("memory.max", "memory.swap.max"), ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"))
_PEAKS = ("memory.peak", "memory.max_usage_in_bytes")


@dataclass(frozen=True)
class Group:
    """One group: a folder in version 2, one for each controller in version 1."""

    folders: tuple[Path, ...]
    limits: Limits

    @property
    def doors(self) -> tuple[str, ...]:
        """The files by which a process enters."""
        return tuple(str(folder / "cgroup.procs") for folder in self.folders)

    def out_of_memory(self) -> str:
        """What the out-of-memory killer did here, as a sentence; empty where it did nothing."""
        killed = self._count("memory.events", "oom_kill") or self._count("memory.oom_control", "oom_kill")
        if not killed:
            return ""
        peak = f"at its peak the group held {self.peak_mib} MiB" if self.peak_mib else "the peak is not known"
        limit = self.limits.memory_mib
        # The refusals of version 1 are not counted by every kernel; its peak is.
        if limit and (self._count("memory.events", "oom") or self.peak_mib >= limit):
            return f"the limit of {limit} MiB (memory_mib) was reached; {peak}"
        return f"the machine itself ran out of memory; {peak}"

    def refused_processes(self) -> int:
        """How often a process or thread was refused at the limit."""
        return self._count("pids.events", "max")

    @property
    def peak_mib(self) -> int:
        return max((self._number(name) for name in _PEAKS), default=0) // _MIB

    def close(self) -> None:
        """Kill what is left, and remove the group."""
        for folder in self.folders:
            _write(folder / "pids.max", "0")  # Nothing can be forked any more, so that killing comes to an end.
        deadline = time.monotonic() + _CLOSE_S
        while not all([_removed(folder) for folder in self.folders]) and time.monotonic() < deadline:  # noqa: C419 - each
            time.sleep(0.01)

    def _count(self, name: str, key: str) -> int:
        for line in self._read(name).splitlines():
            word, _, value = line.partition(" ")
            if word == key and value.strip().isdigit():
                return int(value)
        return 0

    def _number(self, name: str) -> int:
        text = self._read(name).strip()
        return int(text) if text.isdigit() else 0

    def _read(self, name: str) -> str:
        for folder in self.folders:
            with contextlib.suppress(OSError):
                return (folder / name).read_text()
        return ""


@dataclass(frozen=True)
class Cgroups:
    """Where groups can be made."""

    version: int
    roots: tuple[Path, ...]

    @property
    def title(self) -> str:
        return f"cgroup v{self.version}"

    def make(self, name: str, limits: Limits) -> Group:
        """A group of that name.

        Raises:
            OSError: the kernel does not let this worker make it, or takes no such limit.
        """
        group = Group(tuple(root / f"{_PREFIX}{name}" for root in self.roots), limits)
        try:
            for folder in group.folders:
                folder.mkdir(exist_ok=True)
            _limit(group)
        except OSError:
            group.close()
            raise
        return group

    def end(self, boot: str) -> None:
        """Kill and remove what a worker process of this nonce left."""
        for name in {path.name for root in self.roots for path in root.glob(f"{_PREFIX}{boot}-*")}:
            Group(tuple(root / name for root in self.roots), Limits()).close()


def find_cgroups() -> Cgroups | None:
    """Where this worker can make groups that limit memory and processes, tried by making one; nowhere elsewhere than on
    Linux."""
    for candidate in _candidates():
        with contextlib.suppress(OSError):
            # Small and still enough for nobody: the group stays empty.
            candidate.make(f"try-{os.getpid()}", Limits(memory_mib=64, processes=64)).close()
            return candidate
    return None


def memory_of_machine_mib() -> int:
    """The memory of this machine, or of the group that this worker lives in where that has less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = [machine]
    for mount, _, own in [*_mounts("cgroup2"), *_mounts("cgroup")]:
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):
                found.append(int((mount / own / name).read_text()))
    return min(found) // _MIB


def _candidates() -> Iterator[Cgroups]:
    for mount, _, own in _mounts("cgroup2"):
        if (root := _delegated(mount, mount / own)) is not None:
            yield Cgroups(2, (root,))
    places = {name: mount / own for mount, names, own in _mounts("cgroup") for name in names & _NEEDED}
    if places.keys() == _NEEDED:
        yield Cgroups(1, tuple(dict.fromkeys(places[name] for name in sorted(places))))


def _mounts(kind: str) -> Iterator[tuple[Path, frozenset[str], str]]:
    """Mount point, controllers (version 1) and own path below it, of every mounted hierarchy."""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        own = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    paths = {names: path.lstrip("/") for _, names, path in (line.split(":", 2) for line in own)}
    for line in mounts:
        _, place, found, options, *_ = line.split()
        if found != kind:
            continue
        names = frozenset(options.split(","))
        path = next(
            (path for key, path in paths.items() if (set(key.split(",")) <= names if key else kind == "cgroup2")), ""
        )
        # In a container the path is the host's, and what is mounted is already the own folder.
        yield Path(place), names, path if (Path(place) / path).is_dir() else ""


def _delegated(mount: Path, own: Path) -> Path | None:
    """The folder below which version 2 lets this worker limit memory and processes: the one above its own where a
    subgroup was given to it, else its own, which it then leaves for one below, since a group that has members cannot
    hand controllers on."""
    above = own.parent
    if own != mount and _words(above / "cgroup.subtree_control") >= _NEEDED and os.access(above, os.W_OK):
        return above
    if not (_words(own / "cgroup.controllers") >= _NEEDED and os.access(own / "cgroup.subtree_control", os.W_OK)):
        return None
    mine = {os.getpid(), *descendants(os.getpid())}
    try:
        members = {int(word) for word in _words(own / "cgroup.procs")}
        if not members <= mine:
            return None
        below = own / f"{_PREFIX}worker"
        below.mkdir(exist_ok=True)
        for pid in members:
            (below / "cgroup.procs").write_text(str(pid))
        (own / "cgroup.subtree_control").write_text("+memory +pids")
    except OSError:
        return None
    return own


def _words(path: Path) -> set[str]:
    try:
        return set(path.read_text().split())
    except OSError:
        return set()


def _limit(group: Group) -> None:
    for folder in group.folders:
        if group.limits.processes and (folder / "pids.max").exists():
            (folder / "pids.max").write_text(str(group.limits.processes))
        for name, swap in _MEMORY_FILES if group.limits.memory_mib else ():
            if (folder / name).exists():
                (folder / name).write_text(str(group.limits.memory_bytes))
                # Where swap is not counted its file is missing, or takes nothing.
                _write(folder / swap, "0" if swap == "memory.swap.max" else str(group.limits.memory_bytes))


def _write(path: Path, text: str) -> None:
    with contextlib.suppress(OSError):
        if path.exists():
            path.write_text(text)


def _removed(folder: Path) -> bool:
    """Whether the group is gone, after killing what is in it."""
    _write(folder / "cgroup.kill", "1")
    for pid in map(int, _words(folder / "cgroup.procs")):
        if pid > 0:  # 0 stands for a process of another namespace, and would mean this worker's own process group
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()
