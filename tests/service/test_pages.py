"""The pages of a running service: who may see them, what they show, what they never let through."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.app import create_app
from service.database import upgrade
from service.pages.sign_in import own_path
from service.settings import Settings
from service.tokens import Scope, ensure
from service.tokens import path as token_file
from tests.support.repository import GitRepository
from tests.support.running_service import DrivenAttempt, RunningService
from worker.messages import (
    AttemptEndedEvent,
    Cause,
    Device,
    EnvironmentEvent,
    FailureClass,
    Outcome,
    ProcessEndedEvent,
)


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """Pages say nothing to the database by themselves, so one kind is enough."""
    url = f"sqlite:///{tmp_path / 'replaybench.db'}"
    upgrade(url)
    return url


@pytest.fixture
def browser(service: RunningService) -> Iterator[httpx.Client]:
    """A client that has only what a browser has: cookies."""
    with httpx.Client(base_url=service.url, timeout=60) as client:
        yield client


@pytest.fixture
def reader(service: RunningService, browser: httpx.Client) -> httpx.Client:
    """A browser that is signed in."""
    token = ensure(service.settings.data_dir).submit
    assert browser.post("/sign-in", data={"token": token}).status_code == 303
    return browser


def attempt_of(service: RunningService) -> DrivenAttempt:
    """A claimed attempt of a new job on the registered repository."""
    service.submit("demo", "main", label="first <b>look</b>", work_package="WP-207", requested_by="m.keller")
    return service.driver().must_claim()


def test_pages_work_under_a_prefix(tmp_path: Path, database_url: str, broker_url: str) -> None:
    """Behind a proxy that serves them under ``/bench``, every address of a page has the prefix."""
    settings = Settings(data_dir=tmp_path / "data", database_url=database_url, broker_url=broker_url)
    asyncio.run(_look_under_prefix(settings))


@pytest.mark.parametrize("cause", [Cause.ENVIRONMENT, Cause.CANCELLED])
def test_what_ended_without_a_case_is_not_waited_for(
    service: RunningService, registered: GitRepository, reader: httpx.Client, cause: Cause
) -> None:
    """Neither the job's page nor the cell's speaks of a report to come; while it runs they do."""
    attempt = attempt_of(service)
    pages = ("/jobs/1", f"/cells/{attempt.assignment.cell.id}")
    for page in pages:
        assert "Nothing reported yet" in reader.get(page).text, page
    why = "No solution found: " + "one of these words " * 20
    attempt.end(0, cause=cause, detail=f"{why}\nUsing Python 3.11.7")
    for page in pages:
        text = reader.get(page).text
        assert "No case ran" in text, page
        assert " yet" not in re.sub(r"<script.*?</script>", "", text), page
        assert re.search(r"No solution found: (one of these words )+one of( these)?( words)?…<", text), page


async def _look_under_prefix(settings: Settings) -> None:
    app = create_app(settings)
    transport = httpx.ASGITransport(app, root_path="/bench")
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://bench.example") as client,
    ):
        asked = await client.get("/bench/workers")
        assert asked.headers["location"] == "/bench/sign-in?next=%2Fbench%2Fworkers"
        answer = await client.post("/bench/sign-in", data={"token": ensure(settings.data_dir).submit})
        assert answer.headers["location"] == "/bench/"
        assert "Path=/bench;" in answer.headers["set-cookie"]
        page = await client.get("/bench/workers")
        addresses = re.findall(r'(?:href|src|action)="(/[^"]*)"', page.text)
        assert addresses
        assert all(address.startswith("/bench/") for address in addresses)
        assert 'href="/bench/workers" aria-current="page"' in page.text
        for address in addresses:
            assert "/static/" not in address or (await client.get(address)).status_code == 200


@pytest.mark.parametrize("path", ["/nowhere", "/jobs/1/nothing", "/static", "/jobs"])
def test_an_unknown_address_is_a_page_for_who_reads_pages(browser: httpx.Client, path: str) -> None:
    """Signed in or not; programs, and whoever looks at the API, get the problem document."""
    page = browser.get(path, headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "There is no such page" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for asked, accept in ((path, "*/*"), (f"/api/v1{path}", "text/html")):
        answer = browser.get(asked, headers={"Accept": accept})
        if answer.status_code != 401:
            assert (answer.status_code, answer.json()["code"]) == (404, "no-such-path"), asked


@pytest.mark.parametrize("page", ["/", "/jobs/1", "/cells/1?outcome=failed", "/workers"])
def test_who_is_not_signed_in_is_led_to_the_sign_in(browser: httpx.Client, page: str) -> None:
    """Every page redirects, and remembers what was wanted."""
    answer = browser.get(page)
    assert answer.status_code == 303
    assert httpx.URL(answer.headers["location"]).path == "/sign-in"
    assert httpx.URL(answer.headers["location"]).params["next"] == page


def test_signing_in_by_the_form(service: RunningService, browser: httpx.Client) -> None:
    """The right token gives a cookie that scripts and other sites can't use, and leads on without the token."""
    assert "Submit token" in browser.get("/sign-in").text
    token = ensure(service.settings.data_dir).submit
    in_the_address = browser.get("/sign-in", params={"token": token})  # where logs and histories keep it
    assert (in_the_address.status_code, "set-cookie" in in_the_address.headers) == (200, False)
    answer = browser.post("/sign-in", data={"token": f" {token}\n", "next": "/workers"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/workers")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert browser.get("/workers").status_code == 200
    assert browser.post("/sign-out").headers["location"] == "/sign-in"
    assert browser.get("/workers").status_code == 303


@pytest.mark.parametrize("token", ["", "wrong", "ünïcode", "rb_" + "x" * 400])
def test_a_wrong_token_says_where_the_right_one_is(service: RunningService, browser: httpx.Client, token: str) -> None:
    """The answer is a page with the token's file, and no cookie."""
    answer = browser.post("/sign-in", data={"token": token})
    assert answer.status_code == 401
    assert str(token_file(service.settings.data_dir, Scope.SUBMIT)) in answer.text
    assert "set-cookie" not in answer.headers


def test_the_worker_token_is_no_way_in(service: RunningService, browser: httpx.Client) -> None:
    """It is refused by its name."""
    answer = browser.post("/sign-in", data={"token": ensure(service.settings.data_dir).worker})
    assert answer.status_code == 401
    assert "This is the worker token" in answer.text


def test_a_form_of_megabytes_is_refused(browser: httpx.Client) -> None:
    """Nobody who isn't signed in makes the service hold a large body."""
    assert browser.post("/sign-in", content=b"token=" + b"x" * 1_000_000).status_code == 413


@pytest.mark.parametrize(
    "wanted",
    ["//evil.example", "https://evil.example", "/\\evil.example", "/\t/evil.example", "javascript:1", "", "/ /x"],
)
def test_signing_in_leads_to_no_other_site(wanted: str) -> None:
    """What a browser could read as another site's address is replaced."""
    assert own_path(wanted, "/home") == "/home"
    assert own_path("/jobs/3?a=1#cases", "/home") == "/jobs/3?a=1#cases"
    assert own_path("/", "/home") == "/"


def test_pages_let_nothing_inline_run(reader: httpx.Client) -> None:
    """The policy allows this site's own files alone, and the pages need no more."""
    answer = reader.get("/")
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert not re.search(r"<style|style=|onclick=|<script(?! type=\"module\" src=)", answer.text)
    for address in re.findall(r'(?:src|href)="(/static/[^"]+)"', answer.text):
        file = reader.get(address)
        assert file.status_code == 200
        assert "immutable" in file.headers["cache-control"]
    assert reader.get("/static/..%2Frender.py").status_code == 404


def test_the_latest_jobs(service: RunningService, registered: GitRepository, reader: httpx.Client) -> None:
    """An empty service says how to begin; then jobs stand newest first, with a way to the older ones."""
    assert "replaybench submit" in reader.get("/").text
    for number in range(31):
        service.submit("demo", "main", label=f"label {number}")
    first = reader.get("/").text
    assert first.index("label 30") < first.index("label 1<")
    older = re.search(r'href="(/\?before=\d+)"', first)
    assert older is not None
    assert "label 0" not in first
    assert "label 0" in reader.get(older[1]).text


def test_a_job_and_its_matrix(service: RunningService, registered: GitRepository, reader: httpx.Client) -> None:
    """The page has who, why, the counts so far, what runs now, and everything escaped."""
    attempt = attempt_of(service)
    attempt.start(3)
    attempt.send(attempt.case("t.py::one"), attempt.case("t.py::two", Outcome.FAILED), running="t.py::three[<i>\x01]")
    page = reader.get("/jobs/1").text
    assert "first &lt;b&gt;look&lt;/b&gt;" in page
    assert "t.py::three[&lt;i&gt;␁]" in page
    for words in ("WP-207", "m.keller", "1 failed", "1 passed", "2 of 3 cases", 'data-state="running"', "<caption"):
        assert words in page


def test_a_cell_with_its_cases(service: RunningService, registered: GitRepository, reader: httpx.Client) -> None:
    """Cases show class, message, traceback and evidence; a filter leaves those of one outcome."""
    attempt = attempt_of(service)
    attempt.start(2)
    record = {"gpus": [{"model": "NVIDIA L4", "uuid": "GPU-1"}], "torch": "2.9.1+cu129", "packages": {"torch": "2.9.1"}}
    bad = attempt.case(
        "t.py::bad",
        Outcome.FAILED,
        failure_class=FailureClass.BITWISE_MISMATCH,
        message="778 of 893 tensors differ",
        traceback="E   \x1b[31mBitwiseMismatch\x1b[0m",
        evidence={"tensor": "conv.weight", "step": 2},
    )
    record |= {"sandbox": "none: bwrap is not installed"}
    attempt.send(EnvironmentEvent(record), attempt.case("t.py::good"), bad)
    page = reader.get("/cells/1").text
    assert re.search(r"<dt>Sandbox</dt>\s*<dd>none: bwrap is not installed", page)
    for words in ("bitwise-mismatch", "778 of 893", "E   BitwiseMismatch", "conv.weight", "NVIDIA L4", "t.py::good"):
        assert words in page
    assert "t.py::good" not in reader.get("/cells/1?outcome=failed").text
    assert "t.py::bad" not in reader.get("/cells/1?outcome=passed").text
    assert "No case of this attempt" in reader.get("/cells/1?outcome=crashed").text


def test_no_page_says_that_more_was_reported_than_collected(
    service: RunningService, registered: GitRepository, reader: httpx.Client
) -> None:
    """Where a case was asked for that nothing collected, and where a process ended with more than it collected."""
    attempt = attempt_of(service)
    attempt.start(1)
    attempt.send(attempt.case("t.py::one"), attempt.case("t.py::gone", Outcome.NOT_OBSERVED))
    attempt.send(ProcessEndedEvent(1, 0, None, 1, 2, True), AttemptEndedEvent(Cause.FINISHED, ""))
    job, cell = (reader.get(path).text for path in ("/jobs/1", "/cells/1"))
    for page in (job, cell):
        assert "1 not observed" in page
        assert "2 of 1" not in page
    assert 'data-field="reported">1 case<' in job
    assert 'aria-label="1 case"' in job
    assert "1 case reported" in cell


def test_cases_come_in_pages(service: RunningService, registered: GitRepository, reader: httpx.Client) -> None:
    """A hundred a page, each case on one of them, under the filter too."""
    attempt = attempt_of(service)
    attempt.start(250)
    attempt.send(*(attempt.case(f"t.py::case_{number:03}") for number in range(250)))
    address, seen = "/cells/1?outcome=passed", []
    while address:
        page = reader.get(address).text
        seen += re.findall(r"case_\d{3}", page)
        following = re.search(r'rel="next" href="([^"#]+)', page)
        address = following[1].replace("&amp;", "&") if following else ""
    assert seen == [f"case_{number:03}" for number in range(250)]


def test_a_long_log_is_windowed(service: RunningService, registered: GitRepository, reader: httpx.Client) -> None:
    """35,000 lines cost the page 400, without colours."""
    attempt = attempt_of(service)
    attempt.start(1)
    attempt.send(log_tail="".join(f"\x1b[1mline {number}\x1b[0m\n" for number in range(35_000)))
    page = reader.get("/cells/1").text
    assert "line 34999" in page
    assert "34,600 earlier ones are not shown" in page
    assert len(page) < 60_000


def test_a_node_id_of_a_megabyte(service: RunningService, registered: GitRepository, reader: httpx.Client) -> None:
    """It is shortened on the page, which stays small."""
    attempt = attempt_of(service)
    attempt.start(1)
    attempt.send(attempt.case(f"t.py::big[{'x' * 1_000_000}-end]"), running=f"t.py::big[{'y' * 1_000_000}]")
    for address in ("/cells/1", "/jobs/1"):
        page = reader.get(address)
        assert page.status_code == 200
        assert len(page.content) < 100_000
    assert "-end]" in reader.get("/cells/1").text


def test_what_is_not_there_is_a_page(reader: httpx.Client) -> None:
    """An unknown number, and one that can't be a number, answer 404 as HTML."""
    for address in ("/jobs/99", "/cells/99", "/jobs/abc", f"/jobs/{10**30}", "/cells/0"):
        answer = reader.get(address)
        assert answer.status_code == 404
        assert answer.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(
    ("address", "status", "says"),
    [
        ("/jobs/abc", 404, "In /jobs/abc the job is 'abc'; it must be a whole number."),
        ("/cells/1.5", 404, "In /cells/1.5 the cell is '1.5'; it must be a whole number."),
        ("/jobs/0", 404, "In /jobs/0 the job is '0'; it must be greater than or equal to 1."),
        (f"/jobs/{10**30}", 404, f"the job is '{10**30}'; it must be less than or equal to"),
        ("/cells/1?outcome=green", 422, "outcome= is 'green'; it must be 'passed', 'failed'"),
        ("/cells/1?attempt=x", 422, "attempt= is 'x'; it must be a whole number, or leave it out."),
        (f"/cells/1?after={10**30}", 422, "it must be less than or equal to"),
        (f"/compare?job={10**30}", 422, "it must be less than or equal to"),
        ("/?before=x", 422, "before= is 'x'; it must be a whole number, or leave it out."),
        ("/history", 422, "/history needs case= behind a question mark: the number of an observed case, which"),
        ("/history?case=a&before=b", 422, "case= is 'a'; it must be a whole number. before= is 'b'"),
    ],
)
def test_an_address_that_is_not_understood_says_what_it_must_be(
    reader: httpx.Client, address: str, status: int, says: str
) -> None:
    """With the value; a page that is there and lacks a parameter is not said to be missing."""
    answer = reader.get(address)
    assert answer.status_code == status
    assert says in html.unescape(answer.text)
    assert "_id" not in answer.text


@pytest.mark.parametrize("path", ["/jobs", "/repositories", "/tokens", "/nope", "/attempts/1"])
@pytest.mark.parametrize("accept", ["text/html,*/*;q=0.8", "*/*"])
def test_who_is_signed_in_by_a_cookie_gets_pages(reader: httpx.Client, path: str, accept: str) -> None:
    """Whatever the browser says of what it takes; below /api/, and who asks for JSON, gets a problem document."""
    page = reader.get(path, headers={"Accept": accept})
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "There is no such page" in page.text
    assert reader.get(f"/api{path}", headers={"Accept": accept}).json()["code"] == "no-such-path"
    assert reader.get(path, headers={"Accept": "application/json"}).json()["code"] == "no-such-path"


def test_workers(service: RunningService, reader: httpx.Client) -> None:
    """None, then one with what it can serve."""
    assert "No worker has registered" in reader.get("/workers").text
    service.driver("gpu-1", kinds=("cpu", "cuda"))
    page = reader.get("/workers").text
    for words in ("gpu-1", "cuda", "live", "1 of 1 worker"):
        assert words in page


def test_a_drained_card_is_shown_with_its_reason(service: RunningService, reader: httpx.Client) -> None:
    """Beside those that are fit."""
    fit = Device(0, "GPU-0", "NVIDIA H200", 143771, "580.95", "13.0")
    drained = Device(1, "GPU-1", "NVIDIA H200", 143771, "580.95", "13.0", drained="Xid 79 <the GPU>")
    service.driver("h200", kinds=("cuda",), devices=(fit, drained))
    page = reader.get("/workers").text
    assert "GPU 1 drained: Xid 79 &lt;the GPU&gt;" in page
    assert page.count("drained") == 1
