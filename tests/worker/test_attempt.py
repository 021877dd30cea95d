"""The way of one attempt, with real git, uv and pytest; the service is a stub that stores what it gets."""

from __future__ import annotations

import base64
import dataclasses
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.nvml import MIB, Cards, card
from tests.worker.holding import needs_cgroup
from tests.worker.support import PYTHON, Repository, StubService, is_alive, wait_for, wait_for_thread
from worker.attempt import Host, run_attempt
from worker.batches import Batches
from worker.client import Client
from worker.gpus import gpu
from worker.gpus.device_faults import FaultBook
from worker.gpus.health import DeviceHealth
from worker.gpus.xids import XidWatch
from worker.isolation.confinement import Holds, find_holds
from worker.isolation.limits import Limits
from worker.messages import (
    Assignment,
    AttemptEndedEvent,
    CaseEvent,
    Cause,
    EnvironmentEvent,
    Event,
    ProcessEndedEvent,
    RuntimeSpec,
    SuiteSpec,
    UsageEvent,
)
from worker.runtimes.host_runtime import probe_hosts
from worker.runtimes.runtime import Tools
from worker.runtimes.runtime_use import Use
from worker.settings import Settings

SUITE = {
    "tests/test_it.py": """
import pytest
import thing

def test_good():
    assert thing.VALUE == 1

def test_bad():
    assert thing.VALUE == 2

@pytest.mark.skip(reason="not now")
def test_skipped():
    pass
""",
    "thing/pyproject.toml": """
[project]
name = "thing"
version = "0.3"
[build-system]
requires = ["uv_build>=0.9,<0.14"]
build-backend = "uv_build"
[tool.uv.build-backend]
module-name = "thing"
module-root = ""
""",
    "thing/thing/__init__.py": "VALUE = 1\n",
}


@pytest.fixture
def host(service: StubService, shared_cache: Path, tmp_path: Path, uv: str, boot: str) -> Iterator[Host]:
    settings = Settings(
        BROKER_URL="redis://nowhere",
        REPLAYBENCH_SERVICE_URL=service.url,
        REPLAYBENCH_WORKER_TOKEN="secret",
        REPLAYBENCH_CACHE_DIR=shared_cache,
        REPLAYBENCH_KILL_GRACE_S=0.5,
    )
    client = Client(service.url, "secret")
    yield Host(
        settings=settings,
        client=client,
        tools=Tools(uv, shared_cache, 120.0),
        hosts=probe_hosts([Path(sys.executable)]),
        folder=tmp_path / "attempts" / boot,
        spool=tmp_path / "spool" / boot,
        heartbeat_s=0.3,
        stopping=threading.Event(),
        holds=find_holds(settings),
    )
    client.close()


@pytest.fixture
def open_host(host: Host) -> Host:
    """Without a sandbox, for tests that tell their test from within what they look at on this machine."""
    return dataclasses.replace(host, holds=find_holds(host.settings.model_copy(update={"sandbox": "off"})))


def run(host: Host, repository: Repository, **cell: Any) -> None:
    run_attempt(Assignment(5, 1, "lease", 30.0, repository.cell(**cell)), (), host)


def ended(service: StubService) -> AttemptEndedEvent:
    event = service.events[-1]
    assert isinstance(event, AttemptEndedEvent)
    return event


def test_a_name_that_is_no_utf8_ends_with_its_reason(host: Host, service: StubService, repository: Repository) -> None:
    """The reason reaches the service, though neither the link nor where it leads can be sent as it is."""
    os.symlink(b"/data/\xff", os.fsencode(repository.path) + b"/caf\xe9")
    repository.commit({})
    run(host, repository)
    assert ended(service).cause is Cause.ENVIRONMENT
    assert "the link caf\\udce9 leads out of the tree, to /data/\\udcff" in ended(service).detail
    assert list(host.spool.iterdir()) == []


def test_an_attempt_whose_delivery_breaks_ends_at_once(
    host: Host, service: StubService, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tests do not run on unheard while its cell is queued again, and the service learns why."""
    repository.commit({"tests/test_it.py": "import time\ndef test_it(): time.sleep(120)\n"})
    real = Batches.add

    def add(batches: Batches, events: Sequence[Event]) -> None:
        if any(event.kind == "process-started" for event in events):
            raise RecursionError("overlooked")
        real(batches, events)

    monkeypatch.setattr(Batches, "add", add)
    run(host, repository)
    assert ended(service).cause is Cause.INFRASTRUCTURE
    assert "events can no longer be delivered: RecursionError: overlooked" in ended(service).detail
    assert not list(host.folder.glob("*"))


def test_an_attempt_streams_every_step_and_case(host: Host, service: StubService, repository: Repository) -> None:
    """Phases, environment, cases and the end arrive in order; the tree's package comes from the install line."""
    repository.commit(SUITE)
    run(host, repository, install=("./thing",))
    kinds = [event.kind for event in service.events]
    assert kinds[:3] == ["phase", "environment", "phase"]
    assert kinds[3:5] == ["process-started", "collected"]
    assert kinds[-2:] == ["process-ended", "attempt-ended"]
    cases = {
        event.node_id.rpartition("::")[2]: event.outcome for event in service.events if isinstance(event, CaseEvent)
    }
    assert cases == {"test_good": "passed", "test_bad": "failed", "test_skipped": "skipped"}
    (process,) = [event for event in service.events if isinstance(event, ProcessEndedEvent)]
    assert (process.exit_code, process.collected, process.reported, process.finished) == (1, 3, 3, True)
    assert ended(service).cause is Cause.FINISHED
    (environment,) = [event for event in service.events if isinstance(event, EnvironmentEvent)]
    assert environment.record["packages"]["thing"] == "0.3"
    assert environment.record["origin"] == "host"
    assert b"1 failed, 1 passed, 1 skipped" in service.artifacts["log.txt"]
    assert list(host.folder.iterdir()) == []
    assert list(host.spool.iterdir()) == []


def test_a_built_runtime_says_so_and_hands_its_log_on(host: Host, service: StubService, repository: Repository) -> None:
    """Without a host runtime that fits, uv builds one."""
    repository.commit(SUITE)
    built = dataclasses.replace(host, hosts={}, tools=dataclasses.replace(host.tools, cache=host.folder / "cache"))
    (host.folder / "cache").mkdir(parents=True)
    run(built, repository, install=("./thing",))
    (environment,) = [event for event in service.events if isinstance(event, EnvironmentEvent)]
    assert environment.record["origin"] == "built"
    assert b"installing pytest" in service.artifacts["runtime.log"]
    assert ended(service).cause is Cause.FINISHED


def test_a_runtime_that_cannot_be_is_environment(host: Host, service: StubService, repository: Repository) -> None:
    """No test is blamed; the log tells why."""
    repository.commit(SUITE)
    run(dataclasses.replace(host, tools=dataclasses.replace(host.tools, builds=False)), repository,
        runtime=RuntimeSpec("3.99"))  # fmt: skip
    assert ended(service).cause is Cause.ENVIRONMENT
    assert "py3.99" in ended(service).detail
    assert b"REPLAYBENCH_BUILDS" in service.artifacts["log.txt"]


def test_a_failed_build_is_shared_by_the_cells_that_waited(
    host: Host, service: StubService, repository: Repository, tmp_path: Path
) -> None:
    """It is tried once; each of them tells why, and has what was printed. A cell that is queued later tries again."""
    repository.commit(SUITE)
    script = tmp_path / "uv"
    script.write_text(f"#!/bin/sh\necho x >> {tmp_path}/calls\necho no such torch here >&2\nexit 2\n")
    script.chmod(0o755)
    (tmp_path / "cache").mkdir()
    broken = dataclasses.replace(host, hosts={}, tools=Tools(str(script), tmp_path / "cache", 60.0))
    for queued_s, calls in ((100.0, 1), (100.0, 1), (0.0, 2)):
        service.stored.clear()
        service.artifacts.clear()
        run_attempt(Assignment(5, 1, "lease", 30.0, repository.cell(), queued_s=queued_s), (), broken)
        assert ended(service).cause is Cause.ENVIRONMENT
        assert "no such torch here" in ended(service).detail
        assert b"no such torch here" in service.artifacts["runtime.log"]
        assert len((tmp_path / "calls").read_text().split()) == calls


def test_an_attempt_holds_its_runtime_and_lets_go(
    open_host: Host, service: StubService, repository: Repository
) -> None:
    """Nobody can throw it away while the tests run."""
    marker = 'import fcntl, glob, os\n\ndef test_it():\n    (path,) = glob.glob(os.environ["HOMES"] + "/*.use")\n'
    code = "    try:\n        fcntl.flock(open(path), fcntl.LOCK_EX | fcntl.LOCK_NB)\n    except BlockingIOError:\n"
    repository.commit({"tests/test_it.py": f'{marker}{code}        return\n    raise AssertionError("it is free")\n'})
    built = dataclasses.replace(
        open_host, hosts={}, tools=dataclasses.replace(open_host.tools, cache=open_host.folder / "cache")
    )
    (open_host.folder / "cache").mkdir(parents=True)
    suite = SuiteSpec("gate", ("tests",), env={"HOMES": str(open_host.folder / "cache" / "runtimes")})
    run(built, repository, suite=suite)
    cases = [event.outcome for event in service.events if isinstance(event, CaseEvent)]
    assert cases == ["passed"], service.artifacts["log.txt"].decode()
    use = Use(next((open_host.folder / "cache" / "runtimes").glob("*/ready.json")).parent)
    assert use.alone()
    use.release()


def with_torch(host: Host, site: Path, version: str) -> Host:
    """The host runtime of these tests, with a torch of its own."""
    torch_files(site, version)
    (runtime,) = host.hosts.values()
    runtime = dataclasses.replace(runtime, paths=(*runtime.paths, str(site)), torch=version)
    return dataclasses.replace(host, hosts={RuntimeSpec(PYTHON, version): runtime})


def torch_files(folder: Path, version: str) -> None:
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(f"from torch import version\n__version__ = {version!r}\n")
    (folder / "torch" / "version.py").write_text("cuda = None\n")


TORCH_OF_TREE = {
    "torch/torch/__init__.py": "from torch import version\n__version__ = '2.8.0'\n",
    "torch/torch/version.py": "cuda = None\n",
    "torch/pyproject.toml": SUITE["thing/pyproject.toml"].replace('"thing"', '"torch"').replace("0.3", "2.8.0"),
    "tests/test_it.py": "import torch\ndef test_it(): assert torch.__version__ == '2.8.0'\n",
}


def test_an_install_line_with_another_torch_is_environment(
    host: Host, service: StubService, repository: Repository, tmp_path: Path
) -> None:
    """No test runs on it: neither the cell's name nor its record would say so."""
    repository.commit(TORCH_OF_TREE)
    spec = RuntimeSpec(PYTHON, "2.9.1")
    run(with_torch(host, tmp_path / "site", "2.9.1"), repository, runtime=spec, install=("./torch",))
    assert ended(service).cause is Cause.ENVIRONMENT
    assert "torch 2.8.0 (no CUDA), and the runtime has 2.9.1 (no CUDA)" in ended(service).detail
    assert not [event for event in service.events if isinstance(event, CaseEvent | EnvironmentEvent)]


def test_the_record_tells_the_torch_that_the_tests_import(
    host: Host, service: StubService, repository: Repository
) -> None:
    """Of an install line, where the runtime's name has none."""
    repository.commit(TORCH_OF_TREE)
    run(host, repository, install=("./torch",))
    assert [event.outcome for event in service.events if isinstance(event, CaseEvent)] == ["passed"]
    (record,) = [event.record for event in service.events if isinstance(event, EnvironmentEvent)]
    assert (record["torch"], record["cuda"], record["packages"]["torch"]) == ("2.8.0", None, "2.8.0")


def test_an_install_line_that_fails_is_environment(host: Host, service: StubService, repository: Repository) -> None:
    """With the line and uv's words."""
    repository.commit(SUITE)
    run(host, repository, install=("./nothing-here",))
    assert ended(service).cause is Cause.ENVIRONMENT
    assert "nothing-here" in ended(service).detail


def test_a_tree_that_differs_is_infrastructure(host: Host, service: StubService, repository: Repository) -> None:
    """Nothing of it runs."""
    repository.commit(SUITE)
    run(host, repository, tree="3" * 40)
    assert ended(service).cause is Cause.INFRASTRUCTURE
    assert "3333" in ended(service).detail
    assert not any(isinstance(event, CaseEvent) for event in service.events)


def test_missing_data_is_infrastructure(host: Host, service: StubService, repository: Repository) -> None:
    """With the setting to set."""
    repository.commit(SUITE)
    run(host, repository, suite=SuiteSpec("gate", ("tests",), mounts=("coco",)))
    assert ended(service).cause is Cause.INFRASTRUCTURE
    assert "REPLAYBENCH_MOUNTS" in ended(service).detail


SLOW = {"tests/test_it.py": "import time\ndef test_1(): pass\ndef test_2(): time.sleep(60)\ndef test_3(): pass\n"}


def in_thread(host: Host, repository: Repository, service: StubService) -> threading.Thread:
    thread = threading.Thread(target=run, args=(host, repository))
    thread.start()
    wait_for(lambda: any(batch.running and batch.running.endswith("test_2") for batch in service.batches), "test_2")
    return thread


def test_a_cancelled_attempt_ends_soon(host: Host, service: StubService, repository: Repository) -> None:
    """The answer to a heartbeat stops it; what had not run is said so."""
    repository.commit(SLOW)
    thread = in_thread(host, repository, service)
    service.stop = True
    thread.join(15)
    assert ended(service).cause is Cause.CANCELLED
    assert [event.outcome for event in service.events if isinstance(event, CaseEvent)] == [
        "passed",
        "not-observed",
        "not-observed",
    ]


def test_a_worker_that_stops_hands_its_cell_back(host: Host, service: StubService, repository: Repository) -> None:
    """As infrastructure, so that the service queues it again."""
    repository.commit(SLOW)
    thread = in_thread(host, repository, service)
    host.stopping.set()
    thread.join(15)
    assert ended(service).cause is Cause.INFRASTRUCTURE
    assert ended(service).detail == "the worker was stopped"


def test_a_fenced_attempt_goes_quietly(host: Host, service: StubService, repository: Repository) -> None:
    """No artifact, no last word, no spool."""
    repository.commit(SLOW)
    thread = in_thread(host, repository, service)
    service.script = [(409, {"code": "fenced"})] * 100
    thread.join(15)
    assert not thread.is_alive()
    assert service.artifacts == {}
    assert not any(isinstance(event, AttemptEndedEvent) for event in service.events)
    assert list(host.spool.iterdir()) == []


def test_a_service_that_is_away_meanwhile_gets_everything_later(
    host: Host, service: StubService, repository: Repository
) -> None:
    """The run goes on, and the events wait."""
    repository.commit(SUITE)
    service.script = [(503, {})] * 8
    run(host, repository, install=("./thing",))
    assert len([event for event in service.events if isinstance(event, CaseEvent)]) == 3
    assert ended(service).cause is Cause.FINISHED


def test_a_probe_is_run_and_noted(host: Host, service: StubService, repository: Repository) -> None:
    """The patched tree is what is tested."""
    repository.commit(SUITE)
    head = repository.git("rev-parse", "HEAD").decode().strip()
    repository.commit({"thing/thing/__init__.py": "VALUE = 2\n"})
    probe, tree = repository.git("diff", head, "HEAD"), repository.tree()
    repository.git("reset", "--quiet", "--hard", head)
    run(host, repository, install=("./thing",), probe=base64.b64encode(probe).decode(), probe_digest="1f2e", tree=tree)
    cases = {
        event.node_id.rpartition("::")[2]: event.outcome for event in service.events if isinstance(event, CaseEvent)
    }
    assert cases == {"test_good": "failed", "test_bad": "passed", "test_skipped": "skipped"}
    (environment,) = [event for event in service.events if isinstance(event, EnvironmentEvent)]
    assert environment.record["probe_digest"] == "1f2e"


BACKEND = """
import zipfile
NAME = "thing-0.3-py3-none-any.whl"
def build_editable(folder, config_settings=None, metadata_directory=None):
    import pytest  # of the runtime: without isolation it is there
    with zipfile.ZipFile(f"{folder}/{NAME}", "w") as wheel:
        info = "thing-0.3.dist-info"
        wheel.writestr("thing.pth", __file__.rpartition("/")[0] + "\\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: thing\\nVersion: 0.3\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return NAME
"""
PROJECT = """
[project]
name = "thing"
version = "0.3"
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


def test_an_install_line_may_have_options_quotes_and_spaces(
    host: Host, service: StubService, repository: Repository
) -> None:
    """An editable install without isolation sees the runtime's packages, and the tests see the tree's."""
    repository.commit(
        {
            "my thing/pyproject.toml": PROJECT,
            "my thing/backend.py": BACKEND,
            "my thing/thing.py": "VALUE = 1\n",
            "tests/test_it.py": "import thing\ndef test_it(): assert 'tree/my thing/' in thing.__file__\n",
        }
    )
    run(host, repository, install=("--no-build-isolation -e './my thing'",))
    assert (ended(service).cause, ended(service).detail) == (Cause.FINISHED, "")
    assert [event.outcome for event in service.events if isinstance(event, CaseEvent)] == ["passed"]


@pytest.mark.long
@pytest.mark.parametrize("sandbox", ["auto", "off"])
def test_a_build_backend_that_leaves_an_orphan_behind_holds_nobody_up(
    host: Host, service: StubService, repository: Repository, sandbox: str
) -> None:
    """It holds the pipe that uv reads. The package is installed, the log says what was left, and the tests run."""
    orphan = "import os, time\nif os.fork() == 0:\n    if os.fork() == 0: time.sleep(300)\n    os._exit(0)\n"
    repository.commit(
        {
            "thing/pyproject.toml": PROJECT,
            "thing/backend.py": orphan + BACKEND,
            "thing/thing.py": "VALUE = 1\n",
            "tests/test_it.py": "import thing\ndef test_it(): assert thing.VALUE\n",
        }
    )
    tools = dataclasses.replace(host.tools, timeout_s=40.0)
    holds = find_holds(host.settings.model_copy(update={"sandbox": sandbox}))
    run(dataclasses.replace(host, tools=tools, holds=holds), repository, install=("--no-build-isolation -e ./thing",))
    assert (ended(service).cause, ended(service).detail) == (Cause.FINISHED, "")
    assert [event.outcome for event in service.events if isinstance(event, CaseEvent)] == ["passed"]
    assert b"left behind and killed: " in service.artifacts["log.txt"]


DESTROYS = """
import os, pathlib, shutil
def test_1():
    tree = pathlib.Path(__file__).parents[1]
    {harm}
def test_2():
    os._exit(9)
def test_3():
    pass
"""


@pytest.mark.long
@pytest.mark.parametrize("sandbox", ["auto", pytest.param("off", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("harm", "what"),
    [
        ("shutil.rmtree(tree)", "checkout"),
        ("tree.rename(tree.with_name('elsewhere'))", "checkout"),
        ("shutil.rmtree(tree); tree.symlink_to('/')", "checkout"),
        ("shutil.rmtree(tree); tree.touch()", "checkout"),
        ("shutil.rmtree(tree.parent, ignore_errors=True)", ""),
    ],
    ids=["removed", "moved", "link", "file", "attempt"],
)
def test_tests_that_destroy_their_checkout_are_judged_by_what_they_did(
    host: Host, service: StubService, repository: Repository, harm: str, what: str, sandbox: str
) -> None:
    """No machine is to blame, and another would fare no better: the attempt has ended, with what was observed."""
    repository.commit({"tests/test_it.py": DESTROYS.format(harm=harm)})
    holds = find_holds(host.settings.model_copy(update={"sandbox": sandbox}))
    run(dataclasses.replace(host, holds=holds), repository)
    assert ended(service).cause is Cause.FINISHED, ended(service).detail
    assert f"{what} was removed or closed: the tests did so, and 1 cases were not observed" in ended(service).detail
    cases = [event for event in service.events if isinstance(event, CaseEvent)]
    processes = [event for event in service.events if isinstance(event, ProcessEndedEvent)]
    assert [event.outcome for event in cases] == ["passed", "not-observed", "not-observed"]
    assert [(one.exit_code, one.finished, one.collected, one.reported) for one in processes] == [(9, False, 3, 1)]


def test_an_install_line_that_destroys_its_checkout_is_environment(
    host: Host, service: StubService, repository: Repository
) -> None:
    """With the line; nothing else is tried in it."""
    harm = "import pathlib, shutil, atexit\natexit.register(shutil.rmtree, pathlib.Path(__file__).parents[1])\n"
    repository.commit({"thing/pyproject.toml": PROJECT, "thing/backend.py": harm + BACKEND, "thing/thing.py": ""})
    run(host, repository, install=("--no-build-isolation -e ./thing", "--no-build-isolation -e ./thing"))
    assert ended(service).cause is Cause.ENVIRONMENT
    assert "'--no-build-isolation -e ./thing' removed or closed its own checkout" in ended(service).detail


ODD = """
import pathlib
import os, sys
site = next(path for path in pathlib.Path(__file__.partition("/tree/")[0], "overlay").glob("lib/*/site-packages"))
odd = site / "odd-1.dist-info"
odd.mkdir()
{harm}
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("os.mkfifo(odd / 'METADATA')", {}),
        ("(odd / 'METADATA').symlink_to('/dev/zero')", {}),
        pytest.param("(odd / 'METADATA').mkdir()", {}, marks=pytest.mark.long),
        pytest.param("pass", {}, marks=pytest.mark.long),
        pytest.param("(odd / 'METADATA').write_text('Metadata-Version: 2.1\\n')", {}, marks=pytest.mark.long),
        ("(odd / 'METADATA').write_bytes(b'Name: odd\\nVersion: 1\\xff\\n')", {"odd": "1\ufffd"}),
        ("(odd / 'METADATA').write_text('Name: odd\\nVersion: 1\\0\\n')", {"odd": "1\\x00"}),
        ("odd.rmdir(); odd.symlink_to(site)", {}),
    ],
    ids=["pipe", "device", "folder", "none", "no-name", "bytes", "nul", "link"],
)
def test_what_a_package_says_of_itself_may_be_anything(
    host: Host, service: StubService, repository: Repository, harm: str, said: dict[str, str]
) -> None:
    """A build backend writes where the worker reads which packages there are: nobody waits for it, reads it for ever or
    breaks over it, and what is told of it can be stored."""
    repository.commit(
        {
            "thing/pyproject.toml": PROJECT,
            "thing/backend.py": BACKEND.replace("import zipfile", "import zipfile" + ODD.format(harm=harm), 1),
            "thing/thing.py": "",
            "tests/test_it.py": "def test_it(): pass\n",
        }
    )
    install = {"install": ("--no-build-isolation -e ./thing",)}
    thread = threading.Thread(target=run, args=(host, repository), kwargs=install, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "the worker waits for what was left to it"
    assert (ended(service).cause, ended(service).detail) == (Cause.FINISHED, "")
    (environment,) = [event for event in service.events if isinstance(event, EnvironmentEvent)]
    packages = environment.record["packages"]
    assert packages["thing"] == "0.3"
    assert {name: version for name, version in packages.items() if name == "odd"} == said


@needs_cgroup
@pytest.mark.parametrize("sandbox", ["auto", "off"])
@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("data = bytearray(600 << 20)", "the limit of 256 MiB (memory_mib) was reached"),
        (
            "import os, time\nfor _ in range(300):\n    if not os.fork(): os.closerange(0, 99), time.sleep(100)",
            "REPLAYBENCH_PROCESSES_CAP",
        ),
    ],
    ids=["memory", "processes"],
)
def test_a_build_backend_is_held_to_the_operators_caps(
    host: Host, service: StubService, repository: Repository, harm: str, said: str, sandbox: str
) -> None:
    """It is the tree's own code as much as the tests are. Its cell says which limit it met, and nothing of it stays."""
    holds = find_holds(host.settings.model_copy(update={"sandbox": sandbox}))
    held = dataclasses.replace(holds, caps=Limits(memory_mib=256, processes=100))
    repository.commit(
        {
            "thing/pyproject.toml": PROJECT,
            "thing/backend.py": f"{harm}\n{BACKEND}",
            "thing/thing.py": "",
            "tests/test_it.py": "def test_it(): pass\n",
        }
    )
    run(dataclasses.replace(host, holds=held), repository, install=("--no-build-isolation -e ./thing",))
    assert (ended(service).cause, said in ended(service).detail) == (Cause.ENVIRONMENT, True), ended(service).detail
    assert held.cgroups is not None
    assert [path for root in held.cgroups.roots for path in root.glob(f"replaybench-{host.folder.name}-5-*")] == []


def test_an_install_line_without_its_second_quote_is_environment(
    host: Host, service: StubService, repository: Repository
) -> None:
    """The tree's mistake, not the worker's."""
    repository.commit(SUITE)
    run(host, repository, install=("-e './thing",))
    assert ended(service).cause is Cause.ENVIRONMENT
    assert "-e './thing" in ended(service).detail


def test_a_suite_gets_what_it_names(
    host: Host, service: StubService, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data, network, variables, arguments, markers and keyword."""
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one").write_text("1")
    repository.commit(
        {
            "tests/test_it.py": """
import os, sys
def test_data(): assert open(os.environ["REPLAYBENCH_MOUNT_COCO_2017"] + "/one").read() == "1"
def test_network(): assert os.environ["https_proxy"] == "http://proxy:3128"
def test_env(): assert os.environ["SEED"] == "a b"
def test_args(pytestconfig): assert pytestconfig.getoption("verbose") == 2
def test_unwanted(): assert False
""",
        }
    )
    settings = host.settings.model_copy(update={"mounts": {"coco-2017": tmp_path / "data"}})
    suite = SuiteSpec(
        "gate",
        ("tests",),
        keyword="not unwanted and test_it",
        args=("-vv", "-o", "console_output_style=classic"),
        env={"SEED": "a b"},
        mounts=("coco-2017",),
        network=True,
    )
    run(dataclasses.replace(host, settings=settings), repository, suite=suite)
    assert [event.outcome for event in service.events if isinstance(event, CaseEvent)] == ["passed"] * 4


def test_a_full_disk_under_the_spool_is_infrastructure(
    host: Host, service: StubService, repository: Repository
) -> None:
    """All that happened is told, and no result of such a disk is trusted."""
    repository.commit(SUITE)
    host.spool.mkdir(parents=True)
    (host.spool / "5.jsonl").symlink_to("/dev/full")
    run(host, repository)
    assert ended(service).cause is Cause.INFRASTRUCTURE
    assert "No space left on device" in ended(service).detail
    assert list(host.spool.iterdir()) == []


def test_a_service_that_takes_no_log_does_not_hold_the_attempt(
    host: Host, service: StubService, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it takes events; that the log is missing is said."""
    monkeypatch.setattr("worker.observing.artifacts._BACKOFF_S", (0.01,))
    service.artifact_status = 503
    repository.commit(SUITE)
    run(host, repository, install=("./thing",))
    assert ended(service).cause is Cause.FINISHED
    assert "log.txt was not stored" in ended(service).detail


def test_what_outlives_a_killed_keeper_is_ended(
    host: Host, service: StubService, repository: Repository, tmp_path: Path
) -> None:
    """A grandchild in a session of its own, whose keeper a test (or the kernel) killed outright: without a sandbox,
    from which no test reaches its keeper, and without a group."""
    repository.commit(
        {
            "tests/test_it.py": f"""
import os, signal, subprocess, sys, time
def test_1():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], start_new_session=True,
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
"""
        }
    )
    run(dataclasses.replace(host, holds=Holds()), repository)
    assert ended(service).cause is Cause.INFRASTRUCTURE
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not is_alive(pid), "the grandchild to be gone")
    assert f"killed: {pid}".encode() in service.artifacts["log.txt"]


LEAK = """
import json, os, pathlib, subprocess, sys, time
def change(**what):
    path = pathlib.Path({path!r})
    state = json.loads(path.read_text())
    state["gpus"][0].update(what)
    path.with_suffix(".test").write_text(json.dumps(state))
    path.with_suffix(".test").rename(path)
"""


def on_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: Host, **more: Any) -> tuple[Cards, Host]:
    """A host with one card, of the stand-in."""
    cards = Cards(tmp_path / "cards.json", card(0, **more))
    cards.put_under(monkeypatch)
    book = FaultBook(tmp_path / "devices")
    health = DeviceHealth(gpu.inventory(), book, attempts=host.folder.parent, free_percent=90, grace_s=0.3)
    settings = host.settings.model_copy(update={"gpu_sample_s": 0.02})
    return cards, dataclasses.replace(host, health=health, settings=settings)


def run_on_card(host: Host, repository: Repository, tests: str) -> None:
    repository.commit({"tests/test_it.py": tests})
    cell = repository.cell(suite=SuiteSpec("gate", ("tests",), kind="cuda"))
    run_attempt(Assignment(5, 1, "lease", 30.0, cell), host.health.devices(), host)


def usage(service: StubService) -> Any:
    (event,) = [event for event in service.events if isinstance(event, UsageEvent)]
    (found,) = event.record["gpus"]
    return found


def test_what_a_cell_takes_of_its_card_is_told(
    open_host: Host, service: StubService, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The most memory of its own processes, and how busy the card was; the record of where it ran names the card."""
    cards, here = on_card(tmp_path, monkeypatch, open_host)
    tests = LEAK.format(path=str(cards.path)) + (
        "def test_1():\n"
        "    assert os.environ['CUDA_VISIBLE_DEVICES'].startswith('GPU-00000000-')\n"
        "    change(processes=[[os.getpid(), 3000], [1, 77]], utilisation=90)\n"
        "    time.sleep(0.5)\n"
        "    change(processes=[], utilisation=0)\n"
    )
    run_on_card(here, repository, tests)
    assert (ended(service).cause, ended(service).detail) == (Cause.FINISHED, "")
    assert [event.outcome for event in service.events if isinstance(event, CaseEvent)] == ["passed"]
    found = usage(service)
    assert (found["memory_peak_bytes"], found["memory_source"]) == (3000 * MIB, "processes")
    assert (found["utilisation_max_percent"], found["xids"], found["uuid"]) == (90, [], cards.uuids[0])
    (environment,) = [event for event in service.events if isinstance(event, EnvironmentEvent)]
    (told,) = environment.record["gpus"]
    assert (told["uuid"], told["ecc_volatile"], told["compute_mode"]) == (cards.uuids[0], 0, "default")


def test_a_card_that_fails_its_gate_runs_no_test(
    open_host: Host, service: StubService, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody took it while the runtime was built: the attempt is the machine's fault, the holder is named."""
    cards, here = on_card(tmp_path, monkeypatch, open_host)
    cards.set(0, processes=[[os.getpid(), 5000]])
    run_on_card(here, repository, "def test_1(): pass\n")
    assert ended(service).cause is Cause.INFRASTRUCTURE
    assert f"(pid {os.getpid()}, 5000 MiB). No test has run" in ended(service).detail
    assert ended(service).detail.startswith("GPU 0 drained: in use by ")
    assert not any(isinstance(event, CaseEvent) for event in service.events)
    assert here.health.devices()[0].drained


def test_what_is_observed_on_a_card_that_breaks_counts_for_nothing(
    open_host: Host, service: StubService, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests that fail then are not to blame: memory errors that came in the middle end the attempt as the machine's."""
    cards, here = on_card(tmp_path, monkeypatch, open_host)
    tests = LEAK.format(path=str(cards.path)) + "def test_1():\n    change(ecc=[3, 3])\n    assert False\n"
    run_on_card(here, repository, tests)
    assert ended(service).cause is Cause.INFRASTRUCTURE
    assert "GPU 0 drained: 3 new uncorrected ECC errors" in ended(service).detail
    assert [event.outcome for event in service.events if isinstance(event, CaseEvent)] == ["failed"]


def test_a_programs_own_xid_is_noted_and_drains_nothing(
    open_host: Host, service: StubService, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A suite may crash on purpose."""
    cards, here = on_card(tmp_path, monkeypatch, open_host)
    stop = threading.Event()
    watch = XidWatch(cards.uuids, here.health.note_xid, stop)
    watch.start()
    assert watch.listening.wait(10)
    tests = LEAK.format(path=str(cards.path)) + "def test_1():\n    change(xids=[31])\n    time.sleep(0.5)\n"
    run_on_card(here, repository, tests)
    stop.set()
    wait_for_thread("xid-watch")
    assert (ended(service).cause, ended(service).detail) == (Cause.FINISHED, "")
    assert usage(service)["xids"] == [31]
    assert here.health.devices()[0].drained == ""


def test_what_outlives_its_cell_on_a_card_is_named_and_ended(
    open_host: Host, service: StubService, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grandchild whose keeper was killed holds the card's memory: the attempt says so, and it is gone.

    On a kernel that gives no cgroup; with one it is ended before the look.
    """
    without = dataclasses.replace(open_host, holds=dataclasses.replace(open_host.holds, cgroups=None))
    cards, here = on_card(tmp_path, monkeypatch, without)
    tests = LEAK.format(path=str(cards.path)) + (
        "import signal\n"
        "def test_1():\n"
        "    code = 'import time; time.sleep(120)'\n"
        "    child = subprocess.Popen([sys.executable, '-c', code], start_new_session=True,\n"
        "                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "    change(processes=[[child.pid, 5000]], used_mib=5600)\n"
        f"    pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
        "    os.kill(os.getppid(), signal.SIGKILL)\n"
        "    time.sleep(60)\n"
    )
    run_on_card(here, repository, tests)
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not is_alive(pid), "the grandchild to be gone")
    assert ended(service).cause is Cause.INFRASTRUCTURE
    text = service.artifacts["log.txt"].decode()
    assert "GPU 0 was not given back within 0.3 s: 5600 MiB in use, 600 MiB before: " in text
    assert f"(pid {pid}, 5000 MiB); killed {pid}" in text
    assert "was not given back" in ended(service).detail
