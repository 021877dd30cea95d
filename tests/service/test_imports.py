"""Results that were made elsewhere come in, look like others, and never pass for our own. On both databases."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect

from service.client.client import Client
from service.client.evidence import Export, export
from service.database import downgrade, upgrade
from service.imports.schemas import ImportInput
from tests.support import running_service
from tests.support.repository import PYTHON, GitRepository
from tests.support.running_service import RunningService
from worker.messages import EnvironmentEvent, FailureClass, Outcome

RUNTIME = "py3.11-torch2.9.1-cu129-pl2.6.6"
ABOUT = {"repository": "demo", "commit": "main", "runtime": RUNTIME, "suite": "nightly"}
GOOD = '<testcase classname="tests.test_cases" name="test_one" time="0.25"/>'
SHOWN = ("Output", "Entry", "Row")
BAD = ('<testcase classname="tests.test_cases" name="test_two" time="0.5"><failure message="assert 1 == 2">'
       "E   assert 1 == 2\n\ntests/test_cases.py:3: AssertionError</failure></testcase>")  # fmt: skip


def report(*elements: str) -> str:
    """A report as pytest writes it."""
    return ('<testsuites><testsuite name="pytest" timestamp="2026-04-30T10:00:00+00:00" time="12.5" hostname="node7">'
            f'<properties><property name="ci" value="42"/></properties>{"".join(elements)}</testsuite></testsuites>'
            )  # fmt: skip


def send(service: RunningService, content: str | bytes, key: str = "", expect: int = 201, **more: Any) -> Any:
    """Imports a report; gives the answer."""
    headers = {"Content-Type": "application/xml", **({"Idempotency-Key": key} if key else {})}
    answer = service.http.post("/api/v1/imports", params={**ABOUT, **more}, content=content, headers=headers)
    assert answer.status_code == expect, answer.text
    return answer.json()


def attempt_of(service: RunningService, job: int) -> Any:
    """The one attempt of a job of one cell."""
    (cell,) = service.get(f"/jobs/{job}/cells")
    (attempt,) = service.get(f"/cells/{cell['id']}/attempts")
    return attempt


def test_a_report_becomes_a_job_that_has_ended(service: RunningService, registered: GitRepository) -> None:
    """One cell, one attempt, without a worker; commit, host, times and the report itself are kept."""
    content = report(GOOD, BAD)
    job = send(service, content, gpu=["NVIDIA H200", "NVIDIA H200"], driver="570.1", label="cluster",
               work_package="WP-207", reason="no worker there", requested_by="m.keller")  # fmt: skip
    sha = registered.git("rev-parse", "HEAD").strip()
    assert (job["state"], job["origin"], job["counts"]) == ("failed", "imported", {"failed": 1, "passed": 1})
    assert (job["label"], job["work_package"], job["requested_by"]) == ("cluster", "WP-207", "m.keller")
    (cell,) = service.get(f"/jobs/{job['id']}/cells")
    assert cell["name"] == f"{sha[:7]}/{RUNTIME}/nightly"
    assert (cell["state"], cell["verdict"], cell["origin"], cell["worker"]) == ("ended", "failed", "imported", None)
    attempt = attempt_of(service, job["id"])
    assert (attempt["origin"], attempt["worker"], attempt["deciding"], attempt["processes"]) == (
        "imported", None, True, [])  # fmt: skip
    assert (attempt["started_at"], attempt["ended_at"]) == ("2026-04-30T10:00:00Z", "2026-04-30T10:00:12.500000Z")
    assert attempt["environment"] == {
        "host": "node7", "gpus": [{"model": "NVIDIA H200"}] * 2, "driver": "570.1", "python": "3.11",
        "torch": "2.9.1+cu129", "lightning": "2.6.6", "properties": {"ci": "42"}, "origin": "imported",
        "tree": registered.git("rev-parse", "HEAD^{tree}").strip(),
    }  # fmt: skip
    (artifact,) = attempt["artifacts"]
    assert (artifact["name"], artifact["sha256"]) == ("junit.xml", hashlib.sha256(content.encode()).hexdigest())
    assert service.http.get(f"/api/v1/artifacts/{artifact['id']}").text == content
    cases = service.get(f"/attempts/{attempt['id']}/cases")["items"]
    assert [(case["node_id"], case["outcome"], case["duration_s"], case["message"]) for case in cases] == [
        ("tests/test_cases.py::test_one", "passed", 0.25, ""),
        ("tests/test_cases.py::test_two", "failed", 0.5, "assert 1 == 2"),
    ]


def test_it_is_said_everywhere_to_be_imported(service: RunningService, registered: GitRepository) -> None:
    """Table, CSV, Markdown, JUnit and pages; a table of our own runs has no such column."""
    service.submit("demo", "main")
    service.driver().must_claim().run({"a": Outcome.PASSED})
    job = send(service, report(GOOD))
    assert job["state"] == "passed"
    (row,) = service.get(f"/jobs/{job['id']}/table")["rows"]
    assert (row["origin"], row["result"], row["duration_s"]) == ("imported", "1 passed", 12.5)
    text = service.http.get(f"/api/v1/jobs/{job['id']}/table", params={"format": "markdown"}).text
    assert "| Origin |" in text
    assert "| imported |" in text
    head, line = service.http.get(f"/api/v1/jobs/{job['id']}/table", params={"format": "csv"}).text.splitlines()
    assert dict(zip(head.split(","), line.split(","), strict=True))["origin"] == "imported"
    assert "Origin" not in service.http.get("/api/v1/jobs/1/table", params={"format": "markdown"}).text
    assert service.get("/jobs/1")["origin"] == service.get("/jobs/1/table")["rows"][0]["origin"] == "run"
    xml = service.http.get(f"/api/v1/jobs/{job['id']}/junit.xml").text
    assert '<property name="origin" value="imported"/>' in xml
    cell = attempt_of(service, job["id"])["cell"]
    for page, times in (("/", 1), (f"/jobs/{job['id']}", 2), (f"/cells/{cell}", 1), ("/jobs/1", 0)):
        assert service.http.get(page).text.count(">imported</span>") == times, page
    assert "nothing of it was asserted here" in service.http.get(f"/cells/{cell}").text


def test_histories_and_comparisons_tell_imported_results_from_our_own(
    service: RunningService, registered: GitRepository
) -> None:
    """The same case, run by us in one commit and imported for another; both in JSON, Markdown and on the pages."""
    first, second = registered.git("rev-parse", "HEAD").strip(), registered.commit("second", more="x")
    node, where = "tests/test_cases.py::test_one", {"runtimes": [PYTHON], "suites": ["unit"]}
    service.submit("demo", first, **where)
    service.driver().must_claim().run({node: Outcome.PASSED})
    send(service, report(GOOD), commit=second, runtime=PYTHON, suite="unit")
    entries = service.http.get("/api/v1/history", params={"repository": "demo", "node_id": node}).json()["items"]
    assert [entry["origin"] for entry in entries] == ["imported", "run"]
    asked = {"repository": "demo", "base": second, "head": first}
    (pair,) = service.http.get("/api/v1/compare", params=asked).json()["pairs"]
    assert (pair["base"]["origin"], pair["head"]["origin"]) == ("imported", "run")
    assert pair["note"].startswith("base was imported; ")
    assert "base was imported" in service.http.get("/api/v1/compare", params={**asked, "format": "markdown"}).text
    for page in (f"/history?case={entries[1]['case']}", f"/compare?repository=demo&base={second}&head={first}"):
        assert service.http.get(page).text.count(">imported</span>") == 1, page


def test_every_answer_with_a_verdict_or_a_trees_outcome_says_its_origin(service: RunningService) -> None:
    """Whatever else the API comes to tell of results."""
    schemas = service.http.get("/openapi.json").json()["components"]["schemas"]
    keys = {name: set(schema.get("properties", {})) for name, schema in schemas.items() if name.endswith(SHOWN)}
    told = {name for name, have in keys.items() if "verdict" in have or {"tree", "outcome"} <= have}
    assert {"AttemptOutput", "CellOutput", "HistoryEntry", "SideOutput"} <= told
    assert [name for name in sorted(told) if "origin" not in keys[name]] == []


def test_no_run_of_ours_has_its_digest_or_its_comparison_key(
    service: RunningService, registered: GitRepository
) -> None:
    """The same cases of the same tree, on what is said to be the same GPU. The export is proven as imported alone."""
    tree = registered.git("rev-parse", "HEAD^{tree}").strip()
    own = service.submit("demo", "main", suites=["unit"], runtimes=[PYTHON])["id"]
    attempt = service.driver().must_claim()
    attempt.start(1)
    attempt.send(EnvironmentEvent({"gpus": [{"model": "NVIDIA H200"}], "driver": "570.1", "tree": tree}))
    attempt.send(attempt.case("tests/test_cases.py::test_one"))
    attempt.end(1)
    job = send(service, report(GOOD), runtime=PYTHON, suite="unit", gpu="NVIDIA H200", driver="570.1")["id"]
    first, second = attempt_of(service, own), attempt_of(service, job)
    assert second["comparison_key"] == f"imported: {first['comparison_key']}"
    token = service.http.headers["Authorization"].removeprefix("Bearer ")
    with Client(service.url, token) as client:
        ours, theirs = export(client, own), export(client, job)
    assert ours.attempts[0].digest != theirs.attempts[0].digest
    assert ours.unproven() == theirs.unproven() == []
    assert theirs.attempts[0].origin == theirs.table.rows[0].origin == "imported"
    for pretended in (_as_own(theirs, row=True, attempt=True), _as_own(theirs, row=True, attempt=False),
                      _as_own(theirs, row=False, attempt=True)):  # fmt: skip
        assert pretended.unproven()


def _as_own(theirs: Export, *, row: bool, attempt: bool) -> Export:
    """An export whose word `imported` was changed by hand."""
    data = theirs.model_dump()
    if row:
        data["table"]["rows"][0]["origin"] = "run"
    if attempt:
        data["attempts"][0]["origin"] = "run"
    return Export.model_validate(data)


def test_no_worker_gets_it_and_nobody_runs_it_again(service: RunningService, registered: GitRepository) -> None:
    """Not a worker of any kind, nor by rerun, whole or by cell; nor can it be cancelled."""
    job = send(service, report(BAD))["id"]
    cell = attempt_of(service, job)["cell"]
    for path, body in (("rerun", {}), ("rerun", {"cells": [cell]}), ("cancel", {})):
        problem = service.post(f"/jobs/{job}/{path}", body, 409)
        assert problem["code"] == "imported-results"
        assert f"job {job} holds results that were imported" in problem["detail"]
    assert service.driver("w2", kinds=("cpu", "cuda", "import")).claim() is None
    assert service.get(f"/jobs/{job}")["state"] == "failed"


@pytest.mark.parametrize(
    ("content", "more", "status", "code", "says"),
    [
        ("no xml", {}, 422, "report-refused", "line 1, column 1"),
        ("<!DOCTYPE x><testsuites/>", {}, 422, "report-refused", "document type"),
        ("<testsuites/>", {"repository": "none"}, 404, "repository-unknown", "'none'"),
        ("<testsuites/>", {"commit": "gone"}, 422, "commit-unreachable", "'gone'"),
        ("<testsuites/>", {"commit": "--x"}, 422, "ref-refused", "'--x'"),
        ("<testsuites/>", {"runtime": "3.11"}, 422, "runtime-invalid", "'3.11'"),
        ("<testsuites/>", {"suite": "../x"}, 422, "invalid-request", "suite"),
        ("<testsuites/>", {"odd": "1"}, 422, "invalid-request", "odd"),
        ("<testsuites/>", {"label": "a\0b"}, 422, "invalid-request", "NUL"),
        ("", {}, 422, "report-refused", "no element found"),
    ],
)
def test_what_cannot_be_imported_is_refused(
    service: RunningService, registered: GitRepository, content: str, more: Any, status: int, code: str, says: str
) -> None:
    """By a problem document; nothing is stored, and no file is left."""
    problem = send(service, content, expect=status, **more)
    assert problem["code"] == code
    assert says in problem["detail"]
    assert service.get("/jobs")["items"] == []
    assert not (service.settings.data_dir / "artifacts").exists()


def test_a_report_that_is_too_large_is_refused(tmp_path: Path, sqlite_url: str, broker_url: str) -> None:
    """With 413, while it is read; one byte less is taken in."""
    with running_service.running(tmp_path / "data", sqlite_url, broker_url, artifact_cap_bytes=5_000) as service:
        for size, status, code in ((5_001, 413, "too-large"), (5_000, 404, "repository-unknown")):
            assert send(service, "<testsuites/>".ljust(size), expect=status)["code"] == code


def test_the_same_key_and_report_make_one_job(service: RunningService, registered: GitRepository) -> None:
    """Also at once; another report, or the same for another suite, is a conflict."""
    with ThreadPoolExecutor(4) as pool:
        jobs = list(pool.map(lambda _: send(service, report(GOOD), "k1")["id"], range(4)))
    registered.commit("moved on")
    assert {*jobs, send(service, report(GOOD), "k1")["id"]} == {jobs[0]}
    assert send(service, report(BAD), "k1", 409)["code"] == "idempotency-conflict"
    assert send(service, report(GOOD), "k1", 409, suite="other")["code"] == "idempotency-conflict"
    assert send(service, report(GOOD))["id"] != jobs[0]


def test_a_report_without_cases_is_not_passed(service: RunningService, registered: GitRepository) -> None:
    """No case, or none that ran."""
    for elements in ((), ('<testcase name="a"><skipped message="no GPU"/></testcase>',)):
        job = send(service, report(*elements))
        assert job["state"] == "broken"
        assert attempt_of(service, job["id"])["verdict"] == "no-cases"


def test_what_a_report_tells_in_vain_is_told_with_its_results(
    service: RunningService, registered: GitRepository
) -> None:
    """An impossible time beside what passed, and a total that its cases do not reach, which is no pass."""
    odd = '<testcase name="a" time="-5"/>'
    job = send(service, report(odd))
    assert job["state"] == "passed"
    told = attempt_of(service, job["id"])["detail"]
    assert "counts as 0 s: '-5'" in told
    assert job["detail"] == service.get(f"/jobs/{job['id']}/table")["detail"] == told
    assert "<dt>Of the report</dt>" in service.http.get(f"/jobs/{job['id']}").text
    job = send(service, f"<testsuite tests='5'>{odd}</testsuite>")
    attempt = attempt_of(service, job["id"])
    assert (job["state"], attempt["verdict"], attempt["collected"]) == ("broken", "incomplete", 5)
    assert "the report tells of 5 cases and has 1" in attempt["detail"]
    assert "the report tells of 5 cases and has 1" in job["detail"]


def test_what_we_export_comes_back_as_it_was(service: RunningService, registered: GitRepository) -> None:
    """The same cases, outcomes, classes, durations, messages and tracebacks, whatever their names; then once more."""
    service.submit("demo", "main", suites=["unit"])
    attempt = service.driver().must_claim()
    names = ("t/test_a.py::C::D::x[a.b]", "t/test_a.py::x[a::b]", "t/test_a.py", "odd", "a.b/c.yaml::y", "::z",
             "t.py::", "t/ä b.py::é\n\t<&>\"'", "./t/a.py::x", "/t/a.py::x", r"t\a.py::x", "(collection)")  # fmt: skip
    sent = [
        attempt.case(name, outcome, occurrence=occurrence, duration_s=duration, message=message, traceback=traceback,
                     failure_class=failure_class, properties=properties)
        for number, name in enumerate(names)
        for occurrence, outcome in enumerate(Outcome)
        for duration in (0.1 + 0.2 * number, )
        for message in ("" if number % 2 else "one\n two <&> \"'",)
        for traceback in ("" if outcome in (Outcome.PASSED, Outcome.XPASSED) else "a\r\nb\n]]>",)
        for failure_class in (FailureClass.BITWISE_MISMATCH if number % 3 and outcome is not Outcome.PASSED else None,)
        for properties in ({"k": "v", "system-out": "said\n"},)
    ]  # fmt: skip
    attempt.start(len(sent))
    attempt.send(*reversed(sent))
    attempt.end(len(sent), exit_code=1)
    first = attempt.assignment.attempt
    told = _told(service, first)
    assert len(told) == len(sent)
    for _ in range(2):
        xml = service.http.get(f"/api/v1/attempts/{first}/junit.xml").content
        job = send(service, xml, runtime=PYTHON, suite="unit")
        first = attempt_of(service, job["id"])["id"]
        assert _told(service, first) == told
        assert job["counts"] == service.get("/jobs/1")["counts"]


def _told(service: RunningService, attempt: int) -> list[Any]:
    kept = ("node_id", "occurrence", "outcome", "failure_class", "duration_s", "message", "traceback", "properties",
            "cleaned")  # fmt: skip
    items = service.get(f"/attempts/{attempt}/cases?limit=1000")["items"]
    return [{key: case[key] for key in kept} for case in items]


def test_a_fault_comes_back_as_no_case(service: RunningService, registered: GitRepository) -> None:
    """What our export says of a cell that has no case is said again, and is not passed."""
    job = service.submit("demo", "main")["id"]
    service.post(f"/jobs/{job}/cancel")
    made = send(service, service.http.get(f"/api/v1/jobs/{job}/junit.xml").content)
    attempt = attempt_of(service, made["id"])
    assert (attempt["verdict"], attempt["counts"]) == ("incomplete", {})
    assert attempt["detail"] == "no attempt: cancelled"


def test_earlier_runs_of_a_case_are_seen_and_do_not_count(service: RunningService, registered: GitRepository) -> None:
    """Surefire's reruns: the last observation counts, and the cell says that there were others."""
    job = send(service, report('<testcase classname="F" name="a"><flakyFailure message="at first"/></testcase>'))
    attempt = attempt_of(service, job["id"])
    assert (job["state"], attempt["counts"]) == ("passed", {"passed": 1})
    assert attempt["detail"] == "passed only when run again: 1"
    every = service.get(f"/attempts/{attempt['id']}/cases?last=false")["items"]
    assert [(case["process"], case["outcome"], case["last"]) for case in every] == [
        (1, "failed", False), (2, "passed", True)]  # fmt: skip


def test_the_files_of_the_commit_say_where_a_path_ends(service: RunningService, registered: GitRepository) -> None:
    """Also of one that is not named as pytest names its files."""
    registered.commit("checks", checks__parity_dot_py="")
    job = send(service, report('<testcase classname="checks.parity.Bits" name="a"/>'))
    (case,) = service.get(f"/attempts/{attempt_of(service, job['id'])['id']}/cases")["items"]
    assert case["node_id"] == "checks/parity.py::Bits::a"


def test_the_client_sends_a_report(service: RunningService, registered: GitRepository) -> None:
    """With several GPUs, and without what is left out."""
    token = service.http.headers["Authorization"].removeprefix("Bearer ")
    with Client(service.url, token) as client:
        job = client.import_report(report(GOOD).encode(), ImportInput(**{**ABOUT, "gpu": ["A", "B"]}))
        (cell,) = client.cells(job.id)
    assert (job.origin, cell.gpu) == ("imported", "A, B")


def test_the_database_goes_back_without_what_was_imported(
    service: RunningService, registered: GitRepository, database_url: str
) -> None:
    """Without the column it would pass for a run of ours. What was run stays, and can be imported beside again."""
    own = service.submit("demo", "main")["id"]
    service.driver().must_claim().run({"a": Outcome.PASSED})
    send(service, report(GOOD, BAD), "k1")
    service.database.close()
    downgrade(database_url, "0005")
    upgrade(database_url)
    assert [job["id"] for job in service.get("/jobs")["items"]] == [own]
    assert attempt_of(service, own)["counts"] == {"passed": 1}
    send(service, report(GOOD), "k1")
    with service.database.read() as session:
        indexes = inspect(session.connection()).get_indexes("attempts")
    (deciding,) = (index for index in indexes if index["name"] == "uq_attempts_deciding")
    where = [str(text) for option, text in deciding["dialect_options"].items() if option.endswith("_where")]
    assert where == ["deciding"]


def test_a_report_that_counts_more_failures_than_a_column_holds_is_no_pass(
    service: RunningService, registered: GitRepository
) -> None:
    """Absurd counts are taken as what they say at least: that something failed."""
    nines = "9" * 13
    suite = f"<testsuite failures='{nines}' errors='{nines}'>{GOOD}</testsuite>"
    content = f"<testsuites>{suite}{suite}</testsuites>"
    job = send(service, content)
    assert job["state"] == "broken"
    attempt = attempt_of(service, job["id"])
    assert (attempt["verdict"], attempt["collected"]) == ("incomplete", 10**9 + 2)
