"""The commands about forges and webhooks, and the page of deliveries."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support import embedded, forge_server, running_service
from tests.support.fixtures import sqlite_url as database_url
from tests.support.forge_server import TOKEN, FakeForge, Reply, Server
from tests.support.repository import GitRepository
from tests.support.running_service import RunningService
from tests.support.waiting import wait_for
from worker.messages import Outcome

__all__ = ["database_url"]

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def service(tmp_path: Path, database_url: str, broker_url: str) -> Iterator[RunningService]:
    """A service that may call this machine."""
    settings = {"sweep_s": 0.2, "delivery_s": 0.05, "private_targets": "127.0.0.1"}
    with running_service.running(tmp_path / "data", database_url, broker_url, **settings) as it:
        yield it


@pytest.fixture
def cli(service: RunningService, tmp_path: Path) -> Cli:
    """Runs a command; the token is found in the data directory."""

    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        env = {"REPLAYBENCH_URL": service.url, "REPLAYBENCH_DATA_DIR": str(service.settings.data_dir)}
        done = embedded.command(*arguments, cwd=tmp_path, **env)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


@pytest.fixture
def forge(repo: GitRepository) -> FakeForge:
    """A forge that has the repository's commit."""
    return FakeForge(commits={repo.git("rev-parse", "HEAD").strip()})


@pytest.fixture
def server(forge: FakeForge) -> Iterator[Server]:
    """The forge, speaking as Gitea."""
    with forge_server.serving(forge.gitea) as it:
        yield it


@pytest.fixture
def reader(service: RunningService) -> Iterator[httpx.Client]:
    """A browser that is signed in."""
    token = (service.settings.data_dir / "tokens/submit").read_text().strip()
    with httpx.Client(base_url=service.url, timeout=60) as browser:
        browser.post("/sign-in", data={"token": token})
        yield browser


@pytest.mark.long
def test_a_repository_gets_its_forge(
    cli: Cli, service: RunningService, repo: GitRepository, server: Server, forge: FakeForge
) -> None:
    """In one command; what cannot be known is asked for, and the credential is never printed."""
    options = ("--forge", "gitea", "--api-url", server.url, "--project", "team/demo", "--credential", TOKEN)
    done = cli("repos", "add", "demo", str(repo.path), *options)
    assert done.stdout == (f"registered {repo.path} as demo; its commits get statuses from {server.url} as team/demo\n")
    assert "gitea team/demo" in cli("repos", "list").stdout
    assert cli("repos", "forge", "demo").stdout == f"gitea: team/demo at {server.url}, credential stored\n"
    service.submit("demo", "main")
    wait_for(lambda: forge.taken, "the status")
    wait_for(lambda: "delivered (201)" in cli("repos", "statuses", "demo").stdout, "it to be noted")
    (status,) = json.loads(cli("repos", "statuses", "--json").stdout)
    assert (status["context"], status["text"]) == ("replaybench/unit", "waiting for a worker")
    assert cli("repos", "redeliver", str(status["id"])).stdout == f"status {status['id']} is waiting\n"
    wait_for(lambda: len(forge.taken) == 2, "the status once more")
    cli("repos", "forge", "demo", "--remove")
    assert "has no forge" in cli("repos", "forge", "demo", code=2).stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--forge", "gitea"), "--forge needs --credential"),
        (("--credential", TOKEN), "are about a --forge"),
        (("--forge", "gitea", "--credential", TOKEN), "api_url cannot be guessed"),
        (("--forge", "gitea", "--credential", TOKEN, "--project", "one"), "--project 'one': give OWNER/NAME"),
        (("--forge", "gitea", "--credential", "x" * 3000), "--credential: give 2000 characters or less"),
    ],
)
def test_a_forge_that_is_described_wrongly(
    cli: Cli, repo: GitRepository, options: tuple[str, ...], reason: str
) -> None:
    """One sentence says what to do, without the credential."""
    refused = cli("repos", "add", "demo", str(repo.path), *options, code=2).stderr
    assert reason in refused
    assert TOKEN not in refused
    assert "xxx" not in refused


def test_webhooks_from_first_to_last(cli: Cli, service: RunningService, registered: GitRepository) -> None:
    """Added, listed, told, told again, given another secret, forgotten."""
    with forge_server.serving(lambda _: Reply(200, b"")) as receiver:
        made = cli("webhooks", "add", receiver.url, "--event", "job.ended", "--repository", "demo").stdout
        assert made.startswith("webhook 1 is told of job.ended; its secret is\nwhsec_")
        service.submit("demo", "main")
        service.driver().must_claim().run({"a": Outcome.PASSED})
        wait_for(lambda: "delivered (200)" in cli("webhooks", "deliveries", "1").stdout, "the delivery")
        (row,) = json.loads(cli("webhooks", "deliveries", "--json").stdout)
        assert cli("webhooks", "redeliver", str(row["id"])).stdout == f"delivery {row['id']} is waiting\n"
        wait_for(lambda: len(receiver.calls) == 2, "it to be sent again")
    rotated = cli("webhooks", "rotate", "1", "--overlap", "60").stdout
    assert rotated.startswith("webhook 1 has another secret:\nwhsec_")
    assert rotated.split()[-1] not in made
    listed = cli("webhooks", "list").stdout
    assert "two secrets until" in listed
    assert "whsec_" not in listed
    assert cli("webhooks", "enable", "1").stdout == "webhook 1 is told again\n"
    assert cli("webhooks", "remove", "1").stdout == "webhook 1 is forgotten\n"
    assert json.loads(cli("webhooks", "list", "--json").stdout) == []


def test_a_webhook_that_cannot_be(cli: Cli) -> None:
    """An event that does not exist, a secret that is none, an address that is not called."""
    url = "https://ci.example.org/"
    assert "'job.dreamt'" in cli("webhooks", "add", url, "--event", "job.dreamt", code=2).stderr
    refused = cli("webhooks", "add", url, "--secret", "whsec_secretive", code=2).stderr
    assert "24 to 64 random bytes" in refused
    assert "secretive" not in refused
    assert "which is not public" in cli("webhooks", "add", "https://10.0.0.1/", code=2).stderr


def test_the_page_shows_what_became_of_everything(
    service: RunningService, repo: GitRepository, server: Server, forge: FakeForge, reader: httpx.Client
) -> None:
    """Statuses and events with their tries, escaped, and a button that sends each again."""
    assert "No commit has a status" in reader.get("/notifications").text
    where = {"forge": "gitea", "api_url": server.url, "project": "team/demo", "credential": TOKEN}
    service.post("/repositories", {"name": "demo", "url": str(repo.path), "forge": where}, 201)
    server.next.append(Reply(404, {"message": "<b>not found</b>"}))
    with forge_server.serving(lambda _: Reply(410, b"<i>gone</i>")) as receiver:
        service.post("/webhooks", {"url": receiver.url, "events": ["job.ended"]}, 201)
        job = service.submit("demo", "main")
        wait_for(lambda: service.get("/statuses/1")["state"] == "gave-up", "the status to be given up")
        assert "404 &lt;b&gt;not found&lt;/b&gt;" in reader.get("/notifications").text
        service.post(f"/jobs/{job['id']}/cancel")
        wait_for(lambda: "is told no more" in reader.get("/notifications").text, "the webhook to be disabled")
        wait_for(lambda: len(forge.taken) == 1, "the end to be told")
    text = wait_for(lambda: (page := reader.get("/notifications").text).count("delivered") and page, "it to be noted")
    assert "cancelled: 1 cell cancelled" in text
    assert "410 &lt;i&gt;gone&lt;/i&gt;" in text
    assert "<i>gone" not in text
    assert TOKEN not in text
    assert "whsec_" not in text
    own = {"sec-fetch-site": "same-origin"}
    answer = reader.post("/notifications/statuses/1/redeliver", headers=own)
    assert (answer.status_code, answer.headers["location"]) == (303, "/notifications#status-1")
    wait_for(lambda: len(forge.taken) == 2, "the status once more")
    assert reader.post("/notifications/events/1/redeliver", headers=own).status_code == 303
    assert reader.post("/notifications/events/99/redeliver", headers=own).status_code == 404
    foreign = reader.post("/notifications/events/1/redeliver", headers={"sec-fetch-site": "cross-site"})
    assert foreign.headers["location"].startswith("/sign-in")


@pytest.mark.long
def test_the_page_has_pages(service: RunningService, repo: GitRepository, server: Server, reader: httpx.Client) -> None:
    """Beyond thirty of a kind, the older ones follow."""
    where = {"forge": "gitea", "api_url": server.url, "project": "team/demo", "credential": TOKEN}
    service.post("/repositories", {"name": "demo", "url": str(repo.path), "forge": where}, 201)
    service.post("/webhooks", {"url": server.url, "events": ["job.ended"]}, 201)
    for _ in range(31):
        job = service.submit("demo", repo.commit())
        service.post(f"/jobs/{job['id']}/cancel")
    first = reader.get("/notifications").text
    assert first.count('id="status-') == first.count('id="event-') == 30
    for kind, row in (("statuses", "status"), ("events", "event")):
        links = [part.split('"')[0] for part in first.split('href="')[1:]]
        (link,) = [part for part in links if part.startswith(f"/notifications?{kind}_")]
        assert reader.get(link).text.count(f'id="{row}-') == 1
