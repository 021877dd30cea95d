"""`replaybench up` as a whole, in processes of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.up.programs import healthy
from tests.support import embedded
from tests.support.embedded import Embedded, alive
from tests.support.waiting import wait_for


@pytest.fixture
def system(tmp_path: Path) -> Iterator[Embedded]:
    with embedded.up(tmp_path, "--no-worker") as it:
        it.wait_ready()
        yield it


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """A system that a test only looks at."""
    with embedded.up(tmp_path_factory.mktemp("up"), "--no-worker") as it:
        it.wait_ready()
        yield it


def test_it_says_where_it_is_and_notes_it_for_the_command_line(shared: Embedded) -> None:
    url = shared.wait_ready()
    token = (shared.data_dir / "tokens" / "submit").read_text().strip()
    assert f"sign in: {url}/sign-in#token={token}" in shared.said
    assert json.loads((shared.data_dir / "up.json").read_text())["url"] == url
    assert healthy(url)
    listed = embedded.command("repos", "list", "--json", REPLAYBENCH_DATA_DIR=str(shared.data_dir))
    assert (listed.returncode, json.loads(listed.stdout)) == (0, [])


def test_secrets_are_its_owners_alone(shared: Embedded) -> None:
    assert stat.S_IMODE(shared.data_dir.stat().st_mode) == 0o700
    for secret in ("tokens/submit", "tokens/worker", "broker/password", "broker/valkey.conf"):
        assert stat.S_IMODE((shared.data_dir / secret).stat().st_mode) == 0o600, secret
    password = (shared.data_dir / "broker" / "password").read_text()
    arguments = [Path(f"/proc/{pid}/cmdline").read_text() for pid in shared.children().values()]
    assert not any(password in words for words in arguments)


def test_the_broker_takes_nothing_without_its_password(shared: Embedded) -> None:
    config = (shared.data_dir / "broker" / "valkey.conf").read_text()
    port = int(config.partition("port ")[2].split()[0])
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(b"PING\r\n")
        assert connection.recv(100).startswith(b"-NOAUTH")


def test_a_killed_service_is_started_again_at_its_address(system: Embedded) -> None:
    url = system.wait_ready()
    before = system.children()["serve"]
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: system.children().get("serve", before) != before and healthy(url), "the service to be back")
    assert "service died by SIGKILL; starting it again" in system.said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_request_to_stop_stops_all_of_it(system: Embedded, number: int) -> None:
    children = system.children()
    assert sorted(children) == ["broker", "serve"]
    assert system.end(number) == 0
    assert not any(alive(pid) for pid in children.values())
    assert not (system.data_dir / "up.json").exists()
    assert system.said.rstrip().endswith("stopped")


def test_a_killed_supervisor_leaves_no_orphan_and_no_lock(system: Embedded, tmp_path: Path) -> None:
    children = system.children()
    assert len(children) == 2
    assert system.end(signal.SIGKILL) == -signal.SIGKILL
    wait_for(lambda: not any(alive(pid) for pid in children.values()), "the children's end")
    with embedded.up(tmp_path, "--no-worker") as again:
        again.wait_ready()


def test_one_data_directory_serves_one_system(shared: Embedded) -> None:
    url = shared.wait_ready()
    second = embedded.command("up", "--data-dir", str(shared.data_dir), "--port", "0")
    assert second.returncode == 2
    assert f"in use by process {shared.process.pid}, which serves {url}" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = embedded.command("up", "--data-dir", str(tmp_path / "data"), "--port", str(port))
    assert refused.returncode == 2
    assert f"port {port} cannot be used (something listens there already)" in refused.stderr


def test_a_wrong_setting_of_the_worker_ends_it_at_once(tmp_path: Path) -> None:
    """With the worker's own sentence and its exit code; nothing that restarts could cure."""
    with embedded.up(tmp_path, REPLAYBENCH_CPU_SLOTS="0") as it:
        assert it.process.wait(60) == 2
        assert it.said.count("REPLAYBENCH_CPU_SLOTS='0': ") == 1
        assert "starting it again" not in it.said
        assert "Traceback" not in it.said


@pytest.mark.long
def test_a_host_runtime_that_is_left_out_is_told_with_its_variable(tmp_path: Path) -> None:
    """The system goes on without it."""
    where = {"REPLAYBENCH_CACHE_DIR": str(tmp_path / "cache"), "REPLAYBENCH_HOST_RUNTIMES": "/nonexistent/python"}
    with embedded.up(tmp_path, **where) as it:
        it.wait_ready()
        told = [line for line in it.said.splitlines() if "/nonexistent/python" in line]
    assert len(told) == 1
    assert told[0].startswith("warning: REPLAYBENCH_HOST_RUNTIMES: host runtime left out: ")


@pytest.mark.long
def test_a_child_that_cannot_come_up_any_more_ends_everything(system: Embedded) -> None:
    """Its file is broken: five starts in vain, and the end of its log says why."""
    children = system.children()
    (manifest,) = (system.data_dir / "broker/appendonlydir").glob("*.manifest")
    manifest.write_text("nonsense\n")
    os.kill(children["broker"], signal.SIGKILL)
    assert system.process.wait(60) == 1
    assert "broker ended with exit code 1, 5 times within 60 s without being up. The end of" in system.said
    assert "AOF manifest" in system.said
    assert not alive(children["serve"])


@pytest.mark.long
def test_a_child_that_is_killed_as_often_as_one_likes_comes_back(system: Embedded) -> None:
    """It was up each time: six kills end nothing else."""
    service = system.children()["serve"]
    for number in range(1, 7):
        os.kill(wait_for(lambda: system.children().get("broker"), "the broker"), signal.SIGKILL)
        wait_for(lambda: system.said.count("broker is up again") == number, "the broker to be up again")  # noqa: B023
    assert system.said.count("broker died by SIGKILL") == 6
    assert alive(service)
    assert system.process.poll() is None
