"""Credentials of private repositories: who sets them, who gets them, and that nobody else ever sees them."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import embedded, git_server, running_service, ssh_server
from tests.support.git_server import GitServer
from tests.support.repository import GitRepository
from tests.support.running_service import RunningService
from tests.support.ssh_server import SSHD
from worker.messages import GitCredential, Outcome

USER, TOKEN = "x-access-token", "tok/en+1%2=secret"
WHERE = "/repositories/demo/credential"
Start = Callable[..., RunningService]


@pytest.fixture
def start(tmp_path: Path, database_url: str, broker_url: str) -> Iterator[Start]:
    """Starts a service that may speak plain HTTP with this machine."""
    with contextlib.ExitStack() as stack:

        def run(**more: Any) -> RunningService:
            given = {"sweep_s": 0.2, "private_targets": "127.0.0.0/8", **more}
            return stack.enter_context(running_service.running(tmp_path / "data", database_url, broker_url, **given))

        yield run


@pytest.fixture
def service(start: Start) -> RunningService:
    return start()


@pytest.fixture
def server(repo: GitRepository) -> Iterator[GitServer]:
    """The repository, open to the token alone."""
    with git_server.serving(repo.path.parent, USER, TOKEN) as it:
        yield it


def register(service: RunningService, server: GitServer) -> None:
    service.post("/repositories", {"name": "demo", "url": f"{server.url}/repo/.git"}, 201)


def put(service: RunningService, expect: int = 200, **fields: Any) -> Any:
    body = {"kind": "token", "credential": TOKEN, **fields}
    answer = service.http.put(f"/api/v1{WHERE}", json=body)
    assert answer.status_code == expect, answer.text
    return answer.json()


def planned(service: RunningService, ref: str = "main") -> httpx.Response:
    body = {"repository": "demo", "trees": [{"ref": ref}], "dry_run": True}
    return service.http.post("/api/v1/jobs", json=body)


def test_a_private_repository_from_first_to_last(
    service: RunningService, server: GitServer, repo: GitRepository, capfd: pytest.CaptureFixture[str]
) -> None:
    """Refused without it, planned with it, handed to the worker with its lease, shown nowhere."""
    register(service, server)
    refused = planned(service)
    assert (refused.status_code, refused.json()["code"]) == (502, "mirror-failed")
    assert "repos credential NAME --token -" in refused.json()["detail"]
    shown = put(service)
    assert (shown["kind"], shown["credential"], shown["host"], shown["user"]) == ("token", "stored", "127.0.0.1", USER)
    job = service.submit("demo", "main")
    attempt = service.driver().must_claim()
    assert attempt.assignment.credential == GitCredential(USER, TOKEN)
    attempt.run({"a": Outcome.PASSED})
    paths = ["repositories", "jobs", f"jobs/{job['id']}", f"jobs/{job['id']}/cells", f"jobs/{job['id']}/table",
             "workers", "audit", f"cells/{attempt.assignment.cell.id}/attempts", "openapi.json"]  # fmt: skip
    everything = [service.http.get(f"/api/v1/{path}").text for path in paths]
    pages = [service.http.get(path).text for path in ("/", f"/jobs/{job['id']}", "/audit", "/workers")]
    said = capfd.readouterr()
    for text in (*everything, *pages, refused.text, said.out, said.err, repr(attempt.assignment)):
        assert TOKEN not in text
    mirrors = service.settings.data_dir / "mirrors"
    assert not [path for path in mirrors.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    audit = service.get("/audit")["items"][::-1]
    told = next(entry for entry in audit if entry["action"] == "credential.set")
    assert (told["subject"], told["detail"]) == (
        "repository demo",
        {"kind": "token", "credential": "stored", "host": "127.0.0.1"},
    )


def test_a_claims_answer_is_stored_by_nobody_on_the_way(service: RunningService, server: GitServer) -> None:
    """It holds the credential."""
    register(service, server)
    put(service)
    service.submit("demo", "main")
    driver = service.driver()
    body = {"worker": driver.worker, "boot": driver.boot, "free_devices": []}
    answer = service.worker_http.post("/api/v1/worker/claim", json=body)
    assert answer.json()["credential"]["token"] == TOKEN
    assert answer.headers["Cache-Control"] == "no-store"


def test_a_credential_that_was_removed_is_handed_out_no_more(
    service: RunningService, server: GitServer, repo: GitRepository
) -> None:
    """Neither with a lease nor to the service's own git."""
    register(service, server)
    put(service)
    service.submit("demo", "main")
    assert service.http.delete(f"/api/v1{WHERE}").status_code == 204
    assert service.driver().must_claim().assignment.credential is None
    repo.commit("more")
    assert planned(service).status_code == 502
    assert service.http.delete(f"/api/v1{WHERE}").status_code == 404
    assert [entry["action"] for entry in service.get("/audit")["items"]][:2] == ["credential.remove", "job.submit"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"credential": "two words secret"},
        {"credential": "env:secret"},
        {"credential": "file:../../secret"},
        {"credential": "secret\u00e4"},
        {"credential": "secret" * 4000},
        {"credential": ["secret"]},
        {"kind": "password", "credential": "secret"},
        {"kind": "ssh-key", "credential": "secret"},
        {"user": "a:secret"},
        {"known_hosts": "a\0secret"},
        {"secret": "secret"},
    ],
)
def test_what_is_refused_is_not_repeated(service: RunningService, server: GitServer, wrong: dict[str, Any]) -> None:
    """Whatever is wrong with it, the answer holds no value of a credential."""
    register(service, server)
    answer = put(service, 422, **wrong)
    assert answer["code"] in ("credential-refused", "invalid-request")
    assert TOKEN not in json.dumps(answer)
    if "credential" in wrong and "env:" not in str(wrong):
        assert "secret" not in json.dumps(answer)


@pytest.mark.parametrize(
    ("url", "kind", "reason"),
    [
        ("/some/path", "token", "takes no token"),
        ("git://git.example.org/x", "token", "takes no token"),
        ("git@git.example.org:x", "token", "takes no token"),
        ("https://git.example.org/x", "ssh-key", "takes no ssh-key"),
        ("http://git.example.org/x", "token", "readable by everybody on the way"),
        ("http://10.0.0.1/x", "token", "readable by everybody on the way"),
    ],
)
def test_a_credential_fits_its_address(
    service: RunningService, tmp_path: Path, url: str, kind: str, reason: str
) -> None:
    """A token goes over TLS, or where the operator said that plain text will do."""
    service.post("/repositories", {"name": "demo", "url": url}, 201)
    credential = ssh_server.make_key(tmp_path / "key") if kind == "ssh-key" else TOKEN
    assert reason in put(service, 422, kind=kind, credential=credential)["detail"]


def test_a_token_that_the_operator_keeps(
    start: Start, server: GitServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the environment or in a file, each for the host that it is meant for; one that is gone is told."""
    service = start(credential_env="GIT_TOKEN@127.0.0.1,OTHER@git.example.org")
    register(service, server)
    assert "OTHER@127.0.0.1" in put(service, 422, credential="env:OTHER")["detail"]
    assert put(service, credential="env:GIT_TOKEN")["credential"] == "env:GIT_TOKEN"
    assert "env:GIT_TOKEN is empty" in planned(service).json()["detail"]
    monkeypatch.setenv("GIT_TOKEN", TOKEN)
    service.submit("demo", "main")
    assert service.driver().must_claim().assignment.credential == GitCredential(USER, TOKEN)
    service.submit("demo", "main")
    put(service, credential="file:git")
    granted = service.driver("w2").must_claim().assignment.credential
    assert granted is not None
    assert "file:git cannot be read" in granted.fault
    folder = tmp_path / "data/credentials/127.0.0.1"
    folder.mkdir(parents=True)
    (folder / "git").write_text(f"{TOKEN}\n")
    assert planned(service).status_code == 200


def test_a_key_opens_the_services_own_mirror(
    service: RunningService, repo: GitRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a real sshd where there is one; a stand-in shows what reaches ssh: an agent, and no key."""
    key = ssh_server.make_key(tmp_path / "key")
    public = (tmp_path / "key.pub").read_text()
    if SSHD is not None:
        (tmp_path / "sshd").mkdir()
        with ssh_server.serving(tmp_path / "sshd", public) as it:
            service.post("/repositories", {"name": "demo", "url": it.url(repo.path)}, 201)
            put(service, kind="ssh-key", credential=key, known_hosts=it.known_hosts)
            assert planned(service).status_code == 200
            put(service, kind="ssh-key", credential=key, known_hosts=it.known_hosts.replace("AAAA", "AAAB"))
            repo.commit("more")
            assert "ssh-keyscan" in planned(service).json()["detail"]
            return
    monkeypatch.setenv("GIT_SSH_COMMAND", str(ssh_server.stand_in(tmp_path / "ssh", public)))
    service.post("/repositories", {"name": "demo", "url": f"ssh://git@git.example.org{repo.path}"}, 201)
    put(service, kind="ssh-key", credential=key)
    assert planned(service).status_code == 200


def test_what_a_killed_git_left_in_the_services_mirror(service: RunningService, registered: GitRepository) -> None:
    """Locks and half a pack: the next fetch is in nobody's way, and what is there is whole."""
    assert planned(service).status_code == 200
    (mirror,) = (service.settings.data_dir / "mirrors").glob("*.git")
    assert [path.name for path in (mirror / "objects").iterdir() if len(path.name) == 2] == []
    left = ["packed-refs.lock", "refs/heads/main.lock", "shallow.lock", "objects/pack/tmp_pack_x"]
    for name in left:
        (mirror / name).touch()
    sha = registered.commit("more")
    assert planned(service).json()["trees"][0]["commit"] == sha
    assert not [name for name in left if (mirror / name).exists()]


@pytest.fixture
def cli(service: RunningService, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command; the token is found in the data directory."""

    def run(*arguments: str, code: int = 0, stdin: str = "") -> subprocess.CompletedProcess[str]:
        env = {"REPLAYBENCH_URL": service.url, "REPLAYBENCH_DATA_DIR": str(service.settings.data_dir)}
        done = subprocess.run(
            [*embedded.REPLAYBENCH, *arguments],
            cwd=tmp_path, env=embedded.environment(**env), input=stdin, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


@pytest.mark.long
def test_the_command(
    cli: Callable[..., subprocess.CompletedProcess[str]], service: RunningService, server: GitServer, tmp_path: Path
) -> None:
    """A token is piped in, a key is read from its file, and nothing of them is printed."""
    register(service, server)
    assert "has no credential" in cli("repos", "credential", "demo", code=2).stderr
    said = cli("repos", "credential", "demo", "--token", "-", "--user", "oauth2", stdin=f"{TOKEN}\n").stdout
    assert said == "token for 127.0.0.1, stored, as oauth2\n"
    assert cli("repos", "credential", "demo").stdout == said
    assert "token stored" in cli("repos", "list").stdout
    refused = cli("repos", "credential", "demo", "--token", TOKEN, code=2).stderr
    assert "give - and pipe the token in" in refused
    assert TOKEN not in refused
    cli("repos", "credential", "demo", "--remove")
    service.post("/repositories", {"name": "by-key", "url": "git@git.example.org:a/b.git"}, 201)
    ssh_server.make_key(tmp_path / "key")
    (tmp_path / "hosts").write_text("git.example.org ssh-ed25519 AAAA\n")
    options = ("--ssh-key", str(tmp_path / "key"), "--known-hosts", str(tmp_path / "hosts"))
    assert cli("repos", "credential", "by-key", *options).stdout == "ssh-key for git.example.org, stored\n"
    for options, reason in (
        (("--ssh-key", str(tmp_path / "nowhere")), "--ssh-key"),
        (("--token", "-", "--ssh-key", "-"), "one credential"),
        (("--user", "x"), "--user goes with --token"),
        (("--ssh-key", str(tmp_path / "hosts")), "not a private SSH key"),
    ):
        assert reason in cli("repos", "credential", "by-key", *options, code=2).stderr
