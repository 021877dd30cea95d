"""Real pytest children under the keeper: what each way to pass, fail, break or hang is reported as."""

from __future__ import annotations

import os
import re
import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.worker.support import is_alive, wait_for
from worker.errors import InfrastructureFault
from worker.isolation.environment import for_tests
from worker.messages import (
    CaseEvent,
    Cause,
    CollectedEvent,
    Event,
    FailureClass,
    FailureRule,
    Outcome,
    ProcessEndedEvent,
    ProcessStartedEvent,
    Selection,
    SuiteSpec,
)
from worker.observing.output_log import OutputLog
from worker.observing.pytest_run import Run, run_pytest


class Ran:
    """What one run sent."""

    def __init__(self, cause: Cause, detail: str, events: list[Event], log: OutputLog) -> None:
        self.cause, self.detail, self.events, self.log = cause, detail, events, log

    @property
    def cases(self) -> list[CaseEvent]:
        return [event for event in self.events if isinstance(event, CaseEvent)]

    @property
    def outcomes(self) -> dict[str, str]:
        """The last observation of each case, by the name of its function."""
        return {event.node_id.rpartition("::")[2]: event.outcome.value for event in self.cases}

    @property
    def processes(self) -> list[ProcessEndedEvent]:
        return [event for event in self.events if isinstance(event, ProcessEndedEvent)]

    def case(self, name: str) -> CaseEvent:
        return [event for event in self.cases if event.node_id.endswith(name)][-1]


Runner = Callable[..., Ran]


@pytest.fixture
def run_suite(tmp_path: Path) -> Runner:
    def run(source: str, *, stop: threading.Event | None = None, rules: Any = (), **suite: Any) -> Ran:
        tree, events, log = tmp_path / "tree", [], OutputLog(1 << 20, 1 << 20)
        for folder in (tree, tmp_path / "home", tmp_path / "tmp"):
            folder.mkdir(exist_ok=True)
        (tree / "test_it.py").write_text(source)
        env = for_tests(os.environ, folder=tmp_path, bins=[], suite_env=suite.pop("env", {}), mounts={}, devices=())
        spec = SuiteSpec("s", ("test_it.py",), **suite)
        python = Path(sys.executable)
        cause, detail = run_pytest(
            Run(
                suite=spec,
                rules=rules,
                python=python,
                tree=tree,
                folder=tmp_path,
                env=env,
                grace_s=0.3,
                log=log,
                stop=stop or threading.Event(),
                send=events.append,
                running=lambda _: None,
            )
        )
        return Ran(cause, detail, events, log)

    return run


EVERY_OUTCOME = """
import pytest

def test_pass(record_property):
    record_property("loss", 0.5)

def test_fail():
    assert 1 == 2, "one is not two"

@pytest.fixture
def broken_setup():
    raise RuntimeError("no set-up")

@pytest.fixture
def broken_teardown():
    yield
    raise RuntimeError("no tear-down")

def test_setup(broken_setup): pass
def test_teardown(broken_teardown): pass
def test_both(broken_teardown): assert False

@pytest.mark.skip(reason="not today")
def test_skip(): pass

def test_skip_inside(): pytest.skip("seen later")

@pytest.mark.xfail(reason="known")
def test_xfail(): assert False

@pytest.mark.xfail(reason="not run", run=False)
def test_xfail_norun(): assert False

@pytest.mark.xfail(reason="known", strict=False)
def test_xpass(): pass

@pytest.mark.xfail(reason="known", strict=True)
def test_xpass_strict(): pass

class Mismatch(AssertionError):
    failure_class = "bitwise-mismatch"
    evidence = {"tensor": "conv1.weight", "of": 14, "ulp": float("inf")}

def test_own_class(): raise Mismatch("bits differ")

class Odd(Exception):
    evidence = {"what": object(), "bad": "a\\x00b"}
    failure_class = "no such class"
    def __str__(self): raise ValueError("no text")

def test_odd(): raise Odd()
def test_rule(): raise ValueError("loss is nan at step 3")
def test_oom(): raise type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate")
def test_timeout_class(): raise ValueError("plain")
"""


def test_every_outcome_is_reported_as_pytest_counts_it(run_suite: Runner) -> None:
    """One case, one outcome over set-up, call and tear-down; with message, traceback, class, evidence, properties."""
    ran = run_suite(EVERY_OUTCOME, rules=[FailureRule("loss is nan", FailureClass.NON_FINITE)])
    assert ran.outcomes == {
        "test_pass": "passed",
        "test_fail": "failed",
        "test_setup": "error",
        "test_teardown": "error",
        "test_both": "failed",
        "test_skip": "skipped",
        "test_skip_inside": "skipped",
        "test_xfail": "xfailed",
        "test_xfail_norun": "xfailed",
        "test_xpass": "xpassed",
        "test_xpass_strict": "failed",
        "test_own_class": "failed",
        "test_odd": "failed",
        "test_rule": "failed",
        "test_oom": "failed",
        "test_timeout_class": "failed",
    }
    assert ran.cause is Cause.FINISHED
    (process,) = ran.processes
    assert (process.exit_code, process.collected, process.reported, process.finished) == (1, 16, 16, True)
    assert ran.case("test_pass").properties == {"loss": 0.5}
    failed = ran.case("test_fail")
    assert failed.failure_class is FailureClass.ASSERTION
    assert "one is not two" in failed.message
    assert "def test_fail" in failed.traceback
    assert ran.case("test_skip").message == "not today"
    assert ran.case("test_xpass_strict").failure_class is FailureClass.ASSERTION
    assert ran.case("test_setup").failure_class is FailureClass.EXCEPTION
    own = ran.case("test_own_class")
    assert own.failure_class is FailureClass.BITWISE_MISMATCH
    assert own.evidence == {"tensor": "conv1.weight", "of": 14, "ulp": "inf"}
    odd = ran.case("test_odd")
    assert odd.failure_class is FailureClass.EXCEPTION
    assert odd.evidence is not None
    assert ran.case("test_rule").failure_class is FailureClass.NON_FINITE
    assert ran.case("test_oom").failure_class is FailureClass.OUT_OF_MEMORY


SUBTESTS = """
import time, unittest
import pytest

class Mismatch(AssertionError):
    failure_class = "bitwise-mismatch"

def test_one_skipped(subtests):
    with subtests.test("a"): pytest.skip("no such card")
    with subtests.test("b"): assert True

def test_all_skipped(subtests):
    with subtests.test("a"): pytest.skip("no such card")

def test_one_xfailed(subtests):
    with subtests.test("a"): pytest.xfail("known")
    with subtests.test("b"): assert True

@pytest.mark.xfail(reason="known")
def test_marked(subtests):
    with subtests.test("a"): assert False

def test_skipped_itself(subtests):
    with subtests.test("a"): assert True
    pytest.skip("in the middle")

def test_one_failed(subtests, record_property):
    with subtests.test("a"): pytest.skip("no such card")
    with subtests.test("b"): pytest.xfail("known")
    with subtests.test("c"): raise Mismatch("bits differ")
    with subtests.test("d"): assert True
    record_property("loss", 0.5)

def test_failed_and_skipped(subtests):
    with subtests.test("a"): assert 1 == 2
    pytest.skip("in the middle")

def test_failed_itself(subtests):
    with subtests.test("a"): pytest.skip("no such card")
    raise Mismatch("bits differ")

class TestUnit(unittest.TestCase):
    def test_unit_skipped(self):
        for number in range(3):
            with self.subTest(number=number):
                if not number: self.skipTest("zero")

    def test_unit_failed(self):
        for number in range(3):
            with self.subTest(number=number):
                if not number: self.skipTest("zero")
                assert number != 2
"""

A_SECOND_FOR_EACH_REPORT = """
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
    made = yield
    made.get_result().duration = 1.0
"""


@pytest.mark.parametrize("args", [(), pytest.param(("-n", "1"), marks=pytest.mark.long)])
def test_a_subtest_decides_its_case_by_failing_alone(run_suite: Runner, tmp_path: Path, args: tuple[str, ...]) -> None:
    """As pytest counts the case. Its class is that of what failed, and no time counts twice."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "conftest.py").write_text(A_SECOND_FOR_EACH_REPORT)
    ran = run_suite(SUBTESTS, args=args)
    assert ran.outcomes == {
        "test_one_skipped": "passed",
        "test_all_skipped": "passed",
        "test_one_xfailed": "passed",
        "test_marked": "xpassed",
        "test_skipped_itself": "skipped",
        "test_one_failed": "failed",
        "test_failed_and_skipped": "failed",
        "test_failed_itself": "failed",
        "test_unit_skipped": "passed",
        "test_unit_failed": "failed",
    }
    for name in ("test_one_failed", "test_failed_itself"):
        assert ran.case(name).failure_class is FailureClass.BITWISE_MISMATCH
        assert "bits differ" in ran.case(name).message
    assert ran.case("test_one_failed").properties == {"loss": 0.5}
    assert ran.case("test_skipped_itself").message == "in the middle"
    assert {case.duration_s for case in ran.cases} == {3.0}


BREAKS = "import os, signal, time, pytest\ndef test_1(): pass\ndef test_2(): {}\ndef test_3(): pass\n"


@pytest.mark.parametrize(
    ("statement", "name"),
    [("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"), ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL")],
)
def test_a_signal_is_a_crash_and_the_rest_runs_afresh(run_suite: Runner, statement: str, name: str) -> None:
    """The case under way crashed, by the signal's name; what followed is not-observed, then observed once more."""
    ran = run_suite(BREAKS.format(statement))
    assert ran.outcomes == {"test_1": "passed", "test_2": "crashed", "test_3": "passed"}
    assert [(event.process, event.node_id[-1], event.outcome.value) for event in ran.cases] == [
        (1, "1", "passed"),
        (1, "2", "crashed"),
        (1, "3", "not-observed"),
        (2, "3", "passed"),
    ]
    assert name in ran.case("test_2").message
    first, second = ran.processes
    assert (first.signal is not None, first.finished, first.collected, first.reported) == (True, False, 3, 2)
    assert (second.exit_code, second.collected, second.finished) == (0, 1, True)
    if name == "SIGSEGV":
        assert "Fatal Python error: Segmentation fault" in ran.case("test_2").traceback


def test_an_exit_in_the_middle_is_no_pass(run_suite: Runner) -> None:
    """``os._exit(0)`` looks like success: its case is not observed, no session end was seen, the rest runs afresh."""
    ran = run_suite(BREAKS.format("os._exit(0)"))
    assert ran.outcomes == {"test_1": "passed", "test_2": "not-observed", "test_3": "passed"}
    assert (ran.processes[0].exit_code, ran.processes[0].finished) == (0, False)
    assert "exit code 0 in the middle" in ran.case("test_2").message


def test_pytest_exit_stops_and_nothing_runs_afresh(run_suite: Runner) -> None:
    """Somebody wanted the run to end: the rest stays not-observed."""
    ran = run_suite(BREAKS.format("pytest.exit('enough')"))
    assert ran.outcomes == {"test_1": "passed", "test_2": "not-observed", "test_3": "not-observed"}
    (process,) = ran.processes
    assert (process.exit_code, process.finished) == (2, True)


def test_a_collection_error_is_a_case(run_suite: Runner) -> None:
    """The collector's node id stands as an error of class collection."""
    ran = run_suite("import nothing_of_this_name\n")
    (case,) = ran.cases
    assert (case.node_id, case.outcome, case.failure_class) == ("test_it.py", Outcome.ERROR, FailureClass.COLLECTION)
    assert "nothing_of_this_name" in case.message
    assert ran.processes[0].exit_code == 2


@pytest.mark.parametrize(("suite", "code"), [({"keyword": "nothing"}, 5), ({"args": ("--no-such-option",)}, 4)])
def test_pytests_other_exit_codes_come_through(run_suite: Runner, suite: Any, code: int) -> None:
    """Nothing collected and wrong usage keep their codes."""
    ran = run_suite(BREAKS.format("pass"), **suite)
    assert ran.processes[0].exit_code == code
    assert ran.cases == []


def named_items(folder: Path, names: str, body: str) -> None:
    """A conftest that puts items of these names, each with this body, in the place of what was collected."""
    (folder / "tree").mkdir()
    (folder / "tree" / "conftest.py").write_text(f"""
import os, pytest
class Item(pytest.Item):
    def runtest(self):
        {body}
def pytest_collection_modifyitems(items):
    parent = items[0].parent
    items[:] = [Item.from_parent(parent, name=name) for name in {names}]
    for number, item in enumerate(items):
        item.number = number
""")


def test_a_rule_that_backtracks_without_end_holds_nothing_up(run_suite: Runner) -> None:
    """Nor is a case lost over it; the log says which rule it was."""
    rules = [FailureRule("(a+)+$", FailureClass.TIMEOUT), FailureRule("nan", FailureClass.NON_FINITE)]
    ran = run_suite("def test_1(): raise ValueError('a' * 60 + '! nan')\ndef test_2(): assert False", rules=rules)
    assert ran.outcomes == {"test_1": "failed", "test_2": "failed"}
    assert ran.case("test_1").failure_class is FailureClass.NON_FINITE
    assert ran.case("test_2").failure_class is FailureClass.ASSERTION
    assert "failure_rules[0] classes nothing more in this attempt: match = '(a+)+$'" in ran.log.content().decode()


def test_duplicate_ids_are_told_apart_by_occurrence(run_suite: Runner, tmp_path: Path) -> None:
    """Equal node ids count from 0 in the collection, also in the fresh process after a crash."""
    named_items(tmp_path, "['same', 'same', 'same']", "if self.number == 1: os.abort()")
    ran = run_suite("def test_it(): pass\n")
    assert [(event.process, event.occurrence, event.outcome.value) for event in ran.cases] == [
        (1, 0, "passed"),
        (1, 1, "crashed"),
        (1, 2, "not-observed"),
        (2, 2, "passed"),
    ]


def test_hostile_ids_and_messages_are_kept_visible(run_suite: Runner, tmp_path: Path) -> None:
    """NUL and lone surrogates become escapes, the event says so, and no two cases fall together."""
    named_items(tmp_path, r"['a\x00b', r'a\x00b', '\udc80']", r"assert 0, 'nul \x00 and \ud800'")
    ran = run_suite("def test_it(): pass\n", args=("-p", "no:terminal"))
    assert [(event.node_id, event.occurrence) for event in ran.cases] == [
        (r"test_it.py::a\x00b", 0),
        (r"test_it.py::a\x00b", 1),
        (r"test_it.py::\udc80", 0),
    ]
    assert all(event.cleaned and r"nul \x00 and \ud800" in event.traceback for event in ran.cases)


def test_a_case_that_hangs_is_timed_out_with_its_stacks(run_suite: Runner) -> None:
    """The case's own limit ends its process; the dump names the line; the rest runs afresh."""
    ran = run_suite("import time\ndef test_1(): time.sleep(60)\ndef test_2(): pass\n", case_timeout_s=0.5)
    assert ran.outcomes == {"test_1": "timed-out", "test_2": "passed"}
    assert ran.case("test_1").failure_class is FailureClass.TIMEOUT
    assert "test_it.py" in ran.case("test_1").traceback
    assert ran.cause is Cause.FINISHED


@pytest.mark.parametrize("method", ["thread", "signal"])
@pytest.mark.parametrize("args", [(), pytest.param(("-s", "--color=yes"), marks=pytest.mark.long)])
def test_a_case_over_the_limit_of_pytest_timeout_is_told_with_its_stacks(
    run_suite: Runner, method: str, args: tuple[str, ...]
) -> None:
    """One of its methods fails the case, the other ends the process in the middle of it."""
    ran = run_suite(BREAKS.format("time.sleep(60)"), args=("--timeout=1", f"--timeout-method={method}", *args))
    expected = {"thread": "timed-out", "signal": "failed"}[method]
    assert ran.outcomes == {"test_1": "passed", "test_2": expected, "test_3": "passed"}
    case = ran.case("test_2")
    assert "imeout" in case.message
    assert "time.sleep(60)" in case.traceback
    if method == "thread":
        assert case.failure_class is FailureClass.TIMEOUT


def test_a_limits_dump_shows_every_process_of_the_tree(run_suite: Runner) -> None:
    """A forked child's own stack; of what shows none, its name and where it sleeps."""
    source = """
import multiprocessing, subprocess, time
def where_the_child_hangs(): time.sleep(60)
def test_1():
    multiprocessing.get_context("fork").Process(target=where_the_child_hangs, daemon=True).start()
    subprocess.run(["sleep", "61.5"])
"""
    ran = run_suite(source, case_timeout_s=1.0)
    assert "in test_1" in ran.case("test_1").traceback
    log = ran.log.content().decode()
    assert "no end within the case limit of 1 s (case_timeout_s): the stacks of all threads follow" in log
    assert "in where_the_child_hangs" in log
    assert re.search(r"sleep 61\.5 \(pid \d+\) shows no stack; state S, in \w+", log)


def test_the_cells_limit_ends_the_attempt(run_suite: Runner) -> None:
    """What had not run is said not to have run."""
    ran = run_suite("import time\ndef test_1(): time.sleep(60)\ndef test_2(): pass\n", cell_timeout_s=5.0)
    assert ran.cause is Cause.TIMED_OUT
    assert ran.outcomes == {"test_1": "not-observed", "test_2": "not-observed"}
    assert len(ran.processes) == 1


def test_a_stop_ends_children_in_sessions_of_their_own(run_suite: Runner, tmp_path: Path) -> None:
    """Cancellation reaches a grandchild that left the session and ignores SIGTERM."""
    source = f"""
import subprocess, sys, time
def test_1():
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(120)"
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    open({str(tmp_path / "pid")!r}, "w").write(str(child.pid) + "\\n")
    time.sleep(120)
"""
    stop = threading.Event()
    box: list[Ran] = []
    thread = threading.Thread(target=lambda: box.append(run_suite(source, stop=stop)))
    thread.start()
    pid = int(wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip(), "the child"))
    stop.set()
    thread.join(20)
    assert box[0].cause is Cause.CANCELLED
    assert not is_alive(pid)


STICKY = """
def test_1(): pass
def test_2(): raise RuntimeError("CUDA error: device-side assert triggered")
def test_3(): pass
"""


def test_a_lasting_cuda_error_poisons_the_process(run_suite: Runner) -> None:
    """The case fails; those behind it are not observed, and run in a fresh process."""
    ran = run_suite(STICKY)
    assert ran.outcomes == {"test_1": "passed", "test_2": "failed", "test_3": "passed"}
    assert ran.case("test_2").failure_class is FailureClass.CUDA_ERROR
    assert "poisoned" in ran.processes[0].detail
    assert [event.process for event in ran.events if isinstance(event, ProcessStartedEvent)] == [1, 2]


def test_a_late_cuda_error_is_its_own_cases_not_the_next_ones(run_suite: Runner, tmp_path: Path) -> None:
    """A kernel fails after its case has passed: looking at the device finds it before the next case is blamed."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "torch.py").write_text(
        "class cuda:\n    broken = False\n    is_initialized = staticmethod(lambda: True)\n"
        "    @staticmethod\n    def synchronize():\n"
        "        if cuda.broken: raise RuntimeError('CUDA error: an illegal memory access was encountered')\n"
    )
    ran = run_suite("import torch\ndef test_1(): torch.cuda.broken = True\ndef test_2(): pass\n")
    assert ran.outcomes == {"test_1": "error", "test_2": "passed"}
    assert ran.case("test_1").failure_class is FailureClass.CUDA_ERROR


def test_a_plugin_that_breaks_reporting_does_not_pass_for_success(run_suite: Runner, tmp_path: Path) -> None:
    """pytest's internal error keeps its exit code, and the cases are not observed."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "conftest.py").write_text(
        "def pytest_runtest_logreport(report): raise RuntimeError('broken plugin')\n"
    )
    ran = run_suite("def test_1(): pass\ndef test_2(): pass\n")
    assert ran.processes[0].exit_code == 3
    assert "not-observed" in ran.outcomes.values()


def test_a_fork_that_runs_on_reports_nothing(run_suite: Runner) -> None:
    """Only the process that pytest started writes events."""
    ran = run_suite(
        "import os\ndef test_1():\n    pid = os.fork()\n    pid and os.waitpid(pid, 0)\ndef test_2(): pass\n"
    )
    assert [event.node_id[-1] for event in ran.cases] == ["1", "2"]
    assert [event.count for event in ran.events if isinstance(event, CollectedEvent)] == [2]


def test_output_is_kept_with_head_and_tail(run_suite: Runner) -> None:
    """What a test prints lands in the log, whatever bytes they are."""
    ran = run_suite("import os\ndef test_1():\n    os.write(1, b'\\xff\\x00raw')\n", args=("-s",))
    assert b"\xff\x00raw" in ran.log.content()


def test_what_was_captured_of_a_process_that_ends_silently_is_shown(run_suite: Runner) -> None:
    """pytest's capturing would take a C library's last words with it."""
    source = """
import os
print("at import", flush=True)
def test_1(): print("of a case that passed")
def test_2():
    print("to stdout")
    os.write(2, b"libfoo: cannot start, exiting\\n")
    os._exit(1)
def test_3(): pass
"""
    ran = run_suite(source)
    assert ran.outcomes == {"test_1": "passed", "test_2": "not-observed", "test_3": "passed"}
    log = ran.log.content()
    for words in (b"to stdout\n", b"libfoo: cannot start, exiting\n"):
        assert log.count(words) == 1
    assert b"of a case that passed" not in log
    assert "libfoo: cannot start, exiting" in ran.cases[1].traceback


def test_what_ends_silently_while_tests_are_collected_is_shown_too(run_suite: Runner) -> None:
    """An import that calls ``exit`` says why."""
    ran = run_suite("import os\nos.write(2, b'no licence\\n')\nos._exit(3)\n")
    assert b"no licence" in ran.log.content()
    assert ran.processes[-1].exit_code == 3


def test_without_capturing_nothing_is_shown_twice(run_suite: Runner) -> None:
    """With ``-s`` there is no captured file to look into."""
    ran = run_suite("import os\ndef test_1():\n    os.write(2, b'plain\\n')\n    os._exit(1)\n", args=("-s",))
    assert ran.log.content().count(b"plain") == 1


def test_events_that_cannot_be_written_are_nobodys_test_failure(run_suite: Runner) -> None:
    """A full disk under the events' file is the worker's fault: no event is lost in silence."""
    source = """
import resource
def test_1(): resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
def test_2(): pass
"""
    with pytest.raises(InfrastructureFault, match="events cannot be written: File too large"):
        run_suite(source)


@pytest.mark.parametrize(
    "harm",
    [
        "os.truncate(path, 1 << 40)",
        "open(path, 'ab').write(b'x' * (100 << 20))",
        "open(path, 'ab').write((b'x' * (50 << 20) + b'\\n') * 2)",
    ],
)
def test_however_long_a_test_makes_the_events_the_worker_stays_small(run_suite: Runner, harm: str) -> None:
    """It is outside the limits of the tests. What the plugin itself wrote, before and after, is all there."""
    tracemalloc.start()
    try:
        ran = run_suite(
            f"import glob, os\n\ndef test_1():\n    path = glob.glob('../events-*')[0]\n    {harm}\ndef test_2(): pass"
        )
        assert tracemalloc.get_traced_memory()[1] < 60 << 20
    finally:
        tracemalloc.stop()
    assert ran.outcomes == {"test_1": "passed", "test_2": "passed"}
    assert ran.processes[-1].finished
    assert ("lines of more than 16 MiB" in ran.processes[-1].detail) is ("1 << 40" not in harm)


LONG = """
import pytest

@pytest.mark.parametrize("x", [0], ids=["\U0001f600" * (1 << 20)])
def test_a(x, record_property): pass

@pytest.mark.parametrize("x", range(30), ids=[chr(255) * 99_999 + str(i) for i in range(30)])
def test_b(x): pass

def test_c(record_property):
    for number in range(300):
        record_property(f"{number}", "\U0001f600" * 30_000)
    raise type("\U0001f600" * (4 << 20), (ValueError,), {})("\U0001f600" * (4 << 20))
"""


def test_no_event_of_the_plugins_own_is_too_long(run_suite: Runner) -> None:
    """Ids of a mebibyte, thousands of long properties, names of classes: each comes, and the process has finished."""
    ran = run_suite(LONG)
    assert len(ran.cases) == 32
    assert ran.processes[-1].finished
    assert ran.processes[-1].detail == ""


SEVERAL = """
import pytest

@pytest.mark.parametrize("x", ["a::b", "c"])
def test_many(x): pass

def test_other(): pass

class TestIn:
    def test_in(self): pass
"""


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        (Selection(cases=("test_it.py::test_many[a::b]",)), {"b]"}),
        (Selection(cases=("test_it.py::test_many",)), {"b]", "test_many[c]"}),
        (Selection(cases=("test_it.py::TestIn", "test_it.py::test_other")), {"test_in", "test_other"}),
        (Selection(cases=("test_it.py",), keyword="not many"), {"test_in", "test_other"}),
        (Selection(keyword="other"), {"test_other"}),
    ],
)
def test_a_selection_runs_only_what_it_names(run_suite: Runner, selection: Selection, names: set[str]) -> None:
    """A node id, the function, class or file above it, pytest's -k, and both together."""
    ran = run_suite(SEVERAL, selection=selection)
    assert set(ran.outcomes) == names
    assert set(ran.outcomes.values()) == {"passed"}
    assert ran.processes[0].collected == len(names)


def test_a_selection_comes_on_top_of_the_suites_own_keyword(run_suite: Runner) -> None:
    ran = run_suite(SEVERAL, keyword="other or in", selection=Selection(keyword="not in"))
    assert set(ran.outcomes) == {"test_other"}


def test_a_selected_case_that_is_not_there_does_not_pass_in_silence(run_suite: Runner) -> None:
    ran = run_suite(SEVERAL, selection=Selection(cases=("test_it.py::test_other", "test_it.py::test_gone")))
    assert ran.outcomes == {"test_other": "passed", "test_gone": "not-observed"}
    assert ran.case("test_gone").message == "selected, but the suite collects no such case"
