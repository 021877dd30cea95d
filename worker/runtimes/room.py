"""Room on the worker's disk: looked at before anything is made, kept free for builds, and made by throwing away.

What goes first is what uv keeps for install lines, then uv's cache, if it is the worker's own, then the runtimes that
were used longest ago. Nothing goes that is in use. Two builds that start at once do not both count on the same room.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from worker.errors import InfrastructureFault
from worker.host_lock import locked
from worker.messages import RuntimeSpec
from worker.runtimes import install_cache
from worker.runtimes.disk import free
from worker.runtimes.runtime_use import Use, last_used

_MIB, _GIB = 1 << 20, 1 << 30
_CLEAN_S = 120.0
_WORTH = 0.5


@dataclass(frozen=True)
class Room:
    """The disk below ``cache``. ``floor`` is what must be free to begin anything, ``cap`` what all runtimes may take
    together (0: anything), in bytes. ``uv`` empties its cache, where that is the worker's own."""

    cache: Path
    floor: int = 0
    cap: int = 0
    uv: str = ""
    uv_cache: Path | None = None

    @property
    def runtimes(self) -> Path:
        """The folder of all runtimes."""
        return self.cache / "runtimes"

    def look(self, say: Callable[[str], None], stop: threading.Event) -> None:
        """Look before an attempt begins.

        Raises:
            InfrastructureFault: less than the floor is free, and there is nothing to throw away.
            Stopped: the attempt was asked to end.
        """
        if free(self.cache) < self.floor:
            with self._one_at_a_time(say, stop):
                self._make(self.floor, say)
        self._assert_floor()

    @contextlib.contextmanager
    def reserved(
        self, home: Path, spec: RuntimeSpec, say: Callable[[str], None], stop: threading.Event
    ) -> Iterator[None]:
        """Keep room for a build, whose lock is held, and make it if there is too little.

        Less than is kept will do to begin with: what a runtime takes is known only when it is there.

        Raises:
            InfrastructureFault: less than the floor is free, and there is nothing to throw away.
            Stopped: the attempt was asked to end.
        """
        mine = home.with_name(home.name + ".reserved")
        size = expected(spec)
        with self._one_at_a_time(say, stop):
            self._keep_cap(size, say)
            self._make(self.floor + size + self._promised(), say)
            self._assert_floor()
            mine.write_text(str(size))
        try:
            yield
        finally:
            mine.unlink(missing_ok=True)
        with self._one_at_a_time(say, stop):
            self._keep_cap(0, say)

    def throw_one_away(self, say: Callable[[str], None]) -> bool:
        """Make some room in the middle of a build that found none. Whether there was something to throw away."""
        before = free(self.cache)
        self._empty_install_caches(say)
        self._empty_uv_cache()
        return free(self.cache) > before or self._evict(say)

    def _one_at_a_time(
        self, say: Callable[[str], None], stop: threading.Event
    ) -> contextlib.AbstractContextManager[None]:
        self.runtimes.mkdir(parents=True, exist_ok=True)
        return locked(
            self.runtimes / "room.lock", stop, lambda: say("another attempt makes room on the disk: waiting for it")
        )

    def _assert_floor(self) -> None:
        if (left := free(self.cache)) < self.floor:
            raise InfrastructureFault(
                f"the disk of {self.cache} has {left} bytes free, and REPLAYBENCH_FREE_BYTES={self.floor} must be: "
                f"make room there, or set it lower{self._held_by_uv()}"
            )

    def _held_by_uv(self) -> str:
        if self.uv_cache is not None or not any(self._ready()):
            return ""
        return "; the runtimes share their files with uv's cache, which `uv cache clean` empties"

    def _promised(self) -> int:
        """What builds that are under way may still take. The file of one that was killed counts no more."""
        total = 0
        for path in self.runtimes.glob("*.reserved"):
            if _is_locked(path.with_suffix(".lock")):
                with contextlib.suppress(OSError, ValueError):
                    total += int(path.read_text())
            else:
                path.unlink(missing_ok=True)
        return total

    def _make(self, wanted: int, say: Callable[[str], None]) -> None:
        if free(self.cache) < wanted:
            self._empty_install_caches(say)
        if free(self.cache) < wanted:
            self._empty_uv_cache()
        while free(self.cache) < wanted and self._evict(say):
            pass

    def _keep_cap(self, more: int, say: Callable[[str], None]) -> None:
        while self.cap and size_of(list(self._ready())) + more > self.cap and self._evict(say, by_cap=True):
            pass

    def _empty_install_caches(self, say: Callable[[str], None]) -> None:
        if install_cache.empty(self.cache):
            say("what uv kept for install lines was thrown away to make room")

    def _empty_uv_cache(self) -> None:
        if self.uv_cache is None or not self.uv_cache.is_dir():
            return
        command = [self.uv, "cache", "clean", "--quiet", "--cache-dir", str(self.uv_cache)]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # Another uv may be at work in it.
            subprocess.run(command, capture_output=True, timeout=_CLEAN_S, check=False)

    def _ready(self) -> Iterator[Path]:
        yield from (path.parent for path in self.runtimes.glob("*/ready.json"))

    def _evict(self, say: Callable[[str], None], *, by_cap: bool = False) -> bool:
        """Throw the runtime away that was used longest ago. Whether there was one that is not in use."""
        for home in sorted(self._ready(), key=last_used):
            if not by_cap and self.uv_cache is None and _own_share(home) < _WORTH:
                continue  # Its files are uv's cache's too: without it the disk would be as full.
            if _throw_away(home):
                say(f"runtime {home.name} was thrown away to make room: of those not in use it was used longest ago")
                return True
        return False


def expected(spec: RuntimeSpec) -> int:
    """What a runtime may take, in bytes: torch for CUDA with its libraries 6 GiB, any other torch 2 GiB."""
    if spec.torch is None:
        return 256 * _MIB
    return 2 * _GIB if spec.build == "cpu" else 6 * _GIB


def size_of(folders: list[Path]) -> int:
    """What folders take on the disk together, in bytes; a file that several link to counts once."""
    seen: dict[tuple[int, int], int] = {}
    for folder in folders:
        for path in folder.rglob("*"):
            with contextlib.suppress(OSError):
                status = path.lstat()
                seen[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(seen.values())


def _own_share(home: Path) -> float:
    """How much of a runtime's bytes would be free without it."""
    own = total = 0
    for path in home.rglob("*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            total += status.st_blocks
            own += status.st_blocks if status.st_nlink == 1 else 0
    return own / total if total else 0.0


def _is_locked(path: Path) -> bool:
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return True
    lock.release()
    return False


def _throw_away(home: Path) -> bool:
    """Remove a runtime, unless somebody builds or uses it. It is out of everybody's way before its files go."""
    lock, use = FileLock(f"{home}.lock", thread_local=False), Use(home)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        use.release()
        return False
    try:
        if not use.alone():
            return False
        gone = home.with_name(f".gone-{home.name}")
        shutil.rmtree(gone, ignore_errors=True)
        home.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
        return True
    except OSError:
        return False
    finally:
        use.release()
        lock.release()


def clean(cache: Path) -> list[str]:
    """Remove what killed builds and evictions left below ``cache``. The names of the half-built runtimes."""
    install_cache.clean(cache)
    runtimes = cache / "runtimes"
    half = []
    for path in sorted(runtimes.iterdir()) if runtimes.is_dir() else []:
        if path.name.startswith(".gone-"):
            shutil.rmtree(path, ignore_errors=True)
        elif path.is_dir() and not (path / "ready.json").exists():
            with contextlib.suppress(Timeout), FileLock(f"{path}.lock", blocking=False, thread_local=False):
                shutil.rmtree(path, ignore_errors=True)
                half.append(path.name)
    return half
