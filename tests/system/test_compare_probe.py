"""The comparison that a GPU run ends with, on the evidence that is committed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXPECTED = ROOT / "probes" / "live-gradient-copy-in-backward.expected.txt"


@pytest.fixture
def evidence() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "docs" / "log" / "WP-001.json").read_text())
    return found


def compare(tmp_path: Path, evidence: dict[str, Any], expected: Path | str = EXPECTED) -> tuple[int, str]:
    (tmp_path / "evidence.json").write_text(json.dumps(evidence))
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/compare_probe.py", tmp_path / "evidence.json", expected, tmp_path / "ids"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
    )
    return done.returncode, done.stdout


def test_the_committed_evidence_shows_what_the_list_says(tmp_path: Path, evidence: dict[str, Any]) -> None:
    """The same ids under each runtime, and none without the probe; by class, and as a list."""
    code, said = compare(tmp_path, evidence)
    *cells, last = said.splitlines()
    assert code == 0
    assert len(cells) == 2
    assert all("+probe:" in cell and cell.endswith(": 21 bitwise-mismatch, 1 assertion") for cell in cells)
    assert last == "22 ids fail with the probe, 22 of the 22 listed, and none without"
    assert set((tmp_path / "ids").read_text().split()) <= set(EXPECTED.read_text().split())


def test_what_fails_beside_the_list_is_told(tmp_path: Path, evidence: dict[str, Any]) -> None:
    """A case that came to the suite after the list was made may see the probe too."""
    shorter = tmp_path / "expected.txt"
    # Six of the 22 are fits.
    left = [line for line in EXPECTED.read_text().splitlines() if "test_fit_matches_native" not in line]
    shorter.write_text("\n".join(left))
    code, said = compare(tmp_path, evidence, shorter)
    assert code == 0
    assert said.endswith("22 ids fail with the probe, 16 of the 16 listed, and none without\n")


def test_what_is_listed_must_fail(tmp_path: Path, evidence: dict[str, Any]) -> None:
    """A case that passes with the probe does not see what it must see."""
    attempt = next(one for one in evidence["attempts"] if "+probe:" in one["cell"])
    passed = next(case["node_id"] for case in attempt["cases"] if case["outcome"] == "passed")
    longer = tmp_path / "expected.txt"
    longer.write_text(EXPECTED.read_text() + f"{passed}\n")
    code, said = compare(tmp_path, evidence, longer)
    assert code == 1
    assert f"{attempt['cell']}: {passed} is on the list and does not fail" in said


def test_the_commit_must_pass(tmp_path: Path, evidence: dict[str, Any]) -> None:
    spoil_verdict(evidence)
    code, said = compare(tmp_path, evidence)
    assert code == 1
    assert "ended as infrastructure without the probe" in said


def spoil_verdict(evidence: dict[str, Any]) -> None:
    next(one for one in evidence["attempts"] if "+probe:" not in one["cell"])["verdict"] = "infrastructure"


def drop_everything(evidence: dict[str, Any]) -> None:
    evidence["attempts"] = evidence["table"]["rows"] = []


@pytest.mark.parametrize(
    ("spoil", "word"), [(spoil_verdict, "ended as infrastructure"), (drop_everything, "nothing to compare")]
)
def test_what_shows_nothing_is_no_proof(
    tmp_path: Path, evidence: dict[str, Any], spoil: Callable[[dict[str, Any]], None], word: str
) -> None:
    """A commit that was not tested has no failing case either."""
    spoil(evidence)
    code, said = compare(tmp_path, evidence)
    assert code == 1
    assert word in said
