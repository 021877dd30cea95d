"""`replaybench` as people run it: in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import wait_for

REPLAYBENCH = (sys.executable, "-m", "service.cli.main")


def environment(**more: str) -> dict[str, str]:
    """The environment without settings of whoever runs the tests, and these."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("REPLAYBENCH_") and key not in {"DATABASE_URL", "BROKER_URL"}
    }
    return {**kept, **more}


def command(*arguments: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(
        [*REPLAYBENCH, *arguments],
        cwd=cwd,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@dataclass
class Embedded:
    """A running `replaybench up`."""

    process: subprocess.Popen[bytes]
    data_dir: Path
    out: Path

    @property
    def said(self) -> str:
        """What it printed so far."""
        return self.out.read_text()

    def wait_ready(self) -> str:
        """Its address, once it is ready."""
        wait_for(lambda: "ready: " in self.said or self.process.poll() is not None, "the system to be ready", 60)
        assert "ready: " in self.said, self.said
        return self.said.rpartition("ready: ")[2].split()[0]

    def children(self) -> dict[str, int]:
        """The process numbers of its children by name."""
        found = {}
        for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            except (FileNotFoundError, ProcessLookupError):  # it died since the line above
                continue
            if "valkey-server" in words[0]:  # it rewrites its title
                found["broker"] = int(pid)
            for name in ("serve", "worker"):
                if name in words:
                    found[name] = int(pid)
        return found

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and waits for the exit code."""
        self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def up(folder: Path, *arguments: str, port: str = "0", **env: str) -> Iterator[Embedded]:
    """An embedded system whose data directory is ``folder/data``, for as long as the context lasts."""
    out = folder / "up.out"
    with out.open("wb") as stream:
        process = subprocess.Popen(
            [*REPLAYBENCH, "up", "--data-dir", str(folder / "data"), "--port", port, *arguments],
            env=environment(**env),
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Embedded(process, folder / "data", out)
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and is not reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
