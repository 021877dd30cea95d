"""`make demo`: the whole system on this machine, testing this checkout's own commit.

Starts `replaybench up` on a free port, submits HEAD (on a machine with a GPU its suite `cuda`, otherwise `gate` on a
CPU runtime of this machine's Python), follows the job, prints its table, and stops everything again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from service.client.client import Client
from service.client.errors import ClientError
from service.jobs.schemas import JobInput, TreeInput
from service.tokens import Scope, path
from service.up.death import bound_to_parent
from service.up.lock import address
from service.up.programs import healthy
from worker.messages import RuntimeSpec

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / ".cache" / "demo"
REPLAYBENCH = (sys.executable, "-m", "service.cli.main")
READY_LIMIT_S = 180.0
NAME = "this-checkout"


def main() -> int:
    keep = "--keep" in sys.argv[1:]
    os.environ["REPLAYBENCH_DATA_DIR"] = str(DATA)
    os.environ.pop("REPLAYBENCH_URL", None)
    os.environ.pop("REPLAYBENCH_TOKEN", None)
    running = address(DATA)
    if running and healthy(running):
        print(f"the demo's system still runs at {running}", flush=True)
        return demonstrate(running)
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
            print(f"it goes on at {address(DATA)}; stop it with `kill {system.pid}`", flush=True)
        else:
            system.send_signal(signal.SIGTERM)
            system.wait()


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
    known = [worker.capabilities for worker in client.workers() if worker.live]
    if any(capabilities.get("devices") for capabilities in known):
        hosts = [_runtime(host) for capabilities in known for host in capabilities.get("host_runtimes") or []]
        return ["--suite", "cuda", *(part for host in hosts for part in ("--runtime", host))]
    return ["--suite", "gate", "--runtime", cpu_runtime(matrix(client))]


def matrix(client: Client) -> list[str]:
    """The runtimes that HEAD's own matrix names for the suite `gate`."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True)
    if not any(item.url == str(ROOT) for item in client.repositories()):
        client.add_repository(NAME, str(ROOT))
    name = next(item.name for item in client.repositories() if item.url == str(ROOT))
    job = JobInput(repository=name, trees=[TreeInput(ref=head.stdout.strip())], suites=["gate"])
    return [cell.runtime for cell in client.plan(job).cells]


def cpu_runtime(runtimes: Sequence[str]) -> str:
    """A runtime of the matrix for a CPU, with the Python that is there: of the newest torch, since only recent ones
    serve every Python.
    """
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    newest = max(map(RuntimeSpec.parse, runtimes), key=lambda spec: (spec.build == "cpu", _numbers(spec.torch)))
    build = "cpu" if newest.torch else None
    return RuntimeSpec(python=here, torch=newest.torch, build=build, lightning=newest.lightning).id


def _numbers(version: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in (version or "0").split(".") if part.isdigit())


def _runtime(data: dict[str, str | None]) -> str:
    return RuntimeSpec(
        python=data["python"] or "", torch=data["torch"], build=data["build"], lightning=data["lightning"]
    ).id


if __name__ == "__main__":
    sys.exit(main())
