"""One supervised child process."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from service.up import logs
from service.up.death import bound_to_parent
from service.up.restarts import Restarts

_OWN_NAME = re.compile(r"^replaybench( \w+)?: ", re.MULTILINE)


@dataclass(frozen=True)
class Program:
    """What to run. ``ready`` is asked until it says yes, with the log and where this start's part of it begins.

    ``warnings`` is asked then, in the same way, for what people must hear. ``refusal`` is the exit code by which the
    program says that its settings are wrong, or that it is refused: to start it again would not help.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    log: Path
    grace_s: float
    ready: Callable[[Path, int], bool]
    warnings: Callable[[Path, int], Sequence[str]] = lambda _log, _offset: ()
    refusal: int | None = None


@dataclass
class Child:
    """A program and its process, where one runs."""

    program: Program
    process: subprocess.Popen[bytes] | None = None
    ready: bool = False
    started_at: float = 0.0
    log_offset: int = 0
    restarts: Restarts = field(default_factory=Restarts)
    code: int | None = None
    """How the last process ended: negative for a signal."""
    warned: set[str] = field(default_factory=set)

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

    def new_warnings(self) -> list[str]:
        """What its program warns of, and no earlier start of it did."""
        new = [one for one in self.program.warnings(self.program.log, self.log_offset) if one not in self.warned]
        self.warned.update(new)
        return new

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
        code = self.code = self.process.wait()
        self.process, self.ready = None, False
        return f"died by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    @property
    def refuses(self) -> bool:
        """Whether it ended by saying that no other start can go better."""
        return self.program.refusal is not None and self.code == self.program.refusal

    def last_words(self) -> str:
        """What its last start said, but for the records of its log."""
        return _OWN_NAME.sub("", "\n".join(logs.sentences(self.program.log, self.log_offset)))

    def tail(self) -> str:
        """The end of its log."""
        return logs.tail(self.program.log)
