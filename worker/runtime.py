"""Builds runtimes with uv and finds those that are built: each at its final path, under a lock, never changed after.

A ``ready.json`` that is renamed into place publishes a runtime; a folder without one is a half-built one, and is
removed. Concurrent askers wait for the builder, and share its failure.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from worker.environment import for_build
from worker.errors import AttemptError, EnvironmentFault, Stopped, build_fault
from worker.interpreters import find_interpreter
from worker.messages import RuntimeSpec
from worker.output_log import OutputLog
from worker.package_sources import uv_environment
from worker.process import run_kept
from worker.runtime_facts import PROBE, Runtime, assert_is, expected_cuda, from_probe, planned_cuda

_RECIPE = 1
"""Raised when the way of building changes: runtimes of an older recipe are then built anew."""

_LOCK_POLL_S = 0.2


@dataclass(frozen=True)
class Tools:
    """What building needs: uv, where runtimes go, how long a command may take."""

    uv: str
    cache: Path
    timeout_s: float
    builds: bool = True

    def env(self) -> dict[str, str]:
        """The environment of uv: the package sources that uv or pip are configured with."""
        return for_build(os.environ, uv_environment(os.environ))


def built_runtime(spec: RuntimeSpec, tools: Tools, log: OutputLog, stop: threading.Event) -> Runtime:
    """The runtime of a name, built now if it is not there.

    Raises:
        EnvironmentFault: it cannot be built, or what was built is not what its name says.
        Stopped: the attempt was asked to end.
    """
    home = tools.cache / "runtimes" / f"{spec.id}-{_recipe_hash(spec)}"
    if runtime := _published(home):
        return runtime
    if not tools.builds:
        raise EnvironmentFault(f"runtime {spec.id} is not here and REPLAYBENCH_BUILDS is off: add a host runtime")
    home.parent.mkdir(parents=True, exist_ok=True)
    asked = time.time()
    lock = _lock(home, stop)
    try:
        return _published(home) or _Builder(home, spec, tools, log, stop).build(asked)
    finally:
        lock.release()


def _lock(home: Path, stop: threading.Event) -> FileLock:
    lock = FileLock(f"{home}.lock", thread_local=False)
    while True:
        try:
            lock.acquire(timeout=_LOCK_POLL_S)
        except Timeout:
            if stop.is_set():
                raise Stopped("stopped while another attempt builds the runtime") from None
        else:
            return lock


def _requirements(spec: RuntimeSpec) -> list[str]:
    """What goes in beside torch. Lightning comes with torch, in any version where the name leaves it open."""
    if spec.torch is None and spec.lightning is None:
        return ["pytest"]
    return ["pytest", "numpy", f"lightning=={spec.lightning}" if spec.lightning else "lightning"]


def _recipe_hash(spec: RuntimeSpec) -> str:
    recipe = [_RECIPE, spec.id, _requirements(spec), platform.system(), platform.machine()]
    return hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:8]


def _published(home: Path) -> Runtime | None:
    marker = home / "ready.json"
    try:
        facts = json.loads(marker.read_text(encoding="utf-8"))
        runtime = Runtime(**facts | {"interpreter": Path(facts["interpreter"]), "paths": tuple(facts["paths"])})
    except (FileNotFoundError, ValueError, TypeError, LookupError):  # A machine that lost power may leave it empty.
        return None
    if not runtime.interpreter.exists():  # The interpreter that it was made from is gone.
        return None
    os.utime(marker)  # Marks its use: the least recently used runtime is thrown away first.
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

    def build(self, asked: float) -> Runtime:
        """Build and publish, or take over the failure of whoever built while this one waited for the lock."""
        failed = self.home.with_name(self.home.name + ".failed")
        if failed.exists() and failed.stat().st_mtime > asked:
            raise EnvironmentFault(failed.read_text(encoding="utf-8"))
        failed.unlink(missing_ok=True)
        shutil.rmtree(self.home, ignore_errors=True)
        try:
            runtime = self._install()
        except AttemptError as error:
            shutil.rmtree(self.home, ignore_errors=True)
            if isinstance(error, EnvironmentFault):
                failed.write_text(str(error), encoding="utf-8")
            raise
        _publish(self.home, runtime)
        return runtime

    def _install(self) -> Runtime:
        found = find_interpreter(self.spec.python) or self.spec.python
        self._uv("venv", "--quiet", "--python", found, str(self.home))
        said: list[str] = []
        for torch, options in _ladder(self.spec):
            words = [*options, *torch, *_requirements(self.spec)]
            try:
                if self.spec.build and torch == [f"torch=={self.spec.torch}"]:
                    self._refuse_another_cuda(words)
                self._uv_install(words)
                break
            except EnvironmentFault as error:
                said.append(str(error))
        else:
            raise EnvironmentFault(f"runtime {self.spec.id} cannot be built: " + "\nthen: ".join(said))
        runtime = self._probe()
        assert_is(runtime, self.spec)
        return runtime

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
        )
