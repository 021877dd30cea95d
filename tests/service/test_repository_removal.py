"""Repositories that are taken away: without a trace where nothing hangs on them, else with their evidence kept."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from service.models.base import Base
from tests.support import embedded
from tests.support.repository import GitRepository
from tests.support.running_service import RunningService
from worker.messages import Outcome


def remove(service: RunningService, expect: int, force: bool = False) -> Any:
    """Removes ``demo``."""
    answer = service.http.delete("/api/v1/repositories/demo", params={"force": force})
    assert answer.status_code == expect, answer.text
    return answer.json()


def test_one_without_jobs_goes_without_a_trace(service: RunningService, registered: GitRepository) -> None:
    """Its secrets, webhooks and mirror go too, and its name is free for another URL."""
    service.post("/jobs", {"repository": "demo", "trees": [{"ref": "main"}], "dry_run": True})
    service.post("/repositories/demo/hook-secrets", expect=201)
    assert list((service.settings.data_dir / "mirrors").glob("*.git"))
    assert remove(service, 200) == {"name": "demo", "jobs": 0}
    assert service.get("/repositories") == []
    assert not list((service.settings.data_dir / "mirrors").glob("*.git"))
    assert remove(service, 404)["code"] == "repository-unknown"
    service.post("/repositories", {"name": "demo", "url": "/elsewhere"}, 201)


def test_whatever_was_set_for_one_goes_with_it(service: RunningService) -> None:
    """Credential, forge, hook secret and webhook: its name is free for another URL, of which none of it holds."""
    forge = {
        "forge": "github",
        "api_url": "https://1.1.1.1",
        "project": "team/demo",
        "credential": "a-token",
    }
    service.post("/repositories", {"name": "demo", "url": "https://127.0.0.1:9/demo.git", "forge": forge}, 201)
    token = {"kind": "token", "credential": "a-token-of-one-repository"}
    assert service.http.put("/api/v1/repositories/demo/credential", json=token).status_code == 200
    service.post("/repositories/demo/hook-secrets", expect=201)
    service.post("/webhooks", {"url": "https://1.1.1.1/in", "events": ["job.ended"], "repository": "demo"}, 201)
    assert remove(service, 200) == {"name": "demo", "jobs": 0}
    service.post("/repositories", {"name": "demo", "url": "https://127.0.0.1:9/another.git"}, 201)
    (repository,) = service.get("/repositories")
    assert (repository["credential"], repository["forge"]) == (None, None)
    assert service.get("/webhooks") == []


def test_removal_knows_every_table_of_a_repository() -> None:
    """A table that refers to repositories makes a removal fail until it is dealt with there, or hangs on a job."""
    referring = {
        table.name
        for table in Base.metadata.tables.values()
        if any(key.column.table.name == "repositories" for key in table.foreign_keys)
    }
    of_a_job = {"jobs", "cells", "triggers", "commit_statuses"}
    taken_away = {"hook_secrets", "repository_credentials", "forge_links", "webhooks", "deliveries", "trees"}
    assert referring == of_a_job | taken_away


def test_one_with_jobs_stays_unless_forced(service: RunningService, registered: GitRepository) -> None:
    """The refusal says how many jobs, and what force does."""
    service.submit("demo", "main")
    refused = remove(service, 409)
    assert refused["code"] == "repository-in-use"
    assert "has 1 job;" in refused["detail"]
    assert [repository["name"] for repository in service.get("/repositories")] == ["demo"]


def test_forced_it_keeps_its_evidence_and_takes_nothing_new(service: RunningService, registered: GitRepository) -> None:
    """What ran is cancelled; tables, history and comparisons stay; no job is taken, and none runs again."""
    ended = service.submit("demo", "main")["id"]
    driver = service.driver()
    driver.must_claim().run({"a": Outcome.FAILED})
    running, waiting = service.submit("demo", "main")["id"], service.submit("demo", "main")["id"]
    attempt = driver.must_claim()
    assert remove(service, 200, force=True) == {"name": "demo", "jobs": 3}
    assert service.get("/repositories") == []
    assert service.get(f"/jobs/{waiting}")["state"] == "cancelled"
    assert attempt.send()["stop"] is True
    assert service.get(f"/jobs/{running}")["detail"] == "its repository was removed"
    assert service.get(f"/jobs/{ended}/table")["rows"][0]["result"] == "1 failed"
    assert service.get("/history?repository=demo&node_id=a")["items"]
    body = {"repository": "demo", "trees": [{"ref": "main"}]}
    assert service.http.post("/api/v1/jobs", json=body).json()["code"] == "repository-unknown"
    assert service.http.post(f"/api/v1/jobs/{ended}/rerun", json={}).json()["code"] == "repository-unknown"


def test_a_removed_one_comes_back_by_its_name_and_url(service: RunningService, registered: GitRepository) -> None:
    """Another URL under the name is refused, since the old evidence carries it."""
    service.submit("demo", "main")
    remove(service, 200, force=True)
    answer = service.http.post("/api/v1/repositories", json={"name": "demo", "url": "/elsewhere"})
    assert (answer.status_code, "kept for its jobs" in answer.json()["detail"]) == (409, True)
    service.post("/repositories", {"name": "demo", "url": str(registered.path)}, 201)
    service.submit("demo", "main")


@pytest.mark.parametrize("scope", ["submit", "worker"])
def test_only_an_admin_removes(service: RunningService, registered: GitRepository, scope: str) -> None:
    """It ends other people's jobs."""
    token = service.post("/tokens", {"name": "x", "scopes": [scope]}, 201)["token"]
    answer = httpx.delete(
        f"{service.url}/api/v1/repositories/demo", headers={"Authorization": f"Bearer {token}"}, timeout=60
    )
    assert answer.status_code == 403


def test_at_the_command_line(service: RunningService, registered: GitRepository) -> None:
    """One sentence, and the audit has it with each job that it cancelled."""
    env = {"REPLAYBENCH_URL": service.url, "REPLAYBENCH_DATA_DIR": str(service.settings.data_dir)}
    service.submit("demo", "main")
    refused = embedded.command("repos", "remove", "demo", **env)
    assert (refused.returncode, "--force" in refused.stderr) == (2, True)
    gone = embedded.command("repos", "remove", "demo", "--force", **env)
    assert gone.stdout == "removed repository demo; its job is kept\n"
    actions = [(entry["action"], entry["subject"]) for entry in service.get("/audit")["items"]]
    assert actions[:2] == [("job.cancel", "job 1"), ("repository.remove", "repository demo")]
