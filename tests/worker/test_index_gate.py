"""A package index that asks for a password, with real uv: packages come through, and no build backend learns it."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import worker.runtimes.index_gate
from tests.support import wheels
from tests.worker.support import Repository, StubService, wait_for
from tests.worker.test_attempt import PROJECT, ended, run
from worker.attempt import Host
from worker.client import Client
from worker.isolation.confinement import find_holds
from worker.messages import CaseEvent, Cause
from worker.runtimes.host_runtime import probe_hosts
from worker.runtimes.index_gate import IndexGate
from worker.runtimes.runtime import Tools
from worker.settings import Settings

USER, PASSWORD = "me", "s3cr%t"
LET_IN, WRITTEN = f"{USER}:{PASSWORD}", f"{USER}:s3cr%25t"


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """What the index holds: two packages, and a file that no page links to."""
    folder = tmp_path / "packages"
    for name in ("needed", "wanted"):
        wheels.wheel(folder, name, "1.0", {f"{name}.py": "VALUE = 7\n"})
    (folder / "private").write_text("not for everybody\n")
    return folder


@pytest.fixture
def index(packages: Path) -> Iterator[str]:
    with wheels.index(packages, LET_IN) as url:
        yield url


@pytest.fixture
def gate() -> Iterator[IndexGate]:
    made = IndexGate()
    yield made
    made.close()


def with_password(url: str) -> str:
    return url.replace("://", f"://{WRITTEN}@")


def test_a_gate_gives_pages_and_what_they_link_to(gate: IndexGate, index: str, tmp_path: Path) -> None:
    """With ranges and without a body, where that is asked; nothing else of the server, by no other method, and nothing
    once it is closed."""
    with gate.opened({"UV_INDEX": with_password(index)}, "demo", tmp_path) as env:
        own = env["UV_INDEX"]
        assert PASSWORD not in own
        page = httpx.get(f"{own}/needed/")
        link = page.text.partition('href="')[2].partition('"')[0]
        assert link.startswith(own.removesuffix("/simple"))
        wheel = httpx.get(link)
        assert (page.status_code, wheel.status_code, wheel.content[:2]) == (200, 200, b"PK")
        assert httpx.get(f"{own}/nothing/").status_code == 404
        for path in ("/private", "/simple/../private", "/simple/%2e%2e/private", "/other-1.0-py3-none-any.whl"):
            assert httpx.get(own.removesuffix("/simple") + path).status_code in (403, 404), path
        assert httpx.get(own.rpartition("/")[0].rpartition("/")[0] + "/simple/needed/").status_code == 403
        assert httpx.post(f"{own}/needed/").status_code == 501
    assert httpx.get(f"{own}/needed/").status_code == 403


def test_a_file_may_have_any_name(gate: IndexGate, index: str, packages: Path, tmp_path: Path) -> None:
    """Whether the page writes it as uv asks for it or not; its metadata beside it (PEP 658) too."""
    (packages / "needed-1.0-py3-none-any.whl").rename(packages / "needed-1.0+cu129-py3-none-any.whl")
    (packages / "needed-1.0+cu129-py3-none-any.whl.metadata").write_text("Name: needed\n")
    with gate.opened({"UV_INDEX": with_password(index)}, "demo", tmp_path) as env:
        link = httpx.get(f"{env['UV_INDEX']}/needed/").text.partition('href="')[2].partition('"')[0]
        assert "%2Bcu129" in link
        assert httpx.get(link).status_code == 200
        assert httpx.get(link.replace("%2B", "+")).content[:2] == b"PK"
        assert httpx.get(f"{link}.metadata").text == "Name: needed\n"


def test_who_holds_many_connections_gets_no_more(
    gate: IndexGate, index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's threads are not a tree's to use up. Once they are let go, others are answered."""
    monkeypatch.setattr(worker.runtimes.index_gate, "_MOST_CONNECTIONS", 2)
    with gate.opened({"UV_INDEX": with_password(index)}, "demo", tmp_path) as env, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(httpx.Client()) for _ in range(3)]
        url = f"{env['UV_INDEX']}/needed/"
        assert [client.get(url).status_code for client in clients[:2]] == [200, 200]
        with pytest.raises(httpx.TransportError):
            clients[2].get(url)
        clients[0].close()

        def answered() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return clients[2].get(url).status_code == 200
            return False

        wait_for(answered, "a connection to be free")


def test_an_address_stays_for_a_repository_and_is_another_for_the_next(
    gate: IndexGate, index: str, tmp_path: Path
) -> None:
    """uv's cache goes by it; who learned one's address cannot use another's. It is open until its last user ends."""
    env = {"UV_INDEX": with_password(index)}
    with gate.opened(env, "demo", tmp_path) as one:
        with gate.opened(env, "demo", tmp_path) as two, gate.opened(env, "other", tmp_path) as other:
            assert one["UV_INDEX"] == two["UV_INDEX"] != other["UV_INDEX"]
        assert httpx.get(f"{one['UV_INDEX']}/needed/").status_code == 200
    with gate.opened(env, "demo", tmp_path) as again:
        assert again["UV_INDEX"] == one["UV_INDEX"]


def test_a_gate_that_is_not_needed_does_not_listen(gate: IndexGate, tmp_path: Path) -> None:
    """Where no place asks for anything uv is told what it was told."""
    env = {"UV_INDEX": "https://open.example/simple", "HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path)}
    with gate.opened(env, "demo", tmp_path) as told:
        assert told == env
    assert gate._server is None


def test_an_index_that_is_away_or_refuses_is_told(gate: IndexGate, index: str, tmp_path: Path) -> None:
    """As by the index itself, and uv says so; a proxy to the outside is not asked."""
    env = {
        "UV_INDEX": "http://me:x@127.0.0.1:9/simple",
        "UV_DEFAULT_INDEX": index.replace("://", "://me:wrong@"),
        "http_proxy": "http://proxy:3128",
    }
    with gate.opened(env, "demo", tmp_path) as told:
        assert httpx.get(f"{told['UV_INDEX']}/needed/").status_code == 502
        assert httpx.get(f"{told['UV_DEFAULT_INDEX']}/needed/").status_code == 401
        assert told["NO_PROXY"] == told["no_proxy"] == "127.0.0.1"


LOOKS = """
import os, pathlib, zipfile
import needed
def build_wheel(folder, config_settings=None, metadata_directory=None):
    assert needed.VALUE == 7
    places = [f"/proc/{pid}/environ" for pid in os.listdir("/proc") if pid.isdigit()]
    places += [os.environ["UV_CONFIG_FILE"]] if "UV_CONFIG_FILE" in os.environ else []
    for place in places:
        try:
            text = pathlib.Path(place).read_text(errors="replace")
        except OSError:
            continue
        assert "s3cr" not in text, place
    with zipfile.ZipFile(f"{folder}/thing-0.3-py3-none-any.whl", "w") as wheel:
        wheel.writestr("thing.py", "VALUE = 1\\n")
        wheel.writestr("thing-0.3.dist-info/METADATA", "Metadata-Version: 2.1\\nName: thing\\nVersion: 0.3\\n")
        wheel.writestr("thing-0.3.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("thing-0.3.dist-info/RECORD", "")
    return "thing-0.3-py3-none-any.whl"
"""


@pytest.mark.long
@pytest.mark.parametrize("sandbox", ["auto", "off"])
@pytest.mark.parametrize("how", ["address", "name", "file"])
def test_a_build_backend_gets_its_packages_and_no_password(
    service: StubService,
    repository: Repository,
    tmp_path: Path,
    uv: str,
    boot: str,
    index: str,
    sandbox: str,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it needs to build comes from the index that asks for one, and so does what an install line names; neither in
    its environment nor in that of any process it sees, nor in uv's configuration, does the password stand."""
    if how == "name":
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"corp={index}")
        monkeypatch.setenv("UV_INDEX_CORP_USERNAME", USER)
        monkeypatch.setenv("UV_INDEX_CORP_PASSWORD", PASSWORD)
    elif how == "file":
        (tmp_path / "uv.toml").write_text(f'[[index]]\nurl = "{with_password(index)}"\ndefault = true\n')
        monkeypatch.setenv("UV_CONFIG_FILE", str(tmp_path / "uv.toml"))
    else:
        monkeypatch.setenv("UV_DEFAULT_INDEX", with_password(index))
    settings = Settings(
        BROKER_URL="redis://nowhere",
        REPLAYBENCH_SERVICE_URL=service.url,
        REPLAYBENCH_WORKER_TOKEN="secret",
        REPLAYBENCH_CACHE_DIR=tmp_path / "cache",
        REPLAYBENCH_SANDBOX=sandbox,
    )
    tools = Tools(uv, settings.cache_dir, 120.0, uv_cache=tmp_path / "cache" / "uv")
    client = Client(service.url, "secret")
    folders = (settings.cache_dir / "attempts" / boot, settings.cache_dir / "spool" / boot)
    hosts = probe_hosts([Path(sys.executable)])
    host = Host(settings, client, tools, hosts, *folders, 0.3, threading.Event(), holds=find_holds(settings))
    repository.commit(
        {
            "thing/pyproject.toml": PROJECT.replace("requires = []", 'requires = ["needed"]'),
            "thing/backend.py": LOOKS,
            "tests/test_it.py": "import thing, wanted\ndef test_it(): assert wanted.VALUE == 7\n",
        }
    )
    try:
        run(host, repository, install=("./thing wanted",))
    finally:
        client.close()
        tools.gate.close()
    assert (ended(service).cause, ended(service).detail) == (Cause.FINISHED, "")
    assert [event.outcome for event in service.events if isinstance(event, CaseEvent)] == ["passed"]
    assert b"s3cr" not in service.artifacts["log.txt"]
