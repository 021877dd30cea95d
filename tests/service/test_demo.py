"""What `make demo KEEP=1` leaves running is found by what it prints last."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import demo
from service.up.lock import write_note
from tests.support import embedded, running_service
from tests.support.repository import GitRepository
from tests.support.running_service import RunningService


@pytest.fixture
def service(tmp_path: Path, broker_url: str) -> Iterator[RunningService]:
    """A service in a folder that a shell would take apart, and that has noted its address."""
    url = f"sqlite:///{tmp_path / 'replaybench.db'}"
    with running_service.running(tmp_path / "the demo's data", url, broker_url) as it:
        write_note(it.settings.data_dir, it.url)
        yield it


def test_the_commands_that_are_printed_reach_what_goes_on(
    service: RunningService, registered: GitRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any shell, from any folder, and with the token that lies there."""
    service.submit("demo", "main", label="left by the demo")
    monkeypatch.setattr(demo, "DATA", service.settings.data_dir)
    find, ask = re.findall(r"`([^`]+)`", demo.way_back())
    done = subprocess.run(
        ["sh", "-c", f"{find} && {ask}"], env=embedded.environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "left by the demo" in done.stdout
