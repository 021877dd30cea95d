"""Cells by the hundred under random kills: every case reported once, none lost, none doubled.

    .venv/bin/python benchmarks/soak.py [--cells 500] [--every 3] [--seed 1] [--workers 2] [--budget 1800] [--postgres]

A service, a broker and workers run as processes of their own. Every few seconds one is killed by SIGKILL: a worker, the
service, the broker, or a pytest process; whoever is dead is started again, as systemd would. A pytest process that is
killed before it has begun leaves a cell that says so; such cells are run again, as a person would. At the end every
cell's deciding attempt is read through the API and compared with the 40 cases that the suite has. Kills stop when the
budget is spent. The exit code is 1 where a case is lost or doubled, or the job did not end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from service.states import ENDED_JOB_STATES
from tests.support import fleet, postgres, repository
from tests.support.fleet import Fleet, Part
from tests.support.repository import PYTHON

CASES = 40
REPEAT = 100
"""The most repetitions of a cell that one submission may ask for."""
VICTIMS = ("worker", "service", "broker", "pytest")
AFTER_S = 600
"""How long the job may take to end once nothing is killed any more."""
SETTINGS = {"REPLAYBENCH_LEASE_S": "5", "REPLAYBENCH_SWEEP_S": "0.5", "REPLAYBENCH_CLAIM_CAP": "50",
            "REPLAYBENCH_TOKEN_RATE": "0"}  # fmt: skip

SUITE = f"""\
import time
import pytest

@pytest.mark.parametrize("number", range({CASES}))
def test_case(number):
    time.sleep(0.01)
"""
IDS = {f"tests/test_cases.py::test_case[{number}]" for number in range(CASES)}


def config(cells: int) -> tuple[str, int]:
    """The tree's configuration and the repetitions that make at least so many cells."""
    suites = -(-cells // REPEAT)
    text = f'schema = 1\n[matrix]\nruntimes = ["{PYTHON}"]\n'
    text += "".join(f'[suites.s{number}]\npaths = ["tests"]\n' for number in range(suites))
    return text, -(-cells // suites)


@dataclass
class Soak:
    """One run: the fleet, who dies when, and what is left to do."""

    it: Fleet
    rng: random.Random
    every_s: float
    began: float = field(default_factory=time.monotonic)
    next_kill: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    starts: Counter[str] = field(default_factory=Counter)
    reruns: int = 0

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began

    def tend(self) -> None:
        """Starts again whoever is dead."""
        for part in (self.it.service, *self.it.workers):
            if part.running.poll() is not None:
                part.start()
                self.starts[part.name] += 1
        if self.it.broker.process is None or self.it.broker.process.poll() is not None:
            self.it.broker.start()
            self.starts["broker"] += 1

    def maybe_kill(self) -> None:
        """Kills somebody, when it is time."""
        if self.elapsed < self.next_kill:
            return
        self.next_kill = self.elapsed + self.rng.uniform(0.5, 1.5) * self.every_s
        victim = self.rng.choice(VICTIMS)
        process = self.choose(victim)
        if process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            process.send_signal(signal.SIGKILL)
            self.kills[victim] += 1
            print(f"{self.elapsed:7.1f} s: kill -9 {victim} {process.pid}", file=sys.stderr)

    def choose(self, victim: str) -> Any:
        """A process of this kind that lives, if any."""
        if victim == "service":
            return self.it.service.process
        if victim == "broker":
            return self.it.broker.process
        if victim == "worker":
            return self.rng.choice(self.it.workers).process
        tested = [process for part in self.it.workers for process in pytests(part)]
        return self.rng.choice(tested) if tested else None

    def ended(self, job: int) -> bool:
        """Whether the job has ended, as far as the service can be asked."""
        try:
            answer = self.it.http.get(f"/api/v1/jobs/{job}")
        except httpx.TransportError:
            return False
        return answer.status_code == 200 and answer.json()["state"] in ENDED_JOB_STATES

    def run_again(self, job: int) -> bool:
        """Has cells that say that not all of their cases ran, run again. Whether there was none."""
        short = [cell["id"] for cell in self.it.get(f"/jobs/{job}/cells") if sum(cell["counts"].values()) != CASES
                 or cell["counts"].get("not-observed")]  # fmt: skip
        if short:
            with contextlib.suppress(httpx.TransportError):
                answer = self.it.http.post(f"/api/v1/jobs/{job}/rerun", json={"cells": short})
                self.reruns += len(short) if answer.status_code == 200 else 0
        return not short

    def run(self, job: int, budget_s: float) -> bool:
        """Until every cell has ended with all of its cases. Whether that came."""
        asked = 0.0
        while self.elapsed < budget_s + AFTER_S:
            self.tend()
            if self.elapsed < budget_s:
                self.maybe_kill()
            if self.elapsed > asked + 1.0:
                asked = self.elapsed
                if self.ended(job) and self.run_again(job):
                    return True
            time.sleep(0.05)
        return False


def pytests(part: Part) -> Iterator[psutil.Process]:
    """The pytest processes below a worker."""
    for process in part.below():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            if "replaybench_plugin" in line and "keeper.py" not in line:
                yield process


def count(it: Fleet, job: int) -> dict[str, Any]:
    """What the service holds: cases of deciding attempts against those that the suite has, and attempts by verdict."""
    lost = doubled = strange = reported = 0
    outcomes: Counter[str] = Counter()
    verdicts: Counter[str] = Counter()
    machines: Counter[str] = Counter()
    cells = it.get(f"/jobs/{job}/cells")
    for cell in cells:
        attempts = it.get(f"/cells/{cell['id']}/attempts")
        verdicts.update(attempt["verdict"] for attempt in attempts)
        machines.update(attempt["detail"] for attempt in attempts if attempt["verdict"] == "infrastructure")
        deciding = [attempt["id"] for attempt in attempts if attempt["deciding"]]
        seen = Counter(case["node_id"] for attempt in deciding for case in it.cases(attempt))
        outcomes.update(case["outcome"] for attempt in deciding for case in it.cases(attempt))
        reported += sum(seen.values())
        lost += len(IDS - set(seen))
        strange += len(set(seen) - IDS)
        doubled += sum(number - 1 for number in seen.values())
    return {
        "cells": len(cells),
        "cases": len(cells) * CASES,
        "reported": reported,
        "lost": lost,
        "doubled": doubled,
        "strange": strange,
        "outcomes": dict(outcomes),
        "attempts": dict(verdicts),
        "infrastructure": dict(machines),
    }


def soak(options: argparse.Namespace, folder: Path, database_url: str) -> dict[str, Any]:
    """One run, and its figures."""
    text, repeat = config(options.cells)
    repo = repository.make(folder / "repo", config=text, cases=SUITE)
    with fleet.running(folder, database_url, **SETTINGS) as it:
        for number in range(options.workers):
            it.worker(f"w{number + 1}", REPLAYBENCH_DEAF_S="40")
        job = it.submit(repo.path, repeat=repeat)
        it_runs = Soak(it, random.Random(options.seed), options.every)  # noqa: S311 - which is killed is no secret
        whole = it_runs.run(job, options.budget)
        seconds = it_runs.elapsed
        if not it.healthy():
            it_runs.tend()
        figures = count(it, job)
    return {
        "seed": options.seed,
        "database": "postgres" if database_url else "sqlite",
        "workers": options.workers,
        "ended": whole,
        "seconds": round(seconds, 1),
        "kills": dict(it_runs.kills),
        "started_again": dict(it_runs.starts),
        "cells_run_again": it_runs.reruns,
        **figures,
    }


def main() -> int:
    """Prints the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=500)
    parser.add_argument("--every", type=float, default=3.0, help="seconds between kills, on average")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--budget", type=float, default=1800.0, help="seconds after which nothing is killed any more")
    parser.add_argument("--postgres", action="store_true", help="instead of SQLite")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="replaybench-soak-") as folder, contextlib.ExitStack() as stack:
        url = stack.enter_context(postgres.running()) if options.postgres else ""
        figures = soak(options, Path(folder), url)
    print(json.dumps(figures, indent=2))
    return int(not figures["ended"] or figures["lost"] + figures["doubled"] + figures["strange"] > 0)


if __name__ == "__main__":
    sys.exit(main())
