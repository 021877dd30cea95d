"""The throw-away environment of one attempt: a small one on top of the runtime, with what the tree installs.

The runtime itself stays as it was built. A host interpreter may live in a virtual environment, which a second one does
not see through; so a ``.pth`` file names the runtime's folders, by code, for their own ``.pth`` files count too.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.parser import HeaderParser
from functools import partial
from pathlib import Path

from worker.cleaning import Cleaner
from worker.errors import EnvironmentFault, build_fault
from worker.isolation.cgroup import Group
from worker.isolation.confinement import OPEN, Box
from worker.isolation.owned import read_file, usable
from worker.isolation.process import run_kept
from worker.observing.output_log import OutputLog
from worker.runtimes.install_cache import held
from worker.runtimes.runtime import Tools
from worker.runtimes.runtime_facts import Runtime

_MOST_PACKAGES, _LONGEST = 2000, 200
"""Of what an install line leaves, how much is told in the environment's record."""
_PRUNE_S = 120.0


@dataclass(frozen=True)
class Overlay:
    """An environment to run tests in. ``packages`` are those of the runtime and, above them, what the install lines
    ``brought``. ``brings_torch``: there is a torch among that, with a package's name or without."""

    python: Path
    bins: tuple[Path, ...]
    packages: Mapping[str, str]
    brought: Mapping[str, str] = field(default_factory=dict)
    brings_torch: bool = False


def make_overlay(
    folder: Path,
    runtime: Runtime,
    install: Sequence[str],
    *,
    tree: Path,
    tools: Tools,
    log: OutputLog,
    stop: threading.Event,
    box: Box = OPEN,
    cache: Path | None = None,
) -> Overlay:
    """Make the environment at ``folder`` and run the tree's install lines in it, which run the tree's own code: in the
    box, where ``cache`` is what uv keeps for this repository's lines alone.

    Raises:
        EnvironmentFault: uv failed, with its words in the text, or what it ran did away with the tree.
        Stopped: the attempt was asked to end.
    """
    _make(folder, runtime)
    python = folder / "bin" / "python"
    env = tools.env() | {"UV_PYTHON_DOWNLOADS": "never"}
    apart = cache if box.sandboxed else None
    if apart is not None:
        env |= {"UV_CACHE_DIR": str(apart), "UV_LINK_MODE": "copy"}
    with contextlib.ExitStack() as held_open:
        told = held_open.enter_context(tools.gate.opened(env, str(apart or tree), folder.with_name("uv")))
        if apart is not None:
            tidy = partial(_prune, folder, told, tools=tools, log=log, stop=stop, box=box, cache=apart)
            held_open.enter_context(held(apart, stop, tidy))
        for line in install:
            _install(line, python, told, tree=tree, tools=tools, log=log, stop=stop, box=box, cache=apart)
    brought = _installed(_site(folder, runtime))
    torch = "torch" in brought or any(os.path.lexists(_site(folder, runtime) / name) for name in ("torch", "torch.py"))
    bins = (folder / "bin", runtime.interpreter.parent)
    return Overlay(python, bins, {**runtime.packages, **brought}, brought, torch)


def _install(
    line: str,
    python: Path,
    env: Mapping[str, str],
    *,
    tree: Path,
    tools: Tools,
    log: OutputLog,
    stop: threading.Event,
    box: Box,
    cache: Path | None,
) -> None:
    """Run one install line."""
    log.note(f"install {line}")
    command = [tools.uv, "pip", "install", "--no-deps", "--python", str(python), *_words(line)]
    with box.install(env, Path(tools.uv), cache) as (confinement, group):
        code, output = run_kept(
            command,
            env=env,
            cwd=tree,
            stop=stop,
            timeout_s=tools.timeout_s,
            on_output=log.feed,
            confinement=confinement,
            note=log.note,
        )
        limit = _limit_met(group)
    if code:
        raise build_fault(f"install line {line!r} failed{limit}: ", output)
    if not usable(tree):
        raise EnvironmentFault(f"install line {line!r} removed or closed its own checkout")


def _prune(
    cwd: Path,
    env: Mapping[str, str],
    *,
    tools: Tools,
    log: OutputLog,
    stop: threading.Event,
    box: Box,
    cache: Path,
) -> None:
    """Have uv drop what nothing in its cache names any more: in the box, since the tree's code wrote that cache. Where
    that fails, the cache is larger, and no line fails for it."""
    command = [tools.uv, "cache", "prune", "--quiet"]
    with box.install(env, Path(tools.uv), cache) as (confinement, _):
        try:
            code, said = run_kept(
                command, env=env, cwd=cwd, stop=stop, timeout_s=_PRUNE_S, confinement=confinement, note=log.note
            )
        except EnvironmentFault as error:
            code, said = 1, str(error)
    if code:
        log.note(f"uv did not tidy its cache for install lines: {said.strip()[-2000:]}")


def _limit_met(group: Group | None) -> str:
    """Which of the operator's caps an install line ran into, for a person; nothing if none."""
    if group is None:
        return ""
    if killed := group.out_of_memory():
        return f" (the out-of-memory killer was here: {killed}; the cap is REPLAYBENCH_MEMORY_CAP_MIB)"
    if group.refused_processes():
        return f" (no more than {group.limits.processes} processes and threads, REPLAYBENCH_PROCESSES_CAP)"
    return ""


def _installed(site: Path) -> dict[str, str]:
    """The packages that the install lines left, by what they say of themselves: the tree wrote it, so it may be
    anything. What says nothing that can be used is passed over."""
    found: dict[str, str] = {}
    for place in sorted(site.glob("*.dist-info"))[:_MOST_PACKAGES]:
        with contextlib.suppress(OSError):
            said = HeaderParser().parsestr(read_file(place / "METADATA").decode("utf-8", "replace"))
            name, version = (Cleaner().text(str(said[key] or ""), _LONGEST) for key in ("Name", "Version"))
            if name and version:
                found[_normal(name)] = version
    return found


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise EnvironmentFault(f"install line {line!r} cannot be split into words: {error}") from error


def _site(folder: Path, runtime: Runtime) -> Path:
    minor = ".".join(runtime.python.split(".")[:2])
    return folder / "lib" / f"python{minor}" / "site-packages"


def _make(folder: Path, runtime: Runtime) -> None:
    """A virtual environment by hand: three links and two files, in a millisecond."""
    base = runtime.interpreter.resolve()
    minor = ".".join(runtime.python.split(".")[:2])
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(base)
    for name in ("python3", f"python{minor}"):
        (folder / "bin" / name).symlink_to("python")
    config = f"home = {base.parent}\ninclude-system-site-packages = false\nversion_info = {runtime.python}\n"
    (folder / "pyvenv.cfg").write_text(config, encoding="utf-8")
    site = _site(folder, runtime)
    site.mkdir(parents=True)
    lines = [f"import site; site.addsitedir({path!r})\n" for path in runtime.paths]
    (site / "_replaybench_runtime.pth").write_text("".join(lines), encoding="utf-8")


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")
