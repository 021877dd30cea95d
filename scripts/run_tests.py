"""Runs the tests: the application's in ``.venv``, the library's in an environment that holds only what it needs.

``run_tests.py NAME MARKER [pytest's arguments]`` leaves JUnit reports in ``.cache/junit/NAME-*.xml``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from check_reports import REPORTS, read, summary

ROOT = Path(__file__).resolve().parent.parent
APPLICATION = ("service", "worker", "system", "docs")
NO_TESTS = 5
# Most of the application's tests wait for processes. A file stays in one process, since its fixtures are dear. What is
# long is heavy or counts on the machine being its own.
IN_PARALLEL = {"quick": ("--numprocesses", "3", "--dist", "loadfile")}


def main() -> int:
    name, marker, *more = sys.argv[1:]
    REPORTS.mkdir(parents=True, exist_ok=True)
    reports = {part: REPORTS / f"{name}-{part}.xml" for part in ("application", "library")}
    for report in reports.values():
        report.unlink(missing_ok=True)
    folders = [f"tests/{folder}" for folder in APPLICATION if (ROOT / "tests" / folder).is_dir()]
    parallel = IN_PARALLEL.get(name, ())
    codes = [_pytest(ROOT / ".venv/bin/python", folders, marker, reports["application"], [*parallel, *more])]
    if (ROOT / "tests/library").is_dir():
        environment = subprocess.run([sys.executable, ROOT / "scripts/library_env.py"], cwd=ROOT, check=False)
        if environment.returncode:
            return environment.returncode
        codes.append(
            _pytest(ROOT / ".cache/venv-library/bin/python", ["tests/library"], marker, reports["library"], more)
        )
    cases = [case for report in reports.values() if report.exists() for case in read(report)]
    print(summary(cases))
    bad = next((code for code in codes if code not in (0, NO_TESTS)), 0)
    return bad or (0 if cases else NO_TESTS)


def _pytest(python: Path, folders: list[str], marker: str, report: Path, more: list[str]) -> int:
    if not folders:
        return NO_TESTS
    command = [str(python), "-m", "pytest", "-m", marker, f"--junitxml={report}", *folders, *more]
    print(f"$ {' '.join(command)}", flush=True)
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
