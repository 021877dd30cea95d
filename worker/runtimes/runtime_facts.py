"""What a runtime turned out to be, and whether that is what was asked for. Pure, but for the probe's own file."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.errors import EnvironmentFault
from worker.messages import RuntimeSpec

PROBE = Path(__file__).with_name("probe.py")


@dataclass(frozen=True)
class Runtime:
    """An interpreter that is ready for cells. ``origin`` is ``built`` or ``host``."""

    interpreter: Path
    python: str
    paths: tuple[str, ...]
    packages: Mapping[str, str]
    torch: str | None
    cuda: str | None
    lightning: str | None
    origin: str


def from_probe(output: str, interpreter: Path, origin: str) -> Runtime:
    """The runtime that the probe's last line describes.

    Raises:
        EnvironmentFault: there is no such line, or torch is there and cannot be imported.
    """
    try:
        facts: Mapping[str, Any] = json.loads(output.strip().rsplit("\n", 1)[-1])
    except ValueError as error:
        raise EnvironmentFault(f"{interpreter} does not say what it holds: {output.strip()[-2000:]}") from error
    torch = facts["torch"] or {"version": None, "cuda": None, "error": ""}
    if torch["error"]:
        raise EnvironmentFault(f"torch in {interpreter} cannot be imported: {torch['error']}")
    return Runtime(
        interpreter=interpreter,
        python=facts["python"],
        paths=tuple(facts["paths"]),
        packages=facts["packages"],
        torch=torch["version"],
        cuda=torch["cuda"],
        lightning=facts["lightning"],
        origin=origin,
    )


def specs_of(runtime: Runtime) -> list[RuntimeSpec]:
    """Every name that an interpreter which is already there answers to, the fullest first: a job may leave torch's
    build or lightning open."""
    version, _, build = (runtime.torch or "").partition("+")
    minor = ".".join(runtime.python.split(".")[:2])
    known = build if re.fullmatch(r"cpu|cu\d+|rocm\d+(\.\d+)*|xpu", build) else None
    open_or_not = itertools.product((known, None), (runtime.lightning, None))
    return list(dict.fromkeys(RuntimeSpec(minor, version or None, *more) for more in open_or_not))


def expected_cuda(build: str) -> str | None:
    """``torch.version.cuda`` of a build: ``cu129`` is 12.9; other builds have none."""
    match = re.fullmatch(r"cu(\d+)(\d)", build)
    return f"{match[1]}.{match[2]}" if match else None


def planned_cuda(plan: str) -> str | None:
    """The CUDA (``12.8``) that torch's requirements bring along, read from the packages that uv would install; nothing
    where they bring none: a build for the CPU, or one that carries CUDA in its own wheel."""
    match = re.search(r"\bnvidia-cuda-runtime(?:-cu\d+)?==(\d+\.\d+)", plan)
    return match[1] if match else None


def assert_is(runtime: Runtime, spec: RuntimeSpec) -> None:
    """Refuse a runtime that is not what its name says.

    Raises:
        EnvironmentFault: each difference, with what was expected and what is there.
    """
    wrong = []
    if not runtime.python.startswith(f"{spec.python}."):
        wrong.append(f"Python expected {spec.python}, got {runtime.python}")
    if not _version_fits(runtime.torch, spec):
        wrong.append(f"torch.__version__ expected {spec.torch_version}, got {runtime.torch}")
    if spec.build and runtime.torch and runtime.cuda != expected_cuda(spec.build):
        wrong.append(f"torch.version.cuda expected {expected_cuda(spec.build)}, got {runtime.cuda}")
    if spec.lightning and runtime.lightning != spec.lightning:
        wrong.append(f"lightning expected {spec.lightning}, got {runtime.lightning}")
    if wrong:
        raise EnvironmentFault(
            f"runtime {spec.id} is wrong: {'; '.join(wrong)}. Give the worker an index or wheelhouse that has this "
            "build (UV_INDEX, UV_FIND_LINKS, or pip's settings), or submit another runtime"
        )


def _version_fits(version: str | None, spec: RuntimeSpec) -> bool:
    """A spec without a build accepts any build of its version."""
    if version is None or spec.torch is None:
        return version is None and spec.torch is None
    return version == spec.torch_version if spec.build else version.partition("+")[0] == spec.torch
