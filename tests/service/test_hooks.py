"""Hooks of forges: proven, claimed once, planned in the background, on both databases."""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from sqlalchemy import delete, update
from sqlalchemy.exc import DataError

from service.client.client import Client
from service.client.errors import ProblemError
from service.hooks import planner
from service.models import Cell, Job
from service.outgoing import retry
from service.states import JobState
from service.tokens import ensure
from tests.support import embedded, forges, running_service
from tests.support.forges import ZERO
from tests.support.mirrors import spoil
from tests.support.repository import CONFIG, GitRepository
from tests.support.running_service import RunningService
from tests.support.waiting import wait_for
from worker.messages import Outcome

TRIGGERS = """
[[trigger.push]]
refs = ["main"]
paths = ["src/**"]
suites = ["other"]
[[trigger.push]]
refs = ["main", "release/*"]
paths = ["!docs/**"]
[trigger.pull_request]
[trigger.merge_group]
refs = ["main"]
[trigger.tag]
refs = ["v*"]
suites = ["unit", "other"]
"""


@pytest.fixture
def service(tmp_path: Path, database_url: str, broker_url: str) -> Iterator[RunningService]:
    """A service with a secret for all hooks."""
    with running_service.running(
        tmp_path / "data", database_url, broker_url, sweep_s=0.2, lease_s=20, hook_secrets=forges.SECRET
    ) as it:
        yield it


@pytest.fixture
def first(registered: GitRepository) -> str:
    """The commit that brings ``[trigger]``."""
    return registered.commit("triggers", replaybench_dot_toml=CONFIG + TRIGGERS)


def push(service: RunningService, repo: GitRepository, ref: str, before: str, after: str, **how: Any) -> Any:
    """A push told by GitHub; the delivery."""
    payload = forges.push(str(repo.path), ref, before, after)
    answer = forges.post(service.url, how.pop("provider", "github"), "push", payload, **how)
    assert answer.status_code == 202, answer.text
    return answer.json()


def from_fork(service: RunningService, repository: GitRepository, head: str, base: str) -> dict[str, Any]:
    """What a pull request from a stranger's fork is answered."""
    payload = forges.pull_request(str(repository.path), head, base, fork="mallory/demo")
    answer: dict[str, Any] = forges.post(service.url, "github", "pull_request", payload).json()
    return answer


def planned(service: RunningService, job: int) -> Any:
    """The job, once it is no longer planning."""

    def done() -> Any:
        found = service.get(f"/jobs/{job}")
        return found if found["state"] != "planning" else None

    return wait_for(done, f"job {job} to be planned")


def suites(service: RunningService, job: int) -> list[str]:
    """The suites of a job's cells."""
    return [cell["suite"] for cell in service.get(f"/jobs/{job}/cells")]


def test_a_push_becomes_a_job_of_what_the_tree_says(
    service: RunningService, registered: GitRepository, first: str
) -> None:
    """Refs and the paths between both commits choose the rule; the answer comes before anything is fetched."""
    told = push(service, registered, "refs/heads/main", ZERO, first)
    assert (told["state"], told["repository"]) == ("started", "demo")
    job = planned(service, told["job"])
    assert (job["state"], job["trees"], job["requested_by"]) == ("waiting", [first[:7]], "m.keller")
    assert job["label"] == "push to main: change"
    second = registered.commit("more", src__a_dot_py="a = 1\n")
    other = push(service, registered, "refs/heads/main", first, second)["job"]
    third = registered.commit("docs", docs__a_dot_md="a\n")
    none = push(service, registered, "refs/heads/main", second, third)["job"]
    assert planned(service, other)["state"] == "waiting"
    assert suites(service, other) == ["other"]
    assert planned(service, none)["state"] == "cancelled"
    assert "starts nothing on push of 'main'" in planned(service, none)["detail"]
    # What starts nothing replaces nothing either.
    assert [service.get(f"/jobs/{number}")["state"] for number in (job["id"], other)] == ["cancelled", "waiting"]
    assert service.get(f"/jobs/{job['id']}")["detail"] == f"superseded by job {other}"
    assert service.get(f"/jobs/{job['id']}/table")["detail"] == f"superseded by job {other}"


def test_a_delivery_that_comes_late_replaces_nothing_newer(
    service: RunningService, registered: GitRepository, first: str
) -> None:
    """Forges promise no order: what counts is which commit took the other's place, and not which was heard of last."""
    base = registered.git("rev-parse", f"{first}~1").strip()
    second, third = registered.commit("second", a_dot_txt="2"), registered.commit("third", a_dot_txt="3")
    registered.git("checkout", "-q", first)
    amended = registered.commit("second, amended", a_dot_txt="2, amended")
    registered.git("branch", "amended", amended)

    def pushed(before: str, after: str, ref: str = "main") -> Any:
        return planned(service, push(service, registered, f"refs/heads/{ref}", before, after)["job"])

    newest = pushed(second, third)
    late = pushed(base, first)
    assert (late["state"], late["detail"]) == ("cancelled", f"superseded by job {newest['id']}")
    assert service.get(f"/jobs/{newest['id']}")["state"] == "waiting"
    # Whatever took its place is newer, also where the branch went back or elsewhere.
    for before, after in ((third, first), (first, second), (second, amended)):
        newer = pushed(before, after)
        assert newer["state"] == "waiting", (before, after)
        assert service.get(f"/jobs/{newest['id']}")["detail"] == f"superseded by job {newer['id']}"
        newest = newer

    def pulled(head: str, **more: str) -> Any:
        payload = {**forges.pull_request(str(registered.path), head, base, number=5), **more}
        return planned(service, forges.post(service.url, "github", "pull_request", payload).json()["job"])

    newest = pulled(amended, before=second)
    assert pulled(second, before=first)["detail"] == f"superseded by job {newest['id']}"
    assert pulled(third, before=amended)["state"] == "waiting"
    assert service.get(f"/jobs/{newest['id']}")["state"] == "cancelled"


def test_an_event_has_one_job_however_often_it_is_told(
    service: RunningService, registered: GitRepository, first: str
) -> None:
    """The same delivery again is the same delivery; the same event under another id is a duplicate."""
    told = push(service, registered, "refs/heads/main", ZERO, first, delivery="d-1")
    assert push(service, registered, "refs/heads/main", ZERO, first, delivery="d-1")["id"] == told["id"]
    twice = push(service, registered, "refs/heads/main", ZERO, first, delivery="d-2", form=True)
    assert (twice["state"], twice["job"]) == ("duplicate", told["job"])
    assert len(service.get("/jobs")["items"]) == 1
    # Names that differ only behind what a column holds are different names.
    long = ["refs/heads/" + "x/" * 150 + end for end in ("a", "b")]
    jobs = {push(service, registered, ref, ZERO, first)["job"] for ref in long}
    assert len(jobs - {told["job"]}) == 2
    # Pushed away and back again, the commit is tested again.
    away = registered.commit("away")
    push(service, registered, "refs/heads/main", first, away)
    assert push(service, registered, "refs/heads/main", away, first)["state"] == "started"
    page = service.get("/hooks/deliveries?limit=3")
    assert [item["state"] for item in page["items"]] == ["started"] * 3
    assert [item["id"] for item in service.get(f"/hooks/deliveries?{page['next']}")["items"]][1:] == [
        twice["id"],
        told["id"],
    ]


@pytest.mark.parametrize("wait", [True, False], ids=["one by one", "all at once"])
@pytest.mark.parametrize("event", ["push", "pull_request"])
def test_what_goes_away_and_comes_back_is_tested(
    service: RunningService, registered: GitRepository, first: str, event: str, wait: bool
) -> None:
    """To and fro and to again: the head is tested, also where what it replaces was not planned yet."""
    there = registered.commit("there", a_dot_txt="a")
    jobs: list[int] = []

    def tell(before: str, after: str) -> Any:
        if event == "push":
            told = push(service, registered, "refs/heads/main", before, after)
        else:
            payload = forges.pull_request(str(registered.path), after, first, number=5, action="synchronize")
            told = forges.post(service.url, "github", event, {**payload, "before": before}).json()
        jobs.append(told["job"])
        return planned(service, told["job"]) if wait else told

    for before, after in ((first, there), (there, first), (first, there), (there, first)):
        registered.git("reset", "--quiet", "--hard", after)
        tell(before, after)
    assert len(set(jobs)) == len(jobs)
    registered.git("reset", "--quiet", "--hard", there)
    tell(first, there)
    assert planned(service, jobs[-1])["state"] == "waiting"
    assert {planned(service, job)["state"] for job in jobs[:-1]} == {"cancelled"}
    assert service.driver().must_claim().assignment.cell.commit == there


def test_what_a_person_cancelled_comes_back_by_another_delivery_alone(
    service: RunningService, registered: GitRepository, first: str
) -> None:
    """A forge that sends the very delivery again is heard as before; one on a tree that starts nothing is no other."""
    told = push(service, registered, "refs/heads/main", ZERO, first, delivery="d-1")
    planned(service, told["job"])
    service.post(f"/jobs/{told['job']}/cancel")
    assert push(service, registered, "refs/heads/main", ZERO, first, delivery="d-1")["job"] == told["job"]
    again = push(service, registered, "refs/heads/main", ZERO, first, delivery="d-2")
    assert (again["state"], again["job"] == told["job"]) == ("started", False)
    assert planned(service, again["job"])["state"] == "waiting"
    assert push(service, registered, "refs/heads/main", ZERO, first)["job"] == again["job"]
    nothing = push(service, registered, "refs/heads/topic", ZERO, first)["job"]
    assert planned(service, nothing)["state"] == "cancelled"
    assert push(service, registered, "refs/heads/topic", ZERO, first)["job"] == nothing


def test_a_push_that_is_told_late_by_another_hook_replaces_nothing(
    service: RunningService, registered: GitRepository, first: str
) -> None:
    """The branch itself says that it has gone on."""
    there = registered.commit("there", a_dot_txt="a")
    planned(service, push(service, registered, "refs/heads/main", first, there)["job"])
    registered.git("reset", "--quiet", "--hard", first)
    head = planned(service, push(service, registered, "refs/heads/main", there, first)["job"])
    late = planned(service, push(service, registered, "refs/heads/main", first, there)["job"])
    assert (late["state"], "no longer at this commit" in late["detail"]) == ("cancelled", True)
    assert service.get(f"/jobs/{head['id']}")["state"] == "waiting"


def test_an_approval_holds_for_a_commit_that_comes_back(
    service: RunningService, registered: GitRepository, first: str
) -> None:
    """It is the commit that the person looked at."""
    head = registered.commit("theirs")
    job = from_fork(service, registered, head, first)["job"]
    planned(service, job)
    service.post(f"/jobs/{job}/approve", {})
    planned(service, job)
    service.post(f"/jobs/{job}/cancel")
    again = from_fork(service, registered, head, first)["job"]
    assert planned(service, again)["cells"] == {"queued": 1}


def test_whoever_does_not_prove_it_learns_nothing(
    service: RunningService, registered: GitRepository, first: str
) -> None:
    """A wrong secret, an unknown repository, no signature, SHA-1 alone: one answer to all, no trace of a delivery."""
    payload = forges.push(str(registered.path), "refs/heads/main", ZERO, first)
    unknown = forges.push("https://git.example.org/no/such.git", "refs/heads/main", ZERO, first)
    answers = [
        forges.post(service.url, "github", "push", payload, secret="not-the-secret-of-it"),
        forges.post(service.url, "github", "push", unknown),
        forges.post(service.url, "github", "push", unknown, secret="not-the-secret-of-it"),
        forges.post(service.url, "github", "push", payload, headers={"X-Hub-Signature-256": ""}),
        forges.post(
            service.url, "github", "push", payload, headers={"X-Hub-Signature-256": "", "X-Hub-Signature": "sha1=00"}
        ),
        forges.post(
            service.url, "gitlab", "Push Hook", {"project": {"git_http_url": str(registered.path)}}, secret="x"
        ),
        forges.post(service.url, "github", "push", ["no object"], secret="not-the-secret-of-it"),
    ]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.text for answer in answers}) == 1
    assert service.get("/hooks/deliveries")["items"] == []


@pytest.mark.parametrize("provider", ["github", "gitea", "forgejo"])
def test_a_form_is_proven_as_its_forge_signs_it(
    service: RunningService, registered: GitRepository, first: str, provider: str
) -> None:
    """GitHub signs the whole body, Gitea and Forgejo the field; another field, or another secret, proves nothing."""
    payload = forges.push(str(registered.path), "refs/heads/main", ZERO, first, "Gruß & 100 % +1")
    assert forges.post(service.url, provider, "push", payload, form=True).status_code == 202
    assert forges.post(service.url, provider, "push", payload, form=True, secret="another" * 5).status_code == 401
    text = urlencode({"payload": json.dumps(payload)})
    digest = hmac.new(forges.SECRET.encode(), b"{}", hashlib.sha256).hexdigest()
    headers = {"X-GitHub-Event": "push", "X-GitHub-Delivery": "1", "X-Gitea-Event": "push", "X-Gitea-Delivery": "1",
               "X-Hub-Signature-256": f"sha256={digest}"}  # fmt: skip
    headers["Content-Type"] = "application/x-www-form-urlencoded"
    for body in (f"payload=%7B%7D&{text}", f"{text}&payload=%7B%7D", f"{text}&other=%7B%7D"):
        assert (
            httpx.post(f"{service.url}/hooks/{provider}", content=body, headers=headers, timeout=60).status_code == 401
        ), body


def test_a_repository_is_known_by_every_address_of_it(service: RunningService, repo: GitRepository) -> None:
    """Forges take any case, and tell addresses by HTTPS and SSH; another port of a host is another server."""
    urls = {
        "one": "https://git.example.org/Team/Demo.git",
        "two": "https://git.example.org:8443/team/demo.git",
        "three": "git@git.example.org:team/other.git",
        "local": str(repo.path),
    }
    for name, url in urls.items():
        service.post("/repositories", {"name": name, "url": url}, 201)
    told = {
        "https://git.example.org/team/demo": "one",
        "HTTPS://user@GIT.example.org/TEAM/DEMO.git/": "one",
        "https://git.example.org:443/team/demo.git": "one",
        "https://git.example.org:8443/team/demo": "two",
        "ssh://git@git.example.org:2222/team/other.git": "three",
        "https://git.example.org:8443/team/other": "three",
        f"file://{repo.path}/": "local",
    }
    for address, name in told.items():
        answer = forges.post(service.url, "github", "ping", {"repository": {"clone_url": address}})
        assert (answer.status_code, answer.json().get("repository")) == (202, name), address
    for address in ("https://git.example.org/team/no", str(repo.path).upper(), "https://[", "x" * 5_000_000, 7, ""):
        answer = forges.post(service.url, "github", "ping", {"repository": {"clone_url": address}})
        assert answer.status_code == 401, address


def test_a_proven_hook_that_is_not_understood_says_why(
    service: RunningService, registered: GitRepository, first: str
) -> None:
    """The operator of the forge sees key and value; the delivery is kept as refused."""
    payload = forges.push(str(registered.path), "refs/heads/main", ZERO, "--upload-pack=x")
    del payload["head_commit"]
    answer = forges.post(service.url, "github", "push", payload)
    assert (answer.status_code, answer.json()["code"]) == (400, "hook-malformed")
    assert "after = '--upload-pack=x'" in answer.text
    assert service.get("/hooks/deliveries")["items"][0]["state"] == "refused"
    for ref in ("refs/heads/\0", "refs/heads/\ud800", 7, ""):
        odd = {**payload, "ref": ref, "after": first}
        assert forges.post(service.url, "github", "push", odd).status_code == 400, ref
    huge = forges.pull_request(str(registered.path), first, first, number=10**400)
    assert forges.post(service.url, "github", "pull_request", huge).status_code == 400
    assert forges.post(service.url, "github", "push", ["no object"]).status_code == 400
    assert forges.post(service.url, "github", "push", payload, headers={"X-GitHub-Delivery": ""}).status_code == 400


def test_a_repositorys_own_secrets_take_turns(service: RunningService, registered: GitRepository, first: str) -> None:
    """The newest two count, the service's own no longer does, and a secret can be forgotten at once."""
    made = [service.post("/repositories/demo/hook-secrets", expect=201) for _ in range(3)]
    payload = forges.push(str(registered.path), "refs/heads/main", ZERO, first)

    def status(secret: str) -> int:
        return forges.post(service.url, "github", "push", payload, secret=secret).status_code

    assert [status(one["secret"]) for one in made] == [401, 202, 202]
    assert status(forges.SECRET) == 401
    service.http.delete(f"/api/v1/repositories/demo/hook-secrets/{made[1]['id']}").raise_for_status()
    assert [status(one["secret"]) for one in made] == [401, 401, 202]


def test_a_forks_pull_request_waits_for_a_person(
    service: RunningService, registered: GitRepository, first: str
) -> None:
    """Nothing of it is handed out before the approval, which holds for that commit alone."""
    registered.git("checkout", "-q", "-b", "topic")
    head = registered.commit("theirs", src__b_dot_py="b = 1\n")
    job = from_fork(service, registered, head, first)["job"]
    waiting = planned(service, job)
    assert (waiting["state"], waiting["cells"]) == ("waiting", {})
    assert f"replaybench approve {job}" in waiting["detail"]
    assert service.driver().claim() is None
    approved = service.post(f"/jobs/{job}/approve", {"approved_by": "m.keller"})
    assert approved["state"] == "planning"
    assert planned(service, job)["state"] == "waiting"
    service.driver().must_claim().run({"a": Outcome.PASSED})
    assert service.get(f"/jobs/{job}")["state"] == "passed"
    assert service.http.post(f"/api/v1/jobs/{job}/approve", json={}).json()["code"] == "approval-not-needed"
    newer = registered.commit("theirs again")
    payload = forges.pull_request(str(registered.path), newer, first, fork=None)
    assert planned(service, forges.post(service.url, "gitea", "pull_request", payload).json()["job"])["cells"] == {}
    own = forges.pull_request(str(registered.path), newer, first, number=13)
    assert planned(service, forges.post(service.url, "github", "pull_request", own).json()["job"])["cells"] != {}


def test_what_cannot_be_planned_ends_broken_with_the_reason(
    service: RunningService, registered: GitRepository, first: str
) -> None:
    """The reason stands on the job, in its table and with its delivery; once put right, it is planned again."""
    broken = registered.commit("odd", replaybench_dot_toml="schema = 7")
    told = push(service, registered, "refs/heads/main", first, broken)
    job = planned(service, told["job"])
    assert job["state"] == "broken"
    assert "schema = 7: this service reads schema = 1" in job["detail"]
    assert job["detail"] in service.get(f"/jobs/{job['id']}/table")["detail"]
    assert "schema = 7" in service.http.get(f"/api/v1/jobs/{job['id']}/table?format=markdown").text
    assert "schema = 7" in service.get("/hooks/deliveries")["items"][0]["detail"]
    gone = "1" * 40
    lost = push(service, registered, "refs/heads/main", first, gone)["job"]
    assert "is no commit" in planned(service, lost)["detail"]
    again = service.post(f"/hooks/deliveries/{told['id']}/redeliver")
    assert (again["state"], again["job"]) == ("again", job["id"])
    assert planned(service, job["id"])["state"] == "broken"


def test_what_may_pass_ends_no_job(
    service: RunningService, registered: GitRepository, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repository that is away, and a full disk: the job says why it is not planned, and is when that is over."""
    monkeypatch.setattr(retry, "FIRST_S", 0.05)
    away = registered.path.with_name("away")
    registered.path.rename(away)
    jobs = [push(service, registered, f"refs/heads/release/{n}", ZERO, first)["job"] for n in (1, 2)]
    for job in jobs:
        said = wait_for(lambda: service.get(f"/jobs/{job}")["detail"], f"job {job} to say why")  # noqa: B023
        assert "not planned yet" in said
        assert "git cannot fetch" in said
    assert {service.get(f"/jobs/{job}")["state"] for job in jobs} == {"planning"}
    away.rename(registered.path)
    assert [planned(service, job)["state"] for job in jobs] == ["waiting", "waiting"]
    assert service.get(f"/jobs/{jobs[0]}")["detail"] is None

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(planner.planning, "plan", full)
        job = push(service, registered, "refs/heads/main", ZERO, first)["job"]
        said = wait_for(lambda: service.get(f"/jobs/{job}")["detail"], "the job to say why")
        assert "disk is full" in said
    assert planned(service, job)["state"] == "waiting"


def test_a_mirror_that_lost_a_file_ends_no_job_as_if_the_tree_had_none(
    service: RunningService, registered: GitRepository, first: str
) -> None:
    """The job of the next push of a commit that the mirror has damaged is planned as ever."""
    planned(service, push(service, registered, "refs/heads/release/1", ZERO, first)["job"])
    (mirror,) = (service.settings.data_dir / "mirrors").glob("*.git")
    spoil(mirror, f"{first}:replaybench.toml")
    job = planned(service, push(service, registered, "refs/heads/release/2", ZERO, first)["job"])
    assert (job["state"], suites(service, job["id"])) == ("waiting", ["unit"])


@pytest.mark.parametrize(
    "config",
    [
        '"\\u0000" = 1',
        "schema = " + "[" * 50_000,
        f"{CONFIG}\n[[trigger.push]]\n" + "# much ado\n" * 10_000,
        f"{CONFIG}\n[trigger.schedule]\ncron = '*/00 * * * *'",
    ],
)
def test_a_tree_that_means_harm_ends_its_own_job_alone(
    service: RunningService, registered: GitRepository, first: str, config: str
) -> None:
    """Whoever opens a pull request writes `replaybench.toml`: it is refused with a reason, and the next is planned."""
    odd = registered.commit("odd", replaybench_dot_toml=config)
    job = push(service, registered, "refs/heads/main", first, odd)["job"]
    after = push(service, registered, "refs/heads/release/1", ZERO, first)["job"]
    assert planned(service, after)["state"] == "waiting"
    refused = planned(service, job)
    assert refused["state"] == "broken"
    assert "replaybench.toml of " in refused["detail"]


def test_a_job_whose_plan_cannot_be_stored_holds_up_no_other(
    service: RunningService, registered: GitRepository, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the fault: the job ends with it, and those behind it are planned."""
    fill = planner.jobs.fill

    def faulty(session: Any, job: Job, *rest: Any) -> None:
        if job.label == "push to main: change":
            raise DataError("INSERT", {}, ValueError("a value that the database does not take"))
        fill(session, job, *rest)

    monkeypatch.setattr(planner.jobs, "fill", faulty)
    job = push(service, registered, "refs/heads/main", ZERO, first)["job"]
    after = push(service, registered, "refs/heads/release/1", ZERO, first)["job"]
    assert planned(service, after)["state"] == "waiting"
    assert planned(service, job)["state"] == "broken"
    assert "fault" in planned(service, job)["detail"]


def test_each_forge_is_read(service: RunningService, registered: GitRepository, first: str) -> None:
    """Push, tag, pull request and merge group of the forges; what brings no commit is kept and starts nothing."""
    url, base = str(registered.path), registered.git("rev-parse", "HEAD~1").strip()
    registered.git("tag", "v1")
    started = [
        ("gitea", "push", forges.push(url, "refs/heads/release/1", ZERO, first)),
        ("forgejo", "push", forges.push(url, "refs/heads/release/2", ZERO, first)),
        ("gitlab", "Push Hook", forges.gitlab_push(url, "refs/heads/main", ZERO, first)),
        ("gitlab", "Tag Push Hook", forges.gitlab_push(url, "refs/tags/v1", ZERO, first, "tag_push")),
        ("gitlab", "Merge Request Hook", forges.gitlab_merge_request(url, first)),
        ("gitea", "pull_request", forges.pull_request(url, first, base, action="synchronized")),
        ("github", "merge_group", forges.merge_group(url, first, base)),
    ]
    jobs = []
    for provider, event, payload in started:
        told = forges.post(service.url, provider, event, payload).json()
        assert told["state"] == "started", (provider, event, told)
        jobs.append(told["job"])
    assert [planned(service, job)["state"] for job in jobs] == ["waiting"] * len(jobs)
    assert suites(service, jobs[3]) == ["unit", "other"]
    repository = {"repository": {"clone_url": url}}
    ignored = [
        ("github", "ping", {"zen": "Keep it simple", **repository}, "reaches this service"),
        ("github", "push", forges.push(url, "refs/heads/main", first, ZERO), "was deleted"),
        ("gitlab", "Push Hook", forges.gitlab_push(url, "refs/heads/main", first, ZERO), "was deleted"),
        ("github", "pull_request", forges.pull_request(url, first, base, action="labeled"), "labeled brings no commit"),
        ("gitlab", "Merge Request Hook", forges.gitlab_merge_request(url, first, "update"), "brings no commit"),
        ("github", "issues", repository, "event 'issues' starts nothing"),
        ("github", "push", forges.push(url, "refs/notes/x", ZERO, first), "neither branch nor tag"),
    ]
    for provider, event, payload, reason in ignored:
        told = forges.post(service.url, provider, event, payload).json()
        assert told["state"] == "ignored", told
        assert reason in told["detail"]
    for number, source in enumerate((99, None, "15"), 4):  # another project, one that is gone, none that anybody knows
        fork = forges.gitlab_merge_request(url, first, "update", oldrev=base, iid=number, source_project_id=source)
        told = forges.post(service.url, "gitlab", "Merge Request Hook", fork).json()
        assert "waits for an approval" in planned(service, told["job"])["detail"]


def test_a_check_that_is_asked_for_again_runs_again(
    service: RunningService, registered: GitRepository, first: str
) -> None:
    """What did not pass, and where all passed, all; what still waits is left alone."""
    url = str(registered.path)
    job = push(service, registered, "refs/heads/main", ZERO, first)["job"]
    planned(service, job)
    asked = {"action": "rerequested", "check_suite": {"head_sha": first}, "repository": {"clone_url": url}}
    told = forges.post(service.url, "github", "check_suite", asked).json()
    assert (told["state"], told["job"]) == ("ignored", job)
    service.driver().must_claim().run({"a": Outcome.PASSED})
    assert forges.post(service.url, "github", "check_suite", asked).json()["state"] == "again"
    assert service.get(f"/jobs/{job}")["state"] == "waiting"
    run = {"action": "rerequested", "check_run": {"head_sha": "2" * 40}, "repository": {"clone_url": url}}
    assert "has no job" in forges.post(service.url, "github", "check_run", run).json()["detail"]


def test_a_job_that_still_plans_can_be_cancelled(
    service: RunningService, registered: GitRepository, first: str
) -> None:
    """A job without cells ends at once, and can be planned again."""
    head = registered.commit("theirs")
    job = from_fork(service, registered, head, first)["job"]
    planned(service, job)
    assert service.post(f"/jobs/{job}/cancel")["state"] == "cancelled"
    assert service.http.post(f"/api/v1/jobs/{job}/cancel").json()["code"] == "job-ended"
    assert service.post(f"/jobs/{job}/rerun")["state"] == "planning"
    assert "waits for an approval" in planned(service, job)["detail"]


def test_a_body_beyond_the_cap_is_refused(tmp_path: Path, sqlite_url: str, broker_url: str) -> None:
    """Before any signature is looked at."""
    with running_service.running(tmp_path / "data", sqlite_url, broker_url, hook_body_cap_bytes=1000) as it:
        answer = forges.post(it.url, "github", "push", {"x": "x" * 2000})
        assert (answer.status_code, answer.json()["code"]) == (413, "too-large")


def test_planning_goes_on_after_a_restart(
    tmp_path: Path, sqlite_url: str, broker_url: str, repo: GitRepository
) -> None:
    """The database is the queue: what one service took and did not plan, the next one plans."""
    head = repo.commit("triggers", replaybench_dot_toml=CONFIG + TRIGGERS)
    data = tmp_path / "data"
    with running_service.running(data, sqlite_url, broker_url, hook_secrets=forges.SECRET, sweep_s=600) as it:
        it.post("/repositories", {"name": "demo", "url": str(repo.path)}, 201)
        job = push(it, repo, "refs/heads/main", ZERO, head)["job"]
        planned(it, job)
        with it.database.write() as session:  # as it stood before the plan was stored
            session.execute(delete(Cell))
            session.execute(update(Job).values(state=JobState.PLANNING, planned=False))
    with running_service.running(data, sqlite_url, broker_url) as it:
        assert planned(it, job)["state"] == "waiting"
        assert suites(it, job) == ["other"]


def test_the_pages_show_deliveries_and_take_the_forms(
    service: RunningService, registered: GitRepository, first: str
) -> None:
    """A person sees what became of each delivery, sends one again, and lets a fork's job run."""
    token = ensure(service.settings.data_dir).submit
    with httpx.Client(base_url=service.url, headers={"Sec-Fetch-Site": "same-origin"}, timeout=60) as browser:
        assert browser.post("/sign-in", data={"token": token}).status_code == 303
        assert "replaybench repos hook-secret" in browser.get("/hooks").text
        head = registered.commit("theirs <b>bold</b>")
        told = from_fork(service, registered, head, first)
        planned(service, told["job"])
        listed = browser.get("/hooks").text
        assert f'href="/jobs/{told["job"]}"' in listed
        assert "waits for an approval" in listed
        assert "Approve this commit" in browser.get(f"/jobs/{told['job']}").text
        assert browser.post(f"/jobs/{told['job']}/approve").status_code == 303
        assert planned(service, told["job"])["cells"] == {"queued": 1}
        assert "Approve this commit" not in browser.get(f"/jobs/{told['job']}").text
        service.post(f"/jobs/{told['job']}/cancel")
        again = browser.post(f"/hooks/deliveries/{told['id']}/redeliver")
        assert (again.status_code, again.headers["location"]) == (303, f"/jobs/{told['job']}")
        assert "nothing" in browser.post(f"/hooks/deliveries/{told['id']}/redeliver").text.lower()
        del browser.headers["Sec-Fetch-Site"]
        assert "/sign-in" in browser.post(f"/jobs/{told['job']}/approve").headers["location"]


def test_the_command_line_makes_secrets_and_approves(
    service: RunningService, registered: GitRepository, first: str
) -> None:
    """The secret that it prints is one that a hook is signed with; an approved job is planned."""
    where = {"REPLAYBENCH_URL": service.url, "REPLAYBENCH_DATA_DIR": str(service.settings.data_dir)}
    done = embedded.command("repos", "hook-secret", "demo", **where)
    assert f"{service.url}/hooks/" in done.stdout, done.stderr
    payload = forges.pull_request(str(registered.path), first, first, fork="mallory/demo")
    secret = done.stdout.split()[0]
    job = forges.post(service.url, "github", "pull_request", payload, secret=secret).json()["job"]
    planned(service, job)
    assert f"job {job} planning" in embedded.command("approve", str(job), **where).stdout
    assert planned(service, job)["cells"] == {"queued": 1}
    refused = embedded.command("approve", str(job), **where)
    assert refused.returncode == 2
    assert "does not wait for an approval" in refused.stderr


def test_one_event_told_at_once_has_one_job(service: RunningService, registered: GitRepository, first: str) -> None:
    """A forge that is impatient, or two of its hooks: whoever comes second sees the first, whatever the id."""
    ids = ["d-1", "d-1", "d-1", "d-2", "d-3", "d-4", "d-5", "d-5"]
    with ThreadPoolExecutor(len(ids)) as pool:
        told = list(
            pool.map(lambda name: push(service, registered, "refs/heads/main", ZERO, first, delivery=name), ids)
        )
    assert len({one["job"] for one in told}) == 1
    assert sorted(item["delivery"] for item in service.get("/hooks/deliveries")["items"]) == sorted(set(ids))
    assert len(service.get("/jobs")["items"]) == 1


def test_the_client_reads_deliveries_and_sends_them_again(
    service: RunningService, registered: GitRepository, first: str
) -> None:
    """Page by page, and it forgets a secret."""
    base = registered.git("rev-parse", "HEAD~1").strip()
    started = push(service, registered, "refs/heads/main", base, first)
    planned(service, started["job"])
    push(service, registered, "refs/heads/main", first, ZERO)
    token = service.http.headers["Authorization"].removeprefix("Bearer ")
    with Client(service.url, token) as client:
        newest = client.hook_deliveries(limit=1)
        (older,) = client.hook_deliveries(before=newest.items[0].id).items
        assert (newest.items[0].job, older.job) == (None, started["job"])
        with pytest.raises(ProblemError, match="nothing-to-rerun"):
            client.redeliver_hook(older.id)
        service.driver().must_claim().run({"a": Outcome.FAILED})
        assert client.redeliver_hook(older.id).state == "again"
        own = client.add_hook_secret("demo")
        gone = forges.push(str(registered.path), "refs/heads/other", first, ZERO)
        assert forges.post(service.url, "github", "push", gone).status_code == 401
        client.drop_hook_secret("demo", own.id)
    assert forges.post(service.url, "github", "push", gone).status_code == 202
