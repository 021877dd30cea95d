"""The verdict of an attempt: pytest's exit codes, signals and early exits, against what was observed."""

from __future__ import annotations

import pytest

from service.results.verdict import ProcessFacts, decide
from worker.messages import Cause, Verdict

V = Verdict
OK, SOME_FAILED = ProcessFacts(0, None, True), ProcessFacts(1, None, True)


def ended(code: int | None, signal: int | None = None, finished: bool = True) -> ProcessFacts:
    """A process that ended so."""
    return ProcessFacts(code, signal, finished)


@pytest.mark.parametrize(
    ("processes", "counts", "collected", "verdict"),
    [
        pytest.param([OK], {"passed": 2}, 2, V.PASSED, id="all passed"),
        pytest.param([OK], {"passed": 1, "skipped": 1}, 2, V.PASSED, id="some skipped"),
        pytest.param([OK], {"xfailed": 1}, 1, V.PASSED, id="an expected failure ran"),
        pytest.param([OK], {"xpassed": 1}, 1, V.PASSED, id="an unexpected pass that is not strict"),
        pytest.param([OK], {"skipped": 3}, 3, V.NO_CASES, id="all skipped: nothing ran"),
        pytest.param([OK], {}, 0, V.NO_CASES, id="exit 0 and nothing at all"),
        pytest.param([ended(5)], {}, 0, V.NO_CASES, id="everything deselected"),
        pytest.param([SOME_FAILED], {"failed": 1, "passed": 1}, 2, V.FAILED, id="one failed"),
        pytest.param([SOME_FAILED], {"error": 1}, 1, V.FAILED, id="a fixture failed"),
        pytest.param([SOME_FAILED], {"passed": 1}, 1, V.FAILED, id="exit 1 though all passed: a plugin's word counts"),
        pytest.param([SOME_FAILED], {"not-observed": 2}, 2, V.INCOMPLETE, id="exit 1 and nothing observed"),
        pytest.param([SOME_FAILED], {}, 0, V.INCOMPLETE, id="exit 1 and no case told"),
        pytest.param([SOME_FAILED], {"passed": 1}, 2, V.INCOMPLETE, id="exit 1, no failure seen and one case lost"),
        pytest.param([ended(5, finished=False)], {}, 0, V.INCOMPLETE, id="exit 5 without pytest's own end"),
        pytest.param([SOME_FAILED], {"failed": 1}, 9, V.FAILED, id="maxfail stops behind the first failure"),
        pytest.param([ended(2)], {}, 0, V.INTERRUPTED, id="a collection error"),
        pytest.param([ended(2)], {"error": 1}, 5, V.INTERRUPTED, id="a collection error, told as a case"),
        pytest.param([ended(2)], {"failed": 1, "passed": 1}, 2, V.FAILED, id="stopped behind its last case"),
        pytest.param([ended(2)], {"passed": 2}, 2, V.INTERRUPTED, id="stopped, and nothing failed"),
        pytest.param([ended(3)], {}, 0, V.INTERNAL_ERROR, id="internal error"),
        pytest.param([ended(4)], {}, 0, V.USAGE_ERROR, id="a path that is not there"),
        pytest.param([ended(77)], {"passed": 1}, 1, V.INTERNAL_ERROR, id="no exit code of pytest's"),
        pytest.param([ended(None, 11, False)], {"passed": 1}, 2, V.CRASHED, id="SIGSEGV outside of a case"),
        pytest.param([ended(None, 9, False)], {"failed": 1}, 1, V.CRASHED, id="SIGKILL behind the last case"),
        pytest.param([OK], {"passed": 1, "crashed": 1}, 2, V.CRASHED, id="one crashed, the rest in a second process"),
        pytest.param([OK], {"passed": 1, "timed-out": 1}, 2, V.TIMED_OUT, id="one ran out of its time"),
        pytest.param([OK], {"crashed": 1, "timed-out": 1}, 2, V.CRASHED, id="a crash says more than a time-out"),
        pytest.param([ended(0, finished=False)], {"passed": 2}, 2, V.INCOMPLETE, id="os._exit(0) in the last case"),
        pytest.param([ended(0, finished=False)], {"failed": 2}, 2, V.INCOMPLETE, id="os._exit(0) behind a failure"),
        pytest.param([OK], {"passed": 1}, 2, V.INCOMPLETE, id="exit 0 and one case lost"),
        pytest.param([OK], {"failed": 1}, 2, V.INCOMPLETE, id="exit 0, a failure and one case lost"),
        pytest.param([OK], {"failed": 1}, 1, V.FAILED, id="exit 0 though one failed"),
        pytest.param([OK], {"passed": 1, "not-observed": 1}, 2, V.INCOMPLETE, id="one never observed"),
        pytest.param([], {}, 0, V.INCOMPLETE, id="no process at all"),
        pytest.param([ended(2), SOME_FAILED], {"failed": 1, "passed": 2}, 3, V.FAILED, id="poisoned, then run again"),
        pytest.param([ended(None, 6, False), OK], {"passed": 3}, 3, V.PASSED, id="the last process counts"),
    ],
)
def test_a_finished_attempts_verdict(
    processes: list[ProcessFacts], counts: dict[str, int], collected: int, verdict: Verdict
) -> None:
    """Passed only if the last process ended by itself with 0, something ran, and every collected case was reported."""
    assert decide(Cause.FINISHED, processes, counts, collected) is verdict


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause is not Cause.FINISHED])
def test_what_the_worker_ended_is_what_it_says(cause: Cause) -> None:
    """Whatever was observed, also nothing and also only passes."""
    assert decide(cause, [OK], {"passed": 1}, 1) == cause.value
    assert decide(cause, [], {}, 0) == cause.value
