"""Statuses of commits, told to forges that answer as GitHub, GitLab and Gitea do. On both databases."""

from __future__ import annotations

import base64
import contextlib
import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from service.clock import now
from service.models import CommitStatus, ForgeLink
from service.outgoing import retry
from tests.support import forge_server, running_service
from tests.support.forge_server import TOKEN, FakeForge, Reply, Server
from tests.support.repository import CONFIG, PYTHON, GitRepository
from tests.support.running_service import RunningService
from tests.support.waiting import wait_for
from worker.messages import Cause, Outcome

PUBLIC = "https://bench.example.org/prefix"
WAITING, RUNNING = "waiting for a worker", "running"
WORDS = {
    "github": ["pending", "pending", "failure"],
    "gitlab": ["pending", "running", "failed"],
    "gitea": ["pending", "pending", "failure"],
    "forgejo": ["pending", "pending", "failure"],
}
LIMITED = Reply(
    403,
    {"message": "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."},
    {"Retry-After": "1"},
)

Start = Callable[..., RunningService]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again is so after fractions of a second."""
    monkeypatch.setattr(retry, "FIRST_S", 0.05)
    monkeypatch.setattr(retry, "LONGEST_S", 0.2)


@pytest.fixture
def start(tmp_path: Path, database_url: str, broker_url: str) -> Iterator[Start]:
    """Starts services on one database, which may call this machine."""
    with contextlib.ExitStack() as stack:

        def run(name: str = "data", **overrides: Any) -> RunningService:
            given = {
                "sweep_s": 0.2,
                "lease_s": 20,
                "delivery_s": 0.05,
                "private_targets": "127.0.0.0/8",
                "public_url": PUBLIC,
                **overrides,
            }
            return stack.enter_context(running_service.running(tmp_path / name, database_url, broker_url, **given))

        yield run


@pytest.fixture
def service(start: Start) -> RunningService:
    """One of them."""
    return start()


@pytest.fixture
def forge(repo: GitRepository) -> FakeForge:
    """A forge that has the repository's commit."""
    return FakeForge(commits={repo.git("rev-parse", "HEAD").strip()})


@pytest.fixture
def server(forge: FakeForge) -> Iterator[Server]:
    """The forge, speaking as GitHub."""
    with forge_server.serving(forge.github) as it:
        yield it


def register(service: RunningService, repo: GitRepository, server: Server, **fields: Any) -> Any:
    """Registers the repository with its forge."""
    forge = {"forge": "github", "api_url": server.url, "project": "team/demo", "credential": TOKEN, **fields}
    return service.post("/repositories", {"name": "demo", "url": str(repo.path), "forge": forge}, 201)


def head(repo: GitRepository) -> str:
    """The commit that ``main`` is at."""
    return repo.git("rev-parse", "main").strip()


def told(service: RunningService) -> Any:
    """The only status."""
    (status,) = service.get("/statuses")["items"]
    return status


def delivered(service: RunningService) -> Any:
    """The only status, once nothing waits any more."""
    return wait_for(lambda: (status := told(service))["state"] == "delivered" and status, "the status to be delivered")


@pytest.mark.parametrize("kind", WORDS)
def test_a_forge_is_told_from_waiting_to_the_result(
    service: RunningService, repo: GitRepository, forge: FakeForge, kind: str
) -> None:
    """Once at each change, with a link to the job's page, under a context that names the suites."""
    sha = head(repo)
    with forge_server.serving(getattr(forge, kind.replace("forgejo", "gitea"))) as server:
        register(service, repo, server, forge=kind)
        job = service.submit("demo", "main", label="push to main: Fix <it>")
        wait_for(lambda: len(forge.taken) == 1, "the first status")
        attempt = service.driver().must_claim()
        wait_for(lambda: len(forge.taken) == 2, "the second status")
        attempt.start(3)
        attempt.send(attempt.case("a", Outcome.FAILED), attempt.case("b", Outcome.FAILED), attempt.case("c"))
        attempt.end(3, exit_code=1)
        status = delivered(service)
        wait_for(lambda: len(forge.taken) == 3, "the last status")
    assert forge.shown(sha) == list(zip(WORDS[kind], [WAITING, RUNNING, "2 failed, 1 passed"], strict=True))
    assert {one["context"] for one in forge.taken} == {"replaybench/unit"}
    assert {one["target_url"] for one in forge.taken} == {f"{PUBLIC}/jobs/{job['id']}"}
    assert (status["posts"], status["wanted"], status["commit"], status["status"]) == (3, "failure", sha, 201)


def test_what_changes_nothing_is_not_told_again(
    service: RunningService, repo: GitRepository, forge: FakeForge, server: Server
) -> None:
    """Cells that begin and end while others run, and jobs that end as before, add no statuses."""
    register(service, repo, server)
    job = service.submit("demo", "main", suites=["unit", "other"])
    wait_for(lambda: len(forge.taken) == 1, "the first status")
    driver = service.driver()
    first, second = driver.must_claim(), driver.must_claim()
    wait_for(lambda: len(forge.taken) == 2, "the second status")
    first.run({"a": Outcome.PASSED})
    second.run({"a": Outcome.PASSED})
    wait_for(lambda: len(forge.taken) == 3, "the last status")
    assert forge.taken[-1]["description"] == "2 passed"
    assert forge.taken[-1]["context"] == "replaybench/other+unit"
    delivered(service)  # that it was taken is noted too
    with service.database.write() as session:  # as if the same state were asked for once more
        session.execute(update(CommitStatus).values(state="waiting", due_at=now()))
    assert delivered(service)["detail"] == "the forge shows it already"
    assert len(forge.taken) == 3
    service.post(f"/jobs/{job['id']}/rerun", {"cells": [first.assignment.cell.id]})
    wait_for(lambda: len(forge.taken) == 4, "the job to be told as running again")
    assert forge.shown(head(repo))[-1] == ("pending", RUNNING)


@pytest.mark.parametrize(
    "fault",
    [
        LIMITED,
        Reply(429, {"message": "Too Many Requests"}, {"Retry-After": "1"}),
        Reply(503, b"<html>unavailable</html>", {"Retry-After": "1"}),
    ],
    ids=["403-secondary", "429", "503"],
)
def test_a_forge_that_asks_to_wait_is_left_alone(
    service: RunningService, repo: GitRepository, forge: FakeForge, server: Server, fault: Reply
) -> None:
    """Not one call comes to the API before its ``Retry-After`` is over, of other commits and projects neither."""
    server.next.append(fault)
    register(service, repo, server)
    other = {"forge": "github", "api_url": server.url, "project": "team/demo", "credential": TOKEN}
    service.post("/repositories", {"name": "same", "url": str(repo.path), "forge": other}, 201)
    service.submit("demo", "main")
    wait_for(lambda: told(service)["tries"], "the refusal")
    service.submit("same", "main")
    service.submit("demo", "main", suites=["other"])
    wait_for(lambda: len(forge.taken) == 3, "all to be taken")
    assert len(server.calls) == 4
    assert server.calls[1].at - server.calls[0].at >= 1
    wait_for(lambda: {one["state"] for one in service.get("/statuses")["items"]} == {"delivered"}, "all to be noted")


@pytest.mark.parametrize(
    "fault",
    [
        Reply(500, {"message": "Server Error"}),
        Reply(502, b"\xff\x00 bad gateway"),
        Reply(409, {"message": "Conflict"}),
        Reply(201, {"state": "pending"}, silent=True),
        Reply(201, {"state": "pending" * 40}, drip_s=0.2),
    ],
    ids=["500", "502", "409", "silent", "dripping"],
)
def test_what_may_pass_is_tried_again(
    start: Start, repo: GitRepository, forge: FakeForge, server: Server, fault: Reply
) -> None:
    """Errors of the server, no answer in time, and an answer that comes byte by byte."""
    server.next.extend([fault, fault])
    service = start(delivery_timeout_s=0.5)
    register(service, repo, server)
    service.submit("demo", "main")
    status = delivered(service)
    assert (status["tries"], status["status"], status["posts"]) == (3, 201, 1)
    assert forge.shown(head(repo)) == [("pending", WAITING)]


@pytest.mark.parametrize(
    ("fields", "fault", "reason"),
    [
        ({"credential": "wrong-token"}, None, "401 Bad credentials (the credential is refused"),
        ({"project": "team/other"}, None, "404 Not Found (the forge has no such project or commit"),
        ({}, Reply(403, {"message": "Resource not accessible by personal access token"}), "may not write statuses"),
        ({}, Reply(301, {"message": "Moved Permanently"}, {"Location": "/repositories/1"}), "moved to /repositories/1"),
        ({}, Reply(422, {"message": "No commit found for SHA: 12"}), "422 No commit found for SHA: 12"),
    ],
    ids=["401", "404", "403", "301", "422"],
)
def test_what_trying_cannot_change_is_given_up_with_the_reason(
    service: RunningService,
    repo: GitRepository,
    forge: FakeForge,
    server: Server,
    fields: dict[str, str],
    fault: Reply | None,
    reason: str,
) -> None:
    """After one call. The forge described again, rightly, is told what was given up."""
    if fault is not None:
        server.next.append(fault)
    register(service, repo, server, **fields)
    service.submit("demo", "main")
    status = wait_for(lambda: (found := told(service))["state"] == "gave-up" and found, "the status to be given up")
    assert reason in status["detail"]
    assert (status["tries"], len(server.calls), forge.taken) == (1, 1, [])
    register(service, repo, server)
    delivered(service)
    assert forge.shown(head(repo)) == [("pending", WAITING)]


def test_a_commit_that_has_all_the_statuses_it_may_have(
    service: RunningService, repo: GitRepository, forge: FakeForge, server: Server
) -> None:
    """GitHub's cap is told as the reason, and is not run into by us: beyond half of it only ends are told."""
    register(service, repo, server)
    forge.cap = 0
    job = service.submit("demo", "main")
    status = wait_for(lambda: (found := told(service))["state"] == "gave-up" and found, "the status to be given up")
    assert "maximum number of statuses" in status["detail"]
    forge.cap = 1000
    with service.database.write() as session:
        session.execute(update(CommitStatus).values(posts=500))
    attempt = service.driver().must_claim()
    attempt.start(1)
    assert told(service)["text"] == WAITING
    attempt.send(attempt.case("a"))
    attempt.end(1)
    wait_for(lambda: forge.shown(head(repo)), "the end")
    assert forge.shown(head(repo)) == [("success", "1 passed")]
    assert service.get(f"/jobs/{job['id']}")["state"] == "passed"


def test_a_forge_that_stays_away_is_given_up_after_a_time(
    start: Start, repo: GitRepository, forge: FakeForge, server: Server
) -> None:
    """The reason says how often and how long it was tried, and redelivery begins anew."""
    server.next.extend([Reply(500, {"message": "Server Error"})] * 400)
    service = start(delivery_give_up_s=0.4)
    register(service, repo, server)
    service.submit("demo", "main")
    status = wait_for(lambda: (found := told(service))["state"] == "gave-up" and found, "the status to be given up")
    tries = status["tries"]  # One, where that took all the time there was.
    assert status["detail"].startswith(f"given up after {tries} tr{'y' if tries == 1 else 'ies'} in ")
    assert status["detail"].endswith("500 Server Error")
    server.next.clear()
    assert service.post(f"/statuses/{status['id']}/redeliver")["state"] == "waiting"
    delivered(service)
    assert forge.shown(head(repo)) == [("pending", WAITING)]


def test_a_slow_forge_holds_up_no_job_and_the_latest_state_wins(
    service: RunningService, repo: GitRepository, forge: FakeForge, server: Server
) -> None:
    """While the first status is on its way a job runs to its end; then the end is told, and nothing behind it."""
    server.next.append(Reply(0, silent=True))
    register(service, repo, server)
    job = service.submit("demo", "main")
    wait_for(lambda: server.calls, "the call")
    service.driver().must_claim().run({"a": Outcome.PASSED})
    assert service.get(f"/jobs/{job['id']}")["state"] == "passed"
    assert forge.taken == []
    server.let_go.set()
    delivered(service)
    assert forge.shown(head(repo)) == [("pending", WAITING), ("success", "1 passed")]
    assert told(service)["posts"] == 2


def test_two_services_tell_everything_once(start: Start, repo: GitRepository, forge: FakeForge, server: Server) -> None:
    """Each of 12 commits gets its status from one of them."""
    first, second = start("one"), start("two")
    register(first, repo, server)
    shas = [repo.commit(f"change {number}") for number in range(12)]
    forge.commits.update(shas)
    for number, sha in enumerate(shas):
        (first, second)[number % 2].submit("demo", sha)
    wait_for(lambda: len(forge.taken) >= len(shas), "all statuses")
    wait_for(lambda: {one["state"] for one in first.get("/statuses")["items"]} == {"delivered"}, "all to be noted")
    assert sorted(one["commit"] for one in forge.taken) == sorted(shas)
    assert len(server.calls) == len(shas)


def test_a_restart_loses_nothing(
    start: Start,
    repo: GitRepository,
    forge: FakeForge,
    server: Server,
    tmp_path: Path,
    database_url: str,
    broker_url: str,
) -> None:
    """What waits when a service ends is told by the next one, also what was on its way when it was killed."""
    settings = {"delivery_s": 0.05, "private_targets": "127.0.0.1", "public_url": PUBLIC}
    server.next.append(Reply(0, silent=True))
    with running_service.running(tmp_path / "gone", database_url, broker_url, **settings) as gone:
        register(gone, repo, server)
        gone.submit("demo", "main")
        wait_for(lambda: server.calls, "the call")
    server.next.clear()
    service = start()
    delivered(service)
    assert forge.shown(head(repo)) == [("pending", WAITING)]
    with service.database.write() as session:  # as a killed service leaves it
        long_ago = now() - datetime.timedelta(minutes=5)
        session.execute(
            update(CommitStatus).values(
                state="waiting", shown=None, claim="of-the-dead", claimed_until=long_ago, due_at=long_ago
            )
        )
    wait_for(lambda: len(forge.taken) == 2, "the claim to lapse")


def test_only_a_commit_itself_gets_a_status(
    service: RunningService, repo: GitRepository, forge: FakeForge, server: Server
) -> None:
    """A tree with a probe gets none; of two trees each gets its own; part of a suite does not pass for the suite."""
    register(service, repo, server)
    base = head(repo)
    (repo.path / "tests/test_cases.py").write_text("def test_one(): pass\n")
    probe = base64.b64encode(repo.diff()).decode()
    later = repo.commit("later")
    forge.commits.add(later)
    trees = [{"ref": base}, {"ref": base, "probe": probe}, {"ref": later}]
    service.post("/jobs", {"repository": "demo", "trees": trees}, 201)
    driver = service.driver()
    for outcome in (Outcome.PASSED, Outcome.FAILED, Outcome.FAILED):
        driver.must_claim().run({"a": outcome})
    wait_for(lambda: forge.shown(base)[-1:] == [("success", "1 passed")], "the first commit's result")
    wait_for(lambda: forge.shown(later)[-1:] == [("failure", "1 failed")], "the second commit's result")
    service.submit("demo", later, include=["*/unit"])
    wait_for(lambda: forge.count(later, "replaybench/unit (part)"), "a context of its own")


def test_a_job_of_fewer_runtimes_than_declared_is_a_part(
    service: RunningService, repo: GitRepository, forge: FakeForge, server: Server
) -> None:
    """Of those of the matrix, and of those that a suite has for itself; more or others besides are no part."""
    register(service, repo, server)
    own = CONFIG.replace(f'runtimes = ["{PYTHON}"]', 'runtimes = ["py3.11", "py3.12"]')
    sha = repo.commit("two", replaybench_dot_toml=f'{own}[suites.single]\npaths = ["tests"]\nruntimes = ["py3.12"]\n')
    forge.commits.add(sha)

    def context(*suites: str, **body: Any) -> str:
        job = service.submit("demo", sha, suites=suites, **body)["id"]
        with service.database.read() as session:
            return session.scalars(select(CommitStatus.context).where(CommitStatus.job_id == job)).one()

    two, one = ["py3.12", "py3.11"], ["py3.11"]
    assert context("unit") == context("unit", runtimes=two) == "replaybench/unit"
    assert context("unit", runtimes=[*two, "py3.13"]) == "replaybench/unit"
    for runtimes in (one, ["py3.13"]):
        assert context("unit", runtimes=runtimes) == "replaybench/unit (part)"
        assert context("single", runtimes=runtimes) == "replaybench/single (part)"
    assert context("single", runtimes=["py3.12"]) == "replaybench/single"
    assert context("single", "unit", runtimes=["py3.12"]) == "replaybench/single+unit (part)"


def test_an_older_job_does_not_speak_over_a_newer_one(
    service: RunningService, repo: GitRepository, forge: FakeForge, server: Server
) -> None:
    """Both test the same commit; what the commit shows is the newer one's."""
    register(service, repo, server)
    older, newer = service.submit("demo", "main"), service.submit("demo", "main")
    driver = service.driver()
    first, second = driver.must_claim(), driver.must_claim()
    assert first.assignment.cell.job == older["id"]
    second.run({"a": Outcome.PASSED})
    delivered(service)
    first.run({"a": Outcome.FAILED})
    assert service.get(f"/jobs/{older['id']}")["state"] == "failed"
    status = delivered(service)
    assert (status["job"], status["wanted"]) == (newer["id"], "success")
    assert forge.shown(head(repo))[-1] == ("success", "1 passed")


def test_a_result_that_counts_do_not_tell(
    service: RunningService, repo: GitRepository, forge: FakeForge, server: Server
) -> None:
    """A runtime that could not be built and a cancelled job are errors, not failures."""
    register(service, repo, server)
    service.submit("demo", "main", suites=["unit", "other"])
    driver = service.driver()
    first, second = driver.must_claim(), driver.must_claim()
    first.run({"a": Outcome.PASSED})
    second.end(0, exit_code=None, cause=Cause.ENVIRONMENT, detail="no torch 2.9.1+cu129")
    wait_for(lambda: forge.shown(head(repo))[-1:] == [("error", "1 passed; 1 cell environment")], "the result")
    job = service.submit("demo", "main")
    service.post(f"/jobs/{job['id']}/cancel")
    wait_for(lambda: forge.shown(head(repo))[-1:] == [("error", "1 cell cancelled")], "the end")


def test_a_credential_is_never_shown(service: RunningService, repo: GitRepository, server: Server) -> None:
    """Not when it is registered, not in a listing, not in an error."""
    made = register(service, repo, server)
    assert made["forge"] == {
        "forge": "github",
        "api_url": server.url,
        "project": "team/demo",
        "credential": "stored",
    }
    refused = service.http.put(
        "/api/v1/repositories/demo/forge",
        json={"forge": "github", "api_url": server.url, "project": "team/demo", "credential": "a secret with spaces"},
    )
    assert refused.status_code == 422
    mistyped = service.http.put("/api/v1/repositories/demo/forge", json={"forge": "hub", "credential": TOKEN})
    assert mistyped.status_code == 422
    everything = [service.http.get(f"/api/v1/{path}").text for path in ("repositories", "statuses", "openapi.json")]
    for text in (*everything, refused.text, mistyped.text):
        assert TOKEN not in text
        assert "a secret with spaces" not in text


def test_a_credential_that_the_operator_keeps(
    start: Start, repo: GitRepository, forge: FakeForge, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From the environment or a file, and only to the host that it is meant for."""
    monkeypatch.setenv("FORGE_TOKEN", TOKEN)
    monkeypatch.setenv("OTHER_SECRET", "something-else")
    service = start(credential_env="FORGE_TOKEN@127.0.0.1")
    assert register(service, repo, server, credential="env:FORGE_TOKEN")["forge"]["credential"] == "env:FORGE_TOKEN"
    for credential, api_url in (
        ("env:OTHER_SECRET", server.url),
        ("env:FORGE_TOKEN", "https://thief.example.org"),
        ("env:forge_token", server.url),
        ("file:../tokens/submit", server.url),
        ("file:", server.url),
    ):
        body = {"forge": "github", "api_url": api_url, "project": "team/demo", "credential": credential}
        answer = service.http.put("/api/v1/repositories/demo/forge", json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "forge-incomplete"), answer.text
    service.submit("demo", "main")
    delivered(service)
    register(service, repo, server, credential="file:hub")
    service.submit("demo", "main", suites=["other"])
    wait_for(
        lambda: any("file:hub cannot be read" in one["detail"] for one in service.get("/statuses")["items"]), "why"
    )
    folder = tmp_path / "data/credentials/127.0.0.1"
    folder.mkdir(parents=True)
    (folder / "hub").write_text(f"{TOKEN}\n")
    register(service, repo, server, credential="file:hub")
    wait_for(lambda: forge.count(head(repo), "replaybench/other"), "the file to be read")


@pytest.mark.parametrize(
    ("api_url", "reason"),
    [
        ("http://10.1.2.3/api/v4", "which is not public"),
        ("https://localhost/api", "which is not public"),
        ("https://169.254.169.254/", "which is not public"),
        ("https://[::ffff:127.0.0.1]/", "which is not public"),
        ("http://8.8.8.8/", "use https"),
        ("https://user:password@git.example.org/", "holds a user or password"),
        ("ftp://git.example.org/", "give http://HOST"),
        ("https://../", "no host's name"),
        ("https://git.example.org/api?x=", "has a query"),
    ],
)
def test_an_api_that_is_not_called(
    start: Start, repo: GitRepository, server: Server, api_url: str, reason: str
) -> None:
    """Private addresses only where the operator says so, and a credential never in plain text."""
    service = start(private_targets="")
    service.post("/repositories", {"name": "demo", "url": str(repo.path)}, 201)
    body = {"forge": "gitea", "api_url": api_url, "project": "team/demo", "credential": TOKEN}
    answer = service.http.put("/api/v1/repositories/demo/forge", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "target-refused")
    assert reason in answer.json()["detail"]


def test_a_forge_is_forgotten(service: RunningService, repo: GitRepository, forge: FakeForge, server: Server) -> None:
    """With its credential; what waits is given up, and nothing more is told."""
    register(service, repo, server)
    server.next.extend([Reply(500, {"message": "Server Error"})] * 1000)
    service.submit("demo", "main")
    wait_for(lambda: told(service)["tries"], "the first try")
    assert service.http.delete("/api/v1/repositories/demo/forge").status_code == 204
    assert service.get("/repositories")[0]["forge"] is None
    wait_for(lambda: told(service)["state"] == "gave-up", "it to be given up")
    with service.database.read() as session:
        assert session.scalars(select(ForgeLink)).all() == []
    service.submit("demo", "main", suites=["other"])
    assert len(service.get("/statuses")["items"]) == 1
    service.get("/statuses/99", 404)
    service.post("/statuses/99/redeliver", expect=404)


def test_statuses_are_listed_page_by_page(
    service: RunningService, repo: GitRepository, forge: FakeForge, server: Server
) -> None:
    """The latest changed first, of one repository or of all."""
    register(service, repo, server)
    for suites in (["unit"], ["other"], ["unit", "other"]):
        service.submit("demo", "main", suites=suites)
    first = service.get("/statuses?limit=2&repository=demo")
    rest = service.get(f"/statuses?limit=2&{first['next']}")
    contexts = [one["context"].removeprefix("replaybench/") for one in (*first["items"], *rest["items"])]
    assert contexts == ["other+unit", "other", "unit"]
    assert rest["next"] is None
    assert service.get("/statuses?repository=nobody")["items"] == []
    # What changes between two pages moves to the front: it has been shown, and leads nobody back there.
    for one in first["items"]:
        service.post(f"/jobs/{one['job']}/cancel")
    assert [one["id"] for one in service.get(f"/statuses?limit=2&{first['next']}")["items"]] == [rest["items"][0]["id"]]
    page = service.http.get(f"/notifications?statuses_{first['next']}").text
    assert [f'id="status-{number}"' in page for number in (1, 2, 3)] == [True, False, False]
    for odd in ("7", "7-", "x-1", f"1-{'9' * 17}"):
        assert service.http.get("/api/v1/statuses", params={"before": odd}).status_code == 422, odd
