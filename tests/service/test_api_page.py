"""The example in docs/api.md, run as it stands there but for the names of repository and suite."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.repository import GitRepository
from tests.support.running_service import RunningService
from tests.support.waiting import wait_for
from worker.messages import Outcome

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_python_example_runs(service: RunningService, registered: GitRepository) -> None:
    """It submits, follows, and prints the table and what failed."""
    page = (ROOT / "docs/api.md").read_text()
    example = page.split("```python\n")[1].split("```")[0]
    for ours, theirs in (('"this-checkout"', '"demo"'), ('["gate"]', '["unit"]')):
        assert ours in example
        assert ours in page.split("```python\n")[0], "curl's example is about the same job"
        example = example.replace(ours, theirs)
    token = service.http.headers["Authorization"].removeprefix("Bearer ")
    reader = subprocess.Popen(
        [sys.executable, "-c", example],
        cwd=registered.path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "REPLAYBENCH_URL": service.url, "REPLAYBENCH_TOKEN": token},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(lambda: service.get("/jobs")["items"], "the example to submit")
        service.driver().must_claim().run({"a": Outcome.PASSED, "b": Outcome.FAILED})
        shown, _ = reader.communicate(timeout=30)
    finally:
        reader.kill()
    assert reader.returncode == 0
    assert "1 failed, 1 passed" in shown
    assert shown.splitlines()[-1].split()[0] == "b"
