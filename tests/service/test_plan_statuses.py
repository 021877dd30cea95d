"""What a forge is told of a commit that a hook brought, before there are cells. On both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.outgoing import retry
from tests.support import forge_server, forges, running_service
from tests.support.forge_server import TOKEN, FakeForge, Server
from tests.support.repository import CONFIG, PYTHON, GitRepository
from tests.support.running_service import RunningService
from tests.support.waiting import wait_for

PLAN = "replaybench/plan"
TRIGGERS = '[trigger.push]\nrefs = ["main"]\n[trigger.pull_request]\n'


@pytest.fixture
def forge() -> FakeForge:
    """A forge that has whatever commit it is told of."""
    return FakeForge()


@pytest.fixture
def server(forge: FakeForge) -> Iterator[Server]:
    """The forge, speaking as Gitea."""
    with forge_server.serving(forge.gitea) as it:
        yield it


@pytest.fixture
def service(
    tmp_path: Path, database_url: str, broker_url: str, repo: GitRepository, server: Server
) -> Iterator[RunningService]:
    """A service that hears of the repository by hooks, and tells its forge and one webhook."""
    settings = {"delivery_s": 0.05, "private_targets": "127.0.0.0/8", "hook_secrets": forges.SECRET}
    data = tmp_path / "data"
    with running_service.running(data, database_url, broker_url, sweep_s=0.2, lease_s=20, **settings) as it:
        linked = {"forge": "gitea", "api_url": server.url, "project": "team/demo", "credential": TOKEN}
        it.post("/repositories", {"name": "demo", "url": str(repo.path), "forge": linked}, 201)
        yield it


def bring(service: RunningService, repo: GitRepository, forge: FakeForge, event: str, payload: Any, sha: str) -> int:
    """A forge's event on a commit; the job that it started."""
    forge.commits.add(sha)
    answer = forges.post(service.url, "gitea", event, payload)
    assert answer.status_code == 202, answer.text
    return int(answer.json()["job"])


def push(service: RunningService, repo: GitRepository, forge: FakeForge, sha: str) -> int:
    """A push of ``main``."""
    before = repo.git("rev-parse", f"{sha}~1").strip()
    return bring(service, repo, forge, "push", forges.push(str(repo.path), "refs/heads/main", before, sha), sha)


def plans(forge: FakeForge) -> list[tuple[str, str]]:
    """State and text of what was told of plans, in order."""
    return [(one["state"], one["description"]) for one in forge.taken if one["context"] == PLAN]


def test_a_plan_that_fails_is_an_error_of_the_commit(
    service: RunningService, repo: GitRepository, forge: FakeForge
) -> None:
    """Else its pusher would wait for a check that never comes."""
    job = push(service, repo, forge, repo.commit("odd", replaybench_dot_toml="schema = 7"))
    ((state, text),) = wait_for(lambda: plans(forge), "the forge to be told")
    assert state == "error"
    assert text.startswith("cannot be planned: replaybench.toml")
    assert len(text) <= 140
    assert service.get(f"/jobs/{job}")["state"] == "broken"


def test_a_plan_that_is_given_up_is_told(
    tmp_path: Path,
    sqlite_url: str,
    broker_url: str,
    repo: GitRepository,
    forge: FakeForge,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is told while it is tried again; a repository that stays away is an error in the end."""
    monkeypatch.setattr(retry, "FIRST_S", 0.05)
    settings = {"delivery_s": 0.05, "private_targets": "127.0.0.0/8", "hook_secrets": forges.SECRET}
    data = tmp_path / "data"
    with running_service.running(data, sqlite_url, broker_url, sweep_s=0.1, plan_give_up_s=1, **settings) as service:
        linked = {"forge": "gitea", "api_url": server.url, "project": "team/demo", "credential": TOKEN}
        service.post("/repositories", {"name": "demo", "url": str(repo.path), "forge": linked}, 201)
        sha = repo.commit("triggers", replaybench_dot_toml=CONFIG + TRIGGERS)
        repo.path.rename(repo.path.with_name("away"))
        forge.commits.add(sha)
        payload = forges.push(str(repo.path), "refs/heads/main", forges.ZERO, sha)
        job = forges.post(service.url, "gitea", "push", payload).json()["job"]
        ((state, text),) = wait_for(lambda: plans(forge), "the forge to be told")
        found = service.get(f"/jobs/{job}")
    assert (state, text[:32]) == ("error", "cannot be planned: given up afte")
    assert found["state"] == "broken"
    assert "tries in" in found["detail"]
    assert "git cannot fetch" in found["detail"]


def test_a_forks_commit_says_that_it_waits_and_then_that_it_is_planned(
    service: RunningService, repo: GitRepository, forge: FakeForge
) -> None:
    """Its suites have statuses of their own from then on."""
    base = repo.commit("triggers", replaybench_dot_toml=CONFIG + TRIGGERS)
    head = repo.commit("theirs", src__b_dot_py="b = 1\n")
    payload = forges.pull_request(str(repo.path), head, base, fork="mallory/demo", action="synchronized")
    job = bring(service, repo, forge, "pull_request", payload, head)
    wait_for(lambda: plans(forge) == [("pending", "waits for an approval by a person")], "the forge to be told")
    service.post(f"/jobs/{job}/approve", {})
    wait_for(lambda: plans(forge)[-1] == ("success", "planned"), "the plan to be told")
    wait_for(lambda: "replaybench/unit" in {one["context"] for one in forge.taken}, "the suites to be told")


def test_runtimes_that_a_trigger_names_are_no_part(
    service: RunningService, repo: GitRepository, forge: FakeForge
) -> None:
    """The tree itself says what its pushes are tested with."""
    config = CONFIG.replace(f'runtimes = ["{PYTHON}"]', 'runtimes = ["py3.11", "py3.12"]')
    sha = repo.commit("triggers", replaybench_dot_toml=f'{config}[trigger.push]\nruntimes = ["py3.11"]\n')
    push(service, repo, forge, sha)
    wait_for(lambda: forge.taken, "the forge to be told")
    assert {one["context"] for one in forge.taken} == {"replaybench/unit"}


def test_a_fork_that_nobody_approves_is_cancelled(
    service: RunningService, repo: GitRepository, forge: FakeForge
) -> None:
    base = repo.commit("triggers", replaybench_dot_toml=CONFIG + TRIGGERS)
    head = repo.commit("theirs", src__b_dot_py="b = 1\n")
    payload = forges.pull_request(str(repo.path), head, base, fork="mallory/demo", action="synchronized")
    job = bring(service, repo, forge, "pull_request", payload, head)
    wait_for(lambda: plans(forge), "the forge to be told that it waits")
    service.post(f"/jobs/{job}/cancel", {})
    wait_for(lambda: plans(forge)[-1] == ("error", "cancelled"), "the forge to be told of the end")


def test_a_commit_that_starts_nothing_has_no_status(
    service: RunningService, repo: GitRepository, forge: FakeForge
) -> None:
    """And one that is planned as it should be has only those of its suites."""
    sha = repo.commit("triggers", replaybench_dot_toml=CONFIG + TRIGGERS)
    payload = forges.push(str(repo.path), "refs/heads/topic", forges.ZERO, sha)
    job = bring(service, repo, forge, "push", payload, sha)
    wait_for(lambda: service.get(f"/jobs/{job}")["state"] == "cancelled", "the topic to start nothing")
    later = push(service, repo, forge, sha)
    wait_for(lambda: service.get(f"/jobs/{later}")["state"] == "waiting", "the job to be planned")
    wait_for(lambda: forge.taken, "the forge to be told")
    assert plans(forge) == []
