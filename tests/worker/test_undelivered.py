"""Spools that the service could not take: kept in sight, within a bound, and sent again when asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worker.support import StubService
from worker import undelivered
from worker.encoding import encode
from worker.messages import CaseEvent, Outcome
from worker.settings import Settings
from worker.spool import Spool, read

ROOT = Path(__file__).parents[2]


def spool(path: Path, attempt: int = 5, cases: int = 1) -> Path:
    """A spool of passed cases, at a path."""
    stream = Spool(path, attempt, "lease")
    for number in range(cases):
        stream.append(encode([CaseEvent(1, f"t.py::{number}", 0, Outcome.PASSED)]))
    stream.close()
    return path


@pytest.fixture
def env(service: StubService, tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "BROKER_URL": "redis://nowhere",
        "REPLAYBENCH_SERVICE_URL": service.url,
        "REPLAYBENCH_WORKER_TOKEN": "secret",
        "REPLAYBENCH_WORKER_NAME": "mine",
        "REPLAYBENCH_CACHE_DIR": str(tmp_path),
    }


def key(env: dict[str, str]) -> str:
    return Settings(**{name: env[name] for name in env if name.startswith(("REPLAYBENCH_", "BROKER"))}).key  # type: ignore[arg-type]


def ask(env: dict[str, str], word: str) -> tuple[int, str]:
    """What an operator is told."""
    command = [sys.executable, "-m", "worker", word]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_what_was_set_aside_is_listed_and_delivered_by_its_own_worker(
    env: dict[str, str], service: StubService, tmp_path: Path
) -> None:
    """With its attempt and its cases; once delivered it is gone, and another worker's stays."""
    undelivered.set_aside(spool(tmp_path / "s" / "5.jsonl", cases=3), tmp_path, key(env), "it breaks")
    undelivered.set_aside(spool(tmp_path / "s" / "6.jsonl", 6), tmp_path, "another", "it breaks")
    assert list((tmp_path / "s").iterdir()) == []
    code, said = ask(env, "spools")
    assert (code, [(one["attempt"], one["cases"]) for one in json.loads(said)]) == (
        0,
        [(5, {"passed": 3}), (6, {"passed": 1})],
    )
    code, said = ask(env, "deliver")
    assert (code, said.startswith("delivered: "), len(service.events)) == (0, True, 3), said
    (left,) = (tmp_path / "undelivered").iterdir()
    assert left.name.startswith("another-")


@pytest.mark.parametrize(
    ("answer", "word"), [((500, {}), "500"), ((409, {"code": "fenced"}), "may be removed"), ((422, {}), "422")]
)
def test_what_the_service_still_does_not_take_stays(
    env: dict[str, str], service: StubService, tmp_path: Path, answer: tuple[int, dict[str, str]], word: str
) -> None:
    """And is said to, with the reason."""
    undelivered.set_aside(spool(tmp_path / "s" / "5.jsonl"), tmp_path, key(env), "it breaks")
    service.script = [answer]
    code, said = ask(env, "deliver")
    assert (code, said.startswith("left: "), word in said) == (1, True, True), said
    assert len(list((tmp_path / "undelivered").iterdir())) == 1


def test_deliver_without_settings_names_what_is_missing(env: dict[str, str]) -> None:
    """It needs the service's address and the worker's token."""
    code, said = ask(env | {"REPLAYBENCH_SERVICE_URL": ""}, "deliver")
    assert (code, "REPLAYBENCH_SERVICE_URL is not set" in said) == (2, True), said


def test_all_that_is_kept_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go first; one that is larger than all may be keeps its beginning."""
    size = spool(tmp_path / "one" / "1.jsonl").stat().st_size
    monkeypatch.setattr(undelivered, "MOST_BYTES", 2 * size)
    for number in range(1, 5):
        undelivered.set_aside(spool(tmp_path / "s" / f"{number}.jsonl", number), tmp_path, "key", "it breaks")
    kept = sorted((tmp_path / "undelivered").iterdir())
    assert [path.name.rpartition("-")[2] for path in kept] == ["3.jsonl", "4.jsonl"]
    undelivered.set_aside(spool(tmp_path / "s" / "9.jsonl", 9, cases=20), tmp_path, "key", "it breaks")
    (large,) = (tmp_path / "undelivered").iterdir()
    assert large.stat().st_size == 2 * size
    found = read(large)
    assert found is not None
    assert (found.attempt, 1 <= len(found.groups) < 20) == (9, True)
