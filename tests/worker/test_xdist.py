"""Suites that run under pytest-xdist, as `args` of a suite may say: each case is told as well as without."""

from __future__ import annotations

import pytest

from tests.worker.test_pytest_run import Runner, run_suite
from worker.messages import FailureClass, FailureRule, ProcessStartedEvent, Selection

__all__ = ["run_suite"]
TWO = ("-n", "2")


def test_a_case_that_kills_its_worker_is_a_crash_with_its_words(run_suite: Runner) -> None:
    """pytest-xdist starts another worker, and the rest is observed in the same run."""
    source = "import os\ndef test_1(): pass\ndef test_2(): os.kill(os.getpid(), 9)\ndef test_3(): pass\n"
    ran = run_suite(source, args=("-n", "1"))
    assert ran.outcomes == {"test_1": "passed", "test_2": "crashed", "test_3": "passed"}
    case = ran.case("test_2")
    assert case.failure_class is FailureClass.CRASH
    assert "crashed while running 'test_it.py::test_2'" in case.message
    assert len(ran.processes) == 1
    assert ran.processes[0].finished


WAYS_TO_FAIL = """
import pytest

class Mismatch(AssertionError):
    failure_class = "bitwise-mismatch"
    evidence = {"tensor": "conv1.weight", "bad": "\\udc80", "what": object}

def test_own(): raise Mismatch("bits differ")
def test_plain(): raise ValueError("v")
def test_rule(): raise ValueError("loss is nan")
def test_cuda(): raise RuntimeError("CUDA error: out of something")
def test_assert(): assert 1 == 2

@pytest.fixture
def broken(): raise Mismatch("no set-up")
def test_setup(broken): pass

@pytest.fixture
def late():
    yield
    raise ValueError("no tear-down")
def test_teardown(late): pass
def test_both(late): raise Mismatch("first")
def test_skip(): pytest.skip("not today")
def test_pass(record_property): record_property("loss", 0.5)
@pytest.mark.parametrize("x", [1, 2, 3], ids=["a", "a", "a"])
def test_equal(x): assert x != 2
"""


LONG = pytest.mark.long


@pytest.mark.parametrize(
    "args", [("-n", "1"), pytest.param(TWO, marks=LONG), pytest.param((*TWO, "--dist", "loadfile"), marks=LONG)]
)
def test_each_case_is_told_as_without(run_suite: Runner, args: tuple[str, ...]) -> None:
    """Outcome, failure class, evidence, message and properties."""

    def told(*words: str) -> list[object]:
        rules = [FailureRule("loss is nan", FailureClass.NON_FINITE)]
        cases = run_suite(WAYS_TO_FAIL, rules=rules, args=words).cases
        # The three of equal ids may run at once, and pytest-xdist does not tell which is which.
        return sorted(
            (
                case.node_id,
                case.outcome,
                str(case.failure_class),
                case.message,
                str(case.evidence),
                str(case.properties),
            )
            for case in cases
        )

    assert told(*args) == told()


HANGS = """
import time
def test_1(): pass
def test_2(): time.sleep(600)
def test_3(): time.sleep(0.5)
def test_4(): pass
"""


@pytest.mark.parametrize("workers", ["2", pytest.param("1", marks=LONG)])
def test_a_case_that_hangs_is_timed_out_and_the_rest_runs_afresh(run_suite: Runner, workers: str) -> None:
    """Only it is blamed, though others ran beside it, and what has been observed does not run again."""
    ran = run_suite(HANGS, args=("-n", workers), case_timeout_s=2, cell_timeout_s=60)
    assert ran.outcomes == {"test_1": "passed", "test_2": "timed-out", "test_3": "passed", "test_4": "passed"}
    assert ran.case("test_2").message == "no end within the case limit of 2 s (case_timeout_s)"
    assert sum(case.node_id.endswith("test_1") and case.outcome == "passed" for case in ran.cases) == 1


def test_a_selection_runs_only_what_it_names(run_suite: Runner) -> None:
    """And tells what is not there."""
    selection = Selection(cases=("test_it.py::test_1", "test_it.py::test_no"))
    ran = run_suite("def test_1(): pass\ndef test_2(): pass\n", args=TWO, selection=selection)
    assert ran.outcomes == {"test_1": "passed", "test_no": "not-observed"}
    assert len([event for event in ran.events if isinstance(event, ProcessStartedEvent)]) == 1
