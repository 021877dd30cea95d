"""The sandbox with real bubblewrap: what tests and build backends cannot see or reach, what works in it nevertheless,
and that nothing survives it."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.holding import needs_sandbox
from tests.worker.support import Repository, StubService, is_alive, wait_for
from tests.worker.test_attempt import BACKEND, PROJECT, ended, run
from worker.attempt import Host, run_attempt
from worker.client import Client
from worker.errors import InfrastructureFault
from worker.isolation import sandbox_view
from worker.isolation.confinement import find_holds
from worker.isolation.process import Confinement, KeptProcess
from worker.isolation.sandbox import find_sandbox, interpreter_places
from worker.isolation.sandbox_view import View, arguments
from worker.messages import Assignment, CaseEvent, Cause, EnvironmentEvent, SuiteSpec
from worker.runtimes.host_runtime import probe_hosts
from worker.runtimes.runtime import Tools
from worker.settings import Settings, SettingsError

ROOT = Path(__file__).parents[2]
REFUSES = (
    "#!/bin/sh\n[ \"$1\" = --version ] && echo bubblewrap 0.9.0 && exit 0\necho 'bwrap: No permissions' >&2\nexit 1\n"
)


@pytest.fixture
def settings(service: StubService, tmp_path: Path) -> Settings:
    """Of a worker whose token lies in a file, below a folder that every test process is shown."""
    token = tmp_path / "etc" / "token"
    token.parent.mkdir()
    token.write_text("a worker's secret\n")
    return Settings(
        BROKER_URL="redis://nowhere",
        REPLAYBENCH_SERVICE_URL=service.url,
        REPLAYBENCH_WORKER_TOKEN_FILE=token,
        REPLAYBENCH_CACHE_DIR=tmp_path / "cache",
        REPLAYBENCH_KILL_GRACE_S=5.0,
        REPLAYBENCH_SANDBOX_PATHS=str(token.parent),
    )


@pytest.fixture
def host(service: StubService, settings: Settings, tmp_path: Path, uv: str, boot: str) -> Iterator[Host]:
    client = Client(service.url, "secret")
    yield Host(
        settings=settings,
        client=client,
        tools=Tools(uv, settings.cache_dir, 120.0),
        hosts=probe_hosts([Path(sys.executable)]),
        folder=settings.cache_dir / "attempts" / boot,
        spool=settings.cache_dir / "spool" / boot,
        heartbeat_s=0.3,
        stopping=threading.Event(),
        holds=find_holds(settings),
    )
    client.close()


def outcomes(service: StubService) -> dict[str, str]:
    cases = [event for event in service.events if isinstance(event, CaseEvent)]
    return {event.node_id.rpartition("::")[2]: event.outcome.value + event.message[:300] for event in cases}


def passed(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "passed")


HIDDEN = """
import os, pathlib, pytest
from os.path import exists

def words(path):
    try: return open(path, "rb").read()
    except OSError: return b""

def test_token(): assert words({token!r}) == b""
def test_enrolment(): assert words({enrolment!r}) == b""
def test_spool(): assert not exists({spool!r})
def test_other_attempts(): assert os.listdir({attempts!r}) == ["5"]
def test_home(): assert not exists({home!r}) or "canary" not in os.listdir({home!r})
def test_data(): assert not exists({data!r})
def test_worker():
    assert b"REPLAYBENCH_WORKER" not in b"".join(words(f"/proc/{{pid}}/environ") for pid in os.listdir("/proc"))
def test_processes(): assert {{int(pid) for pid in os.listdir("/proc") if pid.isdigit()}} <= {{1, os.getpid()}}
def test_shadow(): assert words("/etc/shadow") == b""
def test_gpu(): assert not list(pathlib.Path("/dev").glob("nvidia*"))

MIRROR = open(".git/objects/info/alternates").read().strip()
@pytest.mark.parametrize("place", ["/", "/usr", "/etc", "/sys/fs/cgroup", {runtime!r}, {plugin!r}, MIRROR])
def test_read_only(place):
    with pytest.raises(OSError): open(place + "/written", "w")

OWN = [".", "/tmp", "/var/tmp", "/run", "/dev/shm", os.environ["HOME"], os.environ["TMPDIR"]]
@pytest.mark.parametrize("place", OWN)
def test_writable(place): open(place + "/written", "w").close()
"""


@needs_sandbox
def test_a_password_of_an_index_is_not_there(
    host: Host, service: StubService, settings: Settings, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the machine's own settings of pip hold one, in a folder that every test is shown. Others stay."""
    assert settings.token_file is not None
    shown = settings.token_file.parent
    for name, text in (
        ("pip/pip.conf", "[global]\nindex-url = https://me:x@i.example/simple"),
        ("uv/uv.toml", "offline = true"),
    ):
        (shown / name).parent.mkdir()
        (shown / name).write_text(text)
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(shown))
    source = f"import pathlib\nSHOWN = pathlib.Path({str(shown)!r})\n"
    source += "def words(path):\n    try: return path.read_bytes()\n    except OSError: return b''\n"
    source += "def test_pip(): assert words(SHOWN / 'pip/pip.conf') == b''\n"
    source += "def test_uv(): assert words(SHOWN / 'uv/uv.toml') == b'offline = true'\n"
    repository.commit({"tests/test_it.py": source})
    run(dataclasses.replace(host, holds=find_holds(settings)), repository)
    assert outcomes(service) == passed("test_pip", "test_uv")


@needs_sandbox
def test_what_is_the_workers_is_not_there(
    host: Host, service: StubService, settings: Settings, repository: Repository, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Token, enrolment, spool, other attempts, home, data and the worker's own process; the system and the runtime can
    be read and not written to."""
    home = tmp_path / "home"
    for place in (home, home / ".local/share/replaybench", host.spool, host.folder / "4"):
        place.mkdir(parents=True)
    (home / "canary").touch()
    monkeypatch.setenv("HOME", str(home))
    kept = settings.token_file.with_name("worker.json")
    kept.write_text("an enrolled worker's token\n")
    monkeypatch.setenv("REPLAYBENCH_ENROLMENT_FILE", str(kept))
    source = HIDDEN.format(
        token=str(settings.token_file),
        enrolment=str(kept),
        spool=str(host.spool),
        attempts=str(host.folder),
        home=str(home),
        data=str(home / ".local/share/replaybench"),
        runtime=sys.prefix,
        plugin=str(ROOT / "worker/plugin"),
    )
    repository.commit({"tests/test_it.py": source})
    run(dataclasses.replace(host, holds=find_holds(settings)), repository)
    assert set(outcomes(service).values()) == {"passed"}, outcomes(service)
    assert len(outcomes(service)) == 24
    (environment,) = [event for event in service.events if isinstance(event, EnvironmentEvent)]
    assert str(environment.record["sandbox"]).startswith("bubblewrap ")
    assert not Path("/tmp/written").exists()  # noqa: S108 - it was a private one
    assert ended(service).cause is Cause.FINISHED


@needs_sandbox
def test_a_build_backend_is_in_it_too(
    host: Host, service: StubService, settings: Settings, repository: Repository
) -> None:
    """An install line runs the tree's own code: it finds the network, and neither token nor uv's shared cache."""
    spy = f"""
import os, socket
assert not os.path.getsize({str(settings.token_file)!r}), "the token is there"
assert not os.path.exists({str(host.spool.parent)!r}), "the spool is there"
assert os.environ["UV_CACHE_DIR"].startswith({str(settings.cache_dir / "install")!r})
socket.create_connection(("127.0.0.1", {int(service.url.rpartition(":")[2])})).close()
"""
    repository.commit(
        {
            "thing/pyproject.toml": PROJECT,
            "thing/backend.py": spy + BACKEND,
            "thing/thing.py": "VALUE = 1\n",
            "tests/test_it.py": "import thing\ndef test_it(): assert thing.VALUE == 1\n",
        }
    )
    host.spool.mkdir(parents=True)
    run(host, repository, install=("--no-build-isolation -e ./thing",))
    assert (ended(service).cause, ended(service).detail) == (Cause.FINISHED, "")
    assert outcomes(service) == passed("test_it")


@needs_sandbox
def test_what_uv_keeps_for_install_lines_does_not_grow_with_attempts(
    host: Host, service: StubService, settings: Settings, repository: Repository
) -> None:
    """Each attempt's tree lies at a path of its own."""
    service.separate = True
    repository.commit({"thing/pyproject.toml": PROJECT, "thing/backend.py": BACKEND, "thing/thing.py": "VALUE = 1\n"})
    kept = []
    for attempt in (1, 2, 3):
        cell = repository.cell(install=("--no-build-isolation -e ./thing",))
        run_attempt(Assignment(attempt, 1, "lease", 30.0, cell), (), host)
        kept.append(len(list(settings.cache_dir.glob("install/*/archive-v*/*"))))
    assert kept == [1, 1, 1]


NAMES = """
import os, pathlib
def test_it(): assert [name for name in {named!r} if pathlib.Path(name).exists() and os.path.getsize(name)] == []
"""


@needs_sandbox
@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "CUDA_HOME", "CUDA_PATH", "SSL_CERT_DIR"])
def test_a_suite_opens_no_place_by_naming_it(
    host: Host, service: StubService, settings: Settings, repository: Repository, tmp_path: Path, variable: str
) -> None:
    """The worker's own such variables name places that a test is shown; those of a tree's suite show nothing."""
    assert settings.token_file is not None
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key").write_text("a neighbour's secret\n")
    named = [str(settings.token_file), str(tmp_path / "private" / "key")]
    places = ":".join([named[0], str(tmp_path / "private")])
    repository.commit({"tests/test_it.py": NAMES.format(named=named)})
    run(host, repository, suite=SuiteSpec("gate", ("tests",), env={variable: places}))
    assert outcomes(service) == passed("test_it")


TRAPS = """
import os

def leave(folder, *names):
    for name in names:
        place = folder + "/" + name
        if os.path.lexists(place):
            os.rename(place, place + "-before")
        {trap}
"""
THEN_BREAKS = """
def test_leaves():
    leave(os.path.dirname(os.environ["HOME"]), "tmp", "home", "select-2.json", "events-2.jsonl")
    os._exit(9)
"""
AFTER = """
import os
def test_after():
    assert not os.path.exists("/tmp/canary") and not os.path.exists("/var/tmp/canary")
    open("/tmp/after", "w").close()
"""


@pytest.mark.long
@needs_sandbox
@pytest.mark.parametrize(
    "trap", ["os.symlink({outside!r} + '/' + name, place)", "os.symlink({outside!r}, place)", "os.mkfifo(place)",
             "os.makedirs(place + '/x')", "open(place, 'w').close()"],
    ids=["link", "link-to-a-folder", "pipe", "folder", "file"],
)  # fmt: skip
@pytest.mark.parametrize("by", ["test", "build"])
def test_what_is_left_for_the_worker_leads_it_nowhere(
    host: Host, service: StubService, repository: Repository, tmp_path: Path, trap: str, by: str
) -> None:
    """The worker makes files in the attempt's folder, and binds parts of it, where tested code may write: through what
    lies there in their stead it reads, writes and shows nothing outside, and waits for nobody."""
    outside = tmp_path / "outside"
    (outside / "tmp").mkdir(parents=True)
    kept = ["canary", "events-1.jsonl", "events-2.jsonl", "select-2.json", "tmp/canary"]
    for name in kept:
        (outside / name).write_text("untouched")
    leave = TRAPS.format(trap=trap.format(outside=str(outside)))
    names = '"tmp", "home", "events-1.jsonl", "events-2.jsonl"'
    spy = f'{leave}leave(os.path.abspath(__file__).partition("/tree/")[0], {names})\n'
    repository.commit(
        {
            "thing/pyproject.toml": PROJECT,
            "thing/backend.py": (spy if by == "build" else "") + BACKEND,
            "thing/thing.py": "",
            "tests/test_it.py": (leave + THEN_BREAKS if by == "test" else "") + AFTER,
        }
    )
    install = ("--no-build-isolation -e ./thing",) if by == "build" else ()
    thread = threading.Thread(target=run, args=(host, repository), kwargs={"install": install}, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "the worker waits for what was left to it"
    assert ended(service).cause is Cause.FINISHED, ended(service)
    assert outcomes(service).get("test_after") == "passed", service.artifacts["log.txt"].decode()
    assert sorted(str(path.relative_to(outside)) for path in outside.rglob("*") if path.is_file()) == kept
    assert {(outside / name).read_text() for name in kept} == {"untouched"}


WORKS = """
import multiprocessing, os, socket, subprocess, sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import shared_memory

def test_shared_memory():
    block = shared_memory.SharedMemory(create=True, size=1 << 20)
    block.buf[0] = 7
    block.close()
    block.unlink()

def test_spawn():
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        assert list(pool.map(abs, [-1, -2])) == [1, 2]

def test_semaphore(): multiprocessing.get_context("fork").Semaphore(2)

def test_loopback():
    server = socket.create_server(("127.0.0.1", 0))
    socket.create_connection(server.getsockname()).close()

def test_network():
    try: socket.create_connection(("127.0.0.1", PORT), timeout=5).close()
    except OSError: assert not NETWORK
    else: assert NETWORK

def test_git(): assert subprocess.run(["git", "log", "--oneline"], capture_output=True, check=True).stdout
def test_data(): assert open(os.environ["REPLAYBENCH_MOUNT_COCO"] + "/one").read() == "1"
def test_data_is_read_only():
    try: open(os.environ["REPLAYBENCH_MOUNT_COCO"] + "/two", "w")
    except OSError: return
    assert False
def test_first_process_cannot_be_ended():
    for number in (2, 9, 15, 19): os.kill(1, number)
"""


@needs_sandbox
@pytest.mark.parametrize("network", [False, True])
def test_what_tests_need_works_in_it(
    host: Host, service: StubService, settings: Settings, repository: Repository, tmp_path: Path, network: bool
) -> None:
    """Shared memory, multiprocessing, loopback, git, data; the machine's network only where the suite asks for it."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one").write_text("1")
    source = WORKS.replace("PORT", service.url.rpartition(":")[2]).replace("NETWORK", str(network))
    repository.commit({"tests/test_it.py": source})
    named = settings.model_copy(update={"mounts": {"coco": tmp_path / "data"}})
    run(
        dataclasses.replace(host, settings=named),
        repository,
        suite=SuiteSpec("gate", ("tests",), mounts=("coco",), network=network),
    )
    assert set(outcomes(service).values()) == {"passed"}, outcomes(service)


LEAVES = """
import os, signal, subprocess, sys, time
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(300.%s)"
children = [subprocess.Popen([sys.executable, "-c", code % MARK], start_new_session=s, stdout=-1) for s in (0, 1)]
[child.stdout.readline() for child in children]
def on_term(*_):
    open("termed", "w").close()
    sys.exit(3)
signal.signal(signal.SIGTERM, on_term)
open("ready", "w").close()
time.sleep(float(sys.argv[1]))
"""


def in_sandbox(folder: Path, source: str, *arguments: str, output: list[bytes] | None = None) -> KeptProcess:
    sandbox = find_sandbox((Path.home(),)).sandbox
    assert sandbox is not None
    prefix = sandbox.prefix(Path(sys.executable), View((folder,)), {})
    return KeptProcess(
        [sys.executable, "-c", source, *arguments],
        env=dict(os.environ),
        cwd=folder,
        grace_s=5.0,
        on_output=(output if output is not None else []).append,
        confinement=Confinement(prefix),
    )


def marked(mark: str) -> list[int]:
    """The processes whose command line holds a mark, seen from outside."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if f"300.{mark}".encode() in path.read_bytes() or f"MARK = {mark}".encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return [pid for pid in found if is_alive(pid)]


@needs_sandbox
@pytest.mark.parametrize("order", ["", "terminate", "kill", "dies", "stopped"])
def test_nothing_survives_it(tmp_path: Path, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the command ends, is ended, its keeper is killed outright or stopped: children in sessions of their own
    and deaf to TERM are gone. TERM reaches the command itself, and its own answer to it counts."""
    monkeypatch.setattr("worker.isolation.process._DEAF_S", 0.3)
    mark = str(os.getpid())
    source = f"MARK = {mark}\n" + LEAVES
    process = in_sandbox(tmp_path, source, "0" if order == "" else "300")
    wait_for((tmp_path / "ready").exists, "the children to start")
    if order in ("terminate", "kill"):
        getattr(process, order)()
    elif order == "dies":
        os.kill(process._keeper.pid, signal.SIGKILL)
    elif order == "stopped":
        os.kill(process._keeper.pid, signal.SIGSTOP)
        process.kill()
    if order == "dies":
        with pytest.raises(InfrastructureFault):
            wait_for(lambda: process.wait(0.1), "the end")
    else:
        end = wait_for(lambda: process.wait(0.1), "the end")
        expected = {"": (0, None), "terminate": (3, None), "kill": (None, 9), "stopped": (None, 9)}
        assert (end.exit_code, end.signal) == expected[order]
        if order == "":
            assert len(end.left) == 2
            assert all("import signal" in name for name in end.left)
    wait_for(lambda: not marked(mark), "all of it to be gone")
    assert (tmp_path / "termed").exists() == (order == "terminate")


@needs_sandbox
def test_a_worker_killed_outright_leaves_nothing_of_it(tmp_path: Path) -> None:
    """The end of the lifeline is enough."""
    stand_in = f"""
import time
from pathlib import Path
from tests.worker.test_sandbox import LEAVES, in_sandbox
in_sandbox(Path({str(tmp_path)!r}), "MARK = 7{os.getpid()}\\n" + LEAVES, "300")
time.sleep(120)
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    worker = subprocess.Popen([sys.executable, "-c", stand_in], cwd=ROOT, env=env)
    wait_for((tmp_path / "ready").exists, "the children to start")
    assert len(marked(f"7{os.getpid()}")) >= 3
    worker.kill()
    worker.wait()
    wait_for(lambda: not marked(f"7{os.getpid()}"), "everything to be gone")


@needs_sandbox
@pytest.mark.parametrize(
    ("source", "end"),
    [
        ("import os; os.abort()", (None, signal.SIGABRT)),
        ("import os; os.kill(os.getpid(), 11)", (None, signal.SIGSEGV)),
        ("import os; os._exit(139)", (139, None)),
        ("raise SystemExit(1)", (1, None)),
    ],
)
def test_a_signal_is_told_from_an_exit(tmp_path: Path, source: str, end: tuple[int | None, int | None]) -> None:
    """bubblewrap's own exit code says 139 to both."""
    process = in_sandbox(tmp_path, source)
    ended = wait_for(lambda: process.wait(0.1), "the end")
    assert (ended.exit_code, ended.signal) == end


def refusing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bwrap that is installed and not allowed, as in many containers."""
    (folder / "bin").mkdir()
    (folder / "bin/bwrap").write_text(REFUSES)
    (folder / "bin/bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")


def test_where_it_must_be_and_is_not_allowed_no_worker_starts(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``on`` names why; ``auto`` goes on without, and says so."""
    refusing(tmp_path, monkeypatch)
    with pytest.raises(SettingsError, match=r"REPLAYBENCH_SANDBOX='on'.*not allowed here: bwrap: No permissions"):
        find_holds(settings.model_copy(update={"sandbox": "on"}))
    assert find_holds(settings).sandbox.title.startswith("none: ")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert find_holds(settings).sandbox.title == "none: bwrap is not installed (package bubblewrap)"


def test_an_attempt_without_one_says_so(
    host: Host, service: StubService, settings: Settings, repository: Repository
) -> None:
    """In the record of its environment, with the reason."""
    repository.commit({"tests/test_it.py": "def test_it(): pass\n"})
    run(dataclasses.replace(host, holds=find_holds(settings.model_copy(update={"sandbox": "off"}))), repository)
    (environment,) = [event for event in service.events if isinstance(event, EnvironmentEvent)]
    assert environment.record["sandbox"] == "none: REPLAYBENCH_SANDBOX is off"
    assert outcomes(service) == passed("test_it")


def mounted(words: list[str], place: Path | str) -> str:
    """How the last mount on a place is made; empty where there is none."""
    found = []
    for at, word in enumerate(words):
        if word == str(place) and words[at - 1] == "--tmpfs":
            found.append("--tmpfs")
        elif word == str(place) and words[at - 2].startswith("--"):
            found.append(words[at - 2])
    return found[-1] if found else ""


def test_what_is_concealed_stays_so_below_what_is_shown(tmp_path: Path) -> None:
    """A worker's cache, a token and an attempt in a folder that everybody may read."""
    shown = tmp_path / "opt"
    for folder in ("cache/attempts/b/5", "cache/attempts/b/6", "lib"):
        (shown / folder).mkdir(parents=True)
    (shown / "token").touch()
    own = shown / "cache/attempts/b/5"
    words = arguments(View((own,), (shown, shown / "lib")), [shown / "cache", shown / "token"], {})
    assert mounted(words, shown) == "--ro-bind"
    assert mounted(words, shown / "cache") == "--tmpfs"
    assert words[words.index(str(shown / "token")) - 1] == os.devnull
    assert mounted(words, own) == "--bind"
    assert words.index(str(shown / "cache")) < words.index(str(own))


def test_the_leased_cards_alone_are_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the number that the driver gives them; all of them where it does not say."""
    for minor, uuid in (("3", "GPU-a"), ("1", "GPU-b")):
        (tmp_path / minor).mkdir()
        (tmp_path / minor / "information").write_text(f"Model: \t X\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n")
    monkeypatch.setattr(sandbox_view, "_GPU_FACTS", tmp_path)

    def cards(*uuids: str) -> list[str]:
        words = arguments(View((), devices=uuids), [], {})
        return sorted({word for word in words if word.startswith("/dev/nvidia")} - {"/dev/nvidia-caps"})

    assert cards() == []
    assert "/dev/nvidia1" in cards("GPU-b")
    assert "/dev/nvidia3" not in cards("GPU-b")
    assert {"/dev/nvidia1", "/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm"} <= set(cards("GPU-a", "GPU-b"))
    assert "/dev/nvidiactl" in cards("GPU-c")


def interpreter(place: Path, prefix: Path, spied: Path) -> Path:
    """A program that answers as an interpreter of that prefix does, and keeps the environment that it was given."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    fresh = place.with_name("fresh")
    fresh.write_text(f"#!/bin/sh\nenv > {spied}\necho '[\"{prefix}\"]'\n")
    fresh.chmod(0o755)
    fresh.rename(place)
    return place


def test_what_a_runtime_needs_is_asked_of_the_runtime_as_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was thrown away and built anew may come from another interpreter, and one that could not answer once may
    do so the next time. It is given none of the worker's secrets."""
    monkeypatch.setenv("REPLAYBENCH_WORKER_TOKEN", "a worker's secret")
    place, spied = tmp_path / "runtime/bin/python", tmp_path / "spied"
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
    assert interpreter_places(place) == (place,)
    interpreter(place, tmp_path / "before", spied)
    assert tmp_path / "before" in interpreter_places(place)
    assert "a worker's secret" not in spied.read_text()
    spied.unlink()
    assert tmp_path / "before" in interpreter_places(place)
    assert not spied.exists(), "asked once"
    interpreter(place, tmp_path / "after", spied)
    assert tmp_path / "after" in interpreter_places(place)
    place.unlink()
    place.symlink_to(interpreter(tmp_path / "other/python", tmp_path / "before", spied))
    assert tmp_path / "before" in interpreter_places(place)
