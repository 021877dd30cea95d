"""A private repository through the whole system: its tests run, and find its credential nowhere they can look."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support import git_server, repository, ssh_server, system
from tests.support.ssh_server import SSHD

TOKEN = "tok-en-of-this-repository"

CASES = """\
import os, pathlib

SECRETS = [part.encode() for part in os.environ["LOOK_FOR"].split("|")]

def readable(root, depth=6):
    for folder, names, files in os.walk(root):
        if folder.count("/") - root.count("/") > depth:
            names.clear()
        for name in files:
            try:
                with open(os.path.join(folder, name), "rb") as stream:
                    yield os.path.join(folder, name), stream.read(1 << 22)
            except (OSError, ValueError):
                continue

def found(pairs):
    # The environment of this very suite names what is looked for, as it must.
    return [path for path, content in pairs if any(part in content.replace(LOOK, b"") for part in SECRETS)]

LOOK = os.environ["LOOK_FOR"].encode()

def test_processes():
    pairs = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for name in ("cmdline", "environ"):
            try:
                pairs.append((f"/proc/{pid}/{name}", pathlib.Path("/proc", pid, name).read_bytes()))
            except OSError:
                continue
    assert pairs
    assert found(pairs) == []

def test_files():
    tree = pathlib.Path.cwd()
    worker = [str(tree.parents[3]), "/dev/shm"]
    assert found(pair for root in worker for pair in readable(root)) == []

def test_git():
    import subprocess
    out = subprocess.run(["git", "config", "--list"], capture_output=True, cwd=".").stdout
    assert found([("config", out)]) == []
"""


def config(look_for: str) -> str:
    return (
        f'schema = 1\n[matrix]\nruntimes = ["{repository.PYTHON}"]\n[suites.unit]\npaths = ["tests"]\n'
        f'[suites.unit.env]\nLOOK_FOR = "{look_for}"\n'
    )


@pytest.mark.long
def test_by_token(tmp_path: Path) -> None:
    """The service plans by it, the worker fetches by it, and the suite looks for it."""
    halves = TOKEN[:12], TOKEN[12:]
    repo = repository.make(tmp_path / "repo", cases=CASES, config=config("|".join(halves)))
    with git_server.serving(tmp_path, "x-access-token", TOKEN) as server:
        private = {"REPLAYBENCH_PRIVATE_TARGETS": "127.0.0.1", "REPLAYBENCH_CACHE_DIR": str(tmp_path / "cache")}
        with system.running(tmp_path, **private) as it:
            it.post("/repositories", {"name": "demo", "url": f"{server.url}/repo/.git"})
            body = {"kind": "token", "credential": TOKEN}
            assert it.http.put("/api/v1/repositories/demo/credential", json=body).status_code == 200
            job = it.post("/jobs", {"repository": "demo", "trees": [{"ref": "main"}]})["id"]
            ended = it.wait_for_end(job)
            row = it.get(f"/jobs/{job}/table")["rows"][0]
            assert (ended["state"], row["result"]) == ("passed", "3 passed"), it.cases(row["attempt"])
            logs = b"".join(path.read_bytes() for path in (it.up.data_dir / "logs").iterdir())
        assert server.header in server.tokens_seen
    assert TOKEN.encode() not in logs
    assert TOKEN.encode() not in repo.git_bytes("log")


@pytest.mark.long
def test_by_key(tmp_path: Path) -> None:
    """The same with an SSH key, over a real sshd where there is one."""
    key = ssh_server.make_key(tmp_path / "key")
    (tmp_path / "sshd").mkdir()
    public = (tmp_path / "key.pub").read_text()
    repo = repository.make(tmp_path / "repo", cases=CASES, config=config(key.splitlines()[3]))
    if SSHD is None:
        more = {"GIT_SSH_COMMAND": str(ssh_server.stand_in(tmp_path / "ssh", public))}
        run_by_key(tmp_path, f"ssh://git@git.example.org{repo.path}", key, "", **more)
        return
    with ssh_server.serving(tmp_path / "sshd", public) as server:
        run_by_key(tmp_path, server.url(repo.path), key, server.known_hosts)


def run_by_key(tmp_path: Path, url: str, key: str, known_hosts: str, **more: str) -> None:
    (tmp_path / "key").unlink()
    with system.running(tmp_path, REPLAYBENCH_CACHE_DIR=str(tmp_path / "cache"), **more) as it:
        it.post("/repositories", {"name": "demo", "url": url})
        body = {"kind": "ssh-key", "credential": key, "known_hosts": known_hosts}
        assert it.http.put("/api/v1/repositories/demo/credential", json=body).status_code == 200
        job = it.post("/jobs", {"repository": "demo", "trees": [{"ref": "main"}]})["id"]
        ended = it.wait_for_end(job)
        row = it.get(f"/jobs/{job}/table")["rows"][0]
        assert (ended["state"], row["result"]) == ("passed", "3 passed"), it.cases(row["attempt"])
    done = subprocess.run(["pgrep", "-u", str(os.getuid()), "-f", "gitaccess-"], capture_output=True, check=False)
    assert done.stdout == b""
