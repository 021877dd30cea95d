"""What the install lines bring in the place of the runtime's own torch and Lightning: recorded, or refused.

An overlay's packages come before the runtime's. So a torch of theirs is the one that the tests import, and neither the
runtime's name nor its record would say so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from worker.cleaning import Cleaner
from worker.errors import EnvironmentFault
from worker.isolation.process import Confinement, run_kept
from worker.messages import RuntimeSpec
from worker.runtimes.overlay import Overlay
from worker.runtimes.runtime_facts import Runtime, specs_of

_LIGHTNINGS = ("lightning", "pytorch-lightning")
"""The distributions that Lightning comes in; the first needs the second."""

_CODE = """
import json, torch
print()
print(json.dumps([str(torch.__version__), torch.version.cuda and str(torch.version.cuda)]))
"""
_SECONDS = 300.0
_LONGEST = 200


def as_tests_see_it(
    runtime: Runtime,
    overlay: Overlay,
    spec: RuntimeSpec,
    *,
    env: Mapping[str, str],
    stop: threading.Event,
    looking: Callable[[], AbstractContextManager[Confinement]],
) -> Runtime:
    """The runtime with the torch, its CUDA and the Lightning that tests in the overlay import. A torch of the overlay's
    is imported to be asked, which runs the tree's own code: held by what ``looking`` gives.

    Raises:
        EnvironmentFault: the install lines bring another torch or Lightning than the one that ``spec`` names, or one
            that cannot be imported.
        Stopped: the attempt was asked to end.
    """
    seen = dataclasses.replace(runtime, lightning=_lightning(runtime, overlay))
    if overlay.brings_torch:
        torch, cuda = _torch(overlay, env, stop, looking)
        seen = dataclasses.replace(seen, torch=torch, cuda=cuda)
    others = []
    if spec.torch and (seen.torch, seen.cuda) != (runtime.torch, runtime.cuda):
        others.append(("torch", _build(seen), _build(runtime)))
    for name in _LIGHTNINGS:
        if spec.lightning and name in overlay.brought and overlay.brought[name] != spec.lightning:
            others.append((name, overlay.brought[name], spec.lightning))
    if others:
        what = "; ".join(f"{name} {brought}, and the runtime has {own}" for name, brought, own in others)
        names = " and ".join(name for name, _, _ in others)
        raise EnvironmentFault(
            f"the install lines bring another version than runtime {spec.id} names: {what}. Take {names} out of the "
            f"lines of [install], or submit the runtime that has what they bring{_named(seen, spec)}"
        )
    return seen


def _lightning(runtime: Runtime, overlay: Overlay) -> str | None:
    return next((overlay.brought[name] for name in _LIGHTNINGS if name in overlay.brought), runtime.lightning)


def _build(runtime: Runtime) -> str:
    return f"{runtime.torch} ({f'CUDA {runtime.cuda}' if runtime.cuda else 'no CUDA'})"


def _named(seen: Runtime, spec: RuntimeSpec) -> str:
    """The name of the runtime that would have what was brought, if there can be one."""
    with contextlib.suppress(ValueError):
        for other in specs_of(seen):
            if bool(other.lightning) == bool(spec.lightning):
                return f": {other.id}"
    return ""


def _torch(
    overlay: Overlay,
    env: Mapping[str, str],
    stop: threading.Event,
    looking: Callable[[], AbstractContextManager[Confinement]],
) -> tuple[str, str | None]:
    """Version and CUDA, by torch's own word: its package's version may lack the build."""
    with looking() as confinement:
        _, output = run_kept(
            [str(overlay.python), "-c", _CODE],
            env=env,
            cwd=overlay.python.parent,
            stop=stop,
            timeout_s=_SECONDS,
            confinement=confinement,
        )
    with contextlib.suppress(ValueError, TypeError, RecursionError):  # Whatever the tree's code printed.
        version, cuda = json.loads(output.strip().rpartition("\n")[2])
        if isinstance(version, str) and isinstance(cuda, str | None):
            clean = Cleaner()
            return clean.text(version, _LONGEST), None if cuda is None else clean.text(cuda, _LONGEST)
    raise EnvironmentFault(
        f"the install lines bring torch {overlay.brought.get('torch', '')}, which cannot be imported. Take it out of "
        f"the lines of [install] to test with the runtime's own: {output.strip()[-2000:]}"
    )
