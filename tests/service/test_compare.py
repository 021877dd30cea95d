"""Two trees compared, and one case followed over trees, through a real service."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.support.repository import PYTHON, GitRepository
from tests.support.running_service import RunningService
from worker.messages import EnvironmentEvent, FailureClass, Outcome

P, F = Outcome.PASSED, Outcome.FAILED


@pytest.fixture
def commits(registered: GitRepository) -> tuple[str, str]:
    """Two commits."""
    return registered.git("rev-parse", "HEAD").strip(), registered.commit("second", more="x")


def run(service: RunningService, outcomes: dict[str, Outcome], gpu: str | None = None) -> None:
    """One claimed cell with these outcomes, on a GPU where one is named."""
    attempt = service.driver().must_claim()
    attempt.start(len(outcomes))
    if gpu:
        record = {"gpus": [{"model": gpu}], "driver": "580", "torch": "2.9.1", "lightning": None}
        attempt.send(EnvironmentEvent(record))
    classes = {F: FailureClass.BITWISE_MISMATCH}
    attempt.send(*(attempt.case(name, word, failure_class=classes.get(word)) for name, word in outcomes.items()))
    attempt.end(len(outcomes), exit_code=1 if F in outcomes.values() else 0)


def compared(service: RunningService, **query: Any) -> Any:
    """The answer to a comparison."""
    return service.http.get("/api/v1/compare", params=query).json()


def test_a_jobs_own_trees_are_compared_case_by_case(service: RunningService, commits: tuple[str, str]) -> None:
    """The first tree is the base, and every case has one change; those that pass still are counted, not listed."""
    job = service.submit("demo", *commits)["id"]
    run(service, {"t::same": P, "t::breaks": P, "t::heals": F, "t::gone": P})
    run(service, {"t::same": P, "t::breaks": F, "t::heals": P, "t::new": P})
    found = compared(service, job=job)
    assert (found["base"]["commit"], found["head"]["commit"]) == commits
    assert found["counts"] == {"broken": 1, "fixed": 1, "vanished": 1, "new": 1, "still-passing": 1}
    assert (found["broke"], found["complete"], found["pairs"][0]["lost"]) == (True, False, 1)
    assert [(case["node_id"], case["change"]) for case in found["cases"]] == [
        ("t::breaks", "broken"),
        ("t::heals", "fixed"),
        ("t::new", "new"),
        ("t::gone", "vanished"),
    ]
    broken = found["cases"][0]
    assert (broken["base"]["outcome"], broken["head"]["failure_class"]) == ("passed", "bitwise-mismatch")
    (still,) = compared(service, job=job, change="still-passing")["cases"]
    assert still["node_id"] == "t::same"


def test_trees_of_different_jobs_are_named_by_the_commits_beginning(
    service: RunningService, commits: tuple[str, str]
) -> None:
    """Without a job the latest deciding attempts count, whichever jobs they belong to."""
    for commit, outcome in zip(commits, (P, F), strict=True):
        service.submit("demo", commit)
        run(service, {"t::a": outcome})
    service.submit("demo", commits[1])
    run(service, {"t::a": P, "t::b": P})
    found = compared(service, repository="demo", base=commits[0][:7], head=commits[1][:9])
    assert found["counts"] == {"flaky": 1, "new": 1}, "its own attempts disagree on t::a"
    assert found["pairs"][0]["head"]["job"] == 3
    assert compared(service, repository="demo", base=commits[0][:7], head=commits[1][:7], job=2)["status"] == 404


def test_what_one_tree_alone_was_asked_for_is_told_and_does_not_count(
    service: RunningService, commits: tuple[str, str]
) -> None:
    """In every form: a suite that nobody ran on the other side must not look as if it had passed there."""
    service.submit("demo", commits[0], suites=["unit", "other"])
    run(service, {"t::a": P})
    run(service, {"t::a": P})
    service.submit("demo", commits[1], suites=["unit"])
    run(service, {"t::a": P})
    base, head = (commit[:7] for commit in commits)
    found = compared(service, repository="demo", base=base, head=head)
    assert [(pair["suite"], found["complete"]) for pair in found["pairs"]] == [("unit", True)]
    (alone,) = found["alone"]
    assert (alone["suite"], alone["side"]) == ("other", "base")
    said = f"Only base was asked for suite other under {alone['runtime_title']}."
    query = {"repository": "demo", "base": base, "head": head}
    assert said in service.http.get("/api/v1/compare", params={**query, "format": "markdown"}).text
    assert said in service.http.get("/compare", params=query).text
    (turned,) = compared(service, repository="demo", base=head, head=base)["alone"]
    assert turned["side"] == "head"


def test_runtimes_of_one_torch_and_two_lightnings_are_told_apart(
    service: RunningService, commits: tuple[str, str]
) -> None:
    """Wherever a runtime stands without a column for its lightning: pairs, a case's history, a cell's page."""
    runtimes = [f"{PYTHON}-pl{version}" for version in ("2.5.4", "2.6.6")]
    job = service.submit("demo", *commits, runtimes=runtimes)["id"]
    for _ in range(4):
        run(service, {"t::a": P})
    titles = [pair["runtime_title"] for pair in compared(service, job=job)["pairs"]]
    assert [title.partition(" / ")[2] for title in titles] == ["lightning 2.5.4", "lightning 2.6.6"]
    query = {"repository": "demo", "node_id": "t::a"}
    told = service.http.get("/api/v1/history", params=query).json()["items"]
    assert {one["runtime_title"] for one in told} == set(titles)
    cells = service.get(f"/jobs/{job}/cells")
    assert f"{titles[1]}</p>" in service.http.get(f"/cells/{cells[-1]['id']}").text


def test_pages_of_cases_follow_each_other_without_gap(service: RunningService, commits: tuple[str, str]) -> None:
    job = service.submit("demo", *commits, suites=["unit", "other"])["id"]
    for outcome in (P, P, F, F):
        run(service, {f"t::{number}": outcome for number in range(5)})
    seen, after = [], None
    while True:
        page = compared(service, job=job, limit=3, **({"after": after} if after else {}))
        seen += [(case["suite"], case["node_id"]) for case in page["cases"]]
        if page["next"] is None:
            break
        after = page["next"].removeprefix("after=")
    assert seen == [(suite, f"t::{number}") for suite in ("other", "unit") for number in range(5)]


def test_another_gpu_is_not_comparable_and_breaks_nothing(service: RunningService, commits: tuple[str, str]) -> None:
    job = service.submit("demo", *commits)["id"]
    run(service, {"t::a": P}, gpu="NVIDIA H200")
    run(service, {"t::a": F}, gpu="NVIDIA B200")
    found = compared(service, job=job)
    assert found["counts"] == {"not-comparable": 1}
    assert (found["broke"], found["complete"]) == (False, False)
    assert "NVIDIA B200" in found["pairs"][0]["note"]


def test_a_side_that_has_not_ended_is_said_to_be_missing(service: RunningService, commits: tuple[str, str]) -> None:
    job = service.submit("demo", *commits)["id"]
    run(service, {"t::a": P})
    found = compared(service, job=job)
    assert (found["pairs"][0]["note"], found["complete"]) == ("head has no deciding attempt", False)


def test_a_tree_and_its_probe_are_compared_and_markdown_quotes_nothing_of_theirs(
    service: RunningService, registered: GitRepository
) -> None:
    (registered.path / "tests/test_cases.py").write_text("def test_one(): assert 0\n")
    probe = registered.diff().decode()
    trees = [{"ref": "main"}, {"ref": "main", "probe": _base64(probe)}]
    job = service.post("/jobs", {"repository": "demo", "trees": trees}, 201)
    run(service, {"t::a[|x|]": P})
    run(service, {"t::a[|x|]": F})
    plain, probed = job["trees"]
    text = service.http.get(
        "/api/v1/compare", params={"repository": "demo", "base": plain, "head": probed, "format": "markdown"}
    ).text
    assert text.startswith(f"{plain} to {probed}: 1 broken\n")
    assert r"| t::a\[\|x\|\] | passed | failed (bitwise-mismatch) |" in text


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"repository": "demo"}, "comparison-incomplete"),
        ({"base": "abcd", "head": "abcd"}, "comparison-incomplete"),
        ({"repository": "other", "base": "abcd", "head": "abcd"}, "repository-unknown"),
        ({"repository": "demo", "base": "abcd", "head": "abcd"}, "tree-unknown"),
        ({"repository": "demo", "base": "no name", "head": "abcd"}, "tree-unknown"),
        ({"job": 7}, "not-found"),
        ({"job": 1}, "comparison-incomplete"),
        ({"job": 1, "after": "nowhere"}, "invalid-request"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_a_reason(
    service: RunningService, registered: GitRepository, query: dict[str, Any], code: str
) -> None:
    service.submit("demo", "main")
    assert compared(service, **query)["code"] == code


def test_a_cases_history_goes_over_trees_newest_first(service: RunningService, commits: tuple[str, str]) -> None:
    """Only deciding attempts of this repository count; pages follow each other."""
    service.submit("demo", *commits)
    run(service, {"t::a": P, "t::b": P})
    run(service, {"t::a": F, "t::b": P})
    query = {"repository": "demo", "node_id": "t::a", "suite": "unit", "limit": "1"}
    page = service.http.get("/api/v1/history", params=query).json()
    (newest,) = page["items"]
    assert (newest["commit"], newest["outcome"], newest["failure_class"]) == (commits[1], "failed", "bitwise-mismatch")
    query["before"] = page["next"].removeprefix("before=")
    page = service.http.get("/api/v1/history", params=query).json()
    assert [(item["commit"], item["outcome"]) for item in page["items"]] == [(commits[0], "passed")]
    assert page["next"] is None
    assert service.http.get("/api/v1/history", params={**query, "suite": "other"}).json()["items"] == []


def test_the_pages_lead_from_a_job_to_its_comparison_and_a_cases_history(
    service: RunningService, commits: tuple[str, str]
) -> None:
    job = service.submit("demo", *commits)["id"]
    run(service, {"t::<b>": P, "t::c": P})
    run(service, {"t::<b>": F, "t::c": P})
    assert f'href="/compare?job={job}"' in service.http.get(f"/jobs/{job}").text
    page = service.http.get("/compare", params={"job": job})
    assert page.status_code == 200
    assert "something broke" in page.text
    assert "1 broken, 1 still passing" in page.text
    assert "t::&lt;b&gt;" in page.text
    assert 'href="/history?case=3"' in page.text
    assert 'href="/history?case=3"' in service.http.get("/cells/2").text
    history = service.http.get("/history?case=3").text
    assert service.http.get("/history?case=9").status_code == 404
    assert commits[0][:7] in history
    assert commits[1][:7] in history
    assert service.http.get("/compare").status_code == 422


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_a_node_id_may_be_as_long_as_an_address_has_room_for(
    service: RunningService, registered: GitRepository
) -> None:
    """Of letters that take most of it, too; a longer one is refused by the service, not by its HTTP server."""
    for letter, length, code in (("\U00010348", 5000, 200), ("a", 5001, 422)):
        query = {"repository": "demo", "node_id": letter * length, "suite": "s" * 100}
        assert service.http.get("/api/v1/history", params=query).status_code == code
