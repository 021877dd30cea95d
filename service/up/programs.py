"""The three programs of the embedded system: what to run, with which environment, and when each is ready."""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from service import tokens
from service.up import logs
from service.up.broker import Broker
from service.up.child import Program

REFUSAL = 2
"""The exit code of service and worker where a setting is wrong."""
WORKER_READY = "worker ready"
GIVEN_TOKENS = frozenset(
    {"REPLAYBENCH_SUBMIT_TOKEN", "REPLAYBENCH_WORKER_TOKEN"}
)  # here they come from the data directory
PYTHON = (sys.executable, "-P", "-u")  # -P: a folder `service` where the user stands must not be taken for ours


@dataclass(frozen=True)
class Plan:
    """What one embedded system is made of."""

    data_dir: Path
    port: int
    broker: Broker
    worker: bool

    @property
    def url(self) -> str:
        """Where the service answers."""
        return f"http://127.0.0.1:{self.port}"

    def programs(self, environ: Mapping[str, str] = os.environ) -> list[Program]:
        """The children, in the order of their start."""
        names = ("broker", "service", "worker") if self.worker else ("broker", "service")
        for name in names:
            logs.rotate(self._log(name))
        made = [self._broker(environ), self._service(environ)]
        return [*made, self._worker(environ)] if self.worker else made

    def _broker(self, environ: Mapping[str, str]) -> Program:
        return Program(
            name="broker",
            argv=self.broker.command(),
            env=environ,
            cwd=self.broker.folder,
            log=self._log("broker"),
            grace_s=5.0,
            ready=lambda _log, _offset: self.broker.answers(),
        )

    def _service(self, environ: Mapping[str, str]) -> Program:
        own = {
            "REPLAYBENCH_DATA_DIR": str(self.data_dir),
            "REPLAYBENCH_HOST": "127.0.0.1",
            "REPLAYBENCH_PORT": str(self.port),
            "DATABASE_URL": f"sqlite:///{self.data_dir / 'replaybench.db'}",
            "BROKER_URL": self.broker.url,
        }
        return Program(
            name="service",
            argv=(*PYTHON, "-m", "service.cli.main", "serve"),
            env={key: value for key, value in environ.items() if key not in GIVEN_TOKENS} | own,
            cwd=self.data_dir,
            log=self._log("service"),
            grace_s=8.0,
            ready=lambda _log, _offset: healthy(self.url),
            refusal=REFUSAL,
        )

    def _worker(self, environ: Mapping[str, str]) -> Program:
        # It runs other people's code, so it is given no more than it needs.
        hidden = {"DATABASE_URL", "REPLAYBENCH_TOKEN", *GIVEN_TOKENS}
        own = {
            "BROKER_URL": self.broker.url,
            "REPLAYBENCH_SERVICE_URL": self.url,
            "REPLAYBENCH_WORKER_TOKEN_FILE": str(tokens.path(self.data_dir, tokens.Scope.WORKER)),
        }
        return Program(
            name="worker",
            argv=(*PYTHON, "-m", "worker"),
            env={key: value for key, value in environ.items() if key not in hidden} | own,
            cwd=self.data_dir,
            log=self._log("worker"),
            grace_s=25.0,  # it stops its cell and gives that 20 s by default
            ready=lambda log, offset: logs.says(log, WORKER_READY, offset),
            warnings=logs.setting_warnings,
            refusal=REFUSAL,
        )

    def _log(self, name: str) -> Path:
        return self.data_dir / "logs" / f"{name}.log"


_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def healthy(url: str) -> bool:
    """Whether the service at an address says that it is well. No proxy: this is for addresses of this machine."""
    try:
        with _DIRECT.open(f"{url}/api/v1/health", timeout=2.0) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
