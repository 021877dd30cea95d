"""A real git push drives a webhook to a finished job, through the whole embedded system."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forges, repository, system
from tests.support.repository import CONFIG
from tests.support.waiting import wait_for

# What a forge does behind a push: it tells the hook, in its own words and signed.
POST_RECEIVE = """\
#!{python}
import os, subprocess, sys
sys.path.insert(0, {root!r})
for name in [name for name in os.environ if name.startswith("GIT_")]:
    del os.environ[name]
from tests.support import forges
for line in sys.stdin:
    before, after, ref = line.split()
    answer = forges.post({url!r}, "gitea", "push", forges.push({bare!r}, ref, before, after))
    print("hook:", answer.status_code)
"""
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.long
def test_a_push_becomes_a_finished_job(tmp_path: Path) -> None:
    """The push is answered at once; a worker runs what [trigger] says; deleting the branch starts nothing."""
    work = repository.make(tmp_path / "work", config=CONFIG + '[trigger.push]\nrefs = ["main"]\n')
    bare = tmp_path / "forge" / "demo.git"
    subprocess.run(["git", "init", "--quiet", "--bare", str(bare)], check=True)
    with system.running(tmp_path, REPLAYBENCH_HOOK_SECRETS=forges.SECRET) as it:
        it.post("/repositories", {"name": "demo", "url": str(bare)})
        hook = bare / "hooks" / "post-receive"
        hook.write_text(POST_RECEIVE.format(python=sys.executable, root=str(ROOT), url=it.url, bare=str(bare)))
        os.chmod(hook, 0o755)  # noqa: S103 -- git runs it
        work.git("push", "--quiet", str(bare), "main", "main:topic")

        def delivered() -> list[dict[str, object]] | None:
            found = it.get("/hooks/deliveries")["items"]
            return found if len(found) == 2 else None

        told = {it.get(f"/jobs/{one['job']}")["label"]: one for one in wait_for(delivered, "both branches' hooks")}
        job = int(str(told["push to main: change"]["job"]))
        ended = it.wait_for_end(job)
        assert ended["state"] == "failed"
        assert ended["requested_by"] == "m.keller"
        (row,) = it.get(f"/jobs/{job}/table")["rows"]
        assert row["result"] == "1 failed, 1 passed, 1 skipped"
        other = it.wait_for_end(int(str(told["push to topic: change"]["job"])))
        assert (other["state"], other["cells"]) == ("cancelled", {})
        work.git("push", "--quiet", str(bare), ":topic")
        assert "was deleted" in it.get("/hooks/deliveries")["items"][0]["detail"]
