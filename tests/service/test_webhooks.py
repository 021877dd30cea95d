"""Webhooks: signed events of jobs, what became of each, and what is never called. On both databases."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import ipaddress
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from service.clock import now
from service.models import Webhook, WebhookDelivery
from service.outgoing import call, retry
from service.webhooks import service as webhooks
from service.webhooks import signature
from tests.support import forge_server, running_service
from tests.support.forge_server import Call, Reply, Server
from tests.support.repository import GitRepository
from tests.support.running_service import RunningService
from tests.support.waiting import wait_for
from worker.messages import Outcome

PUBLIC = "https://bench.example.org/prefix/"

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
            given = {"sweep_s": 0.2, "lease_s": 20, "delivery_s": 0.05, "private_targets": "127.0.0.1", **overrides}
            return stack.enter_context(running_service.running(tmp_path / name, database_url, broker_url, **given))

        yield run


@pytest.fixture
def service(start: Start) -> RunningService:
    """One of them."""
    return start(public_url=PUBLIC)


@pytest.fixture
def receiver() -> Iterator[Server]:
    """Somebody's server, which takes everything."""
    with forge_server.serving(lambda _: Reply(204, b"")) as it:
        yield it


def add(service: RunningService, receiver: Server, **fields: Any) -> Any:
    """Registers a webhook."""
    return service.post("/webhooks", {"url": f"{receiver.url}/in?a=b", **fields}, 201)


def signers(sent: Call, *secrets: str) -> list[str]:
    """Those of the secrets that signed a call, worked out from the specification's words."""
    signed = f"{sent.headers['webhook-id']}.{sent.headers['webhook-timestamp']}.".encode() + sent.body
    given = [part.partition(",") for part in sent.headers["webhook-signature"].split(" ")]
    assert all(version == "v1" for version, _, _ in given)
    found = []
    for secret in secrets:
        key = base64.b64decode(secret.removeprefix("whsec_"))
        wanted = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        if wanted in [value for _, _, value in given]:
            found.append(secret)
    assert len(found) == len(given), "a signature is by none of the secrets"
    return found


def deliveries(service: RunningService, query: str = "") -> Any:
    """The latest deliveries, newest first."""
    return service.get(f"/webhooks/deliveries{query}")["items"]


def ended(service: RunningService, state: str) -> Any:
    """The latest delivery, once it is in a state."""
    return wait_for(
        lambda: (found := deliveries(service)) and found[0]["state"] == state and found[0], f"a delivery to be {state}"
    )


def run_a_job(service: RunningService, **body: Any) -> Any:
    """A job that ends with one failure."""
    job = service.submit("demo", "main", **body)
    service.driver().must_claim().run({"a": Outcome.FAILED, "b": Outcome.PASSED})
    return job


def test_the_signature_is_that_of_the_specification() -> None:
    """A known message, secret and signature; secrets that are none are refused without being repeated."""
    key = bytes(range(32))
    secret = "whsec_" + base64.b64encode(key).decode()
    body = b'{"test":1}'
    headers = signature.headers("msg_1", 1674087231, body, [secret])
    expected = hmac.new(key, b"msg_1.1674087231." + body, hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(expected).decode()
    assert len(signature.key_of(signature.new_secret())) == 32
    for wrong in ("", "whsec_", "whsec_AAAA", base64.b64encode(key).decode(), "whsec_" + "A" * 88, "whsec_%%%%"):
        with pytest.raises(ValueError, match="24 to 64 random bytes"):
            signature.key_of(wrong)


def test_a_jobs_start_and_end_are_told(service: RunningService, registered: GitRepository, receiver: Server) -> None:
    """Each once, signed, with the job's page and result; a job that is run again starts and ends again."""
    made = add(service, receiver)
    assert made["events"] == ["job.ended", "job.started"]
    job = run_a_job(service, label="nightly", work_package="WP-207", requested_by="m.keller")
    wait_for(lambda: len(receiver.calls) == 2, "two events")
    bodies = [call.json for call in receiver.calls]
    assert {body["type"] for body in bodies} == {"job.started", "job.ended"}
    assert len({call.headers["webhook-id"] for call in receiver.calls}) == 2
    for sent in receiver.calls:
        assert signers(sent, made["secret"]) == [made["secret"]]
        assert (sent.path, sent.headers["content-type"]) == ("/in?a=b", "application/json")
    (end,) = [body for body in bodies if body["type"] == "job.ended"]
    said = {key: end["data"][key] for key in ("job", "url", "repository", "state", "result", "label", "work_package")}
    assert said == {
        "job": job["id"],
        "url": f"https://bench.example.org/prefix/jobs/{job['id']}",
        "repository": "demo",
        "state": "failed",
        "result": "1 failed, 1 passed",
        "label": "nightly",
        "work_package": "WP-207",
    }
    assert end["data"]["ended_at"] is not None
    service.post(f"/jobs/{job['id']}/rerun")
    service.driver("w2").must_claim().run({"a": Outcome.PASSED})
    wait_for(lambda: len(receiver.calls) == 4, "two more")
    assert sorted(call.json["data"]["state"] for call in receiver.calls) == ["failed", "passed", "running", "waiting"]
    wait_for(lambda: {one["state"] for one in deliveries(service)} == {"delivered"}, "all to be noted")


def test_a_webhook_hears_what_it_asked_for(
    service: RunningService, registered: GitRepository, receiver: Server
) -> None:
    """Its events, of its repository; a job that is cancelled while it waits ends without having started."""
    service.post("/repositories", {"name": "other", "url": str(registered.path)}, 201)
    ends = add(service, receiver, events=["job.ended"], repository="demo")
    add(service, receiver, events=["job.started"], repository="other")
    job = service.submit("demo", "main")
    service.post(f"/jobs/{job['id']}/cancel")
    wait_for(lambda: receiver.calls, "the end")
    (sent,) = receiver.calls
    assert (sent.json["type"], sent.json["data"]["state"]) == ("job.ended", "cancelled")
    assert [one["webhook"] for one in deliveries(service)] == [ends["id"]]
    assert service.get(f"/webhooks/{ends['id']}")["repository"] == "demo"


def test_during_a_rotation_both_secrets_sign(
    service: RunningService, registered: GitRepository, receiver: Server
) -> None:
    """The new one first; after the overlap the new one alone. Neither is shown again."""
    old = add(service, receiver, events=["job.ended"], secret="whsec_" + base64.b64encode(b"o" * 24).decode())
    new = service.post(f"/webhooks/{old['id']}/secret")
    assert new["old_secret_until"] is not None
    run_a_job(service)
    wait_for(lambda: receiver.calls, "an event")
    assert signers(receiver.calls[0], old["secret"], new["secret"]) == [old["secret"], new["secret"]]
    newest = service.post(f"/webhooks/{old['id']}/secret", {"overlap_s": 0})
    run_a_job(service)
    wait_for(lambda: len(receiver.calls) == 2, "another event")
    assert signers(receiver.calls[1], old["secret"], new["secret"], newest["secret"]) == [newest["secret"]]
    listed = service.http.get("/api/v1/webhooks").text + service.http.get(f"/api/v1/webhooks/{old['id']}").text
    assert "whsec_" not in listed
    refused = service.http.post(f"/api/v1/webhooks/{old['id']}/secret", json={"secret": "whsec_tooshort"})
    assert refused.status_code == 422
    assert "tooshort" not in refused.text


@pytest.mark.parametrize(
    ("fault", "status", "detail"),
    [
        (Reply(500, b"oops"), 500, "500 oops"),
        (Reply(404, b""), 404, "404"),
        (
            Reply(302, b"", {"Location": "http://127.0.0.1:1/"}),
            302,
            "302 (redirects are not followed; register the new",
        ),
        (Reply(200, b"", silent=True), None, "no answer within 0.5 s"),
        (Reply(200, b"x" * 50, drip_s=0.1), None, "no answer within 0.5 s"),
    ],
    ids=["500", "404", "302", "silent", "dripping"],
)
def test_what_is_not_taken_is_tried_again_under_the_same_id(
    start: Start, repo: GitRepository, receiver: Server, fault: Reply, status: int | None, detail: str
) -> None:
    """The log has every try; each is signed anew."""
    service = start(delivery_timeout_s=0.5)
    service.post("/repositories", {"name": "demo", "url": str(repo.path)}, 201)
    receiver.next.extend([fault, fault])
    made = add(service, receiver, events=["job.ended"])
    run_a_job(service)
    row = ended(service, "delivered")
    assert row["tries"] == 3
    assert [one["status"] for one in row["log"]] == [status, status, 204]
    assert row["log"][0]["detail"].startswith(detail)
    assert {call.headers["webhook-id"] for call in receiver.calls} == {row["message"]}
    assert all(signers(call, made["secret"]) for call in receiver.calls)
    assert len({call.body for call in receiver.calls}) == 1


def test_a_receiver_that_asks_to_wait_is_left_alone(
    service: RunningService, registered: GitRepository, receiver: Server
) -> None:
    """With its other events too."""
    receiver.next.append(Reply(429, b"slow down", {"Retry-After": "1"}))
    add(service, receiver)
    run_a_job(service)
    wait_for(lambda: len(receiver.calls) == 3, "both events")
    assert receiver.calls[1].at - receiver.calls[0].at >= 1


def test_a_receiver_that_is_gone_is_not_called_again(
    service: RunningService, registered: GitRepository, receiver: Server
) -> None:
    """410 disables the webhook, and says why; enabled again, it is sent what is redelivered."""
    receiver.next.append(Reply(410, b"gone"))
    made = add(service, receiver, events=["job.ended"])
    run_a_job(service)
    assert "410 gone (the receiver wants no more)" in ended(service, "gave-up")["detail"]
    assert "410 gone" in service.get("/webhooks")[0]["disabled_why"]
    run_a_job(service)
    (row,) = deliveries(service)
    service.post(f"/webhooks/deliveries/{row['id']}/redeliver")
    wait_for(lambda: "the webhook is disabled" in deliveries(service)[0]["detail"], "it to be refused")
    assert len(receiver.calls) == 1
    assert service.post(f"/webhooks/{made['id']}/enable")["disabled_at"] is None
    service.post(f"/webhooks/deliveries/{row['id']}/redeliver")
    assert ended(service, "delivered")["message"] == row["message"]


def test_what_is_given_up_is_redelivered(start: Start, repo: GitRepository, receiver: Server) -> None:
    """After a bounded time, with the reason; redelivery sends the same event under the same id."""
    service = start(delivery_give_up_s=0.3)
    service.post("/repositories", {"name": "demo", "url": str(repo.path)}, 201)
    receiver.next.extend([Reply(500, b"oops")] * 500)
    add(service, receiver, events=["job.ended"])
    job = run_a_job(service)
    row = ended(service, "gave-up")
    assert row["detail"].startswith("given up after ")
    assert row["detail"].endswith("500 oops")
    receiver.next.clear()
    again = service.post(f"/webhooks/deliveries/{row['id']}/redeliver")
    assert (again["state"], again["job"]) == ("waiting", job["id"])
    assert ended(service, "delivered")["message"] == row["message"]
    assert {call.headers["webhook-id"] for call in receiver.calls} == {row["message"]}
    assert receiver.calls[-1].json["data"]["url"] == f"/jobs/{job['id']}"


def test_two_services_send_every_event_once(start: Start, repo: GitRepository, receiver: Server) -> None:
    """Each of 20 jobs' ends goes out from one of them."""
    first, second = start("one"), start("two")
    first.post("/repositories", {"name": "demo", "url": str(repo.path)}, 201)
    add(first, receiver, events=["job.ended"])
    for number in range(20):
        job = (first, second)[number % 2].submit("demo", "main")
        (second, first)[number % 2].post(f"/jobs/{job['id']}/cancel")
    wait_for(lambda: {one["state"] for one in deliveries(first)} == {"delivered"}, "all to be noted")
    told = [call.json["data"]["job"] for call in receiver.calls]
    assert sorted(told) == sorted({one["job"] for one in deliveries(first)})
    assert len(told) == 20


def test_a_slow_receiver_holds_up_nobody_else(
    service: RunningService, registered: GitRepository, receiver: Server
) -> None:
    """While one says nothing, jobs end and others are told."""
    with forge_server.serving(lambda _: Reply(200, b"")) as slow:
        slow.next.extend([Reply(200, b"", silent=True)] * 10)
        service.post("/webhooks", {"url": slow.url}, 201)
        add(service, receiver, events=["job.ended"])
        jobs = [run_a_job(service)["id"] for _ in range(3)]
        wait_for(lambda: len(receiver.calls) == 3, "the other to be told")
        assert sorted(call.json["data"]["job"] for call in receiver.calls) == jobs
        assert len(slow.calls) == 1


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/", "https://10.0.0.1/", "https://[::1]/", "https://localhost:8321/", "http://9.9.9.9/"]
)
def test_an_address_that_is_refused_at_once(start: Start, url: str) -> None:
    """Where the address shows by itself that it will never be called."""
    service = start(private_targets="")
    assert service.post("/webhooks", {"url": url}, 422)["code"] == "target-refused"
    assert service.get("/webhooks") == []


def test_a_name_that_leads_inside_is_refused_when_it_is_called(
    start: Start, repo: GitRepository, receiver: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name says only then where it leads; it is given up with the reason, and nobody is called."""
    monkeypatch.setattr(call, "look_up", lambda _host, _port: [ipaddress.ip_address("127.0.0.1")])
    service = start(private_targets="")
    service.post("/repositories", {"name": "demo", "url": str(repo.path)}, 201)
    port = receiver.url.rpartition(":")[2]
    service.post("/webhooks", {"url": f"https://inside.example.org:{port}/", "events": ["job.ended"]}, 201)
    run_a_job(service)
    assert "inside.example.org is 127.0.0.1, which is not public" in ended(service, "gave-up")["detail"]
    assert receiver.calls == []


def test_a_urls_secret_is_shown_to_admins_alone(start: Start, repo: GitRepository) -> None:
    """Many a receiver goes by a secret in its URL: whoever may read, and where all may, sees whom it belongs to."""
    service = start(public_reading=True)
    service.post("/repositories", {"name": "demo", "url": str(repo.path)}, 201)
    url = "https://hooks.invalid/services/s3cr3t-path?token=s3cr3t-query"
    webhook = service.post("/webhooks", {"url": url}, 201)["id"]
    job = service.submit("demo", "main")
    service.post(f"/jobs/{job['id']}/cancel")
    delivery = wait_for(lambda: deliveries(service), "a delivery")[0]["id"]
    lists = ["/webhooks", f"/webhooks/{webhook}", "/webhooks/deliveries", f"/webhooks/deliveries/{delivery}"]
    pages = [*(f"/api/v1{path}" for path in lists), "/notifications"]
    token = service.post("/tokens", {"name": "ci", "scopes": ["submit"]}, 201)["token"]
    for headers in ({}, {"Authorization": f"Bearer {token}"}):
        for page in pages:
            text = httpx.get(f"{service.url}{page}", headers=headers, timeout=60).text
            assert "https://hooks.invalid/…" in text, page
            assert "s3cr3t" not in text, page
    again = httpx.post(
        f"{service.url}/api/v1/webhooks/deliveries/{delivery}/redeliver",
        headers={"Authorization": f"Bearer {token}"},
        timeout=60,
    )
    assert (again.status_code, "s3cr3t" in again.text) == (200, False)
    assert all("s3cr3t-query" in service.http.get(page).text for page in pages[:-1])


def test_a_webhook_is_forgotten_with_its_deliveries(
    service: RunningService, registered: GitRepository, receiver: Server
) -> None:
    """Also while one of them is tried."""
    receiver.next.extend([Reply(500, b"")] * 500)
    made = add(service, receiver)
    run_a_job(service)
    wait_for(lambda: receiver.calls, "a try")
    assert service.http.delete(f"/api/v1/webhooks/{made['id']}").status_code == 204
    assert (service.get("/webhooks"), deliveries(service)) == ([], [])
    for path in (f"/webhooks/{made['id']}", "/webhooks/deliveries/1"):
        service.get(path, 404)
    service.post("/webhooks/deliveries/1/redeliver", expect=404)
    assert service.http.delete(f"/api/v1/webhooks/{made['id']}").status_code == 404
    run_a_job(service)
    assert deliveries(service) == []


def test_deliveries_are_listed_page_by_page_and_forgotten_in_time(
    service: RunningService, registered: GitRepository, receiver: Server
) -> None:
    """The newest first, of one webhook or of all; what ended a month ago is deleted."""
    one, two = add(service, receiver), add(service, receiver, events=["job.ended"])
    run_a_job(service)
    wait_for(lambda: {row["state"] for row in deliveries(service)} == {"delivered"}, "all to be noted")
    first = service.get("/webhooks/deliveries?limit=2")
    rest = service.get(f"/webhooks/deliveries?limit=2&{first['next']}")
    numbers = [row["id"] for row in (*first["items"], *rest["items"])]
    assert (numbers, rest["next"]) == (sorted(numbers, reverse=True), None)
    assert [row["webhook"] for row in deliveries(service, f"?webhook={two['id']}")] == [two["id"]]
    with service.database.write() as session:
        old = now() - webhooks.KEPT * 1.1
        session.execute(update(WebhookDelivery).where(WebhookDelivery.webhook_id == one["id"]).values(created_at=old))
        webhooks.forget(session)
    assert {row["webhook"] for row in deliveries(service)} == {two["id"]}


def test_the_body_that_is_signed_is_the_body_that_is_sent(
    service: RunningService, registered: GitRepository, receiver: Server
) -> None:
    """Also where it holds what JSON can spell in several ways."""
    made = add(service, receiver, events=["job.ended"])
    run_a_job(service, label="Prüfung \u2028 </script> 🚀", reason='"quoted" \\ \n')
    wait_for(lambda: receiver.calls, "an event")
    assert signers(receiver.calls[0], made["secret"])
    assert json.loads(receiver.calls[0].body)["data"]["label"] == "Prüfung \u2028 </script> 🚀"


def test_a_row_that_cannot_be_read_does_not_end_the_sending(
    service: RunningService, registered: GitRepository, receiver: Server
) -> None:
    """What a fault left in one delivery is given up, and the others go out."""
    made = add(service, receiver, events=["job.started"])
    with service.database.write() as session:
        session.execute(update(Webhook).values(secret="not a secret"))
    service.submit("demo", "main")
    service.driver().must_claim()
    wait_for(lambda: deliveries(service)[0]["state"] == "gave-up", "the broken one to be given up")
    assert "the service has a fault here" in deliveries(service)[0]["detail"]
    service.post(f"/webhooks/{made['id']}/secret", {"overlap_s": 0})
    service.submit("demo", "main")
    service.driver("w2").must_claim()
    ended(service, "delivered")
