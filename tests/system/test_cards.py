"""Two workers of one host share two cards: cells run on both at once, cells for two come to their turn, none overlap.

The cards are the stand-in's; service, broker, workers and pytest are the real ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from service.tokens import Scope
from service.tokens import path as token_path
from tests.support import repository, system
from tests.support.nvml import Cards, card
from tests.support.waiting import wait_for

CONFIG = f"""\
schema = 1
[matrix]
runtimes = ["{repository.PYTHON}"]
[suites.one]
paths = ["tests/test_cases.py"]
kind = "cuda"
[suites.two]
paths = ["tests/test_cases.py"]
kind = "cuda.2"
gpu = ["NVIDIA H200"]
gpu_memory_gib = 140
"""

CASES = """\
import os, pathlib, time
def test_span():
    began = time.time()
    time.sleep(0.4)
    line = f"{{os.environ['CUDA_VISIBLE_DEVICES']}} {{began}} {{time.time()}}\\n"
    with open({spans!r}, "a") as spans:
        spans.write(line)
"""


@contextmanager
def another_worker(it: system.System, folder: Path, cards: Cards, **env: str) -> Iterator[None]:
    """A second worker on the host, beside that of the running system, with the same cache and the same cards."""
    (folder / "run").mkdir()
    command = [sys.executable, "-P", "-m", "worker"]
    given = {
        "BROKER_URL": broker_of(it),
        "REPLAYBENCH_SERVICE_URL": it.url,
        "REPLAYBENCH_WORKER_TOKEN_FILE": str(token_path(it.up.data_dir, Scope.WORKER)),
        "REPLAYBENCH_WORKER_NAME": "second",
    }
    with (folder / "second.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder / "run", env={**os.environ, **env, **given, **cards.env}, stdout=log, stderr=log
        )
    try:
        wait_for(lambda: b"worker ready" in (folder / "second.log").read_bytes(), "the second worker", 30)
        yield
    finally:
        process.terminate()
        process.wait(30)


def broker_of(it: system.System) -> str:
    """The address of the system's broker, as its service was given it."""
    given = Path(f"/proc/{it.up.children()['serve']}/environ").read_text().split("\0")
    (url,) = [variable.removeprefix("BROKER_URL=") for variable in given if variable.startswith("BROKER_URL=")]
    return url


def spans_of(file: Path) -> list[tuple[list[str], float, float]]:
    """Which cards were used from when to when."""
    lines = [line.split() for line in file.read_text().splitlines()]
    return [(devices.split(","), float(began), float(ended)) for devices, began, ended in lines]


@pytest.mark.long
def test_two_workers_share_two_cards(tmp_path: Path) -> None:
    """A stream of cells for one card, and cells for both that come behind it: all run, the latter before the stream
    ends, and no card is ever used twice at once."""
    cards = Cards(tmp_path / "cards.json", card(0), card(1))
    spans = tmp_path / "spans"
    repo = repository.make(tmp_path / "repo", config=CONFIG, cases=CASES.format(spans=str(spans)))
    env = {
        "REPLAYBENCH_CACHE_DIR": str(tmp_path / "cache"),
        "REPLAYBENCH_HOST_RUNTIMES": sys.executable,
        "REPLAYBENCH_SWEEP_S": "0.3",
        "REPLAYBENCH_RESERVE_AFTER_S": "2",
        # Its tests write down in a file of this machine when they ran.
        "REPLAYBENCH_SANDBOX": "off",
    }
    with system.running(tmp_path, **env, **cards.env) as it, another_worker(it, tmp_path, cards, **env):
        it.post("/repositories", {"name": "demo", "url": str(repo.path)})

        def submit(suite: str, repeat: int) -> Any:
            body = {"repository": "demo", "trees": [{"ref": "main"}], "suites": [suite], "repeat": repeat}
            return it.post("/jobs", body)["id"]

        many, both = submit("one", 24), submit("two", 2)
        for job in (many, both):
            assert it.wait_for_end(job)["state"] == "passed", it.get(f"/jobs/{job}/cells")
        workers = it.get("/workers")
        attempts = [it.get(f"/attempts/{row['attempt']}") for row in it.get(f"/jobs/{both}/table")["rows"]]
    used = spans_of(spans)
    assert sorted(len(devices) for devices, _, _ in used) == [1] * 24 + [2] * 2
    overlaps = [(one, other) for one, other in combinations(used, 2) if one[1] < other[2] and other[1] < one[2]]
    assert overlaps, "two cells never ran at once"
    assert all(not set(one[0]) & set(other[0]) for one, other in overlaps)
    last_of_two = max(ended for devices, _, ended in used if len(devices) == 2)
    assert last_of_two < max(ended for devices, _, ended in used if len(devices) == 1)
    assert [len(worker["capabilities"]["devices"]) for worker in workers] == [2, 2]
    assert all(len(attempt["environment"]["gpus"]) == len(attempt["usage"]["gpus"]) == 2 for attempt in attempts)
