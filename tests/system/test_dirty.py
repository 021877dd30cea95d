"""A working tree as it stands, proven beside its commit, through the whole embedded system."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import embedded, repository, system

USES_BINARY = """\
from pathlib import Path
def test_four(): assert Path(__file__).with_name("four.bin").read_bytes() == bytes(range(256))
"""


@pytest.mark.long
def test_a_dirty_tree_is_run_and_compared_with_its_commit(tmp_path: Path) -> None:
    """What is changed, new and binary is in it; what broke and what was fixed stands case by case."""
    work = repository.make(tmp_path / "work")
    commit = work.git("rev-parse", "HEAD").strip()
    cases = work.path / "tests/test_cases.py"
    cases.write_text(cases.read_text().replace("assert 1 == 2", "assert 1 == 1"))
    (work.path / "tests/four.bin").write_bytes(bytes(range(256)))
    (work.path / "tests/test_four.py").write_text(USES_BINARY)
    before = work.git("status", "--porcelain")
    with system.running(tmp_path) as it:
        where = {"cwd": work.path, "REPLAYBENCH_URL": it.url, "REPLAYBENCH_DATA_DIR": str(it.up.data_dir)}
        done = embedded.command("submit", "--dirty", "--baseline", "main", "--json", **where)
        assert done.returncode == 0, done.stderr
        job = int(json.loads(done.stdout)["id"])
        assert it.wait_for_end(job)["state"] == "failed"
        rows = {row["tree"]: row["result"] for row in it.get(f"/jobs/{job}/table")["rows"]}
        dirty = next(tree for tree in rows if "+probe:" in tree)
        assert rows == {commit[:7]: "1 failed, 1 passed, 1 skipped", dirty: "3 passed, 1 skipped"}
        compared = embedded.command("compare", commit[:7], dirty, "--json", **where)
        assert compared.returncode == 0, compared.stderr
        found = json.loads(compared.stdout)
        changes = {case["node_id"].rpartition("::")[2]: case["change"] for case in found["cases"]}
        assert changes == {"test_two": "fixed", "test_three": "not-run", "test_four": "new"}
        assert found["counts"]["still-passing"] == 1
        back = embedded.command("compare", dirty, commit[:7], **where)
        assert back.returncode == 1
        assert "broken" in back.stdout
    assert work.git("status", "--porcelain") == before
    assert work.git("rev-parse", "HEAD").strip() == commit
