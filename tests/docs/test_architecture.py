"""docs/architecture.md says of every file, in one line, what it is for, and of no file that is not there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

# The rooms whose every file has a line. Tests are named after what they test, and have none.
ROOMS = (
    "service/",
    "worker/",
    "library/",
    "alembic/",
    "docker/",
    "scripts/",
    "benchmarks/",
    "probes/",
    "tests/support/",
)
NO_LINE = re.compile(r"__init__\.py$|/templates/|/static/|LICENSE|README|script\.py\.mako|/versions/")


def test_every_file_has_its_line() -> None:
    """A file that is added, moved or removed changes the page too."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    there = {name for name in tracked if name.startswith(ROOMS) and not NO_LINE.search(name)}
    page = (ROOT / "docs/architecture.md").read_text()
    told = set(re.findall(r"^- `([^`]+)`: \S", page, re.MULTILINE))
    assert told - there == set(), "these lines are about files that are not there"
    assert there - told == set(), "these files have no line"
