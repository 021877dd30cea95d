"""Interpreters that are already on the machine, torch and all: probed once at start-up, then advertised."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import structlog

from worker.errors import EnvironmentFault
from worker.isolation.environment import allowed
from worker.messages import RuntimeSpec
from worker.runtimes.runtime_facts import PROBE, Runtime, from_probe, specs_of

log = structlog.get_logger()

_PROBE_S = 300.0


def probe_host(interpreter: Path) -> Runtime:
    """What an interpreter holds. Its path is not resolved: a virtual environment is told by the link that names it.

    Raises:
        EnvironmentFault: it does not run, or has no pytest.
    """
    try:
        done = subprocess.run(
            [str(interpreter), "-I", str(PROBE)],
            capture_output=True,
            text=True,
            env=allowed(os.environ),
            timeout=_PROBE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFault(f"host runtime {interpreter} does not run: {error}") from error
    runtime = from_probe(done.stdout + ("" if done.stdout.strip() else done.stderr), interpreter, "host")
    if "pytest" not in runtime.packages:
        raise EnvironmentFault(f"host runtime {interpreter} has no pytest: install it there")
    return runtime


def probe_hosts(interpreters: Sequence[Path]) -> dict[RuntimeSpec, Runtime]:
    """The host runtimes of this worker by every name that they serve; one that is broken is said so and left out."""
    found: dict[RuntimeSpec, Runtime] = {}
    for interpreter in interpreters:
        try:
            runtime = probe_host(interpreter)
            for spec in specs_of(runtime):
                found.setdefault(spec, runtime)
        except (EnvironmentFault, ValueError) as error:
            log.error("host runtime left out", interpreter=str(interpreter), reason=str(error))
    return found
