"""The cache of runtimes under faults: killed builders, damage, failures that are shared, disks that are full."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import small_disk, wheels
from tests.support.wheels import torch_wheel, wheel
from tests.worker.support import PYTHON, wait_for
from worker.errors import EnvironmentFault, InfrastructureFault, Stopped
from worker.messages import RuntimeSpec
from worker.observing.output_log import OutputLog
from worker.runtimes import room
from worker.runtimes.build_failures import BuildFailures
from worker.runtimes.runtime import Tools, built_runtime
from worker.runtimes.runtime_facts import Runtime
from worker.runtimes.runtime_use import Use, last_used

NEVER = threading.Event()
CPU = RuntimeSpec(PYTHON, "2.9.1", "cpu")
CUDA = RuntimeSpec(PYTHON, "2.9.1", "cu129")


def log() -> OutputLog:
    return OutputLog(1 << 20, 1 << 20)


def home_of(runtime: Runtime) -> Path:
    return runtime.interpreter.parent.parent


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of tiny wheels that is all the world."""
    folder = tmp_path / "wheels"
    for name in ("pytest", "numpy", "lightning"):
        wheel(folder, name, "1.0", {f"{name}/__init__.py": f"NAME = {name!r}\n"})
    for name in ("UV_TORCH_BACKEND", "UV_INDEX", "UV_DEFAULT_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache" / "uv"))
    return folder


@pytest.fixture
def tools(tmp_path: Path, uv: str, house: Path) -> Tools:
    torch_wheel(house, "2.9.1+cpu", None)
    (tmp_path / "cache").mkdir()
    return Tools(uv, tmp_path / "cache", 120.0)


def fresh(tools: Tools) -> Tools:
    """The same, in a worker that was just started."""
    return dataclasses.replace(tools, checked=set())


def build(tools: Tools, spec: RuntimeSpec = CPU, said: OutputLog | None = None, queued_s: float = 0.0) -> Runtime:
    return built_runtime(spec, tools, said or log(), NEVER, queued_s=queued_s)


@pytest.fixture
def index(tools: Tools, house: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same wheels behind an index, which is all that uv is told of."""
    monkeypatch.delenv("UV_FIND_LINKS")
    monkeypatch.delenv("UV_OFFLINE")
    (house / "torch-2.9.1+cpu-py3-none-any.whl").unlink()
    with wheels.index(house) as url:
        monkeypatch.setenv("UV_DEFAULT_INDEX", url)
        yield house


def test_the_right_build_of_an_index_is_taken(tools: Tools, index: Path) -> None:
    """Among others of the same version, by its local version."""
    torch_wheel(index, "2.9.1+cu129", "12.9")
    torch_wheel(index, "2.9.1+cu130", "13.0")
    runtime = build(tools, CUDA)
    assert (runtime.torch, runtime.cuda) == ("2.9.1+cu129", "12.9")


@pytest.mark.parametrize(
    ("version", "cuda", "says", "complaint"),
    [
        ("2.9.1+cu129", "12.8", "", "torch.version.cuda expected 12.9, got 12.8"),
        ("2.9.1", "12.8", "2.9.1+cu128", "torch.__version__ expected 2.9.1+cu129, got 2.9.1+cu128"),
        ("2.9.1", None, "2.9.1+cpu", "torch.__version__ expected 2.9.1+cu129, got 2.9.1+cpu"),
    ],
)
def test_a_wrong_build_of_an_index_is_told_with_both_values(
    tools: Tools,
    index: Path,
    version: str,
    cuda: str | None,
    says: str,
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever name the file had. Nothing is published, and no other cell uses it."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # the torch backend's index of the world is out of reach
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    torch_wheel(index, version, cuda, says)
    with pytest.raises(EnvironmentFault) as error:
        build(tools, CUDA)
    assert complaint in str(error.value)
    assert not list(tools.room.runtimes.glob("*/ready.json"))


def test_without_a_network_uvs_words_are_told(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no cell waits for long: nobody listens at the index's port."""
    monkeypatch.delenv("UV_FIND_LINKS")
    monkeypatch.delenv("UV_OFFLINE")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(EnvironmentFault, match=r"(?s)cannot be built.*127\.0\.0\.1:9"):
        build(tools)


ANOTHER_WORKER = """
import pathlib, sys, threading
from worker.messages import RuntimeSpec
from worker.observing.output_log import OutputLog
from worker.runtimes.runtime import Tools, built_runtime
log = OutputLog(1 << 20, 1 << 20)
tools = Tools(sys.argv[1], pathlib.Path(sys.argv[2]), 120.0)
try:
    built_runtime(RuntimeSpec.parse(sys.argv[3]), tools, log, threading.Event())
finally:
    sys.stdout.buffer.write(log.content())
"""


class Gated:
    """A uv that waits at every install until it may go on."""

    def __init__(self, folder: Path, uv: str) -> None:
        folder.mkdir()
        self.path, self._go, self._there = folder / "uv", folder / "go", folder / "there"
        wait = f"touch {self._there}; while [ ! -e {self._go} ]; do sleep 0.05; done"
        self.path.write_text(f'#!/bin/sh\nif [ "$1" = pip ]; then {wait}; fi\nexec {uv} "$@"\n')
        self.path.chmod(0o755)

    def reached(self) -> None:
        wait_for(self._there.exists, "the install to begin")

    def go(self) -> None:
        self._go.touch()


def another_worker(uv: Path, tools: Tools, spec: RuntimeSpec = CPU) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", ANOTHER_WORKER, str(uv), str(tools.cache), spec.id]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env)


def test_of_two_workers_on_one_cache_one_builds(tools: Tools, tmp_path: Path, uv: str) -> None:
    """The other one waits, and says so."""
    gate = Gated(tmp_path / "gate", uv)
    first = another_worker(gate.path, tools)
    gate.reached()
    said = log()
    found: list[Runtime] = []
    second = threading.Thread(target=lambda: found.append(build(tools, said=said)))
    second.start()
    wait_for(
        lambda: b"being built for another cell: waiting for it" in said.content(), "the second to say that it waits"
    )
    gate.go()
    second.join(60)
    out, _ = first.communicate()
    assert b"installing" in out
    assert b"installing" not in said.content()
    assert [runtime.torch for runtime in found] == ["2.9.1+cpu"]


def test_a_builder_that_is_killed_is_followed_by_the_next(tools: Tools, tmp_path: Path, uv: str) -> None:
    """kill -9 in the middle: its lock is free, what it had built is removed, and no room stays reserved."""
    gate = Gated(tmp_path / "gate", uv)
    first = another_worker(gate.path, tools)
    gate.reached()
    (half,) = [path for path in tools.room.runtimes.iterdir() if path.is_dir()]
    assert list(tools.room.runtimes.glob("*.reserved"))
    first.kill()
    first.communicate()
    assert not (half / "ready.json").exists()
    assert tools.room._promised() == 0
    assert build(tools).interpreter.exists()


def test_what_was_half_built_is_removed_at_the_next_start(tools: Tools, tmp_path: Path, uv: str) -> None:
    """Though nobody asks for it again; what is being built by another worker, and what is ready, stays."""
    ready = home_of(build(tools))
    gate = Gated(tmp_path / "gate", uv)
    builder = another_worker(gate.path, tools, RuntimeSpec(PYTHON))
    gate.reached()
    for name in ("py3.9-12345678", ".gone-py3.8-12345678"):
        (tools.room.runtimes / name / "bin").mkdir(parents=True)
    assert room.clean(tools.cache) == ["py3.9-12345678"]
    assert ready.exists()
    gate.go()
    builder.communicate()
    assert builder.returncode == 0
    assert len([path for path in tools.room.runtimes.iterdir() if path.is_dir()]) == 2
    assert room.clean(tmp_path / "no-cache-yet") == []


def site_of(runtime: Runtime) -> Path:
    return home_of(runtime) / "lib" / f"python{PYTHON}" / "site-packages"


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda site: (site / "lightning/__init__.py").unlink(), "lightning/__init__.py is missing"),
        (lambda site: os.truncate(site / "torch/version.py", 0), "torch/version.py has 0 bytes instead of"),
        (lambda site: [shutil.rmtree(path) for path in site.iterdir() if path.is_dir()], "holds no package"),
        (
            lambda site: (site / "../../../bin/python").resolve() and _replace(site / "../../../bin/python"),
            "interpreter",
        ),
    ],
    ids=["missing", "empty", "nothing", "interpreter"],
)
def test_a_damaged_runtime_is_built_anew(tools: Tools, harm: object, said: str) -> None:
    """By a worker that meets it for the first time; it says what was wrong."""
    first = build(tools)
    harm(site_of(first))  # type: ignore[operator]
    told = log()
    second = build(fresh(tools), said=told)
    assert said.encode() in told.content()
    assert b"it is built anew" in told.content()
    code = "import torch, lightning; print(torch.__version__, lightning.NAME)"
    done = subprocess.run([str(second.interpreter), "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2.9.1+cpu lightning\n"


def _replace(python: Path) -> None:
    python.unlink()
    python.write_text("#!/bin/sh\necho 3.1.4\n")
    python.chmod(0o755)


def test_a_whole_runtime_is_looked_through_once(tools: Tools) -> None:
    """In the life of a worker; another start looks again, and finds nothing to do."""
    build(tools)
    again, said = fresh(tools), log()
    build(again, said=said)
    build(again, said=said)
    assert said.total == 0
    assert len(again.checked) == 1


def test_a_damaged_runtime_is_not_taken_from_under_a_running_cell(tools: Tools) -> None:
    """The next build waits until those that run in it have ended, and can be stopped meanwhile."""
    with contextlib.ExitStack() as running:
        first = built_runtime(CPU, tools, log(), NEVER, uses=running)
        (site_of(first) / "lightning/__init__.py").unlink()
        stop = threading.Event()
        threading.Timer(0.5, stop.set).start()
        with pytest.raises(Stopped):
            built_runtime(CPU, fresh(tools), log(), stop)
        assert (site_of(first) / "torch/version.py").exists()
    assert (site_of(build(fresh(tools))) / "lightning/__init__.py").exists()


def failing(tools: Tools, queued_s: float = 0.0) -> bytes:
    """What is printed where the CUDA runtime is asked for, of which there is only a wheel for the CPU."""
    said = log()
    with pytest.raises(EnvironmentFault, match=r"expected 2\.9\.1\+cu129, got 2\.9\.1\+cpu"):
        build(tools, CUDA, said, queued_s)
    return said.content()


def tried(said: bytes) -> bool:
    """Whether a build was tried, and not only told of."""
    return b"could not be built for another cell" not in said


def test_a_failure_is_shared_by_the_cells_that_were_queued_before(tools: Tools, house: Path) -> None:
    """With what was printed then. One that was submitted or run again afterwards has it tried once more."""
    began = time.time()
    first = failing(tools, 1000.0)
    assert tried(first)
    second = failing(tools, time.time() - began + 1.0)
    assert not tried(second)
    assert b"installing torch==2.9.1+cu129" in second
    assert tried(failing(tools))
    torch_wheel(house, "2.9.1+cu129", "12.9")
    assert build(tools, CUDA).torch == "2.9.1+cu129"
    assert not list(tools.room.runtimes.glob("*.failed"))


def test_a_failure_is_forgotten_in_time(tools: Tools) -> None:
    """So a long queue does not end for a fault of minutes."""
    failing(tools, 1000.0)
    assert not tried(failing(tools, 1000.0))
    assert tried(failing(dataclasses.replace(tools, failure_s=0.0), 1000.0))


def test_a_failure_is_forgotten_when_the_sources_change(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker was started again with another index."""
    failing(tools, 1000.0)
    monkeypatch.setenv("UV_EXCLUDE_NEWER", "2030-01-01")
    assert tried(failing(tools, 1000.0))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"at": null}', '{"at": 9e9, "sources": "", "text": "x"}'])
def test_a_note_of_a_failure_that_makes_no_sense_is_none(tmp_path: Path, text: str) -> None:
    """After a loss of power, or from a clock that was wrong."""
    (tmp_path / "home.failed").write_text(text)
    assert BuildFailures(tmp_path / "home", {}).remembered(0.0, 900.0) == ""


def test_the_log_of_a_build_is_kept(tools: Tools) -> None:
    """Beside the runtime, and the attempt's own log says where."""
    said = log()
    home = home_of(build(tools, said=said))
    kept = home.with_name(home.name + ".log")
    assert b"installing torch==2.9.1+cpu" in kept.read_bytes()
    assert str(kept).encode() in said.content()


def three(tools: Tools) -> list[Path]:
    """Three runtimes, the one first made used last."""
    homes = [home_of(build(tools, spec)) for spec in (RuntimeSpec(PYTHON), CPU, RuntimeSpec(PYTHON, "2.9.1"))]
    for age, home in enumerate(homes):
        os.utime(home.with_name(home.name + ".use"), (1e9 - age, 1e9 - age))
    return homes


def test_the_cap_throws_the_least_recently_used_away(tools: Tools) -> None:
    """Never one that is in use, and never the one that was just built."""
    newest, middle, oldest = three(tools)
    with contextlib.ExitStack() as running:
        built_runtime(RuntimeSpec(PYTHON, "2.9.1"), tools, log(), NEVER, uses=running)
        os.utime(oldest.with_name(oldest.name + ".use"), (1.0, 1.0))
        # With one byte more than the cap, the build after this one has to make room for itself.
        cap = room.size_of([newest, middle, oldest]) + room.expected(CPU) - 1
        said = log()
        spec = RuntimeSpec(PYTHON, "2.9.1", "cpu", "1.0")
        last = home_of(build(dataclasses.replace(tools, runtimes_cap_bytes=cap), spec, said))
        assert [home.exists() for home in (newest, middle, oldest, last)] == [True, False, True, True]
        assert f"runtime {middle.name} was thrown away".encode() in said.content()
        build(dataclasses.replace(tools, runtimes_cap_bytes=1), RuntimeSpec(PYTHON, "2.9.1", None, "1.0"))
        assert oldest.exists()
    assert not newest.exists()
    assert not list(tools.room.runtimes.glob(".gone-*"))


def test_a_runtime_that_shares_its_files_is_not_thrown_away_for_nothing(
    tools: Tools, tmp_path: Path, house: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they are links into a cache of uv that is not the worker's, the disk would be as full without it."""
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "somebody's"))
    wheel(house, "lightning", "1.0", {"lightning/data": "x" * (4 << 20)})
    home = home_of(build(tools))
    assert not tools.room.throw_one_away(lambda _: None)
    with pytest.raises(InfrastructureFault, match="`uv cache clean` empties"):
        dataclasses.replace(tools, free_bytes=1 << 60).room.look(lambda _: None, NEVER)
    assert home.exists()


def test_a_use_is_noted_beside_the_runtime(tools: Tools) -> None:
    """Within it nothing is written ever again."""
    home = home_of(build(tools))
    os.utime(home.with_name(home.name + ".use"), (1.0, 1.0))
    before = {path: path.lstat().st_mtime_ns for path in home.rglob("*")}
    build(tools)
    assert last_used(home) > 1e9
    assert {path: path.lstat().st_mtime_ns for path in home.rglob("*")} == before


def test_locks_of_users_and_of_who_throws_away(tmp_path: Path) -> None:
    """Many may hold it together, one alone; a holder's end lets go."""
    first, second, third = (Use(tmp_path / "home") for _ in range(3))
    assert first.share()
    assert second.share()
    assert not third.alone()
    first.release()
    assert not third.alone()
    second.release()
    assert third.alone()
    assert not Use(tmp_path / "home").share()
    assert third.share()
    assert Use(tmp_path / "home").share()


READ_ONLY = """
import pathlib, subprocess, sys, threading
from worker.messages import RuntimeSpec
from worker.observing.output_log import OutputLog
from worker.runtimes.runtime import Tools, built_runtime
tools = Tools(sys.argv[1], pathlib.Path(sys.argv[2]), 120.0)
spec = RuntimeSpec.parse(sys.argv[3])
def ask(): return built_runtime(spec, tools, OutputLog(1, 1), threading.Event())
first = ask()
for path in tools.room.runtimes.glob("*.use"): path.unlink()
subprocess.run(["mount", "-o", "remount,ro", str(tools.cache)], check=True)
tools.checked.clear()
print(ask() == first)
"""


def test_a_cache_that_cannot_be_written_serves(tools: Tools, tmp_path: Path, uv: str) -> None:
    """As that of an image, or of a node without a disk of its own."""
    done = small_disk.run(tmp_path / "disk", 200, READ_ONLY, [uv, str(tmp_path / "disk"), CPU.id])
    assert done.stdout == "True\n", done.stderr


FULL = """
import os, pathlib, sys, threading
from tests.support.wheels import wheel
from worker.runtimes.disk import free
from worker.errors import InfrastructureFault
from worker.messages import RuntimeSpec
from worker.observing.output_log import OutputLog
from worker.runtimes.runtime import Tools, built_runtime
uv, disk, house = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
os.environ["UV_CACHE_DIR"] = str(disk / "uv")
never = threading.Event()
log = OutputLog(1 << 20, 1 << 20)
tools = Tools(uv, disk, 120.0)
def ask(name, **more):
    try:
        return built_runtime(RuntimeSpec.parse(name), Tools(uv, disk, 120.0, **more), log, never)
    except InfrastructureFault as error:
        return str(error)
python = f"py{sys.version_info.major}.{sys.version_info.minor}"
first = ask(f"{python}-torch2.9.1-cpu-pl1.0")
# In the middle of a build there is no room any more: what is not in use makes way, and the build begins again.
filler = disk / "filler"
filler.write_bytes(os.urandom(1 << 20) * ((free(disk) >> 20) - 8))
second = ask(f"{python}-torch2.9.1-cpu-pl2.0")
print(hasattr(second, "torch"), first.interpreter.exists(), b"thrown away to make room" in log.content())
# Nothing more can make way.
third = ask(python, free_bytes=1 << 30)
print("REPLAYBENCH_FREE_BYTES=1073741824 must be" in third, second.interpreter.exists())
try:
    Tools(uv, disk, 1.0, free_bytes=1 << 30).room.look(log.note, never)
except InfrastructureFault as error:
    print("bytes free" in str(error))
filler.unlink()
print(hasattr(ask(python, free_bytes=1 << 20), "torch"))
"""


def test_a_disk_that_is_full_in_the_middle_of_a_build(tools: Tools, tmp_path: Path, uv: str, house: Path) -> None:
    """Least recently used runtimes make way; where none is left, the worker's disk is at fault, not the runtime."""
    for version in ("1.0", "2.0"):
        wheel(house, "lightning", version, {"lightning/data": os.urandom(6 << 20).hex()})
    done = small_disk.run(tmp_path / "disk", 64, FULL, [uv, str(tmp_path / "disk"), str(house)])
    assert done.stdout.splitlines() == ["True False True", "True False", "True", "True"], done.stdout + done.stderr


def test_two_builds_do_not_count_on_the_same_room(tools: Tools, tmp_path: Path, uv: str) -> None:
    """What one has reserved while it builds is not free for the other."""
    gate = Gated(tmp_path / "gate", uv)
    builder = another_worker(gate.path, tools)
    gate.reached()
    assert tools.room._promised() == room.expected(CPU)
    gate.go()
    builder.communicate()
    assert tools.room._promised() == 0


def test_no_room_to_begin_with(tools: Tools) -> None:
    """Nothing is built, no failure is noted, and the setting is named."""
    with pytest.raises(InfrastructureFault, match="REPLAYBENCH_FREE_BYTES"):
        build(dataclasses.replace(tools, free_bytes=1 << 60))
    assert not list(tools.room.runtimes.glob("*.failed"))
