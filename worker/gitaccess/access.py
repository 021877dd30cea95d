"""Lends a credential to one git, for one place: never on disk, never in an argument, never in a configuration.

A token reaches git by an askpass helper, a key by an agent of its own. Both ask this process through a socket that
answers that git and what it starts, and nobody else of the same user.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shlex
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from worker.gitaccess.address import AddressRefused, Place, check
from worker.gitaccess.agent import Agent, AgentFailed
from worker.gitaccess.askpass import SOCKET
from worker.gitaccess.gate import Gate

_HELPER = Path(__file__).with_name("askpass.py")
_QUESTION = re.compile(r"(Username|Password) for '(.+)': ?\n?")
_REFUSED = re.compile(
    r"could not read (Username|Password)|Authentication failed|Permission denied|Host key verification failed|"
    r"returned error: (40[134]|30\d)|[Rr]epository .*not found|terminal prompts disabled|redirect"
)


class AccessFailed(Exception):
    """The credential cannot be lent. The text never holds it."""


@dataclass(frozen=True)
class Credential:
    """What opens a private repository: a token and its user name, or an SSH key. It goes to ``place`` alone.

    ``known_hosts`` are lines as in OpenSSH's file; where there are none, the machine's own are looked at.
    """

    place: Place
    user: str = ""
    token: str = field(default="", repr=False)
    ssh_key: str = field(default="", repr=False)
    known_hosts: str = ""

    def is_for(self, url: str) -> bool:
        """Whether git at this address speaks to the credential's place."""
        try:
            return check(url) == self.place
        except AddressRefused:
            return False

    def redact(self, text: str) -> str:
        """The text without the credential, in none of the forms in which git could tell it."""
        pair = base64.b64encode(f"{self.user}:{self.token}".encode()).decode() if self.token else ""
        lines = [line.strip() for line in self.ssh_key.splitlines() if len(line) > 20 and "-----" not in line]
        for secret in filter(None, (pair, self.token, quote(self.token, safe=""), *lines)):
            text = text.replace(secret, "***")
        return text


@dataclass(frozen=True)
class Access:
    """A credential as git takes it: variables and options of its command. ``admit`` names the git, once it runs."""

    env: Mapping[str, str]
    options: tuple[str, ...]
    admit: Callable[[int], None]


@contextlib.contextmanager
def lent(credential: Credential, environ: Mapping[str, str]) -> Iterator[Access]:
    """A credential, for the git that is run meanwhile.

    Raises:
        AccessFailed: it cannot be lent on this machine.
    """
    with tempfile.TemporaryDirectory(prefix="gitaccess-") as name:
        lend = _key if credential.ssh_key else _token
        with lend(credential, Path(name), environ) as access:
            yield access


@contextlib.contextmanager
def _token(credential: Credential, folder: Path, _: Mapping[str, str]) -> Iterator[Access]:
    def answer(caller: socket.socket) -> None:
        question = _QUESTION.fullmatch(caller.makefile("rb").readline(4096).decode(errors="replace"))
        if question and credential.is_for(question[2]):
            caller.sendall((credential.user if question[1] == "Username" else credential.token).encode())

    helper = folder / "askpass"
    helper.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S {shlex.quote(str(_HELPER))} "$1"\n')
    helper.chmod(0o700)
    gate = Gate(folder / "gate", answer)
    try:
        # A server that sends git on to another host would else be followed there.
        yield Access({"GIT_ASKPASS": str(helper), SOCKET: str(gate.path)}, ("http.followRedirects=false",), gate.admit)
    finally:
        gate.close()


@contextlib.contextmanager
def _key(credential: Credential, folder: Path, environ: Mapping[str, str]) -> Iterator[Access]:
    try:
        agent = Agent(folder, credential.ssh_key, environ)
    except AgentFailed as error:
        raise AccessFailed(str(error)) from error
    options = {
        "IdentityAgent": str(agent.socket),
        "IdentityFile": "none",
        "StrictHostKeyChecking": "yes",
        "BatchMode": "yes",
        "ForwardAgent": "no",
        "ControlPath": "none",
    }
    if credential.known_hosts.strip():
        known = folder / "known_hosts"
        known.write_text(credential.known_hosts.strip() + "\n")
        options |= {"UserKnownHostsFile": str(known), "GlobalKnownHostsFile": os.devnull}
    # An operator's own ssh may need its own configuration to get there; else none is read.
    program = environ.get("GIT_SSH")
    own = environ.get("GIT_SSH_COMMAND") or (shlex.quote(program) if program else "")
    words = [f"-o {shlex.quote(f'{key}={value}')}" for key, value in options.items()]
    command = " ".join([own or f"ssh -F {os.devnull}", *words])
    try:
        yield Access(
            {"GIT_SSH_COMMAND": command, "GIT_SSH_VARIANT": "ssh", "SSH_AUTH_SOCK": str(agent.socket)}, (), agent.admit
        )
    finally:
        agent.close()


def next_step(text: str, url: str) -> str:
    """What to do about git's words, where they are about being let in; else nothing."""
    if not _REFUSED.search(text):
        return ""
    if "Host key verification failed" in text:
        return f" (give the host's key: `ssh-keyscan HOST` to `repos credential NAME --known-hosts FILE`, for {url})"
    if "redirect" in text or "error: 30" in text:
        return f" (a credential follows no redirect: register the address that {url} is sent on to)"
    return f" (if {url} is private, set a credential for it: `replaybench repos credential NAME --token -`)"
