"""`replaybench up`: the whole system on this machine's loopback interface, until somebody stops it."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from service import tokens
from service.up import lock, ports
from service.up.broker import Broker, password
from service.up.errors import HopelessError, UpError
from service.up.programs import Plan
from service.up.supervisor import Supervisor

LOOK_S = 0.05
SLOW_START_S = 10.0


def run(data_dir: Path, port: int, *, worker: bool, say: Callable[[str], None]) -> int:
    """Runs the embedded system, and returns the exit code: 0 when it was stopped, 1 when a child was past help.

    Raises:
        UpError: it cannot start as asked, or a child says that its settings are wrong.
    """
    if sys.platform != "linux":
        raise UpError(
            f"the embedded system needs Linux, this is {sys.platform}; run `serve` and `worker` by themselves"
        )
    data_dir = data_dir.absolute()
    with lock.locked(data_dir), _signals() as stops:
        plan = Plan(data_dir, ports.choose(port), Broker(ports.free(), password(data_dir), data_dir / "broker"), worker)
        (data_dir / "logs").mkdir(exist_ok=True)
        known = tokens.ensure(data_dir)
        supervisor = Supervisor(plan.programs(), say)
        try:
            _tend(supervisor, stops, say, lambda: _announce(plan, known.submit, say))
        except HopelessError as error:
            say(str(error))
            return 1
        finally:
            say("stopping (once more to kill)")
            lock.note_file(data_dir).unlink(missing_ok=True)
            asked = len(stops)
            supervisor.stop(hurry=lambda: len(stops) > asked)
            say("stopped")
    return 0


def _tend(supervisor: Supervisor, stops: list[int], say: Callable[[str], None], announce: Callable[[], None]) -> None:
    began, announced, warned = time.monotonic(), False, False
    while not stops:
        supervisor.tend()
        if supervisor.ready and not announced:
            announce()
            announced = True
        if not announced and not warned and time.monotonic() - began > SLOW_START_S:
            waiting = next(child for child in supervisor.children if not child.ready)
            say(f"still waiting for the {waiting.program.name} (log: {waiting.program.log})")
            warned = True
        time.sleep(LOOK_S)


def _announce(plan: Plan, token: str, say: Callable[[str], None]) -> None:
    lock.write_note(plan.data_dir, plan.url)
    say(f"data, tokens and logs: {plan.data_dir}")
    say(f"sign in: {plan.url}/sign-in#token={token}")
    say(f"ready: {plan.url}")


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects the requests to stop; a closed terminal is one too."""
    received: list[int] = []
    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {kind: signal.signal(kind, lambda number, _frame: received.append(number)) for kind in kinds}
    try:
        yield received
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
