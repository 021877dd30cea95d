"""Private repositories, with real git over HTTP and SSH: who has the credential is let in, and nobody else sees it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import git_server, ssh_server
from tests.support.git_server import GitServer
from tests.support.ssh_server import SSHD
from tests.worker.support import Repository, wait_for
from worker.errors import InfrastructureFault
from worker.gitaccess.access import AccessFailed, Credential, lent
from worker.gitaccess.address import check
from worker.messages import CellSpec
from worker.sources import git as worker_git
from worker.sources.checkout import check_out
from worker.sources.mirror import Source

USER, TOKEN = "x-access-token", "tok/en+1%2=secret"
NEVER = threading.Event()


@pytest.fixture
def server(repository: Repository) -> Iterator[GitServer]:
    """A server that opens to the token alone."""
    with git_server.serving(repository.path.parent, USER, TOKEN) as it:
        yield it


def credential(url: str, **more: Any) -> Credential:
    place = check(url)
    assert place is not None
    return Credential(place, **({"user": USER, "token": TOKEN} | more))


def source(tmp_path: Path, url: str, **more: Any) -> Source:
    return Source(tmp_path / "cache", "demo", credential(url, **more))


def made(cell: CellSpec, source: Source, tmp_path: Path, name: str = "tree") -> Path:
    check_out(cell, source, tmp_path / name, NEVER)
    return tmp_path / name


def over(server: GitServer, repository: Repository) -> CellSpec:
    return repository.cell(url=f"{server.url}/{repository.path.name}/.git")


def everything_on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def test_a_token_opens_it_and_is_nowhere_on_the_disk(repository: Repository, server: GitServer, tmp_path: Path) -> None:
    """Neither in the mirror's configuration nor in the tree."""
    repository.commit({"a": "1"})
    cell = over(server, repository)
    tree = made(cell, source(tmp_path, cell.url), tmp_path)
    assert (tree / "a").read_text() == "1"
    assert server.header in server.tokens_seen
    for place in (tmp_path / "cache", tree):
        assert TOKEN.encode() not in everything_on_disk(place)


def test_without_the_token_the_next_step_is_told(repository: Repository, server: GitServer, tmp_path: Path) -> None:
    """git asks nobody and does not hang."""
    repository.commit({"a": "1"})
    cell = over(server, repository)
    with pytest.raises(InfrastructureFault, match="repos credential NAME --token -"):
        made(cell, Source(tmp_path / "cache", "demo"), tmp_path)


def test_a_wrong_token_is_not_told(repository: Repository, server: GitServer, tmp_path: Path) -> None:
    """git's words come without it."""
    repository.commit({"a": "1"})
    cell = over(server, repository)
    with pytest.raises(InfrastructureFault, match="Authentication failed") as error:
        made(cell, source(tmp_path, cell.url, token="another-secret"), tmp_path)
    assert "another-secret" not in str(error.value)


def test_why_there_is_no_credential_is_told(repository: Repository, server: GitServer, tmp_path: Path) -> None:
    """In the service's words, without asking the repository."""
    repository.commit({"a": "1"})
    with pytest.raises(InfrastructureFault, match="env:X is not set"):
        made(over(server, repository), Source(tmp_path / "cache", "demo", fault="env:X is not set"), tmp_path)
    assert server.asked == []


def test_a_private_mirror_serves_no_other_repository(repository: Repository, server: GitServer, tmp_path: Path) -> None:
    """A public tree that names the private address as its submodule does not get at what is already here."""
    commit = repository.commit({"secret": "1"})
    cell = over(server, repository)
    made(cell, source(tmp_path, cell.url), tmp_path)
    public = Repository(tmp_path / "public")
    public.commit({".gitmodules": f'[submodule "x"]\n\tpath = lib\n\turl = {cell.url}\n'})
    public.git("update-index", "--add", "--cacheinfo", f"160000,{commit},lib")
    public.git("commit", "--quiet", "-m", "gitlink")
    with pytest.raises(InfrastructureFault, match="not reachable"):
        made(public.cell(), Source(tmp_path / "cache", "public"), tmp_path, "other")


def test_a_token_goes_to_submodules_of_its_own_host_alone(
    repository: Repository, server: GitServer, tmp_path: Path
) -> None:
    """Another host that asks for one gets none, though it asks."""
    inner = Repository(tmp_path / "inner")
    commit = inner.commit({"deep": "down"})

    def with_submodule(url: str) -> CellSpec:
        repository.commit({".gitmodules": f'[submodule "x"]\n\tpath = lib\n\turl = {url}\n'})
        repository.git("update-index", "--add", "--cacheinfo", f"160000,{commit},lib")
        repository.git("commit", "--quiet", "-m", "gitlink")
        return over(server, repository)

    cell = with_submodule("../../inner/.git")
    assert (made(cell, source(tmp_path, cell.url), tmp_path) / "lib/deep").read_text() == "down"
    with git_server.serving(tmp_path, USER, TOKEN) as other:
        cell = with_submodule(f"{other.url}/inner/.git")
        with pytest.raises(InfrastructureFault, match="not reachable"):
            made(cell, source(tmp_path, cell.url), tmp_path, "again")
        assert other.asked
        assert other.tokens_seen == {None}


def test_a_token_follows_no_redirect(repository: Repository, server: GitServer, tmp_path: Path) -> None:
    """Wherever the server sends git: the other host is not even asked."""
    repository.commit({"a": "1"})
    cell = repository.cell(url=f"{server.url}/moved/.git")
    with git_server.serving(repository.path.parent, USER, TOKEN) as other:
        server.moved["/moved"] = f"{other.url}/repository"
        with pytest.raises(InfrastructureFault, match="register the address"):
            made(cell, source(tmp_path, cell.url), tmp_path)
        assert other.asked == []


def processes() -> dict[int, bytes]:
    """What every process of this machine shows of itself: arguments and environment."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                found[int(folder.name)] = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            except OSError:
                continue
    return found


def stalled(server: GitServer, cell: CellSpec, source: Source, tmp_path: Path) -> threading.Thread:
    """A fetch that hangs in the middle of its pack, the credential being lent."""
    server.stall_after = 100
    thread = threading.Thread(target=made, args=(cell, source, tmp_path))
    thread.start()
    assert server.stalled.wait(30)
    return thread


def test_while_git_runs_nobody_else_gets_the_token(repository: Repository, server: GitServer, tmp_path: Path) -> None:
    """It is in no argument and no environment, and the gate does not answer a process that git did not start."""
    repository.commit({"a": "1"})
    cell = over(server, repository)
    thread = stalled(server, cell, source(tmp_path, cell.url), tmp_path)
    try:
        shown = processes()
        gates = {part for text in shown.values() for part in text.split(b"\0") if part.startswith(b"GITACCESS_SOCKET=")}
        assert len(gates) == 1
        assert not [pid for pid, text in shown.items() if TOKEN.encode() in text]
        gate = gates.pop().decode().partition("=")[2]
        asked = subprocess.run(
            [sys.executable, "-m", "worker.gitaccess.askpass", f"Password for '{server.url}': "],
            env=os.environ | {"GITACCESS_SOCKET": gate}, capture_output=True, check=False,
        )  # fmt: skip
        assert (asked.returncode, asked.stdout) == (1, b"")
    finally:
        server.released.set()
        thread.join()
    assert not Path(gate).exists()


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Password for 'https://x-access-token@git.example.org': ", TOKEN),
        ("Username for 'https://git.example.org': ", USER),
        ("Password for 'https://x@git.example.org:443': ", TOKEN),
        ("Password for 'https://x@git.example.org:8443': ", ""),
        ("Password for 'http://x@git.example.org': ", ""),
        ("Password for 'https://x@git.example.org.evil.example': ", ""),
        ("Password for 'https://git.example.org@evil.example': ", ""),
        ("Enter passphrase for key: ", ""),
    ],
)
def test_the_askpass_helper_answers_for_one_place_alone(question: str, answer: str) -> None:
    """Scheme, host and port must all be right."""
    with lent(credential("https://git.example.org/a.git"), os.environ) as access:
        access.admit(os.getpid())
        done = subprocess.run(
            [access.env["GIT_ASKPASS"], question], env=os.environ | access.env, capture_output=True, check=False
        )
    assert done.stdout.decode() == answer


def test_no_form_of_a_credential_stays_in_a_text(tmp_path: Path) -> None:
    """Plain, as a URL quotes it, as a header carries it; of a key every line."""
    token = credential("https://h/x")
    header = git_server.GitServer(tmp_path, USER, TOKEN).header
    assert token.redact(f"{TOKEN} tok%2Fen%2B1%252%3Dsecret {header}") == "*** *** Basic ***"
    key = ssh_server.make_key(tmp_path / "key")
    body = [line for line in key.splitlines() if "-----" not in line]
    assert not [line for line in body if line in credential("ssh://h/x", token="", ssh_key=key).redact(key)]
    assert TOKEN not in repr(token)
    assert body[0] not in repr(credential("ssh://h/x", token="", ssh_key=key))


@pytest.fixture
def key(tmp_path: Path) -> str:
    return ssh_server.make_key(tmp_path / "key")


def public(tmp_path: Path) -> str:
    return (tmp_path / "key.pub").read_text()


def by_key(tmp_path: Path, url: str, key: str, known_hosts: str = "") -> Source:
    return source(tmp_path, url, user="", token="", ssh_key=key, known_hosts=known_hosts)


Way = Callable[[Repository], tuple[CellSpec, str]]


@pytest.fixture(params=["sshd", "stand-in"])
def way(request: pytest.FixtureRequest, tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    """How git gets there: a cell's address, and the hosts that are known."""
    if request.param == "stand-in" or SSHD is None:
        # Without an sshd both are the stand-in: what it cannot show is sshd's own look at the signature.
        monkeypatch.setenv("GIT_SSH_COMMAND", str(ssh_server.stand_in(tmp_path / "ssh", public(tmp_path))))
        yield lambda repository: (repository.cell(url=f"ssh://git@git.example.org{repository.path}"), "")
        return
    (tmp_path / "sshd").mkdir()
    with ssh_server.serving(tmp_path / "sshd", public(tmp_path)) as it:
        yield lambda repository: (repository.cell(url=it.url(repository.path)), it.known_hosts)


def test_a_key_opens_it_and_is_nowhere_on_the_disk(way: Way, repository: Repository, tmp_path: Path, key: str) -> None:
    """By an agent that ends with the fetch."""
    repository.commit({"a": "1"})
    cell, known_hosts = way(repository)
    (tmp_path / "key").unlink()
    before = set(processes())
    tree = made(cell, by_key(tmp_path, cell.url, key, known_hosts), tmp_path)
    assert (tree / "a").read_text() == "1"
    body = key.splitlines()[3].encode()
    assert body not in everything_on_disk(tmp_path)
    agents = [pid for pid, text in processes().items() if pid not in before and text.startswith(b"ssh-agent")]
    assert agents == []


def test_another_key_is_not_let_in(way: Way, repository: Repository, tmp_path: Path) -> None:
    """And no key of the machine's own is tried in its place."""
    repository.commit({"a": "1"})
    cell, known_hosts = way(repository)
    other = ssh_server.make_key(tmp_path / "other")
    with pytest.raises(InfrastructureFault, match="Permission denied") as error:
        made(cell, by_key(tmp_path, cell.url, other, known_hosts), tmp_path)
    assert other.splitlines()[3] not in str(error.value)


@pytest.mark.skipif(SSHD is None, reason="no sshd on this machine")
def test_a_host_that_is_not_known_gets_nothing(repository: Repository, tmp_path: Path, key: str) -> None:
    """Another host key than the registered one: the next step is told."""
    repository.commit({"a": "1"})
    (tmp_path / "sshd").mkdir()
    (tmp_path / "false").mkdir()
    ssh_server.make_key(tmp_path / "false" / "host_key")
    with ssh_server.serving(tmp_path / "sshd", public(tmp_path)) as it:
        cell = repository.cell(url=it.url(repository.path))
        false = f"[127.0.0.1]:{it.port} {(tmp_path / 'false' / 'host_key.pub').read_text()}"
        with pytest.raises(InfrastructureFault, match="ssh-keyscan"):
            made(cell, by_key(tmp_path, cell.url, key, false), tmp_path)


@pytest.mark.parametrize("text", ["no key", "passphrase"])
def test_a_key_that_no_agent_takes_is_told(repository: Repository, tmp_path: Path, text: str) -> None:
    """Without repeating it."""
    key = ssh_server.make_key(tmp_path / "locked", "secret") if text == "passphrase" else text
    url = "ssh://git@git.example.org/x"
    with (
        pytest.raises(AccessFailed, match="without a passphrase") as error,
        lent(credential(url, token="", ssh_key=key), os.environ),
    ):
        pass
    assert key not in str(error.value)


def test_an_agent_signs_for_its_git_alone(tmp_path: Path, key: str) -> None:
    """Nobody else of this user lists its keys, and nobody at all adds or removes one."""
    url = "ssh://git@git.example.org/x"
    with lent(credential(url, token="", ssh_key=key), os.environ) as access:
        env = os.environ | access.env
        stranger = subprocess.Popen(["sleep", "60"])
        try:
            access.admit(stranger.pid)
            assert subprocess.run(["ssh-add", "-L"], env=env, capture_output=True, check=False).returncode != 0
        finally:
            stranger.kill()
            stranger.wait()
        access.admit(os.getpid())
        listed = subprocess.run(["ssh-add", "-L"], env=env, capture_output=True, text=True, check=False)
        assert listed.stdout == public(tmp_path)
        assert subprocess.run(["ssh-add", "-D"], env=env, capture_output=True, check=False).returncode != 0
        listed = subprocess.run(["ssh-add", "-L"], env=env, capture_output=True, text=True, check=False)
        assert listed.stdout == public(tmp_path)
        assert not [path for path in Path(access.env["SSH_AUTH_SOCK"]).parent.iterdir() if path.name == "agent"]


HOLDER = """
import os, sys, time
from worker.gitaccess.access import Credential, lent
from worker.gitaccess.address import check
with lent(Credential(check("ssh://git@h/x"), ssh_key=open(sys.argv[1]).read()), os.environ):
    print("lent", flush=True)
    time.sleep(300)
"""


@pytest.mark.long
def test_an_agent_ends_with_a_worker_that_is_killed(tmp_path: Path, key: str) -> None:
    """kill -9 leaves no key behind in a memory: OpenSSH looks after its agent's parent every ten seconds."""
    env, before = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}, set(processes())
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "key")], env=env, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
        agents = [pid for pid, text in processes().items() if text.startswith(b"ssh-agent") and pid not in before]
        assert agents
        process.kill()
        process.wait()
    wait_for(lambda: not set(agents) & set(processes()), "the agent to end", 30)


def test_the_machines_own_helpers_are_not_asked(
    repository: Repository, server: GitServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither an askpass program of a desktop nor a configured credential helper."""
    script = tmp_path / "ask"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\necho x\n")
    script.chmod(0o755)
    for name in ("SSH_ASKPASS", "GIT_ASKPASS"):
        monkeypatch.setenv(name, str(script))
    repository.commit({"a": "1"})
    with pytest.raises(InfrastructureFault):
        made(over(server, repository), Source(tmp_path / "cache"), tmp_path)
    assert not (tmp_path / "ran").exists()
    assert worker_git.environment(os.environ)["GIT_ASKPASS"] == ""
