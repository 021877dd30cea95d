"""Takes each cure out of a copy of graphreplay and runs the tests that need it: they must fail.

    python scripts/cures.py {gpu,cpu} [--only WORD] [--jobs N] [--limit SECONDS] [--budget SECONDS] [--out cures.json]

Run it where graphreplay is installed (or on PYTHONPATH), with torch, lightning and pytest. ``cpu`` takes the cures that
tests without a GPU see. First all named tests run once with every cure in place, and must pass; ``--no-baseline``
leaves that out. Each cure has a pytest process of its own, since a removed one may hang or poison the CUDA context; a
process that dies or exceeds the limit has failed. With ``--out``, rows that are there of the same source are kept.
A cure for a fault that this torch does not have yet is named and left in.

Prints a table and exits with 1 where a named test stays green without its cure, or a process could not be judged, and
with 2 where an edit does not fit the source any more: adjust ``cure_list.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from check_reports import read
from cure_list import CURES, Cure, Edit

ROOT = Path(__file__).resolve().parent.parent
TESTS = "tests/library"


@dataclass
class Outcome:
    """What became of one pytest process: cases by id, and why it ended otherwise than by itself."""

    failed: set[str] = field(default_factory=set)
    passed: set[str] = field(default_factory=set)
    ended: str = ""
    words: str = ""


def installed() -> Path:
    """The folder of the package that the tests would import.

    Raises:
        SystemExit: There is none.
    """
    spec = find_spec("graphreplay")
    if spec is None or spec.origin is None:
        sys.exit("graphreplay is not installed for this interpreter; put ./library on PYTHONPATH or install it")
    return Path(spec.origin).parent


def torch_release() -> tuple[int, int]:
    """Major and minor version of the torch that the tests would import."""
    major, minor, *_ = version("torch").split(".")
    return int(major), int(minor)


def apply(edits: Iterable[Edit], package: Path) -> list[str]:
    """Edit the copy; returns what does not fit, in words."""
    problems = []
    for edit in edits:
        file = package / edit.file
        text = file.read_text() if file.exists() else ""
        if (found := text.count(edit.old)) != edit.count:
            problems.append(f"{edit.file} has {found} times, not {edit.count}: {edit.old!r}")
        else:
            file.write_text(text.replace(edit.old, edit.new))
    return problems


def prepare(cure: Cure, source: Path, folder: Path) -> list[str]:
    """A copy of the package in ``folder`` without the cure; returns what does not fit, in words."""
    shutil.copytree(source, folder / "graphreplay", ignore=shutil.ignore_patterns("__pycache__"))
    return apply(cure.edits, folder / "graphreplay")


def run(tests: Sequence[str], library: Path, limit: float) -> Outcome:
    """Run the tests against the package in the folder ``library``."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(library), environment.get("PYTHONPATH")]))
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    with tempfile.TemporaryDirectory(prefix="cures-") as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        command += [f"{TESTS}/{test}" for test in tests]
        log = Path(folder, "log")
        with log.open("wb") as stream:
            # In a session of its own: workers of loaders go with it.
            child = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                code: int | None = child.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                end(child)
        words = log.read_text(errors="replace")[-2000:]
        return judge(code, report, words)


def end(child: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the process's session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def judge(code: int | None, report: Path, words: str) -> Outcome:
    """An outcome from the exit code (None: over the limit) and the JUnit report, if one was written."""
    outcome = Outcome(words=words)
    if code is None:
        outcome.ended = "over the time limit"
    elif code < 0:
        outcome.ended = f"killed by signal {-code}"
    elif code not in (0, 1):
        outcome.ended = f"pytest ended with {code}"
    for case in read(report) if report.exists() else ():
        module, _, name = case.name.partition("::")
        node = f"{module.rpartition('.')[2]}.py::{name}"
        if case.outcome != "skipped":
            (outcome.failed if case.outcome == "failed" else outcome.passed).add(node)
    return outcome


def belongs(node: str, test: str) -> bool:
    """Whether a case is the named test or one of its parameters."""
    return node == test or node.startswith(f"{test}[")


def verdict(tests: Sequence[str], outcome: Outcome) -> str:
    """Empty where every named test failed; else what is wrong."""
    died = outcome.ended.startswith(("over", "killed"))
    if outcome.ended and not died:
        return outcome.ended
    green = [test for test in tests if not died and not any(belongs(node, test) for node in outcome.failed)]
    return f"stays green: {', '.join(green)}" if green else ""


def measure(cure: Cure, tests: Sequence[str], source: Path, limit: float) -> dict[str, Any]:
    """One row."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cure-") as folder:
        prepare(cure, source, Path(folder))
        outcome = run(tests, Path(folder), limit)
    problem = verdict(tests, outcome)
    row = {
        "cure": cure.name,
        "report": cure.report,
        "tests": list(tests),
        "failed": sorted(outcome.failed),
        "passed": sorted(outcome.passed),
        "ended": outcome.ended,
        "problem": problem,
        "seconds": round(time.monotonic() - began, 1),
    }
    if problem:
        row["words"] = outcome.words
    print(f"{problem or 'fails'}: {cure.name} ({row['seconds']} s)", flush=True)
    return row


def table(rows: Iterable[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = ["| report | cure removed | tests | failed of |", "| --- | --- | --- | --- |"]
    for row in rows:
        counted = f"{len(row['failed'])} of {len(row['failed']) + len(row['passed'])}"
        result = ", ".join(filter(None, [counted, row["ended"], row["problem"]]))
        names = ", ".join(test.partition("::")[2] for test in row["tests"])
        lines.append(f"| {row['report']} | {row['cure']} | {names} | {result} |")
    return "\n".join(lines)


def digest(source: Path, kind: str) -> str:
    """Of everything a row depends on: package, tests, cures."""
    found = hashlib.sha256(kind.encode())
    for folder in (source, ROOT / TESTS):
        for file in sorted(folder.rglob("*.py")):
            found.update(file.relative_to(folder).as_posix().encode() + file.read_bytes())
    found.update(Path(__file__).with_name("cure_list.py").read_bytes())
    return found.hexdigest()[:16]


def check_edits(cures: Iterable[Cure], source: Path) -> None:
    """End where an edit does not fit.

    Raises:
        SystemExit: With exit code 2.
    """
    problems = []
    for cure in cures:
        with tempfile.TemporaryDirectory(prefix="cure-") as folder:
            problems += [f"{cure.name}: {problem}" for problem in prepare(cure, source, Path(folder))]
    if problems:
        print("\n".join(["these cures are not where scripts/cure_list.py looks for them; adjust it:", *problems]))
        raise SystemExit(2)


def parsed_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("gpu", "cpu"), help="which tests to run")
    parser.add_argument("--only", default="", help="cures whose name or report holds this word")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--limit", type=float, default=120, help="seconds for each cure's process")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no further one starts")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests with all cures in place")
    parser.add_argument("--out", type=Path, help="rows as JSON; those of the same source are kept")
    return parser.parse_args()


def main() -> int:
    """Takes the cures out, one after the other."""
    options = parsed_options()
    began, source = time.monotonic(), installed()
    fitting = [cure for cure in CURES if options.only in f"{cure.name} {cure.report}" and getattr(cure, options.kind)]
    chosen = [cure for cure in fitting if cure.since <= torch_release()]
    for cure in fitting:
        if cure not in chosen:
            print(f"left in: {cure.name}; its fault came with torch {'.'.join(map(str, cure.since))}")
    if not chosen:
        print(f"no cure with tests for {options.kind} holds {options.only!r}")
        return 2
    check_edits(CURES, source)
    key = digest(source, options.kind)
    rows = stored(options.out, key)
    if not options.no_baseline and not baseline(chosen, options, source):
        return 1

    def one(cure: Cure) -> dict[str, Any] | None:
        if cure.name in rows:
            return rows[cure.name]
        left = options.budget - (time.monotonic() - began)
        return measure(cure, getattr(cure, options.kind), source, min(options.limit, left)) if left > 10 else None

    with ThreadPoolExecutor(options.jobs) as pool:
        for row in filter(None, pool.map(one, chosen)):
            rows[row["cure"]] = row
            if options.out is not None:
                options.out.write_text(json.dumps({"source": key, "rows": list(rows.values())}, indent=1) + "\n")
    left = [cure.name for cure in chosen if cure.name not in rows]
    print(table(rows[cure.name] for cure in chosen if cure.name in rows))
    print(f"left for another call: {', '.join(left)}" if left else f"all {len(chosen)} cures were taken out")
    return int(bool(left) or any(rows[cure.name]["problem"] for cure in chosen))


def stored(out: Path | None, key: str) -> dict[str, dict[str, Any]]:
    """The good rows of an earlier call with the same source."""
    if out is None or not out.exists():
        return {}
    known = json.loads(out.read_text())
    return {row["cure"]: row for row in known["rows"] if known["source"] == key and not row["problem"]}


def baseline(chosen: Iterable[Cure], options: argparse.Namespace, source: Path) -> bool:
    """Whether all named tests pass as the package is: those that fail anyway would prove nothing."""
    tests = sorted({test for cure in chosen for test in getattr(cure, options.kind)})
    outcome = run(tests, source.parent, max(600, options.limit))
    missing = [test for test in tests if not any(belongs(node, test) for node in outcome.passed)]
    if outcome.failed or missing or outcome.ended:
        print(f"with all cures in place: {outcome.ended}; fails: {sorted(outcome.failed)}; not seen to pass: {missing}")
        print(outcome.words)
        return False
    print(f"with all cures in place: {len(outcome.passed)} passed", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
