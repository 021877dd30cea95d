"""Starts a command under the keeper, and speaks with it: orders down its lifeline, one status line back."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from worker.errors import EnvironmentFault, InfrastructureFault, Stopped
from worker.isolation.keeper import Orders, descendants, lives
from worker.isolation.sandbox import STATUS
from worker.observing.output_log import OutputLog

_KEEPER = Path(__file__).with_name("keeper.py")
_KEPT = 256 << 10
_DRAIN_S = 2.0
_LOOK_S = 0.01
_ORPHANS_S = 2.0  # so long a straggler of a build may take to end by itself
_DEAF_S = 5.0  # what a keeper takes at most to carry an order out; a test can stop it, and then it never does


@dataclass(frozen=True)
class Confinement:
    """What holds a command: the sandbox's words before it, the doors of its groups, and limits of each process."""

    prefix: tuple[str, ...] = ()
    doors: tuple[str, ...] = ()
    rlimits: Mapping[str, int] = field(default_factory=dict)

    def orders(self, grace_s: float, orphans_s: float | None = None) -> str:
        """What the keeper is told."""
        status_at = self.prefix.index(STATUS) if self.prefix else None
        orders = Orders(grace_s, list(self.doors), dict(self.rlimits), status_at, orphans_s)
        return json.dumps(dataclasses.asdict(orders))


FREE = Confinement()


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it had left behind (killed by now)."""

    exit_code: int | None
    signal: int | None
    left: tuple[str, ...] = ()


class KeptProcess:
    """A running command whose whole tree ends with it, or with this worker."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        grace_s: float,
        on_output: Callable[[bytes], None],
        pass_fds: Sequence[int] = (),
        confinement: Confinement = FREE,
        orphans_s: float | None = None,
    ) -> None:
        self._grace_s = grace_s
        self._deaf_at = float("inf")
        self._keeper = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                str(_KEEPER),
                confinement.orders(grace_s, orphans_s),
                "--",
                *confinement.prefix,
                *command,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
            pass_fds=pass_fds,
            bufsize=0,
        )
        self.pid = self._keeper.pid
        self._reader = threading.Thread(target=self._read, args=(on_output,), name="output", daemon=True)
        self._reader.start()

    def _read(self, on_output: Callable[[bytes], None]) -> None:
        assert self._keeper.stderr is not None  # noqa: S101 - a pipe was asked for
        with contextlib.suppress(OSError, ValueError):
            while data := os.read(self._keeper.stderr.fileno(), 1 << 16):
                on_output(data)

    def wait(self, timeout: float) -> Ended | None:
        """How the command ended, if it did so within the time.

        A keeper that has not carried an order out in time is ended with all that is below it, as by a kill.

        Raises:
            InfrastructureFault: the keeper itself was ended by somebody else, or the sandbox broke.
        """
        assert self._keeper.stdout is not None  # noqa: S101 - a pipe was asked for
        if not select.select([self._keeper.stdout], [], [], timeout)[0]:
            return self._end_deaf() if time.monotonic() >= self._deaf_at else None
        line = self._keeper.stdout.read(1 << 20)
        self._keeper.wait()
        self._reader.join(_DRAIN_S)
        self._close()
        if not line:
            raise InfrastructureFault(
                f"the keeper of the test process ended with {self._keeper.returncode} and said nothing: a test ended "
                "it, or the out-of-memory killer, of which the kernel's log would tell"
            )
        status = json.loads(line)
        if status["broken"]:
            raise InfrastructureFault(
                f"the sandbox ended with {status['exit']} before its command did; bwrap's words stand in the log. "
                "Correct it, or set REPLAYBENCH_SANDBOX=off on this worker"
            )
        return Ended(status["exit"], status["signal"], tuple(status["left"]))

    def _end_deaf(self) -> Ended:
        below = descendants(self._keeper.pid)
        # The keeper first: once continued, it would report an end that was not the command's own.
        for pid in (self._keeper.pid, *below):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._keeper.wait()
        deadline = time.monotonic() + _DEAF_S
        while any(lives(pid) for pid in below) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        self._reader.join(_DRAIN_S)
        self._close()
        return Ended(None, signal.SIGKILL)

    def _close(self) -> None:
        for stream in (self._keeper.stdin, self._keeper.stdout, self._keeper.stderr):
            if stream is not None:
                stream.close()

    def _order(self, order: bytes) -> None:
        assert self._keeper.stdin is not None  # noqa: S101 - a pipe was asked for
        with contextlib.suppress(BrokenPipeError):
            self._keeper.stdin.write(order)

    def dump(self) -> None:
        """Have the test process print the stacks of all its threads."""
        self._order(b"D")

    def terminate(self) -> None:
        """Ask the whole tree to end; after the grace it is killed."""
        self._deaf_at = min(self._deaf_at, time.monotonic() + self._grace_s + _DEAF_S)
        self._order(b"T")

    def kill(self) -> None:
        """Kill the whole tree."""
        self._deaf_at = min(self._deaf_at, time.monotonic() + _DEAF_S)
        self._order(b"K")


def run_kept(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    stop: threading.Event,
    timeout_s: float,
    on_output: Callable[[bytes], None] = lambda _: None,
    confinement: Confinement = FREE,
    on_start: Callable[[int], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> tuple[int, str]:
    """Run a command to its end. Its exit code (a signal's negative) and the last of its output. ``on_start`` is told
    the process id that all of it is below. With ``note`` it is a step of a build: orphans are killed once all that it
    had started has ended, for it may wait for their pipes, and ``note`` is told what was left behind and killed.

    Raises:
        Stopped: the attempt was asked to end meanwhile.
        EnvironmentFault: the command took longer than it may.
    """
    kept = OutputLog(0, _KEPT)

    def take(data: bytes) -> None:
        kept.feed(data)
        on_output(data)

    process = KeptProcess(
        command,
        env=env,
        cwd=cwd,
        grace_s=1.0,
        on_output=take,
        confinement=confinement,
        orphans_s=None if note is None else _ORPHANS_S,
    )
    if on_start is not None:
        on_start(process.pid)
    deadline = time.monotonic() + timeout_s
    reason: Exception | None = None
    while (ended := process.wait(0.1)) is None:
        if reason is None and stop.is_set():
            reason = Stopped("stopped")
        elif reason is None and time.monotonic() > deadline:
            reason = EnvironmentFault(f"{' '.join(command[:4])} … did not end within {timeout_s:g} s")
        else:
            continue
        process.terminate()
    if note is not None and ended.left:
        note(f"left behind and killed: {', '.join(ended.left)}")
    if reason is not None:
        raise reason
    code = ended.exit_code if ended.exit_code is not None else -(ended.signal or 0)
    return code, kept.since(0, _KEPT)
