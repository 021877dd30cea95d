"""`replaybench tokens` against a real service."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import httpx

from service.database import upgrade
from tests.support import embedded
from tests.support.fixtures import sqlite_url as database_url
from tests.support.running_service import RunningService

__all__ = ["database_url"]


def cli(service: RunningService, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a command beside the service's data directory."""
    known = {"REPLAYBENCH_URL": service.url, "REPLAYBENCH_DATA_DIR": str(service.settings.data_dir)}
    done = embedded.command("tokens", *arguments, **{**known, **env})
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_making_listing_and_revoking(service: RunningService) -> None:
    """The token is all of standard output, once; afterwards it is known by its beginning."""
    made = cli(service, "create", "ci", "--scope", "read", "--days", "0")
    token = made.stdout.strip()
    assert made.returncode == 0
    assert "shown this once" in made.stderr
    headers = {"Authorization": f"Bearer {token}"}
    assert httpx.get(f"{service.url}/api/v1/jobs", headers=headers, timeout=60).status_code == 200
    listed = cli(service, "list").stdout
    assert token[:11] in listed
    assert token not in listed
    assert "never" in listed
    assert cli(service, "revoke", token[:11]).stdout == f"revoked token 1 (ci, {token[:11]}…)\n"
    assert json.loads(cli(service, "list", "--json").stdout)[0]["state"] == "revoked"
    assert httpx.get(f"{service.url}/api/v1/jobs", headers=headers, timeout=60).status_code == 401


def test_what_a_user_can_put_right(service: RunningService) -> None:
    """One message and exit code 2: an unknown token, a token that may not, a name that is none."""
    assert cli(service, "revoke", "rb_unknown").returncode == 2
    reader = cli(service, "create", "reader", "--scope", "read").stdout.strip()
    refused = cli(service, "list", REPLAYBENCH_TOKEN=reader)
    assert (refused.returncode, "scope-missing" in refused.stderr) == (2, True)
    assert cli(service, "create", "", "--scope", "read").returncode == 2


def test_only_what_can_be_had_is_offered(service: RunningService) -> None:
    """A scope that is none, and the one that `workers enroll` gives, are refused alike, in words of people."""
    offered = " ".join(cli(service, "create", "--help").stdout.split())
    assert "enroll" not in offered
    for wrong in ("foo", "enroll"):
        refused = cli(service, "create", "ci", "--scope", wrong)
        assert refused.returncode == 2
        told = " ".join(refused.stderr.replace("│", " ").split())
        assert f"'{wrong}' is not one of 'read', 'submit', 'worker', 'admin'" in told
    refused = cli(service, "create", "", *("--scope", "read") * 5)
    assert refused.returncode == 2
    assert "Scope" not in refused.stderr


def test_the_first_admin_token_is_made_in_the_database(service: RunningService, tmp_path: Path) -> None:
    """Past the service, by whoever has its DATABASE_URL; it is in the audit. Without tables the message says why."""
    made = cli(service, "create", "ops", "--scope", "admin", "--direct", DATABASE_URL=service.settings.database)
    headers = {"Authorization": f"Bearer {made.stdout.strip()}"}
    found = httpx.get(f"{service.url}/api/v1/audit", headers=headers, timeout=60).json()["items"]
    assert [(entry["actor"], entry["address"]) for entry in found] == [("operator", "database")]
    empty = f"sqlite:///{tmp_path}/empty.db"
    refused = cli(service, "create", "ops", "--scope", "admin", "--direct", DATABASE_URL=empty)
    assert (refused.returncode, "db upgrade" in refused.stderr) == (2, True)
    upgrade(empty)
    assert cli(service, "create", "ops", "--scope", "admin", "--direct", DATABASE_URL=empty).returncode == 0
