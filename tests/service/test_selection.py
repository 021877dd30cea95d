"""Parts of suites, and cells that are repeated: how they are asked for, and what tells them from whole suites."""

from __future__ import annotations

from typing import Any

import pytest

from service.matrix.expand import PlannedCell
from service.matrix.selection import Wish, narrow, repeated
from tests.support.repository import PYTHON, GitRepository
from tests.support.running_service import RunningService
from worker.messages import Outcome, RuntimeSpec, Selection, SuiteSpec

P, F = Outcome.PASSED, Outcome.FAILED


def cell(suite: str) -> PlannedCell:
    return PlannedCell(0, f"abc/py3.11/{suite}", RuntimeSpec("3.11"), SuiteSpec(suite, ("tests",)))


def test_without_a_wish_the_suite_stays_whole() -> None:
    assert narrow([cell("gate")], Wish()) == [cell("gate")]


def test_only_what_failed_there_and_cells_in_which_nothing_did_are_left_out() -> None:
    wish = Wish(failed={("py3.11", "gate"): ["a", "b", "a"]})
    (found,) = narrow([cell("gate"), cell("cuda")], wish)
    assert found.suite.selection == Selection(cases=("a", "b"))
    (both,) = narrow([cell("gate")], Wish("fast", ("b", "c"), wish.failed))
    assert both.suite.selection == Selection("fast", ("b",))
    assert both.suite.selection.title == "1 case, -k 'fast'"


def test_repetitions_have_names_of_their_own() -> None:
    found = repeated([cell("gate")], 2)
    assert [(one.name, one.suite.run) for one in found] == [("abc/py3.11/gate#1", 1), ("abc/py3.11/gate#2", 2)]


def test_a_selection_reaches_the_worker_and_the_table_says_it(
    service: RunningService, registered: GitRepository
) -> None:
    """The cell keeps its name; table, cell and pages say that it is not the whole suite."""
    job = service.submit("demo", "main", keyword="one", cases=["tests/test_cases.py::test_one"])["id"]
    attempt = service.driver().must_claim()
    spec = attempt.assignment.cell
    assert spec.suite.selection == Selection("one", ("tests/test_cases.py::test_one",))
    assert spec.name.endswith(f"/{PYTHON}/unit")
    attempt.run({"tests/test_cases.py::test_one": P})
    (row,) = service.get(f"/jobs/{job}/table")["rows"]
    assert row["selection"] == "1 case, -k 'one'"
    text = service.http.get(f"/api/v1/jobs/{job}/table", params={"format": "markdown"}).text
    assert "| Only |" in text
    for page in (f"/jobs/{job}", "/cells/1"):
        assert "only 1 case, -k &#39;one&#39;" in service.http.get(page).text


def test_what_failed_in_a_job_is_run_again_alone(service: RunningService, registered: GitRepository) -> None:
    first = service.submit("demo", "main", suites=["unit", "other"])["id"]
    driver = service.driver()
    driver.must_claim().run({"t::a": P, "t::b": F})
    driver.must_claim().run({"t::a": P})
    job = service.submit("demo", "main", suites=["unit", "other"], only_failed_of=first)
    assert sum(job["cells"].values()) == 1, "nothing failed in the other cell"
    again = driver.must_claim()
    assert again.assignment.cell.suite.selection == Selection(cases=("t::b",))
    again.run({"t::b": P})
    found = service.http.get("/api/v1/compare", params={"job": job["id"]}).json()
    assert found["code"] == "comparison-incomplete"


def test_a_whole_suite_counts_before_a_later_selection(service: RunningService, registered: GitRepository) -> None:
    """In a comparison, what was not selected has not vanished."""
    base = registered.git("rev-parse", "HEAD").strip()
    head = registered.commit("second", more="x")
    driver = service.driver()
    for body in ({}, {"cases": ["t::a"]}):
        service.submit("demo", base, head, suites=["unit"], **body)
        for _ in range(2):
            driver.must_claim().run({"t::a": P} if body else {"t::a": P, "t::b": P})
    query = {"repository": "demo", "base": base, "head": head}
    assert service.http.get("/api/v1/compare", params=query).json()["counts"] == {"still-passing": 2}
    only = service.http.get("/api/v1/compare", params={**query, "job": "2"}).json()
    assert (only["counts"], only["pairs"][0]["note"]) == (
        {"still-passing": 1},
        "base ran a selection; head ran a selection",
    )


def test_each_repetition_is_a_cell_with_a_result(service: RunningService, registered: GitRepository) -> None:
    """They have columns of their own on the job's page, equal results equal digests, and disagreeing ones are flaky."""
    head = registered.commit("second", more="x")
    job = service.submit("demo", head, repeat=3)["id"]
    driver = service.driver()
    for outcome in (P, P, F):
        driver.must_claim().run({"t::a": outcome})
    rows = service.get(f"/jobs/{job}/table")["rows"]
    assert [(row["run"], row["result"]) for row in rows] == [(1, "1 passed"), (2, "1 passed"), (3, "1 failed")]
    assert rows[0]["digest"] == rows[1]["digest"] != rows[2]["digest"]
    page = service.http.get(f"/jobs/{job}").text
    assert all(f">unit#{run}</th>" in page for run in (1, 2, 3))
    found = service.http.get("/api/v1/compare", params={"job": job, "base": head[:7], "head": head[:7]}).json()
    assert found["counts"] == {"flaky": 1}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"only_failed_of": 9}, 404, "not-found"),
        ({"only_failed_of": 1}, 422, "selection-empty"),
        ({"repeat": 101}, 422, "invalid-request"),
        ({"repeat": 100, "suites": ["unit", "other"], "runtimes": ["py3.9", "py3.10", "py3.11", "py3.12", "py3.13",
          "py3.14"]}, 422, "matrix-too-large"),
        ({"cases": [""]}, 422, "invalid-request"),
    ],
)  # fmt: skip
def test_what_cannot_be_selected_is_refused(
    service: RunningService, registered: GitRepository, body: dict[str, Any], status: int, code: str
) -> None:
    service.submit("demo", "main")
    service.driver().must_claim().run({"t::a": P})
    request = {"repository": "demo", "trees": [{"ref": "main"}], **body}
    assert service.post("/jobs", request, status)["code"] == code
