"""docs/graphreplay-api.md is what the docstrings say, and its making notices what is public without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "scripts/api_docs.py"


def checked(root: Path) -> subprocess.CompletedProcess[str]:
    """The check, by the script that lies in `root`."""
    return subprocess.run(
        [sys.executable, "-S", root / "scripts/api_docs.py", "--check"], capture_output=True, text=True, check=False
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The library's source, the script and the page, to be changed."""
    for file in (SCRIPT, ROOT / "docs/graphreplay-api.md", *(ROOT / "library/graphreplay").rglob("*.py")):
        target = tmp_path / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    return tmp_path


def test_the_page_is_current() -> None:
    """Without any package at hand: it needs the standard library alone."""
    done = checked(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_docstring_that_changes_changes_the_page(copy: Path) -> None:
    file = copy / "library/graphreplay/options.py"
    file.write_text(file.read_text().replace("Raise `RetiredError` where", "Raise `RetiredError` when"))
    done = checked(copy)
    assert done.returncode == 1
    assert "run python scripts/api_docs.py" in done.stdout


def test_a_public_name_without_a_docstring_is_refused(copy: Path) -> None:
    file = copy / "library/graphreplay/tasks/parity.py"
    file.write_text(file.read_text() + "\n\ndef silent() -> None: ...\n")
    done = checked(copy)
    assert done.returncode == 1
    assert "silent is public and has no docstring" in done.stderr
