"""git over SSH for the tests: a real sshd where the machine has one, and a stand-in that asks the agent where not.

sshd runs as the user of the tests, on a free port of loopback, and lets that user in by one key.
"""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.postgres import free_port
from tests.support.waiting import wait_for

SSHD = shutil.which("sshd") or next(
    (path for path in ("/usr/sbin/sshd", "/usr/local/sbin/sshd") if os.access(path, os.X_OK)), None
)


def make_key(path: Path, passphrase: str = "") -> str:
    """A new private key, with its public half beside it."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "test", "-f", str(path)]
    subprocess.run(command, check=True)
    return path.read_text()


@dataclass(frozen=True)
class SshServer:
    """Where it listens, and the line by which a client knows it."""

    port: int
    known_hosts: str

    def url(self, path: Path) -> str:
        """The address of a repository."""
        return f"ssh://{getpass.getuser()}@127.0.0.1:{self.port}{path}"


@contextmanager
def serving(folder: Path, authorized: str) -> Iterator[SshServer]:
    """A real sshd that lets the holder of a public key in, for as long as the context lasts."""
    assert SSHD is not None
    make_key(folder / "host_key")
    (folder / "authorized").write_text(authorized)
    port = free_port()
    config = folder / "sshd_config"
    config.write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {folder / 'host_key'}\nPidFile none\nUsePAM no\n"
        f"AuthorizedKeysFile {folder / 'authorized'}\nStrictModes no\nPasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\nPermitRootLogin yes\nPermitUserEnvironment no\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd of root insists on this folder, which only its service makes
    with (folder / "sshd.log").open("wb") as log:
        process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stderr=log, stdin=subprocess.DEVNULL)
    try:
        wait_for(lambda: b"listening on" in (folder / "sshd.log").read_bytes() or process.poll() is not None, "sshd")
        assert process.poll() is None, (folder / "sshd.log").read_text()
        public = (folder / "host_key.pub").read_text()
        yield SshServer(port, f"[127.0.0.1]:{port} {public}")
    finally:
        process.terminate()
        process.wait()


def stand_in(folder: Path, authorized: str) -> Path:
    """A command that git takes for ssh: it asks the agent for its keys, and serves git where the right one is there."""
    folder.mkdir(exist_ok=True)
    (folder / "authorized").write_text(" ".join(authorized.split()[:2]))
    script = folder / "ssh"
    script.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {folder}/arguments\n'
        'while [ $# -gt 0 ]; do case "$1" in\n'
        '-o) agent="${2#IdentityAgent=}"; [ "$agent" = "$2" ] || SSH_AUTH_SOCK=$agent\n'
        "shift 2;; -F|-p) shift 2;; -*) shift;; *) break;; esac; done\n"
        "export SSH_AUTH_SOCK\n"
        f'ssh-add -L | grep -qF "$(cat {folder}/authorized)" ||\n'
        '{ echo "Permission denied (publickey)." >&2; exit 255; }\n'
        'shift; exec sh -c "$*"\n'
    )
    script.chmod(0o755)
    return script
