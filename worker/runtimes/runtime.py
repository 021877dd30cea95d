"""Builds runtimes with uv and finds those that are built: each at its final path, under a lock, never changed after.

A ``ready.json`` that is renamed into place publishes a runtime; a folder without one is a half-built one, and is
removed, as is one that was damaged since. Concurrent askers wait for the builder, and share its failure.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from worker.errors import EnvironmentFault, build_fault, is_full_disk
from worker.host_lock import locked
from worker.isolation.environment import for_build
from worker.isolation.process import run_kept
from worker.messages import RuntimeSpec
from worker.observing.output_log import OutputLog, Tee
from worker.runtimes.build_failures import BuildFailures
from worker.runtimes.index_gate import IndexGate
from worker.runtimes.interpreters import find_interpreter
from worker.runtimes.package_sources import uv_environment
from worker.runtimes.room import Room
from worker.runtimes.runtime_facts import PROBE, Runtime, assert_is, expected_cuda, from_probe, planned_cuda
from worker.runtimes.runtime_seal import damage, damaged_packages
from worker.runtimes.runtime_use import Use

_RECIPE = 1
"""Raised when the way of building changes: runtimes of an older recipe are then built anew."""

_LOG_HEAD, _LOG_TAIL = 256 << 10, 1 << 20


@dataclass(frozen=True)
class Tools:
    """What building needs: uv, where runtimes go, how long a command may take, how long a failed build is remembered
    (seconds). ``uv_cache`` is a cache of uv for this worker alone, unless its operator names one."""

    uv: str
    cache: Path
    timeout_s: float
    builds: bool = True
    failure_s: float = 900.0
    free_bytes: int = 0
    runtimes_cap_bytes: int = 0
    uv_cache: Path | None = None
    gate: IndexGate = field(default_factory=IndexGate, compare=False)
    """Reaches indexes that ask for a password, for what must not know it."""
    checked: set[tuple[Path, int]] = field(default_factory=set, compare=False)
    """Runtimes that this process has looked at, each by its marker's time."""

    def env(self) -> dict[str, str]:
        """The environment of uv: the package sources that uv or pip are configured with."""
        env = for_build(os.environ, uv_environment(os.environ))
        return {"UV_CACHE_DIR": str(self.uv_cache)} | env if self.uv_cache else env

    @property
    def room(self) -> Room:
        """The disk that runtimes lie on."""
        place = self.env().get("UV_CACHE_DIR")
        own = Path(place) if place and Path(place).is_relative_to(self.cache) else None
        return Room(self.cache, self.free_bytes, self.runtimes_cap_bytes, self.uv, own)


def built_runtime(
    spec: RuntimeSpec,
    tools: Tools,
    log: OutputLog,
    stop: threading.Event,
    *,
    queued_s: float = 0.0,
    uses: contextlib.ExitStack | None = None,
) -> Runtime:
    """The runtime of a name, built now if it is not there. ``queued_s`` is how long ago its cell was queued. Until
    ``uses`` is closed nobody throws it away.

    Raises:
        EnvironmentFault: it cannot be built, or what was built is not what its name says.
        InfrastructureFault: there is no room for it.
        Stopped: the attempt was asked to end.
    """
    home = tools.cache / "runtimes" / f"{spec.id}-{_recipe_hash(spec)}"
    queued = time.time() - queued_s
    use = Use(home)
    with contextlib.ExitStack() as mine:
        (mine if uses is None else uses).callback(use.release)
        if use.share() and (runtime := _published(home, tools, log)):
            return runtime
        use.release()
        if not tools.builds:
            raise EnvironmentFault(f"runtime {spec.id} is not here and REPLAYBENCH_BUILDS is off: add a host runtime")
        home.parent.mkdir(parents=True, exist_ok=True)
        waiting = f"runtime {spec.id} is being built for another cell: waiting for it"
        with locked(Path(f"{home}.lock"), stop, lambda: log.note(waiting)):
            use = Use(home)
            (mine if uses is None else uses).callback(use.release)
            runtime = _published(home, tools, log) or _Builder(home, spec, tools, log, stop).build(queued, use)
            use.share()
            return runtime


def _requirements(spec: RuntimeSpec) -> list[str]:
    """What goes in beside torch. Lightning comes with torch, in any version where the name leaves it open."""
    if spec.torch is None and spec.lightning is None:
        return ["pytest"]
    return ["pytest", "numpy", f"lightning=={spec.lightning}" if spec.lightning else "lightning"]


def _recipe_hash(spec: RuntimeSpec) -> str:
    recipe = [_RECIPE, spec.id, _requirements(spec), platform.system(), platform.machine()]
    return hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:8]


def _published(home: Path, tools: Tools, log: OutputLog) -> Runtime | None:
    """A runtime that is there and whole. Looking through all its files takes a moment, so that is done once in the
    life of this process."""
    marker = home / "ready.json"
    try:
        facts = json.loads(marker.read_text(encoding="utf-8"))
        runtime = Runtime(**facts | {"interpreter": Path(facts["interpreter"]), "paths": tuple(facts["paths"])})
        key = (home, marker.stat().st_mtime_ns)
    except (FileNotFoundError, ValueError, TypeError, LookupError):  # A machine that lost power may leave it empty.
        return None
    if not runtime.interpreter.exists():  # The interpreter that it was made from is gone.
        return None
    if key not in tools.checked:
        if wrong := damage(runtime, home):
            log.note(f"runtime {home.name} is damaged: {wrong}; it is built anew")
            return None
        tools.checked.add(key)
    return runtime


def _publish(home: Path, runtime: Runtime) -> None:
    facts = dataclasses.asdict(runtime) | {"interpreter": str(runtime.interpreter), "packages": dict(runtime.packages)}
    fresh = home / "ready.json.new"
    fresh.write_text(json.dumps(facts, indent=1), encoding="utf-8")
    fresh.rename(home / "ready.json")


def _ladder(spec: RuntimeSpec) -> Iterator[tuple[list[str], list[str]]]:
    """What to ask for, in turn: torch's exact build from the configured sources, then from uv's torch backend, then
    the plain version. Which build came is looked at afterwards. One resolution holds torch and lightning, so that
    lightning cannot bring another torch.

    The plain version is worth a try for one reason: an index like PyPI takes no local versions, so its file is called
    ``torch-2.9.1`` while the torch in it is ``2.9.1+cu128``. It has one build of each version, and a wrong one must not
    be fetched in gigabytes to be refused: its requirements tell which CUDA it wants (``nvidia-cuda-runtime-cu12
    ==12.8.90``), so this rung is resolved first and installed only where that does not contradict the build.
    """
    if spec.torch is None:
        yield [], []
        return
    yield [f"torch=={spec.torch_version}"], []
    if spec.build:
        yield [f"torch=={spec.torch_version}"], ["--torch-backend", spec.build]
        yield [f"torch=={spec.torch}"], []


class _Builder:
    """Builds one runtime, while its lock is held."""

    def __init__(self, home: Path, spec: RuntimeSpec, tools: Tools, log: OutputLog, stop: threading.Event) -> None:
        self.home, self.spec, self.tools, self.log, self.stop = home, spec, tools, log, stop
        self.env = tools.env()
        self.python = home / "bin" / "python"

    def build(self, queued: float, use: Use) -> Runtime:
        """Build and publish, or take over the failure of a build that this cell would have waited for."""
        failures = BuildFailures(self.home, self.env)
        if text := failures.remembered(queued, self.tools.failure_s):
            self.log.note(f"runtime {self.spec.id} could not be built for another cell; what was printed then:")
            with contextlib.suppress(OSError):
                self.log.feed(failures.log.read_bytes())
            raise EnvironmentFault(text)
        failures.forget()
        use.wait_alone(self.stop)
        room = self.tools.room
        kept = OutputLog(_LOG_HEAD, _LOG_TAIL)
        self.log = Tee(self.log, kept)
        try:
            with room.reserved(self.home, self.spec, self.log.note, self.stop):
                runtime = self._install_where_there_is_room(room)
                _publish(self.home, runtime)
        except EnvironmentFault as error:
            failures.remember(str(error))
            raise
        finally:
            with contextlib.suppress(OSError):
                kept.write(failures.log)
        self.tools.checked.add((self.home, (self.home / "ready.json").stat().st_mtime_ns))
        self.log.note(f"the log of this build is kept at {failures.log}")
        return runtime

    def _install_where_there_is_room(self, room: Room) -> Runtime:
        """Install; on a disk that is full in the middle, throw something away and begin again, while there is any."""
        while True:
            shutil.rmtree(self.home, ignore_errors=True)
            try:
                return self._install_whole()
            except Exception as error:
                shutil.rmtree(self.home, ignore_errors=True)
                if not is_full_disk(error) or self.stop.is_set() or not room.throw_one_away(self.log.note):
                    raise

    def _install_whole(self) -> Runtime:
        """Install; without uv's cache, where that gives what is not whole: a runtime's files are links into it, so
        whoever writes into one writes into the other."""
        self._install()
        if wrong := damaged_packages(self.home):
            self.log.note(f"uv's cache gave what is not whole ({wrong}): installing without it")
            shutil.rmtree(self.home)
            self._install("--no-cache")
            if wrong := damaged_packages(self.home):
                raise EnvironmentFault(f"runtime {self.spec.id} is not whole as it is installed: {wrong}")
        runtime = self._probe()
        assert_is(runtime, self.spec)
        return runtime

    def _install(self, *more: str) -> None:
        found = find_interpreter(self.spec.python) or self.spec.python
        self._uv("venv", "--quiet", "--python", found, str(self.home))
        said: list[str] = []
        for torch, options in _ladder(self.spec):
            words = [*options, *torch, *_requirements(self.spec)]
            try:
                if self.spec.build and torch == [f"torch=={self.spec.torch}"]:
                    self._refuse_another_cuda(words)
                self._uv_install([*more, *words])
                break
            except EnvironmentFault as error:
                said.append(str(error))
        else:
            raise EnvironmentFault(f"runtime {self.spec.id} cannot be built: " + "\nthen: ".join(said))

    def _refuse_another_cuda(self, words: list[str]) -> None:
        """Resolve without fetching, and see which CUDA the torch that would come asks for."""
        plan = self._uv("pip", "install", "--dry-run", "--python", str(self.python), *words)
        cuda = planned_cuda(plan)
        if cuda is not None and cuda != expected_cuda(self.spec.build or ""):
            raise EnvironmentFault(
                f"torch=={self.spec.torch} of the configured sources is a build for CUDA {cuda}, "
                f"not {self.spec.build}: it was not fetched"
            )

    def _uv_install(self, words: list[str]) -> None:
        self.log.note(f"runtime {self.spec.id}: installing {' '.join(words)}")
        self._uv("pip", "install", "--python", str(self.python), "--compile-bytecode", *words)

    def _uv(self, *arguments: str) -> str:
        code, output = self._run([self.tools.uv, *arguments], self.log)
        if code:
            raise build_fault(f"uv {arguments[0]} failed: ", output)
        return output

    def _probe(self) -> Runtime:
        _, output = self._run([str(self.python), "-I", str(PROBE)], OutputLog(0, 1024))
        return from_probe(output, self.python, "built")

    def _run(self, command: list[str], log: OutputLog) -> tuple[int, str]:
        return run_kept(
            command,
            env=self.env,
            cwd=self.tools.cache,
            stop=self.stop,
            timeout_s=self.tools.timeout_s,
            on_output=log.feed,
            note=log.note,
        )
