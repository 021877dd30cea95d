"""`make demo`: the whole system on this machine, testing this checkout's own commit.

Starts `replaybench up` on a free port, submits HEAD (on a machine with a GPU its suite `cuda`, otherwise `gate` on a
CPU runtime of this machine's Python), follows the job, prints its table, and stops everything again.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from service.client.client import Client
from service.client.errors import ClientError
from service.jobs.schemas import JobInput, TreeInput
from service.tokens import Scope, path
from service.up.death import bound_to_parent
from service.up.lock import address
from service.up.programs import healthy
from worker.encoding import decode
from worker.messages import Capabilities, RuntimeSpec

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / ".cache" / "demo"
REPLAYBENCH = (sys.executable, "-m", "service.cli.main")
READY_LIMIT_S = 180.0
NAME = "this-checkout"
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def main() -> int:
    keep = "--keep" in sys.argv[1:]
    os.environ["REPLAYBENCH_DATA_DIR"] = str(DATA)
    os.environ.pop("REPLAYBENCH_URL", None)
    os.environ.pop("REPLAYBENCH_TOKEN", None)
    running = address(DATA)
    if running and healthy(running):
        print(f"the demo's system still runs at {running}", flush=True)
        try:
            return demonstrate(running)
        finally:
            print(way_back(), flush=True)
    system = subprocess.Popen(
        (*REPLAYBENCH, "up", "--port", "0"),
        cwd=ROOT,
        start_new_session=True,
        preexec_fn=None if keep else bound_to_parent(),  # noqa: PLW1509 -- this process has no threads
    )
    try:
        return demonstrate(wait_ready(system))
    except KeyboardInterrupt:
        return 130
    finally:
        if keep and system.poll() is None:
            print(f"it goes on at {address(DATA)}; stop it with `kill {system.pid}`\n{way_back()}", flush=True)
        else:
            system.send_signal(signal.SIGTERM)
            system.wait()


def way_back() -> str:
    """How the command line finds the system that goes on, and its tokens."""
    return (
        f"the command line finds it with `export REPLAYBENCH_DATA_DIR={shlex.quote(str(DATA))}`; "
        f"then `{shlex.quote(str(Path(sys.executable).with_name('replaybench')))} jobs` lists its jobs"
    )


def wait_ready(system: subprocess.Popen[bytes]) -> str:
    """The system's address, once it answers. It prints its own progress."""
    deadline = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < deadline and system.poll() is None:
        where = address(DATA)
        if where and healthy(where):
            return where
        time.sleep(0.1)
    sys.exit(f"the system did not become ready; its logs are in {DATA / 'logs'}")


def demonstrate(url: str) -> int:
    """Submits HEAD and follows it; the job's exit code."""
    with Client(url, path(DATA, Scope.SUBMIT).read_text().strip()) as client:
        try:
            arguments = choose(client)
        except ClientError as error:
            print(f"the demo cannot plan its job: {error}", file=sys.stderr)
            return 2
        code = submit_and_watch(arguments)
        newest = client.jobs(limit=1).items
        if newest and not newest[0].state.ended:
            print(f"job {newest[0].id} is cancelled, so that the next demo need not wait for it", flush=True)
            client.cancel(newest[0].id)
    return code


def submit_and_watch(arguments: Sequence[str]) -> int:
    """Submits a job and follows it; the command's exit code."""
    command = (*REPLAYBENCH, "submit", *arguments, "--label", "demo", "--reason", "make demo", "--watch")
    print("$ replaybench " + " ".join(command[3:]), flush=True)
    watching = subprocess.Popen(command, cwd=ROOT)
    while True:
        try:
            return watching.wait()
        except KeyboardInterrupt:
            continue  # the command got the same Ctrl-C, and ends by itself


def choose(client: Client) -> Sequence[str]:
    """What to submit, by what the worker says it has."""
    known = [decode(Capabilities, worker.capabilities) for worker in client.workers() if worker.live]
    if not any(able.devices for able in known):
        return ["--suite", "gate", "--runtime", cpu_runtime(matrix(client, "gate")).id]
    hosts = cuda_hosts(spec for able in known for spec in able.host_runtimes)
    runtimes = hosts or [cuda_runtime(matrix(client, "cuda"))]
    return ["--suite", "cuda", *(word for spec in runtimes for word in ("--runtime", spec.id))]


def matrix(client: Client, suite: str) -> list[RuntimeSpec]:
    """The runtimes that HEAD's own matrix names for a suite."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True)
    if not any(item.url == str(ROOT) for item in client.repositories()):
        client.add_repository(NAME, str(ROOT))
    name = next(item.name for item in client.repositories() if item.url == str(ROOT))
    job = JobInput(repository=name, trees=[TreeInput(ref=head.stdout.strip())], suites=[suite])
    return [RuntimeSpec.parse(cell.runtime) for cell in client.plan(job).cells]


def cpu_runtime(specs: Sequence[RuntimeSpec]) -> RuntimeSpec:
    """A runtime of the matrix for a CPU and the Python that is there, preferably one that is for a CPU already."""
    best = max(specs, key=lambda spec: (spec.build == "cpu", _numbers(spec.torch)))
    return dataclasses.replace(best, python=HERE, build="cpu" if best.torch else None)


def cuda_runtime(specs: Sequence[RuntimeSpec]) -> RuntimeSpec:
    """A runtime of the matrix for a GPU and the Python that is there. Where none is for a GPU, torch's plain build is
    one: the package index has it for CUDA.
    """
    best = max(specs, key=lambda spec: ((spec.build or "").startswith("cu"), _numbers(spec.torch)))
    build = best.build if (best.build or "").startswith("cu") else None
    return dataclasses.replace(best, python=HERE, build=build)


def cuda_hosts(specs: Iterable[RuntimeSpec]) -> list[RuntimeSpec]:
    """The host runtimes that are for a GPU. A worker offers each under less exact names, too; those are left out."""
    return sorted({spec for spec in specs if (spec.build or "").startswith("cu") and spec.lightning})


def _numbers(version: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version or "0"))


if __name__ == "__main__":
    sys.exit(main())
