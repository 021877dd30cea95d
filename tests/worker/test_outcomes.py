"""Poison and crash as one table: what a suite does to its process, and what is then said of each of its cases, of the
process, and of the attempt. Each row is a real pytest process, in a sandbox and a group where this machine has them."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from service.results.verdict import ProcessFacts, decide
from tests.worker.holding import CGROUPS, SANDBOX, needs_cgroup
from tests.worker.test_pytest_run import Ran
from worker.encoding import encode
from worker.isolation.confinement import Box, Holds
from worker.isolation.environment import for_tests
from worker.isolation.limits import Limits, limits_of
from worker.isolation.sandbox_view import View
from worker.messages import FailureClass, SuiteSpec, Verdict
from worker.observing.output_log import OutputLog
from worker.observing.pytest_run import Run, run_pytest

HOLDS = Holds(SANDBOX, CGROUPS, Limits(processes=4096))


def run_tree(folder: Path, files: Mapping[str, str], **suite: Any) -> Ran:
    """A tree's suite, run to its end."""
    tree, events, log = folder / "tree", [], OutputLog(1 << 20, 1 << 20)
    for place in (tree, folder / "home", folder / "tmp"):
        place.mkdir()
    for name, text in files.items():
        (tree / name).write_text(text)
    # Of the plugins that are installed here none is asked for; loading them takes longer than most suites.
    quick = {"case_timeout_s": 20.0, "cell_timeout_s": 60.0, "env": {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}}
    spec = SuiteSpec("s", (), **(quick | suite))
    env = for_tests(os.environ, folder=folder, bins=[], suite_env=dict(spec.env), mounts={}, devices=())
    view = View((folder,), temporary=folder / "tmp")
    limits = limits_of(spec, HOLDS.caps)
    cause, detail = run_pytest(
        Run(
            suite=spec,
            rules=(),
            python=Path(sys.executable),
            tree=tree,
            folder=folder,
            env=env,
            grace_s=0.3,
            log=log,
            stop=threading.Event(),
            send=events.append,
            running=lambda _: None,
            box=Box(HOLDS, limits, f"test-{os.getpid()}", Path(sys.executable), view),
        )
    )
    return Ran(cause, detail, events, log)


def verdict(ran: Ran) -> Verdict:
    """What the service makes of it: the last observation of each case counts."""
    last = {(event.node_id, event.occurrence): event.outcome for event in ran.cases}
    counts: dict[str, int] = {}
    for outcome in last.values():
        counts[outcome] = counts.get(outcome, 0) + 1
    facts = [ProcessFacts(one.exit_code, one.signal, one.finished) for one in ran.processes]
    return decide(ran.cause, facts, counts, ran.processes[0].collected)


HEAD = "import glob, hmac, json, os, signal, subprocess, sys, time\nimport pytest\n"


def three(does: str, second: str = "def test_2():") -> str:
    """Three cases, of which the second does something."""
    body = textwrap.indent(textwrap.dedent(does).strip(), "    ")
    return f"{HEAD}def test_1(): pass\n{second}\n{body}\ndef test_3(): pass\n"


def with_conftest(source: str, does: str = "pass") -> dict[str, str]:
    return {"conftest.py": textwrap.dedent(source), "test_it.py": three(does)}


@dataclass(frozen=True)
class Row:
    """``does`` is the second of three cases' body, or ``files`` the whole tree. ``cases`` maps the last part of each
    node id to all that was observed of it, process by process."""

    name: str
    cases: Mapping[str, str]
    verdict: Verdict
    does: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    says: Mapping[str, str] = field(default_factory=dict)
    kind: Mapping[str, FailureClass] = field(default_factory=dict)
    detail: str = ""
    process: str = ""
    suite: Mapping[str, Any] = field(default_factory=dict)
    marks: tuple[pytest.MarkDecorator, ...] = ()


GONE = {"test_1": "passed", "test_2": "not-observed", "test_3": "not-observed passed"}
CRASHED = {"test_1": "passed", "test_2": "crashed", "test_3": "not-observed passed"}
TIMED_OUT = {"test_1": "passed", "test_2": "timed-out", "test_3": "not-observed passed"}
FAILED = {"test_1": "passed", "test_2": "failed", "test_3": "passed"}
PASSED = {"test_1": "passed", "test_2": "passed", "test_3": "passed"}
NONE_RAN = {"test_1": "not-observed", "test_2": "not-observed", "test_3": "not-observed"}
NOTHING: Mapping[str, str] = {}
BREAKS_ALL = {"test_1": "passed", "test_2": "not-observed", "test_3": "not-observed"}

CRASHES = [
    Row("SIGSEGV", CRASHED, Verdict.CRASHED, "os.kill(os.getpid(), signal.SIGSEGV)", says={"test_2": "SIGSEGV"},
        kind={"test_2": FailureClass.CRASH}, process="ended by SIGSEGV"),
    Row("SIGABRT", CRASHED, Verdict.CRASHED, "os.abort()", says={"test_2": "SIGABRT"}),
    Row("SIGKILL", CRASHED, Verdict.CRASHED, "os.kill(os.getpid(), 9)", kind={"test_2": FailureClass.CRASH}),
    Row("out-of-memory killer", CRASHED, Verdict.CRASHED, "x = [bytearray(b'x' * (1 << 20)) for _ in range(900)]",
        says={"test_2": "SIGKILL while this case ran: the limit of 200 MiB (memory_mib) was reached; at its peak"},
        kind={"test_2": FailureClass.OUT_OF_MEMORY}, process="the out-of-memory killer was here: the limit of 200 MiB",
        suite={"memory_mib": 200}, marks=(needs_cgroup,)),
    Row("out-of-memory killer, of a child", FAILED, Verdict.FAILED,
        "subprocess.run([sys.executable, '-c', 'x = bytearray(900 << 20); x[:] = bytes(900 << 20)'], check=True)",
        says={"test_2": "died with <Signals.SIGKILL: 9>"}, process="the out-of-memory killer was here: the limit",
        suite={"memory_mib": 200}, marks=(needs_cgroup,)),
    Row("fork bomb", TIMED_OUT, Verdict.TIMED_OUT, """
        while True:
            try: os.fork()
            except OSError: time.sleep(0.05)
        """, process="times no process or thread more was let in than 80 (processes)",
        suite={"processes": 80, "case_timeout_s": 2.0}, marks=(needs_cgroup,)),
    Row("a file beyond its size", FAILED, Verdict.FAILED, "open('f', 'wb').write(bytes(3 << 20))",
        says={"test_2": "File too large"}, suite={"file_size_mib": 2}),
    Row("sticky CUDA error", {**CRASHED, "test_2": "failed"}, Verdict.FAILED,
        "raise RuntimeError('CUDA error: device-side assert triggered\\nCompile with TORCH_USE_CUDA_DSA')",
        kind={"test_2": FailureClass.CUDA_ERROR}, process="poisoned: CUDA error: device-side assert"),
    Row("CUDA error that does not last", FAILED, Verdict.FAILED, "raise RuntimeError('CUDA error: invalid argument')",
        kind={"test_2": FailureClass.CUDA_ERROR}),
]  # fmt: skip

EXITS = [
    Row("os._exit(0)", GONE, Verdict.INCOMPLETE, "os._exit(0)", says={"test_2": "exit code 0 in the middle"},
        process="ended without pytest's session end"),
    Row("os._exit(0) in the last case", {**PASSED, "test_4": "not-observed"}, Verdict.INCOMPLETE,
        files={"test_it.py": three("pass") + "def test_4(): os._exit(0)\n"}),
    Row("os._exit(5), which means that nothing was collected", GONE, Verdict.INCOMPLETE, "os._exit(5)"),
    Row("pytest.exit", BREAKS_ALL, Verdict.INTERRUPTED, "pytest.exit('enough')", detail="Exit: enough"),
    Row("pytest.exit with 0", BREAKS_ALL, Verdict.INCOMPLETE, "pytest.exit('enough', returncode=0)"),
    Row("KeyboardInterrupt", BREAKS_ALL, Verdict.INTERRUPTED, "raise KeyboardInterrupt", detail="KeyboardInterrupt"),
    Row("sys.exit in a test", FAILED, Verdict.FAILED, "sys.exit(0)", says={"test_2": "SystemExit: 0"}),
    Row("sys.exit in a fixture", {**FAILED, "test_2": "error"}, Verdict.FAILED, says={"test_2": "SystemExit: 0"},
        files={"test_it.py": three("pass", "@pytest.fixture\ndef ends(): sys.exit(0)\ndef test_2(ends):")}),
    Row("sys.exit in a conftest", NOTHING, Verdict.INCOMPLETE, files=with_conftest("import sys; sys.exit(0)"),
        detail="ended without pytest's session end, and the plugin never spoke"),
    Row("sys.exit in a hook", NONE_RAN, Verdict.INTERNAL_ERROR, detail="SystemExit",
        files=with_conftest("import sys\ndef pytest_runtestloop(): sys.exit(0)")),
    Row("os._exit(0) while collecting", NOTHING, Verdict.INCOMPLETE, files={"test_it.py": "import os; os._exit(0)\n"},
        detail="ended without pytest's session end"),
    Row("os._exit(0) before the session ends", PASSED, Verdict.INCOMPLETE,
        files=with_conftest("import os\ndef pytest_sessionfinish(): os._exit(0)")),
]  # fmt: skip

COLLECTION = [
    Row("wrong usage", NOTHING, Verdict.USAGE_ERROR, "pass", suite={"args": ("--no-such-option",)},
        detail="unrecognized arguments: --no-such-option", process="unrecognized arguments"),
    Row("a path that is not there", NOTHING, Verdict.USAGE_ERROR, "pass", suite={"args": ("no_such_folder",)},
        detail="exit code 4: ERROR: file or directory not found: no_such_folder"),
    Row("nothing to run", NOTHING, Verdict.NO_CASES, "pass", suite={"keyword": "nothing"},
        detail="exit code 5: collected 3 items / 3 deselected"),
    Row("an import that fails", {"test_it.py": "error"}, Verdict.INTERRUPTED,
        files={"test_it.py": "import nothing_of_this_name\n"}, kind={"test_it.py": FailureClass.COLLECTION},
        detail="Interrupted: 1 error during collection"),
    Row("one file of two", {"test_a.py": "error", "test_1": "not-observed"}, Verdict.INTERRUPTED,
        files={"test_a.py": "1 / 0\n", "test_b.py": "def test_1(): pass\n"}),
    Row("one file of two, and on", {"test_a.py": "error", "test_1": "passed"}, Verdict.FAILED,
        files={"test_a.py": "1 / 0\n", "test_b.py": "def test_1(): pass\n"},
        suite={"args": ("--continue-on-collection-errors",)}),
]  # fmt: skip

LIMITS = [
    Row("a case's limit", TIMED_OUT, Verdict.TIMED_OUT, "time.sleep(60)", suite={"case_timeout_s": 1.0},
        says={"test_2": "no end within the case limit of 1 s (case_timeout_s)"}, kind={"test_2": FailureClass.TIMEOUT},
        process="no end within the case limit of 1 s"),
    Row("the cell's limit", BREAKS_ALL, Verdict.TIMED_OUT, "time.sleep(60)", suite={"cell_timeout_s": 5.0},
        says={"test_2": "the cell's limit of 5 s ran out (cell_timeout_s) while this case ran"},
        detail="the cell's limit of 5 s ran out (cell_timeout_s)", marks=(pytest.mark.long,)),
    Row("silence in a case", TIMED_OUT, Verdict.TIMED_OUT, "time.sleep(60)", suite={"silent_timeout_s": 4.0},
        says={"test_2": "no event and no output for 4 s (silent_timeout_s)"}, kind={"test_2": FailureClass.TIMEOUT},
        marks=(pytest.mark.long,)),
    Row("silence outside of any case", NOTHING, Verdict.TIMED_OUT, files={"test_it.py": "__import__('time').sleep(60)"},
        suite={"silent_timeout_s": 4.0}, detail="no event and no output for 4 s (silent_timeout_s)",
        marks=(pytest.mark.long,)),
    Row("output is no silence", PASSED, Verdict.PASSED, """
        for number in range(24):
            print(number, flush=True)
            time.sleep(0.25)
        """, suite={"silent_timeout_s": 5.0}, marks=(pytest.mark.long,)),
]  # fmt: skip

IN_LOGREPORT = """
import pytest
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report):
    if report.when == "call" and report.nodeid.endswith("test_2"): {}
"""
UNREGISTERS = """
def pytest_runtest_setup(item):
    if item.name == "test_2": item.config.pluginmanager.unregister(name="replaybench-writer")
"""
OUR_DESCRIPTOR = """
for name in os.listdir("/proc/self/fd"):
    try: path = os.readlink(f"/proc/self/fd/{name}")
    except OSError: continue
    if "events-" in path: """
FORGES = """
line = json.dumps({"e": "finished", "index": 1, "outcome": "passed", "duration": 0, "message": "", "traceback": "",
                   "properties": {}, "exception": {}}) + "\\n"
def forge(text):
    for path in glob.glob("../events-*.jsonl"):
        with open(path, "a") as stream: stream.write(text)
"""
FOREIGN = "1 lines were written to the events' file by something else"
BROKEN_REPORTING = [
    Row("a plugin that raises in logreport", BREAKS_ALL, Verdict.INTERNAL_ERROR,
        files=with_conftest(IN_LOGREPORT.format("raise RuntimeError('broken plugin')")),
        detail="exit code 3: INTERNALERROR> RuntimeError: broken plugin", process="RuntimeError: broken plugin"),
    Row("a plugin that exits in logreport", BREAKS_ALL, Verdict.INTERNAL_ERROR, detail="SystemExit",
        files=with_conftest(IN_LOGREPORT.format("raise SystemExit(0)"))),
    Row("a plugin that spoils the properties", PASSED, Verdict.PASSED,
        files=with_conftest(IN_LOGREPORT.format("report.user_properties[:] = ['garbage', None]"))),
    Row("a plugin that spoils the report", {**PASSED, "test_2": "error"}, Verdict.FAILED,
        files=with_conftest(IN_LOGREPORT.format("report.duration = 'long'")),
        says={"test_2": "the report of this case cannot be read: ValueError"}),
    Row("a plugin whose duration is no number", PASSED, Verdict.PASSED,
        files=with_conftest(IN_LOGREPORT.format("report.duration = float('nan')"))),
    Row("a plugin whose duration has no end", PASSED, Verdict.PASSED,
        files=with_conftest(IN_LOGREPORT.format("report.duration = float('inf')"))),
    Row("our plugin switched off", NOTHING, Verdict.INCOMPLETE, "pass", suite={"args": ("-p", "no:replaybench_plugin")},
        detail="the plugin never spoke: is it switched off (-p no:replaybench_plugin)"),
    Row("our writer unregistered", GONE, Verdict.INCOMPLETE, files=with_conftest(UNREGISTERS)),
    Row("our functions replaced", PASSED, Verdict.PASSED, "json.dumps = json.loads = hmac.new = os.write = None"),
    Row("our descriptor closed", PASSED, Verdict.PASSED, OUR_DESCRIPTOR + "os.close(int(name))"),
    Row("our descriptor put to another use", PASSED, Verdict.PASSED,
        OUR_DESCRIPTOR + "os.dup2(os.open('own', os.O_CREAT | os.O_RDWR), int(name))"),
    Row("every descriptor closed", {**FAILED, "test_3": "error"}, Verdict.FAILED, "os.closerange(3, 4096)"),
    Row("our file removed", PASSED, Verdict.PASSED, "[os.remove(path) for path in glob.glob('../events-*.jsonl')]"),
    Row("our file cut", PASSED, Verdict.PASSED, """
        time.sleep(0.5)  # what was written by now is read
        [os.truncate(path, 0) for path in glob.glob("../events-*.jsonl")]
        time.sleep(0.5)
        """),
    Row("forged events", FAILED, Verdict.FAILED, FORGES + "forge(line)\nassert False", process=FOREIGN),
    Row("forged events of a child", FAILED, Verdict.FAILED, FORGES + """
pid = os.fork()
if not pid:
    forge(line)
    os._exit(0)
os.waitpid(pid, 0)
assert False
""", process=FOREIGN),
    Row("half a line", PASSED, Verdict.PASSED, FORGES + "forge('no end of line')", process=FOREIGN),
    Row("a child that runs on", PASSED, Verdict.PASSED, "pid = os.fork()\npid and os.waitpid(pid, 0)"),
]  # fmt: skip


def odd(evidence: str) -> Mapping[str, str]:
    """A case that fails with an exception of the tree's own."""
    own = "class Odd(AssertionError):\n    failure_class = 'bitwise-mismatch'\n    " + evidence + "\n"
    return {"test_it.py": three("raise Odd('bits differ')", own + "def test_2():")}


NESTS = """
def nested(levels):
    sys.setrecursionlimit(levels * 4 + 1000)
    value = 1
    for _ in range(levels): value = {"a": value}
    return value
"""
RECORDS = NESTS + "def test_2(record_property):"
MISMATCH = {"test_2": FailureClass.BITWISE_MISMATCH}
BAD_EVIDENCE = [
    Row("evidence that is no JSON", FAILED, Verdict.FAILED, files=odd("evidence = {'x': object(), (1, 2): 3}"),
        kind=MISMATCH),
    Row("evidence that is huge", FAILED, Verdict.FAILED, files=odd("evidence = {'x': 'y' * (20 << 20)}"),
        kind=MISMATCH),
    Row("evidence in a circle", FAILED, Verdict.FAILED, files=odd("evidence = {}; evidence['x'] = evidence"),
        kind=MISMATCH),
    Row("evidence that raises", FAILED, Verdict.FAILED, files=odd("evidence = property(lambda self: 1 / 0)"),
        kind=MISMATCH),
    Row("evidence that exits", FAILED, Verdict.FAILED, files=odd("evidence = property(lambda self: sys.exit(0))"),
        kind=MISMATCH),
    Row("evidence that interrupts", FAILED, Verdict.FAILED, kind=MISMATCH,
        files=odd("@property\n    def evidence(self): raise KeyboardInterrupt")),
    Row("a class that exits", FAILED, Verdict.FAILED, files=odd("failure_class = property(lambda self: sys.exit(0))"),
        kind={"test_2": FailureClass.ASSERTION}),
    Row("properties that are no JSON, or huge", PASSED, Verdict.PASSED, files={"test_it.py": three(
        "record_property('x', object())\nrecord_property('y', 'z' * (20 << 20))", "def test_2(record_property):")}),
    Row("properties nested deeply", PASSED, Verdict.PASSED,
        files={"test_it.py": three("record_property('x', nested(600))", RECORDS)}),
    Row("properties nested as deeply as this Python goes", PASSED, Verdict.PASSED,
        files={"test_it.py": three("record_property('x', nested(3000))", RECORDS)}),
    Row("evidence nested deeply", FAILED, Verdict.FAILED, kind=MISMATCH,
        files=odd(f"pass\n{NESTS}Odd.evidence = nested(600)")),
    Row("numbers longer than Python reads", PASSED, Verdict.PASSED, files={"test_it.py": three(
        "sys.set_int_max_str_digits(0)\nrecord_property('x', 10**5000)", "def test_2(record_property):")}),
]  # fmt: skip

OUTPUT = [
    Row("100 MB without an end of line", PASSED, Verdict.PASSED,
        "for _ in range(100): os.write(1, b'x' * (1 << 20))", suite={"args": ("-s",)}),
    Row("100 MB that pytest captures", {**FAILED}, Verdict.FAILED,
        "for _ in range(100): os.write(1, b'x' * (1 << 20))\nassert False"),
    Row("ANSI, carriage returns, NUL, no UTF-8", FAILED, Verdict.FAILED,
        "os.write(1, b'\\x1b[31mred\\r50%\\r100%\\x00\\xff')\nassert 0, '\\x1b[31mred\\r\\x00\\ud800'",
        says={"test_2": "\x1b[31mred\r\\x00\\ud800"}),
]  # fmt: skip

TABLE = [*CRASHES, *EXITS, *COLLECTION, *LIMITS, *BROKEN_REPORTING, *BAD_EVIDENCE, *OUTPUT]


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name, marks=row.marks) for row in TABLE])
def test_each_way_to_break_has_its_outcome(tmp_path: Path, row: Row) -> None:
    """Nothing that did not run passes, nothing that was seen is lost, and the text tells why."""
    ran = run_tree(tmp_path, row.files or {"test_it.py": three(row.does)}, **row.suite)
    seen: dict[str, list[str]] = {}
    for event in ran.cases:
        seen.setdefault(event.node_id.rpartition("::")[2], []).append(event.outcome.value)
    assert {name: " ".join(outcomes) for name, outcomes in seen.items()} == dict(row.cases), ran.log.content().decode()
    assert verdict(ran) is row.verdict
    json.dumps(encode(ran.events), allow_nan=False)  # as it is sent
    for name, text in row.says.items():
        assert text in ran.case(name).message
    for name, kind in row.kind.items():
        assert ran.case(name).failure_class is kind
    assert row.detail in ran.detail
    assert row.process in ran.processes[0].detail
