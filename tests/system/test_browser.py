"""The pages in a real browser: what a reader sees while a job runs, without touching anything."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from service.database import upgrade
from service.tokens import ensure
from tests.support import broker, repository, running_service
from tests.support.running_service import DrivenAttempt, RunningService
from worker.messages import AttemptEndedEvent, Cause, Outcome

CHROMIUM = Path(os.environ.get("REPLAYBENCH_TEST_CHROMIUM", "/usr/bin/chromium"))
# Without its sandbox it runs as root, as in a container; the rest keeps it from speaking to anybody but the service.
SWITCHES = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDTHS = {"wide": 1280, "phone": 390}

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="needs Chromium"),
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser for all tests of the file."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=SWITCHES)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def broker_url() -> Iterator[str]:
    """A Redis-compatible server's URL."""
    with broker.running() as url:
        yield url


@pytest.fixture
def service(tmp_path: Path, broker_url: str) -> Iterator[RunningService]:
    """A running service with a registered repository."""
    url = f"sqlite:///{tmp_path / 'replaybench.db'}"
    upgrade(url)
    made = repository.make(tmp_path / "repo")
    with running_service.running(tmp_path / "data", url, broker_url, sweep_s=0.5, lease_s=60) as it:
        it.post("/repositories", {"name": "demo", "url": str(made.path)}, 201)
        yield it


@dataclass
class Reader:
    """A signed-in tab that notes everything it complains about."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        """Opens a page and marks the document, so that a reload would be noticed."""
        self.page.goto(self.url + path)
        self.page.evaluate("window.sameDocument = true")
        return self.page

    def is_same_document(self) -> bool:
        """Whether the page was never loaded again."""
        return bool(self.page.evaluate("window.sameDocument === true"))


Open = Callable[..., Reader]


@pytest.fixture
def open_tab(chromium: Browser, service: RunningService) -> Iterator[Open]:
    """Opens signed-in tabs; none may have complained, of an inline script or anything else."""
    readers: list[Reader] = []

    def opened(width: str = "wide", scheme: str = "light") -> Reader:
        context = chromium.new_context(viewport={"width": WIDTHS[width], "height": 860}, color_scheme=scheme)
        reader = Reader(context.new_page(), service.url)
        reader.page.on("console", lambda said: reader.complaints.append(said.text) if said.type == "error" else None)
        reader.page.on("pageerror", lambda error: reader.complaints.append(str(error)))
        reader.page.goto(f"{service.url}/sign-in#token={ensure(service.settings.data_dir).submit}")
        reader.page.wait_for_url(f"{service.url}/")
        readers.append(reader)
        return reader

    yield opened
    complaints = [complaint for reader in readers for complaint in reader.complaints]
    for reader in readers:
        reader.page.context.close()
    assert complaints == []


def begin(service: RunningService, collected: int = 3) -> DrivenAttempt:
    """A job of two suites, one of them claimed and running."""
    service.submit("demo", "main", suites=["unit", "other"], label="live", work_package="WP-207")
    attempt = service.driver().must_claim()
    attempt.start(collected)
    return attempt


def test_counts_change_without_a_reload(service: RunningService, open_tab: Open, tmp_path: Path) -> None:
    """Events of a worker reach an open page; when the job has ended, it shows what a fresh one would."""
    attempt = begin(service)
    reader = open_tab()
    page = reader.open("/jobs/1")
    cell = page.locator(f"#cell-{attempt.assignment.cell.id}")
    expect(page.locator("#live")).to_have_text("live")
    attempt.send(attempt.case("t.py::one"), running="t.py::two[<b>]")
    expect(cell.locator("[data-field=counts]")).to_have_text("1 passed")
    expect(cell.locator("[data-field=running]")).to_have_text("t.py::two[<b>]")
    attempt.send(attempt.case("t.py::two", Outcome.FAILED), attempt.case("t.py::three"))
    expect(cell.locator("[data-field=counts]")).to_have_text("1 failed, 2 passed")
    expect(page.locator("#job-counts")).to_have_text("1 failed, 2 passed")
    page.screenshot(path=tmp_path / "running.png", full_page=True)
    attempt.end(3, exit_code=1)
    expect(cell.locator("[data-field=word]")).to_have_text("failed")
    service.driver("w2").must_claim().run({"t.py::four": Outcome.SKIPPED, "t.py::five": Outcome.PASSED})
    expect(page.locator("#job-state")).to_have_text("failed")
    expect(page.locator("#job-summary")).to_have_text("2 of 2 cells ended: 1 failed, 1 passed")
    expect(page.locator("#live")).to_have_attribute("data-live", "ended")
    page.screenshot(path=tmp_path / "ended.png", full_page=True)
    assert reader.is_same_document()
    patched = [page.locator(part).inner_text() for part in (".hero", "#matrix", "h1")]
    page.reload()
    assert [page.locator(part).inner_text() for part in (".hero", "#matrix", "h1")] == patched


def test_what_is_drawn_live_reads_as_a_page_that_is_opened_then(service: RunningService, open_tab: Open) -> None:
    """Of every outcome; and where fewer or more cases were reported, or asked for in vain, than were collected."""
    attempt = begin(service, collected=2)
    watched, opened = (open_tab().open("/jobs/1") for _ in range(2))
    expect(watched.locator("#live")).to_have_text("live")
    cell = f"#cell-{attempt.assignment.cell.id}"
    outcomes = [Outcome.NOT_OBSERVED, *(outcome for outcome in Outcome if outcome is not Outcome.NOT_OBSERVED)]
    for number, outcome in enumerate(outcomes):
        attempt.send(attempt.case(f"t.py::case{number}", outcome))
        opened.reload()
        assert f"1 {outcome.replace('-', ' ')}" in opened.locator(f"{cell} [data-field=counts]").inner_text()
        for part in ("counts", "reported", "word"):
            said = opened.locator(f"{cell} [data-field={part}]").inner_text()
            expect(watched.locator(f"{cell} [data-field={part}]")).to_have_text(said)
        label = opened.locator(f"{cell} [data-field=bar]").get_attribute("aria-label") or ""
        expect(watched.locator(f"{cell} [data-field=bar]")).to_have_attribute("aria-label", label)
    expect(watched.locator(f"{cell} [data-field=reported]")).to_have_text("8 cases")


def test_a_job_that_ends_without_a_case_says_so_to_who_watches(service: RunningService, open_tab: Open) -> None:
    """And gives the first line of the reason that tells something, cut between words."""
    service.submit("demo", "main", suites=["unit"])
    attempt = service.driver().must_claim()
    page = open_tab().open("/jobs/1")
    expect(page.locator("#live")).to_have_text("live")
    expect(page.locator("#job-counts")).to_have_text("Nothing reported yet")
    reason = "\n no  solution found\n" + "word " * 200
    attempt.send(AttemptEndedEvent(Cause.ENVIRONMENT, reason))
    expect(page.locator("#job-state")).to_have_text("broken")
    expect(page.locator("#job-counts")).to_have_text("No case ran")
    shown = page.locator(f"#cell-{attempt.assignment.cell.id} [data-field=reason]")
    expect(shown).to_have_text("no solution found")
    page.reload()
    expect(page.locator("#job-counts")).to_have_text("No case ran")
    expect(shown).to_have_text("no solution found")


def test_polling_stands_in_where_streams_do_not_come_through(service: RunningService, open_tab: Open) -> None:
    """A proxy that swallows event streams costs some seconds, and nothing else."""
    attempt = begin(service)
    reader = open_tab()
    reader.page.route("**/stream", swallow)
    page = reader.open("/jobs/1")
    expect(page.locator("#live")).to_have_attribute("data-live", "poll", timeout=20_000)
    attempt.send(attempt.case("t.py::one"))
    expect(page.locator("#job-counts")).to_have_text("1 passed", timeout=15_000)
    attempt.end(1)
    service.post("/jobs/1/cancel")
    expect(page.locator("#live")).to_have_attribute("data-live", "ended", timeout=15_000)
    reader.complaints.clear()  # the browser reports each stream that was swallowed


def swallow(route: Route) -> None:
    """Answers an event stream with something else, as a proxy's error page does."""
    route.fulfill(status=502, body="bad gateway", content_type="text/html")


def test_a_cell_is_live_too(service: RunningService, open_tab: Open) -> None:
    """Its log's tail follows what the worker sends, and an opened traceback stays open while cases arrive."""
    attempt = begin(service)
    attempt.send(attempt.case("t.py::one", Outcome.FAILED, message="no", traceback="E  one is not two"))
    reader = open_tab()
    page = reader.open("/cells/1")
    page.get_by_text("Traceback").click()
    expect(page.get_by_text("E  one is not two")).to_be_visible()
    attempt.send(attempt.case("t.py::two"), log_tail="\x1b[32mgreen\x1b[0m\n 10%|#  |\r100%|###|\n")
    expect(page.locator("#log pre")).to_have_text("green\n100%|###|\n", use_inner_text=True)
    expect(page.locator("#cases")).to_contain_text("t.py::two")
    expect(page.get_by_text("E  one is not two")).to_be_visible()
    attempt.end(2, exit_code=1)
    expect(page.locator("#cell-state")).to_have_text("failed")
    assert reader.is_same_document()


def test_a_cell_that_waits_fills_its_page_when_it_is_claimed(service: RunningService, open_tab: Open) -> None:
    """Cases, log and the log's file come to a page that was opened before there was any attempt."""
    service.submit("demo", "main")
    reader = open_tab()
    page = reader.open("/cells/1")
    expect(page.get_by_text("No worker has claimed this cell yet.")).to_be_visible()
    attempt = service.driver().must_claim()
    attempt.start(1)
    attempt.send(attempt.case("t.py::one"), log_tail="it runs\n")
    expect(page.locator("#cases")).to_contain_text("t.py::one")
    expect(page.locator("#log pre")).to_have_text("it runs\n", use_inner_text=True)
    expect(page.locator("#live")).to_have_text("live")
    path = f"/api/v1/worker/attempts/{attempt.assignment.attempt}/artifacts/pytest.log"
    stored = service.worker_http.put(path, content=b"it ran", headers={"X-Lease": attempt.assignment.token})
    assert stored.status_code == 201
    attempt.end(1)
    expect(page.locator("#log a")).to_contain_text("pytest.log")
    assert reader.is_same_document()


def test_a_link_with_the_token_behind_the_hash_signs_in(service: RunningService, chromium: Browser) -> None:
    """Such a token reaches no log; the address is clean afterwards, and a second visit needs no form."""
    context = chromium.new_context()
    page = context.new_page()
    page.goto(f"{service.url}/sign-in?next=/workers#token={ensure(service.settings.data_dir).submit}")
    expect(page.get_by_role("heading", name="Workers")).to_be_visible()
    assert page.url == f"{service.url}/workers"
    page.goto(f"{service.url}/sign-in?next=/workers")
    expect(page.get_by_role("heading", name="Workers")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Submit token")).to_be_visible()
    context.close()


def test_a_job_that_is_run_again_comes_alive_when_looked_at(service: RunningService, open_tab: Open) -> None:
    """A tab of an ended job holds no connection; back in front, it looks once and follows again."""
    attempt = begin(service)
    attempt.end(3)
    service.driver("w2").must_claim().run({"t.py::one": Outcome.PASSED})
    page = open_tab().open("/jobs/1")
    expect(page.locator("#job-state")).to_have_text("broken")  # three were collected and none reported
    service.post("/jobs/1/rerun")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#job-state")).to_have_text("running")
    expect(page.locator("#live")).to_have_text("live")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", list(WIDTHS))
def test_pages_fit_the_screen(service: RunningService, open_tab: Open, tmp_path: Path, width: str, scheme: str) -> None:
    """No page scrolls sideways, however long a node id or hostile a label."""
    forge = {"forge": "gitlab", "api_url": "https://forge.invalid", "project": "a/" + "b" * 300, "credential": "x"}
    service.http.put("/api/v1/repositories/demo/forge", json=forge).raise_for_status()
    service.post("/webhooks", {"url": f"https://hook.invalid/{'u' * 900}"}, 201)
    service.submit("demo", "main", label="<script>alert(1)</script> " + "long" * 40, reason="x" * 900)
    attempt = service.driver().must_claim()
    attempt.start(2)
    node_id = f"tests/{'deep/' * 30}t.py::test_{'x' * 300}[\x00<img src=x onerror=alert(1)>]"
    attempt.send(
        attempt.case(node_id, Outcome.FAILED, message="y" * 3000, traceback="z" * 3000, evidence={"tensor": "w" * 500}),
        running=node_id,
        log_tail="log " * 2000,
    )
    reader = open_tab(width, scheme)
    pages = {
        "jobs": "/",
        "job": "/jobs/1",
        "cell": "/cells/1",
        "workers": "/workers",
        "notifications": "/notifications",
    }
    for name, path in (*pages.items(), ("hooks", "/hooks"), ("audit", "/audit")):
        page = reader.open(path)
        for summary in page.locator("summary").all():
            summary.click()
        page.screenshot(path=tmp_path / f"{name}-{width}-{scheme}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[width]
        tables = page.locator(".scroll")
        assert tables.evaluate_all("found => found.every(one => one.scrollWidth <= one.clientWidth)"), name


def test_a_tab_holds_one_stream_and_a_hidden_one_none(service: RunningService, open_tab: Open) -> None:
    """A browser allows six connections to a host: tabs in the background must not use them up."""
    begin(service)
    reader = open_tab()
    opened: list[str] = []
    closed: list[str] = []
    reader.page.on("request", lambda request: opened.append(request.url) if "/stream" in request.url else None)
    reader.page.on("requestfailed", lambda request: closed.append(request.url) if "/stream" in request.url else None)
    page = reader.open("/jobs/1")
    expect(page.locator("#live")).to_have_text("live")
    page.wait_for_timeout(1000)
    assert (len(opened), len(closed)) == (1, 0)
    page.evaluate(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    page.wait_for_timeout(1000)
    assert (len(opened), len(closed)) == (1, 1)
    page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#live")).to_have_text("live")
    page.wait_for_timeout(500)
    assert len(opened) == 2
