"""Real children under supervision."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.up import logs
from service.up.child import Program
from service.up.errors import HopelessError, UpError
from service.up.supervisor import Supervisor
from tests.support.embedded import alive
from tests.support.waiting import wait_for

LIVES = "print('here', flush=True)\nimport time\ntime.sleep(600)"
DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + LIVES
DIES = "import sys\nsys.exit('no such thing as a kind word')"
REFUSES = "import sys\nprint('{\"event\": \"noise\"}')\nprint('replaybench it: X=0 is wrong', flush=True)\nsys.exit(2)"
WARNS = 'print(\'{"event": "left out", "reason": "gone", "setting": "X", "level": "error"}\')\n' + LIVES
Make = Callable[..., Supervisor]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def supervise(tmp_path: Path, said: list[str]) -> Iterator[Make]:
    made = []

    def make(grace_s: float = 5.0, **codes: str) -> Supervisor:
        programs = [
            Program(
                name=name,
                argv=(sys.executable, "-c", code),
                env=os.environ,
                cwd=tmp_path,
                log=tmp_path / f"{name}.log",
                grace_s=grace_s,
                ready=lambda log, offset: logs.says(log, "here", offset),
                warnings=logs.setting_warnings,
                refusal=2,
            )
            for name, code in codes.items()
        ]
        made.append(Supervisor(programs, said.append))
        return made[-1]

    yield make
    for supervisor in made:
        supervisor.stop(lambda: True)


def tend_until(supervisor: Supervisor, condition: Callable[[], bool], what: str) -> None:
    def look() -> bool:
        supervisor.tend()
        return condition()

    wait_for(look, what)


def pid(supervisor: Supervisor, number: int = 0) -> int:
    process = supervisor.children[number].process
    assert process is not None
    return process.pid


def test_a_child_starts_when_the_one_before_it_is_ready(supervise: Make, tmp_path: Path) -> None:
    supervisor = supervise(first="import time; time.sleep(0.3)\n" + LIVES, second=LIVES)
    supervisor.tend()
    assert supervisor.children[1].process is None
    tend_until(supervisor, lambda: supervisor.ready, "both")
    assert "here" in (tmp_path / "first.log").read_text()


def test_a_killed_child_is_started_again_and_said_so(supervise: Make, said: list[str]) -> None:
    supervisor = supervise(only=LIVES)
    tend_until(supervisor, lambda: supervisor.ready, "the child")
    first = pid(supervisor)
    os.kill(first, signal.SIGKILL)
    tend_until(supervisor, lambda: supervisor.ready and pid(supervisor) != first, "another child")
    assert said[1:] == ["only is up again"]
    assert said[0].startswith("only died by SIGKILL; starting it again in 0.2 s")


def test_five_deaths_stop_everything_with_the_tail_of_the_log(supervise: Make, said: list[str]) -> None:
    supervisor = supervise(only=DIES)
    with pytest.raises(HopelessError, match=r"(?s)5 times within 60 s.*no such thing as a kind word"):
        tend_until(supervisor, lambda: False, "the end of hope")
    assert len(said) == 4


def test_a_child_that_refuses_to_start_is_not_started_again(supervise: Make, said: list[str]) -> None:
    """Its own sentence is told, at its first end."""
    supervisor = supervise(only=REFUSES)
    with pytest.raises(UpError, match=r"^only ended with exit code 2: X=0 is wrong \(log: "):
        tend_until(supervisor, lambda: False, "the refusal")
    assert said == []


def test_a_child_that_was_up_is_started_again_whatever_its_exit_code(supervise: Make, said: list[str]) -> None:
    supervisor = supervise(only="import sys\nprint('here', flush=True)\nsys.exit(2)")
    tend_until(supervisor, lambda: bool(said), "the death to be seen")
    assert said[0].startswith("only ended with exit code 2; starting it again")


def test_what_a_child_warns_of_is_said_once(supervise: Make, said: list[str]) -> None:
    """However often it is started."""
    supervisor = supervise(only=WARNS)
    tend_until(supervisor, lambda: supervisor.ready, "the child")
    assert said == ["warning: X: left out: gone"]
    os.kill(pid(supervisor), signal.SIGKILL)
    tend_until(supervisor, lambda: "only is up again" in said, "another child")
    assert said.count("warning: X: left out: gone") == 1


def test_a_child_that_is_killed_again_and_again_is_started_again_and_again(supervise: Make, said: list[str]) -> None:
    """Six deaths within moments, each after it was up."""
    supervisor = supervise(only=LIVES)
    for _ in range(6):
        tend_until(supervisor, lambda: supervisor.ready, "the child")
        os.kill(pid(supervisor), signal.SIGKILL)
        tend_until(supervisor, lambda: supervisor.children[0].process is None, "the death to be seen")
        supervisor.children[0].restarts.deaths[:] = supervisor.children[0].restarts.deaths[-1:]  # keeps the waits short
    assert len([line for line in said if "died by SIGKILL" in line]) == 6


def test_what_a_dead_child_left_in_its_group_dies_before_it_starts_again(supervise: Make, tmp_path: Path) -> None:
    left = tmp_path / "left"
    code = (
        "import os, subprocess, sys, pathlib\n"
        f"child = subprocess.Popen([sys.executable, '-c', {LIVES!r}])\n"
        f"pathlib.Path({str(left)!r}).write_text(str(child.pid))\n"
    )
    supervisor = supervise(only=code + LIVES)
    tend_until(supervisor, lambda: supervisor.ready, "the child")
    grandchild = int(left.read_text())
    os.kill(pid(supervisor), signal.SIGKILL)
    tend_until(supervisor, lambda: supervisor.children[0].process is None, "the death to be seen")
    wait_for(lambda: not alive(grandchild), "the grandchild's end")


def test_a_child_that_ignores_the_request_is_killed_after_its_grace(supervise: Make) -> None:
    supervisor = supervise(grace_s=0.3, only=DEAF)
    tend_until(supervisor, lambda: supervisor.ready, "the child")
    deaf = pid(supervisor)
    began = time.monotonic()
    supervisor.stop()
    assert 0.3 <= time.monotonic() - began < 5
    assert not alive(deaf)


def test_a_second_request_cuts_the_grace_short(supervise: Make) -> None:
    supervisor = supervise(grace_s=600, only=DEAF)
    tend_until(supervisor, lambda: supervisor.ready, "the child")
    supervisor.stop(hurry=lambda: True)
    assert supervisor.children[0].process is None


def test_logs_of_earlier_runs_are_kept_up_to_three(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    for number in range(6):
        logs.rotate(log)
        log.write_text(f"run {number}")
    kept = sorted(file.name for file in tmp_path.iterdir())
    assert kept == ["x.log", "x.log.1", "x.log.2", "x.log.3"]
    assert [(tmp_path / name).read_text() for name in kept] == ["run 5", "run 4", "run 3", "run 2"]
