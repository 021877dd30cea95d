"""What holds the commands of an attempt that run the tree's own code: a sandbox, a group of their own, limits.

Three kinds of command run such code: the install lines (build backends), the look at the devices (what was installed
is imported), and pytest.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import structlog

from worker import enrolment
from worker.isolation.cgroup import Cgroups, Group, find_cgroups, memory_of_machine_mib
from worker.isolation.environment import allowed
from worker.isolation.limits import Limits
from worker.isolation.owned import real_folder
from worker.isolation.process import FREE, Confinement
from worker.isolation.sandbox import Found, find_sandbox
from worker.isolation.sandbox_view import View
from worker.runtimes.index_credentials import secret_files
from worker.runtimes.runtime_facts import Runtime
from worker.settings import Settings, SettingsError

log = structlog.get_logger()

_LEAST_PROCESSES = 4096
_PROCESSES_A_CORE = 128


@dataclass(frozen=True)
class Holds:
    """What this worker can hold tests with, found once at its start."""

    sandbox: Found = field(default_factory=lambda: Found(None, "not looked for"))
    cgroups: Cgroups | None = None
    caps: Limits = field(default_factory=Limits)


def find_holds(settings: Settings) -> Holds:
    """Look for a sandbox and groups, and say in the log what there is.

    Raises:
        SettingsError: REPLAYBENCH_SANDBOX is ``on`` and it does not work here.
    """
    sandbox = Found(None, "REPLAYBENCH_SANDBOX is off")
    if settings.sandbox != "off":
        sandbox = find_sandbox(_hidden(settings), settings.sandbox_paths)
    if settings.sandbox == "on" and sandbox.sandbox is None:
        raise SettingsError(
            f"REPLAYBENCH_SANDBOX='on': {sandbox.why}. Make bubblewrap work here (docs/settings.md), or set 'auto' to "
            "run without a sandbox where it does not"
        )
    cgroups = find_cgroups()
    caps = Limits(
        memory_mib=settings.memory_cap_mib or memory_of_machine_mib() * 9 // 10,
        processes=settings.processes_cap or max(_LEAST_PROCESSES, _PROCESSES_A_CORE * (os.cpu_count() or 1)),
        file_size_mib=settings.file_size_cap_mib,
        open_files=settings.open_files_cap,
    )
    held_by = cgroups.title if cgroups else "limits of each process: no cgroup can be made here"
    log.info("tests are held", sandbox=sandbox.title, by=held_by, caps=vars(caps))
    if cgroups is None and os.getuid() == 0:
        log.warning("root's processes are not counted without a cgroup: a fork bomb is not stopped")
    return Holds(sandbox, cgroups, caps)


def _hidden(settings: Settings) -> tuple[Path, ...]:
    """What no test may see, wherever it lies: the token, the enrolment, all that the worker keeps, what an embedded
    system or the user has at home, and what is secret of pip's and uv's settings. Of the worker's cache an attempt is
    shown its own parts only."""
    home = Path.home()
    data = Path(os.environ.get("REPLAYBENCH_DATA_DIR") or home / ".local" / "share" / "replaybench")
    token = [settings.token_file.absolute()] if settings.token_file else []
    return (
        *token,
        *secret_files(os.environ),
        enrolment.place().absolute(),
        settings.cache_dir.absolute(),
        data.absolute(),
        home,
    )


@dataclass(frozen=True)
class Box:
    """Holds the commands of one attempt."""

    holds: Holds = field(default_factory=Holds)
    limits: Limits = field(default_factory=Limits)
    name: str = ""
    python: Path | None = None
    """The runtime's interpreter: nothing that a tree could have changed."""
    view: View | None = None

    @property
    def sandboxed(self) -> bool:
        return self.holds.sandbox.sandbox is not None and self.view is not None

    def tests(self) -> Confinement:
        """For what runs in the tests' own view, without their limits. Of all variables only the worker's own open a
        place to it: those of a suite are the tree's."""
        return self._confined(self.view, allowed(os.environ))

    @contextlib.contextmanager
    def install(
        self, env: Mapping[str, str], uv: Path, cache: Path | None
    ) -> Iterator[tuple[Confinement, Group | None]]:
        """For an install line: with the network, what uv is configured with, and a cache that only this repository's
        lines write to, so that nothing of it gets into a runtime; without one there is no sandbox. A suite's limits
        are for its tests: here the operator's caps hold."""
        prefix: tuple[str, ...] = ()
        if self.view is not None and cache is not None:
            cache.mkdir(parents=True, exist_ok=True)
            readable = (*self.view.readable, uv, *_uv_places(env))
            view = View((*self.view.writable, cache), readable, self.view.temporary, network=True)
            prefix = self._confined(view, env).prefix
        with self._limited("install", self.holds.caps, prefix) as held:
            yield held

    def _confined(self, view: View | None, env: Mapping[str, str]) -> Confinement:
        sandbox = self.holds.sandbox.sandbox
        if sandbox is None or view is None or self.python is None:
            return FREE
        if view.temporary is not None:
            real_folder(view.temporary)  # What ran before could have put a link in its stead.
        return Confinement(sandbox.prefix(self.python, view, env))

    @contextlib.contextmanager
    def opened(self, number: int) -> Iterator[tuple[Confinement, Group | None]]:
        """For one pytest process: its confinement with all limits, and its group as long as it lasts."""
        with self._limited(str(number), self.limits, self.tests().prefix) as held:
            yield held

    @contextlib.contextmanager
    def looking(self) -> Iterator[Confinement]:
        """For what runs in the tests' own view and is none of them: the operator's caps hold."""
        with self._limited("look", self.holds.caps, self.tests().prefix) as (confinement, _):
            yield confinement

    @contextlib.contextmanager
    def _limited(
        self, name: str, limits: Limits, prefix: tuple[str, ...]
    ) -> Iterator[tuple[Confinement, Group | None]]:
        group = self._group(name, limits)
        rlimits = limits.each_process()
        if group is None:
            rlimits |= limits.instead_of_a_group(_threads_of_user())
        try:
            yield Confinement(prefix, group.doors if group else (), rlimits), group
        finally:
            if group:
                group.close()

    def _group(self, name: str, limits: Limits) -> Group | None:
        if self.holds.cgroups is None or not self.name:
            return None
        try:
            return self.holds.cgroups.make(f"{self.name}-{name}", limits)
        except OSError as error:
            log.warning("no group", error=str(error))
            return None

    @property
    def facts(self) -> dict[str, object]:
        """What the environment's record tells of it."""
        by = self.holds.cgroups.title if self.holds.cgroups else "limits of each process"
        return {"sandbox": self.holds.sandbox.title, "limits": {**vars(self.limits), "by": by}}


OPEN = Box()
"""Holds nothing."""


def make_box(holds: Holds, limits: Limits, runtime: Runtime, folder: Path, view: View) -> Box:
    """The box of the attempt in ``folder``, with what its tree and its runtime lie in added to the view."""
    readable = (*view.readable, *map(Path, runtime.paths), *_borrowed(folder / "tree"))
    whole = View((*view.writable, folder), readable, folder / "tmp", view.devices, view.network)
    return Box(holds, limits, f"{folder.parent.name}-{folder.name}", runtime.interpreter, whole)


def _borrowed(tree: Path) -> list[Path]:
    """The mirrors whose objects a tree and its submodules borrow: git needs them there."""
    files = [tree / ".git/objects/info/alternates"]
    if (tree / ".gitmodules").is_file():
        files += tree.glob("**/.git/objects/info/alternates")
    return [Path(line) for file in files if file.is_file() for line in file.read_text().splitlines()]


def _uv_places(env: Mapping[str, str]) -> list[Path]:
    """The files and folders that uv's own variables and configuration name."""
    names = ("UV_FIND_LINKS", "UV_CONSTRAINT", "UV_OVERRIDE", "UV_BUILD_CONSTRAINT", "UV_DEFAULT_INDEX", "UV_INDEX",
             "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_CONFIG_FILE", "SSL_CLIENT_CERT")  # fmt: skip
    words = [word for name in names for word in env.get(name, "").replace(",", " ").split()]
    words = [word.rpartition("=")[2] for word in words]  # An index may have a name: name=address.
    found = [Path(unquote(urlsplit(word).path)) for word in words if urlsplit(word).scheme in ("", "file")]
    config = Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME", "/")) / ".config") / "uv" / "uv.toml"
    return [path for path in [*found, config] if path.is_absolute()]


def _threads_of_user() -> int:
    """How many threads this user has: RLIMIT_NPROC counts them all."""
    own, count = os.getuid(), 0
    for place in Path("/proc").glob("[0-9]*/task"):
        with contextlib.suppress(OSError):
            count += len(os.listdir(place)) if place.stat().st_uid == own else 0
    return count
