"""The engineering log's tables follow from the exported evidence beside them, and the probes from the same."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from service.client.evidence import Export
from service.results import table
from worker.messages import Outcome

ROOT = Path(__file__).resolve().parent.parent.parent
LOG = ROOT / "docs/log"
EXPORTS = sorted(LOG.glob("*.json"))
ON_GPU = {"WP-001", "WP-003", "WP-004", "WP-005", "WP-006"}
PROBE = ROOT / "probes/live-gradient-copy-in-backward.patch"


def page_of(file: Path) -> Path:
    """The page that an export belongs to: `WP-004.md` of `WP-004.json` and of `WP-004.two-devices.json`."""
    return LOG / f"{file.name.partition('.')[0]}.md"


def read(file: Path) -> Export:
    """An export."""
    return Export.model_validate_json(file.read_text())


@pytest.mark.parametrize("file", EXPORTS, ids=lambda file: file.stem)
def test_the_rows_follow_from_the_cases(file: Path) -> None:
    """Every row's digest and counts are those of the cases in the same document."""
    export = read(file)
    assert export.attempts
    assert export.unproven() == []


@pytest.mark.parametrize("file", EXPORTS, ids=lambda file: file.stem)
def test_the_page_quotes_the_rows_as_they_are(file: Path) -> None:
    """The page beside an export holds its table, letter for letter."""
    assert table.markdown(read(file).table) in page_of(file).read_text()


@pytest.mark.parametrize("file", EXPORTS, ids=lambda file: file.stem)
def test_the_page_names_the_export(file: Path) -> None:
    assert f"`{file.name}`" in page_of(file).read_text()


@pytest.mark.parametrize("file", EXPORTS, ids=lambda file: file.stem)
def test_the_trees_are_commits_of_this_repository(file: Path) -> None:
    """Every row without a probe names a commit that is in this repository's history, by the tree that it had."""
    if git("rev-parse", "--is-shallow-repository").stdout.strip() == "true":
        pytest.skip("needs the whole history")
    for attempt in read(file).attempts:
        commit, _, probe = attempt.cell.partition("/")[0].partition("+")
        if not probe:
            found = git("rev-parse", "--verify", f"{commit}^{{tree}}").stdout.strip()
            assert found == attempt.tree


def test_a_changed_case_does_not_go_unseen() -> None:
    """Evidence with one outcome turned around is unproven."""
    export = read(LOG / "WP-001.json")
    failed = next(
        attempt for attempt in export.attempts if any(case.outcome == Outcome.FAILED for case in attempt.cases)
    )
    cases = [
        case.model_copy(update={"outcome": Outcome.PASSED, "failure_class": None})
        if case.outcome == Outcome.FAILED
        else case
        for case in failed.cases
    ]
    changed = [a.model_copy(update={"cases": cases}) if a.id == failed.id else a for a in export.attempts]
    wrong = export.model_copy(update={"attempts": changed}).unproven()
    assert [one.partition(": ")[2] for one in wrong[:2]] == [
        "the digest is not that of the cases",
        "the counts are not those of the cases",
    ]


def test_what_fails_with_the_probe_is_the_committed_list() -> None:
    """In every run with the probe what fails are the ids of the list, all that were run; and none fails without."""
    listed = set(PROBE.with_suffix(".expected.txt").read_text().split("\n")) - {""}
    seen = set()
    for attempt in (attempt for file in EXPORTS if page_of(file).stem in ON_GPU for attempt in read(file).attempts):
        failed = {case.node_id for case in attempt.cases if case.outcome in (Outcome.FAILED, Outcome.ERROR)}
        run = {case.node_id for case in attempt.cases}
        assert failed == (listed & run if "+probe:" in attempt.cell else set()), attempt.cell
        seen |= failed
    assert seen == listed


def test_the_probe_applies_to_head(tmp_path: Path) -> None:
    """A change of the library that the probe no longer fits is seen here, and not on a GPU."""
    env = {"GIT_INDEX_FILE": str(tmp_path / "index")}
    assert git("read-tree", "HEAD", **env).returncode == 0
    applied = git("apply", "--cached", "--check", str(PROBE), **env)
    assert applied.returncode == 0, applied.stderr


def test_every_listed_id_is_a_test_of_the_tree() -> None:
    """A test that is renamed takes its line of the list with it."""
    for line in PROBE.with_suffix(".expected.txt").read_text().splitlines():
        file, name = re.fullmatch(r"([^:]+)::(\w+)(?:\[.*\])?", line).groups()  # type: ignore[union-attr]
        assert f"def {name}(" in (ROOT / file).read_text(), line


def git(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs git in this repository."""
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
