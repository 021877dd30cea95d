"""What a warm cell costs beyond plain pytest: one suite by plain pytest, by a warm tox, and as a cell of a job.

    .venv/bin/python benchmarks/overhead.py [--rounds 5] [--cases 40] [--seconds 4]

All three run in turn, round by round, in an environment of the same packages. Printed are medians, and what a cell
takes beyond plain pytest in the same round, against the limits that this project sets itself: 1.5 s plus 5 % for the
whole cell (from submission to its end), 2 s for the first case (from submission to its start, less pytest's own).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support import repository, system
from tests.support.repository import PYTHON

CELL_FIXED_S, CELL_SHARE, FIRST_S = 1.5, 0.05, 2.0

CASES = """\
import pathlib, time
import pytest

@pytest.mark.parametrize("number", range({cases}))
def test_case(number):
    if number == 0:
        pathlib.Path({stamp!r}).write_text(repr(time.time()))
    time.sleep({pause})
"""

TOX = """\
[tox]
skipsdist = true
[testenv]
deps = pytest
commands = python -m pytest -q -p no:cacheprovider tests
"""


@dataclass(frozen=True)
class Timing:
    """Seconds from the start to the first case's start, and to the end."""

    first: float
    whole: float


def timed(stamp: Path, run: Callable[[], None]) -> Timing:
    """How long a way of running the suite takes."""
    stamp.unlink(missing_ok=True)
    wall, began = time.time(), time.monotonic()
    run()
    whole = time.monotonic() - began
    return Timing(float(stamp.read_text()) - wall, whole)


def command(*arguments: str | Path, cwd: Path) -> Callable[[], None]:
    """A command that must succeed."""

    def run() -> None:
        subprocess.run([*arguments], cwd=cwd, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    return run


def cell(it: system.System, repo: Path) -> None:
    """One job of one cell, from its submission to its end."""
    job = it.submit(repo)
    while it.get(f"/jobs/{job}")["state"] not in {"passed", "failed", "broken"}:
        time.sleep(0.01)
    assert it.get(f"/jobs/{job}")["state"] == "passed"


def measure(rounds: int, cases: int, seconds: float) -> dict[str, list[Timing]]:
    """The timings of each way, round by round; the first round warms up and is not counted."""
    with tempfile.TemporaryDirectory(prefix="replaybench-overhead-") as folder:
        root = Path(folder)
        stamp = root / "first-case"
        repo = repository.make(root / "repo", cases=CASES.format(cases=cases, stamp=str(stamp), pause=seconds / cases))
        repo.commit("tox", tox_dot_ini=TOX)
        with system.running(root) as it:
            cell(it, repo.path)
            runtime = _runtime(it)
            ways = {
                "pytest": command(runtime, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=repo.path),
                "tox": command(sys.executable, "-m", "tox", "run", "-q", cwd=repo.path),
                "cell": lambda: cell(it, repo.path),
            }
            found: dict[str, list[Timing]] = {name: [] for name in ways}
            for number in range(rounds + 1):
                for name, way in ways.items():
                    timing = timed(stamp, way)
                    if number:
                        found[name].append(timing)
    return found


def _runtime(it: system.System) -> Path:
    """The interpreter of the runtime that the worker built."""
    cache = Path(os.environ.get("REPLAYBENCH_CACHE_DIR") or Path.home() / ".cache/replaybench")
    interpreters = sorted(cache.glob(f"runtimes/{PYTHON}-*/bin/python"), key=lambda path: path.stat().st_mtime)
    assert interpreters, f"no runtime {PYTHON} under {cache}; logs in {it.up.data_dir}/logs"
    return interpreters[-1]


def main() -> int:
    """Prints the figures; the exit code is 1 where a limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=4.0, help="how long the cases take together")
    options = parser.parse_args()
    found = measure(options.rounds, options.cases, options.seconds)
    print(f"{'way':8} {'first case':>12} {'whole':>9} {'whole / pytest':>15}")
    base = statistics.median(timing.whole for timing in found["pytest"])
    for name, timings in found.items():
        first = statistics.median(timing.first for timing in timings)
        whole = statistics.median(timing.whole for timing in timings)
        print(f"{name:8} {first:10.2f} s {whole:7.2f} s {whole / base:15.2f}")
    pairs = list(zip(found["pytest"], found["cell"], strict=True))
    beyond = statistics.median(cell.whole - plain.whole for plain, cell in pairs)
    first = statistics.median(cell.first - plain.first for plain, cell in pairs)
    limit = CELL_FIXED_S + CELL_SHARE * base
    print(f"cell beyond pytest: {beyond:.2f} s of {limit:.2f} s ({beyond / limit:.2f} of the limit)")
    print(f"first case beyond pytest's: {first:.2f} s of {FIRST_S:.2f} s ({first / FIRST_S:.2f} of the limit)")
    print(json.dumps({name: [timing.__dict__ for timing in timings] for name, timings in found.items()}))
    return int(beyond > limit or first > FIRST_S)


if __name__ == "__main__":
    sys.exit(main())
