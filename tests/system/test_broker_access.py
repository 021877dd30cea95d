"""The broker as docs/operations.md has it: two users who may touch the queues alone, and TLS between machines."""

from __future__ import annotations

import re
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.support import broker, faults, fleet, proxy
from tests.support.broker import BrokerServer
from tests.support.waiting import wait_for

pytestmark = pytest.mark.long
PAGE = Path(__file__).resolve().parent.parent.parent / "docs/operations.md"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[BrokerServer]:
    """A broker with the users of the page, as they stand there."""
    page = PAGE.read_text()
    (rules,) = re.findall(r"```acl\n(.*?)```", page, re.DOTALL)
    file = tmp_path / "users.acl"
    file.write_text(rules)
    with broker.serving("--aclfile", str(file)) as server:
        yield server


def url(server: BrokerServer, who: str) -> str:
    return f"redis://replaybench-{who}:{who.upper()}_PASSWORD@127.0.0.1:{server.port}/0"


def test_service_and_worker_do_with_the_users_of_the_page(tmp_path: Path, guarded: BrokerServer) -> None:
    """Jobs are woken for and run, also after a restart of the broker; no call is refused on either side."""
    repo = faults.suite(tmp_path)
    with fleet.running(tmp_path, through=url(guarded, "service")) as it:
        worker = it.worker(BROKER_URL=url(guarded, "worker"), REPLAYBENCH_DEAF_S="30")
        faults.assert_whole(it, it.submit(repo.path), ["failed"])
        guarded.end(9)
        guarded.start()
        faults.assert_whole(it, it.submit(repo.path), ["failed"])
        with redis.Redis.from_url(url(guarded, "worker")) as client:
            wait_for(lambda: not client.llen("cpu"), "every wake-up to be taken")
        assert worker.running.poll() is None
        assert "NOPERM" not in worker.said + it.service.said
        assert "permissions" not in worker.said + it.service.said


@pytest.mark.parametrize("who", ["service", "worker"])
@pytest.mark.parametrize(
    "command",
    [
        ("FLUSHALL",),
        ("KEYS", "*"),
        ("CONFIG", "GET", "*"),
        ("GET", "of-somebody-else"),
        ("SET", "of-somebody-else", "1"),
        ("PUBLISH", "/0.celery.pidbox", "{}"),
        ("EVAL", "return 1", "0"),
        ("SHUTDOWN",),
        ("ACL", "LIST"),
    ],
    ids=lambda command: command[0].lower(),
)
def test_the_users_of_the_page_may_do_nothing_else(guarded: BrokerServer, who: str, command: tuple[str, ...]) -> None:
    """Not to the server, and not to the keys of others."""
    with (
        redis.Redis.from_url(url(guarded, who)) as client,
        pytest.raises(redis.exceptions.NoPermissionError),
    ):
        client.execute_command(*command)


def test_without_a_user_nobody_comes_in(guarded: BrokerServer) -> None:
    """The default user is off."""
    with (
        redis.Redis(port=guarded.port) as client,
        pytest.raises(redis.exceptions.AuthenticationError),
    ):
        client.ping()


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that signs itself, and its key."""
    folder.mkdir(exist_ok=True)
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def test_wake_ups_go_over_tls_where_the_url_says_so(tmp_path: Path) -> None:
    """Service and worker check the certificate; a worker that trusts another authority is not woken, and says why."""
    repo = faults.suite(tmp_path)
    (cert, key), (other, _) = certificate(tmp_path / "tls", "own"), certificate(tmp_path / "tls", "other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with broker.serving() as behind, proxy.tunnel(behind.port, context) as tunnel:
        address = f"rediss://127.0.0.1:{tunnel.port}/0?ssl_cert_reqs=required&ssl_ca_certs="
        with fleet.running(tmp_path, through=f"{address}{cert}") as it:
            it.worker("trusts", BROKER_URL=f"{address}{cert}", REPLAYBENCH_DEAF_S="600")
            faults.assert_whole(it, it.submit(repo.path), ["failed"])
            doubts = it.worker("doubts", start=False, BROKER_URL=f"{address}{other}")
            doubts.start()
            wait_for(lambda: "CERTIFICATE_VERIFY_FAILED" in doubts.said, "the refusal")
            assert "worker ready" not in doubts.said
