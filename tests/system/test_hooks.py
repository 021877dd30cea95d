"""A real git push drives a webhook to a finished job and a posted status, through the whole embedded system."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forge_server, forges, repository, system
from tests.support.forge_server import TOKEN, FakeForge
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
    """The push is answered at once; a worker runs what [trigger] says; the commit gets its status; deleting the branch
    starts nothing.
    """
    work = repository.make(tmp_path / "work", config=CONFIG + '[trigger.push]\nrefs = ["main"]\n')
    bare = tmp_path / "forge" / "demo.git"
    subprocess.run(["git", "init", "--quiet", "--bare", str(bare)], check=True)
    sha = work.git("rev-parse", "main").strip()
    forge = FakeForge(commits={sha})
    settings = {"HOOK_SECRETS": forges.SECRET, "PRIVATE_TARGETS": "127.0.0.0/8", "PUBLIC_URL": "https://bench.example"}
    with (
        forge_server.serving(forge.gitea) as server,
        system.running(tmp_path, **{f"REPLAYBENCH_{name}": value for name, value in settings.items()}) as it,
    ):
        linked = {"forge": "gitea", "api_url": server.url, "project": "team/demo", "credential": TOKEN}
        it.post("/repositories", {"name": "demo", "url": str(bare), "forge": linked})
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
        status = wait_for(lambda: [one for one in forge.taken[-1:] if one["state"] == "failure"], "the status")[0]
        assert (status["commit"], status["description"]) == (sha, "1 failed, 1 passed, 1 skipped")
        assert (status["context"], status["target_url"]) == ("replaybench/unit", f"https://bench.example/jobs/{job}")
        other = it.wait_for_end(int(str(told["push to topic: change"]["job"])))
        assert (other["state"], other["cells"]) == ("cancelled", {})
        work.git("push", "--quiet", str(bare), ":topic")
        assert "was deleted" in it.get("/hooks/deliveries")["items"][0]["detail"]
