"""The worker as a process: it says ready, serves what waits, stops when told, and refuses to start on nonsense."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import broker
from tests.worker.support import PYTHON, Repository, StubService, is_alive, wait_for
from worker.encoding import encode
from worker.messages import Assignment, AttemptEndedEvent, Cause, RuntimeSpec
from worker.settings import Settings

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def broker_url() -> Iterator[str]:
    with broker.running() as url:
        yield url


class Worker:
    """A worker process under test."""

    def __init__(self, env: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("ab") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "worker"],
                cwd=ROOT,
                env=env,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
            )

    def ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "worker ready\n", self.log.read_text()

    def wait(self) -> int:
        with self.process:
            return self.process.wait(20)


@pytest.fixture
def env(service: StubService, broker_url: str, tmp_path: Path, uv: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "BROKER_URL": broker_url,
        "REPLAYBENCH_SERVICE_URL": service.url,
        "REPLAYBENCH_WORKER_TOKEN": "secret",
        "REPLAYBENCH_CACHE_DIR": str(tmp_path / "cache"),
        "REPLAYBENCH_HOST_RUNTIMES": sys.executable,
        "REPLAYBENCH_UV": uv,
        "REPLAYBENCH_KILL_GRACE_S": "0.5",
    }


@pytest.fixture
def start(env: dict[str, str], tmp_path: Path) -> Iterator[list[Worker]]:
    started: list[Worker] = []
    yield started
    for worker in started:
        if worker.process.poll() is None:
            worker.process.kill()
            worker.wait()


def assignment(repository: Repository) -> dict[str, object]:
    data: dict[str, object] = encode(Assignment(5, 1, "lease", 30.0, repository.cell(runtime=RuntimeSpec(PYTHON))))
    return data


SLOW = "import os, time\ndef test_1(): open('../pid', 'w').write(str(os.getpid())); time.sleep(60)\n"


def test_it_serves_what_waits_and_what_it_is_woken_for(
    start: list[Worker],
    env: dict[str, str],
    service: StubService,
    repository: Repository,
    broker_url: str,
    tmp_path: Path,
) -> None:
    """Registered, it claims at once; a wake-up has it claim again; SIGTERM ends it with 0."""
    from service.dispatch.broker import Broker  # noqa: PLC0415 - the sending end is the service's own

    repository.commit(
        {"tests/test_it.py": "import os\ndef test_1(): assert 'REPLAYBENCH_WORKER_TOKEN' not in os.environ\n"}
    )
    service.assignments.append(assignment(repository))
    worker = Worker(env, tmp_path / "log")
    start.append(worker)
    worker.ready()
    wait_for(lambda: any(isinstance(event, AttemptEndedEvent) for event in service.events), "the first attempt")
    assert [event.outcome for event in service.events if event.kind == "case"] == ["passed"]
    service.stored.clear()
    service.assignments.append(assignment(repository))
    sender = Broker(broker_url)
    sender.send(["cpu"])
    sender.close()
    wait_for(lambda: any(isinstance(event, AttemptEndedEvent) for event in service.events), "the woken attempt")
    wait_for(lambda: any(path.endswith("/heartbeat") for path in service.paths), "an idle heartbeat")
    worker.process.send_signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert list((tmp_path / "cache" / "attempts").iterdir()) == []


def test_sigterm_in_the_middle_hands_the_cell_back(
    start: list[Worker], env: dict[str, str], service: StubService, repository: Repository, tmp_path: Path
) -> None:
    """The attempt ends as infrastructure, and nothing is left running."""
    repository.commit({"tests/test_it.py": SLOW})
    service.assignments.append(assignment(repository))
    worker = Worker(env, tmp_path / "log")
    start.append(worker)
    worker.ready()
    wait_for(lambda: any(batch.running for batch in service.batches), "the case")
    worker.process.send_signal(signal.SIGTERM)
    assert worker.wait() == 0
    last = service.events[-1]
    assert isinstance(last, AttemptEndedEvent)
    assert (last.cause, last.detail) == (Cause.INFRASTRUCTURE, "the worker was stopped")


def given_a_home_in(folder: Path) -> list[int]:
    """The processes whose home lies in a folder, by their numbers outside of any sandbox."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"HOME={folder}/".encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return [pid for pid in found if is_alive(pid)]


@pytest.mark.parametrize("sandbox", ["auto", "off"])
def test_kill_9_leaves_no_process_and_the_next_start_cleans_up(
    start: list[Worker], env: dict[str, str], service: StubService, repository: Repository, tmp_path: Path, sandbox: str
) -> None:
    """The test process dies with its worker; the spool is delivered, then it and the attempt's folder go."""
    env["REPLAYBENCH_SANDBOX"] = sandbox
    repository.commit({"tests/test_it.py": SLOW})
    service.assignments.append(assignment(repository))
    worker = Worker(env, tmp_path / "log")
    start.append(worker)
    worker.ready()
    wait_for(lambda: next((p.read_text() for p in tmp_path.glob("cache/attempts/*/5/pid")), ""), "the case")
    assert given_a_home_in(tmp_path / "cache/attempts")
    worker.process.kill()
    worker.wait()
    wait_for(lambda: not given_a_home_in(tmp_path / "cache/attempts"), "the test process and its keeper to be gone")
    (spool,) = tmp_path.glob("cache/spool/*/5.jsonl")
    boot = spool.parent.name.partition("-")[0]
    service.paths.clear()
    again = Worker(env, tmp_path / "log")
    start.append(again)
    again.ready()
    assert service.paths[0] == "POST /api/v1/worker/attempts/5/batches"
    assert not list(tmp_path.glob(f"cache/*/{boot}*"))
    assert not list(Path("/sys/fs/cgroup").glob(f"**/replaybench-{boot}-*"))
    again.process.send_signal(signal.SIGTERM)
    assert again.wait() == 0


@pytest.mark.parametrize("other", ["REPLAYBENCH_WORKER_NAME", "REPLAYBENCH_SERVICE_URL"])
def test_what_a_dead_worker_had_to_say_waits_for_itself(
    start: list[Worker], env: dict[str, str], service: StubService, repository: Repository, tmp_path: Path, other: str
) -> None:
    """Another worker of the same cache may not speak for it, or speaks to another service: it ends the processes that
    are left, removes the attempt, and leaves the spool alone."""
    repository.commit({"tests/test_it.py": SLOW})
    service.assignments.append(assignment(repository))
    start.append(Worker(env, tmp_path / "log"))
    start[0].ready()
    wait_for(lambda: next((p.read_text() for p in tmp_path.glob("cache/attempts/*/5/pid")), ""), "the case")
    start[0].process.kill()
    start[0].wait()
    left = len(service.stored)
    (spool,) = tmp_path.glob("cache/spool/*/5.jsonl")
    words = spool.read_bytes()
    service.paths.clear()
    another = {"REPLAYBENCH_WORKER_NAME": "another", "REPLAYBENCH_SERVICE_URL": f"{service.url}/another"}[other]
    start.append(Worker(env | {other: another}, tmp_path / "log"))
    start[1].ready()
    assert not list(tmp_path.glob("cache/attempts/*/5"))
    assert [path for path in service.paths if "batches" in path] == []
    assert spool.read_bytes() == words
    start.append(Worker(env, tmp_path / "log"))
    start[2].ready()
    assert [path for path in service.paths if "batches" in path]
    assert len(service.stored) >= left
    assert not spool.parent.exists()


@pytest.mark.parametrize("blocked", [False, True])
def test_what_cannot_be_delivered_is_not_thrown_away(
    start: list[Worker], env: dict[str, str], tmp_path: Path, blocked: bool
) -> None:
    """It is moved out of the way; where even that does not work it stays for the next start. The worker goes on."""
    cache = tmp_path / "cache"
    named = {"BROKER_URL", "REPLAYBENCH_SERVICE_URL", "REPLAYBENCH_WORKER_TOKEN"}
    settings = Settings(**{name: env[name] for name in named})  # type: ignore[arg-type]
    spool = cache / "spool" / f"0123-{settings.key}" / "5.jsonl"
    spool.parent.mkdir(parents=True)
    spool.parent.with_name(f"{spool.parent.name}.lock").touch()
    spool.write_text('{"attempt": 5, "token": "lease"}\n{"of": "another release"}\n')
    if blocked:
        (cache / "undelivered").touch()
    worker = Worker(env, tmp_path / "log")
    start.append(worker)
    worker.ready()
    assert spool.exists() == spool.parent.exists() == blocked
    assert len(list(cache.glob("undelivered/*-5.jsonl"))) == (not blocked)
    assert ("spool not set aside" if blocked else "spools lie aside") in worker.log.read_text()


def test_what_outlived_a_worker_and_its_keeper_is_ended_at_the_next_start(
    start: list[Worker], env: dict[str, str], tmp_path: Path
) -> None:
    """A process that was given its home in a dead worker's folder."""
    dead = tmp_path / "cache" / "attempts" / "0123"
    dead.mkdir(parents=True)
    dead.with_suffix(".lock").touch()
    with subprocess.Popen(["/bin/sleep", "120"], env={"HOME": f"{dead}/5/home"}) as survivor:
        worker = Worker(env, tmp_path / "log")
        start.append(worker)
        worker.ready()
        assert survivor.wait(10) == -signal.SIGKILL
    assert not dead.exists()


def test_two_workers_share_a_cache_under_two_names(
    start: list[Worker], env: dict[str, str], service: StubService, repository: Repository, tmp_path: Path
) -> None:
    """The service would take a second one of the same name for the first one's next start: it is refused."""
    repository.commit({"tests/test_it.py": SLOW})
    service.assignments.append(assignment(repository))
    first = Worker(env, tmp_path / "log")
    start.append(first)
    first.ready()
    wait_for(lambda: any(batch.running for batch in service.batches), "the case")
    same = Worker(env | {"REPLAYBENCH_STOP_GRACE_S": "0.2"}, tmp_path / "same")
    start.append(same)
    assert same.wait() == 2
    assert "REPLAYBENCH_WORKER_NAME=" in (tmp_path / "same").read_text()
    other = Worker(env | {"REPLAYBENCH_WORKER_NAME": "other"}, tmp_path / "other")
    start.append(other)
    other.ready()
    assert list(tmp_path.glob("cache/attempts/*/5/pid"))
    for worker in (other, first):
        worker.process.send_signal(signal.SIGTERM)
        assert worker.wait() == 0


def test_a_full_disk_under_its_own_log_ends_no_attempt(
    start: list[Worker], env: dict[str, str], service: StubService, repository: Repository
) -> None:
    """A line of the log is left out, nothing else."""
    repository.commit({"tests/test_it.py": "def test_1(): pass\n"})
    service.assignments.append(assignment(repository))
    service.script = [(503, {})] * 3
    worker = Worker(env, Path("/dev/full"))
    start.append(worker)
    worker.ready()
    wait_for(lambda: any(isinstance(event, AttemptEndedEvent) for event in service.events), "the attempt's end")
    assert service.events[-1] == AttemptEndedEvent(Cause.FINISHED)


def test_a_broker_that_is_away_at_start_is_waited_for(
    start: list[Worker], env: dict[str, str], service: StubService, repository: Repository, tmp_path: Path
) -> None:
    """What waited is served meanwhile, and SIGTERM still ends the worker."""
    repository.commit({"tests/test_it.py": "def test_1(): pass\n"})
    service.assignments.append(assignment(repository))
    worker = Worker(env | {"BROKER_URL": "redis://127.0.0.1:9/0"}, tmp_path / "log")
    start.append(worker)
    wait_for(lambda: any(isinstance(event, AttemptEndedEvent) for event in service.events), "the attempt's end")
    worker.process.send_signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_host_runtime_that_is_left_out_is_said_with_its_variable(
    start: list[Worker], env: dict[str, str], tmp_path: Path
) -> None:
    """On standard error; the worker goes on with the others."""
    both = {"REPLAYBENCH_HOST_RUNTIMES": os.pathsep.join(["/nonexistent/python", sys.executable])}
    worker = Worker(env | both, tmp_path / "log")
    start.append(worker)
    worker.ready()
    (told,) = [line for line in worker.log.read_text().splitlines() if "host runtime left out" in line]
    assert '"setting": "REPLAYBENCH_HOST_RUNTIMES"' in told
    assert "/nonexistent/python" in told


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"REPLAYBENCH_CPU_SLOTS": "many"}, "REPLAYBENCH_CPU_SLOTS='many'"),
        ({"REPLAYBENCH_UV": "/no/uv"}, "REPLAYBENCH_UV='/no/uv'"),
        ({"REPLAYBENCH_WORKER_TOKEN": "", "REPLAYBENCH_WORKER_TOKEN_FILE": "/no/token"}, "/no/token"),
    ],
)
def test_it_refuses_to_start_on_nonsense(env: dict[str, str], change: dict[str, str], word: str) -> None:
    """With one clear word and exit code 2."""
    done = subprocess.run(
        [sys.executable, "-m", "worker"],
        cwd=ROOT,
        env=env | change,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_a_sandbox_that_must_be_and_is_not_allowed_stops_the_start(
    start: list[Worker], env: dict[str, str], tmp_path: Path
) -> None:
    """With the setting, its value, and bubblewrap's own words."""
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    env |= {"REPLAYBENCH_SANDBOX": "on", "PATH": f"{tmp_path}:{env['PATH']}"}
    worker = Worker(env, tmp_path / "log")
    start.append(worker)
    assert worker.wait() == 2
    assert "REPLAYBENCH_SANDBOX='on': " in worker.log.read_text()
    assert "No permissions to create new namespace" in worker.log.read_text()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--enroll", "TOKEN", "--service", "URL"], 0, "enrolled as gpu-3 at "),
        (["--enroll", "TOKEN"], 2, "--enroll and --service go together"),
        (["--help"], 0, "clear CARD"),
        (["gpus"], 0, "["),
        (["spools"], 0, "[]"),
        (["clear", "9"], 2, "has no fault that stays"),
        (["nonsense"], 2, "worker --enroll TOKEN --service URL"),
    ],
    ids=["enroll", "half", "help", "gpus", "spools", "clear", "nonsense"],
)
def test_what_else_it_is_asked_than_to_run(
    env: dict[str, str], service: StubService, tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    """Enrolment by its options, a machine's cards by their words; anything else is answered with the usage."""
    env["REPLAYBENCH_ENROLMENT_FILE"] = str(tmp_path / "worker.json")
    command = [sys.executable, "-m", "worker", *(service.url if word == "URL" else word for word in words)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr
    assert (tmp_path / "worker.json").exists() == said.startswith("enrolled")
