"""One supervised child process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from service.up import logs
from service.up.death import bound_to_parent
from service.up.restarts import Restarts


@dataclass(frozen=True)
class Program:
    """What to run. ``ready`` is asked until it says yes, with the log and where this start's part of it begins."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    log: Path
    grace_s: float
    ready: Callable[[Path, int], bool]


@dataclass
class Child:
    """A program and its process, where one runs."""

    program: Program
    process: subprocess.Popen[bytes] | None = None
    ready: bool = False
    started_at: float = 0.0
    log_offset: int = 0
    restarts: Restarts = field(default_factory=Restarts)

    def start(self) -> None:
        """Starts the process in a session of its own, so that a terminal's Ctrl-C reaches it only through us."""
        log = self.program.log
        with log.open("ab") as out:
            self.log_offset = out.tell()
            self.process = subprocess.Popen(
                self.program.argv,
                env=dict(self.program.env),
                cwd=self.program.cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=bound_to_parent(),  # noqa: PLW1509 -- this process has no threads
            )
        self.ready = False
        self.started_at = time.monotonic()

    def look(self) -> bool:
        """Whether it answers, asking only until it does."""
        if not self.ready:
            self.ready = self.program.ready(self.program.log, self.log_offset)
        return self.ready

    def stop(self, hurry: Callable[[], bool]) -> None:
        """Ends it: a request, a grace that ``hurry`` cuts short, then a kill of its whole process group."""
        if self.process is None:
            return
        if not self.ended:
            self.process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + self.program.grace_s
            while not self.ended and time.monotonic() < deadline and not hurry():
                time.sleep(0.02)
        self.bury()

    @property
    def ended(self) -> bool:
        """Whether there is a process that has ended. It stays unreaped, so that its number stays taken."""
        if self.process is None:
            return False
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def bury(self) -> str:
        """Kills what is left of its process group, reaps it, and says how it ended."""
        if self.process is None:
            return "never ran"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # before reaping: afterwards the number may be another's
        code = self.process.wait()
        self.process, self.ready = None, False
        return f"died by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def tail(self) -> str:
        """The end of its log."""
        return logs.tail(self.program.log)
