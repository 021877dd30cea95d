"""Runs the tests: the application's in ``.venv``, the library's in an environment that holds only what it needs.

``run_tests.py NAME MARKER [pytest's arguments]`` leaves JUnit reports in ``.cache/junit/NAME-*.xml``.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from check_reports import REPORTS, read, summary

ROOT = Path(__file__).resolve().parent.parent
APPLICATION = ("service", "worker", "system", "docs")
NO_TESTS = 5
# Most of the application's tests wait for processes, so two run beside the library's, which compute. A file stays in
# one process, since its fixtures are dear. What is long is heavy, or counts on the machine being its own, and runs
# alone.
IN_PARALLEL = {"quick": ("--numprocesses", "2", "--dist", "loadfile")}


def main() -> int:
    name, marker, *more = sys.argv[1:]
    REPORTS.mkdir(parents=True, exist_ok=True)
    reports = {part: REPORTS / f"{name}-{part}.xml" for part in ("application", "library")}
    for report in reports.values():
        report.unlink(missing_ok=True)
    library = ROOT / "tests/library"
    if library.is_dir():
        environment = subprocess.run([sys.executable, ROOT / "scripts/library_env.py"], cwd=ROOT, check=False)
        if environment.returncode:
            return environment.returncode
    folders = [f"tests/{folder}" for folder in APPLICATION if (ROOT / "tests" / folder).is_dir()]
    application = _command(".venv", folders, marker, reports["application"], [*IN_PARALLEL.get(name, ()), *more])
    alone = _command(".cache/venv-library", ["tests/library"], marker, reports["library"], more)
    commands = ([application] if folders else []) + ([alone] if library.is_dir() else [])
    codes = _beside(commands) if name in IN_PARALLEL else [_run(command) for command in commands]
    cases = [case for report in reports.values() if report.exists() for case in read(report)]
    print(summary(cases))
    bad = next((code for code in codes if code not in (0, NO_TESTS)), 0)
    return bad or (0 if cases else NO_TESTS)


def _command(environment: str, folders: list[str], marker: str, report: Path, more: list[str]) -> list[str]:
    python = ROOT / environment / "bin/python"
    return [str(python), "-m", "pytest", "-m", marker, f"--junitxml={report}", *folders, *more]


def _run(command: list[str]) -> int:
    print(f"$ {' '.join(command)}", flush=True)
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _beside(commands: list[list[str]]) -> list[int]:
    """Run them at once, on a processor each; the words of all but the first come when it has ended."""
    first, *others = commands
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in others]
        running = [
            stack.enter_context(subprocess.Popen(command, cwd=ROOT, env=env, stdout=file, stderr=subprocess.STDOUT))
            for command, file in zip(others, files, strict=True)
        ]
        codes = [_run(first)]
        for command, file, process in zip(others, files, running, strict=True):
            codes.append(process.wait())
            file.seek(0)
            print(f"$ {' '.join(command)}\n{file.read().decode(errors='replace')}", flush=True)
    return codes


if __name__ == "__main__":
    sys.exit(main())
