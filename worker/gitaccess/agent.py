"""An ssh-agent of one fetch alone: the key goes from memory to memory, and only that fetch can have it sign.

The agent's own socket is unlinked before the key is in it. What is left is one connection, which the gate lends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

from worker.gitaccess.gate import Gate

_LIFETIME_S = 3600
_ADDING_S = 30.0
_MOST = 1 << 18
_FAILURE = b"\x05"
_IDENTITIES, _SIGN, _ADD, _ADD_FOR_A_TIME = 11, 13, 17, 25
"""Of the agent's protocol (draft-miller-ssh-agent): the only requests that are handed on. One connection serves several
callers, so it is bound to no session."""


class AgentFailed(Exception):
    """There is no agent, or it does not take the key. The text never holds the key."""


class Agent:
    """A running agent that holds one key. ``socket`` is where ssh finds it."""

    def __init__(self, folder: Path, key: str, environ: Mapping[str, str]) -> None:
        for program in ("ssh-agent", "ssh-add"):
            if shutil.which(program) is None:
                raise AgentFailed(f"{program} is not on PATH: install the OpenSSH client on this machine")
        self._lock = threading.Lock()
        self._allowed = {_ADD, _ADD_FOR_A_TIME}
        self._env = {"PATH": environ.get("PATH", os.defpath), "LC_ALL": "C"}
        self._start(folder / "agent")
        self._gate = Gate(folder / "ssh", self._lend)
        self.socket = self._gate.path
        try:
            self._add(key)
        except AgentFailed:
            self.close()
            raise
        self._allowed = {_IDENTITIES, _SIGN}

    def _start(self, path: Path) -> None:
        """The agent ends with its command, and the command with our pipe: a killed worker leaves no key behind."""
        command = ["ssh-agent", "-t", str(_LIFETIME_S), "-a", str(path), "sh", "-c", 'echo "$SSH_AGENT_PID"; exec cat']
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self._env,
            start_new_session=True,
        )
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        said = self._process.stdout.readline().strip()
        if not said.isdigit():
            self._end_process()
            raise AgentFailed("ssh-agent did not start on this machine: try it by hand")
        self._pid = int(said)
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(str(path))
        path.unlink()

    def _add(self, key: str) -> None:
        text = key.replace("\r\n", "\n").strip() + "\n"
        process = subprocess.Popen(
            ["ssh-add", "-q", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=self._env | {"SSH_AUTH_SOCK": str(self._gate.path)},
            start_new_session=True,
        )
        self._gate.admit(process.pid)
        try:
            _, said = process.communicate(text.encode(), timeout=_ADDING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise AgentFailed("ssh-add did not end: the key may have a passphrase; give one without") from None
        if process.returncode:
            reason = said.decode(errors="replace").strip()[-300:]
            raise AgentFailed(f"ssh-add does not take the key ({reason}): give a private key without a passphrase")

    def admit(self, pid: int) -> None:
        """From now on, sign for this process and those below it."""
        self._gate.admit(pid)

    def close(self) -> None:
        """End the agent; its key is gone with it."""
        self._gate.close()
        self._connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGTERM)
        self._end_process()

    def _end_process(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait()

    def _lend(self, caller: socket.socket) -> None:
        while (request := _frame(caller)) is not None:
            answer = _FAILURE
            if request and request[0] in self._allowed:
                with self._lock:
                    self._connection.sendall(struct.pack(">I", len(request)) + request)
                    answer = _frame(self._connection) or _FAILURE
            caller.sendall(struct.pack(">I", len(answer)) + answer)


def _frame(stream: socket.socket) -> bytes | None:
    head = _exactly(stream, 4)
    length = struct.unpack(">I", head)[0] if head else 0
    return _exactly(stream, length) if 0 < length <= _MOST else None


def _exactly(stream: socket.socket, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        more = stream.recv(count - len(data))
        if not more:
            return None
        data += more
    return data
