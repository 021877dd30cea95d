"""Runs the pytest processes of an attempt: watches the plugin's lines, keeps the limits, and starts a fresh process for
what a broken one did not observe."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from worker.errors import EnvironmentFault, InfrastructureFault
from worker.isolation.cgroup import Group
from worker.isolation.confinement import Box
from worker.isolation.owned import fresh_file, usable
from worker.isolation.process import Ended, KeptProcess
from worker.messages import Cause, Event, FailureRule, ProcessStartedEvent, SuiteSpec
from worker.observing.captured import Captured
from worker.observing.event_lines import EventLines
from worker.observing.output_log import OutputLog
from worker.observing.report import LIMITS, End, Key, Names, ProcessReport, last_words
from worker.observing.rules import Rules
from worker.observing.seal import Opener

MOST_PROCESSES = 8
_POLL_S = 0.03
_DUMP_S = 1.0
_OUTPUT_FOR_A_CRASH = 64 << 10
_EVENTS_LOST = 174
_NO_EVENTS = re.compile(r"events cannot be written: .*")
"""The plugin's exit code and word where it cannot write: on a full disk no result can be trusted."""


@dataclass(frozen=True)
class Run:
    """All that a cell's pytest processes have in common."""

    suite: SuiteSpec
    rules: Sequence[FailureRule]
    python: Path
    tree: Path
    folder: Path
    env: Mapping[str, str]
    grace_s: float
    log: OutputLog
    stop: threading.Event
    send: Callable[[Event], None]
    running: Callable[[str | None], None]
    box: Box = field(default_factory=Box)

    def command(self) -> list[str]:
        """The command line of pytest."""
        suite = self.suite
        words = [str(self.python), "-m", "pytest", "-p", "replaybench_plugin", "-p", "no:cacheprovider"]
        words += ["-m", suite.markers] if suite.markers else []
        words += ["-k", keyword] if (keyword := _keyword(suite)) else []
        return [*words, *suite.args, *suite.paths]


def run_pytest(run: Run) -> tuple[Cause, str]:
    """Run the suite, in as many processes as it takes. Why it ended, and a word on it.

    Raises:
        EnvironmentFault: the checkout is gone before the first test.
        InfrastructureFault: the disk is full, the sandbox broke, or the keeper was ended.
    """
    with Rules(run.rules, run.log.note) as rules:
        return _processes(run, rules)


def _processes(run: Run, rules: Rules) -> tuple[Cause, str]:
    deadline = time.monotonic() + run.suite.cell_timeout_s
    names = Names()
    rest: list[Key] | None = None
    reason = ""
    for number in range(1, MOST_PROCESSES + 1):
        if gone := _gone(run):
            if number == 1:
                raise EnvironmentFault(f"{gone}: what the install lines put in place did so before any test ran")
            return Cause.FINISHED, f"{gone}: the tests did so, and {len(rest or ())} cases were not observed"
        report = ProcessReport(number, rules.match, names)
        run.send(ProcessStartedEvent(number, reason))
        end = _Process(run, report, rest, deadline).run()
        for event in report.ended(end):
            run.send(event)
        run.running(None)
        if end.why == "cell-timeout" or (end.why == "silent" and report.running is None):
            return Cause.TIMED_OUT, end.limit
        if end.why == "stopped":
            return Cause.CANCELLED, "stopped"
        rest = report.rest()
        if not rest or not report.needs_fresh_process(end):
            return Cause.FINISHED, _word(report, end)
        reason = _reason(report, end)
        run.log.note(f"{len(rest)} cases were not observed: a fresh process runs them ({reason})")
    return Cause.FINISHED, f"{len(rest or ())} cases were not observed after {MOST_PROCESSES} processes"


def _gone(run: Run) -> str:
    """What of the attempt's own folders is gone, so that no process can start there; nothing where all is well. That is
    the doing of whatever ran in them, and another worker would fare no better."""
    found = [name for name, path in (("folder", run.folder), ("checkout", run.tree)) if not usable(path)]
    return f"the attempt's {found[0]} was removed or closed" if found else ""


def _word(report: ProcessReport, end: End) -> str:
    """What there is to tell of a last process that ended as no result does."""
    if end.why or end.signal is not None or not (said := last_words(end.output, end.exit_code)):
        return "" if report.finished or end.why or report.observed else report.detail(end)
    return f"pytest ended with exit code {end.exit_code}: {said}"


def _keyword(suite: SuiteSpec) -> str:
    """The suite's own ``-k`` and the selection's: both must fit."""
    asked = suite.selection.keyword if suite.selection else ""
    return f"({suite.keyword}) and ({asked})" if suite.keyword and asked else suite.keyword or asked


def _chosen(suite: SuiteSpec) -> Sequence[tuple[str, int | None]]:
    """What the first process runs, where that is not the whole suite: every occurrence of these."""
    return [(case, None) for case in suite.selection.cases] if suite.selection else []


def _reason(report: ProcessReport, end: End) -> str:
    if report.poisoned:
        return f"process {report.process} was poisoned: {report.poisoned[:200]}"
    if end.why:
        return f"process {report.process} was ended: {end.limit}"
    if end.signal is not None:
        return f"process {report.process} was ended by signal {end.signal}"
    return f"process {report.process} ended with exit code {end.exit_code} in the middle"


class _Process:
    """One pytest process, from start to end."""

    def __init__(self, run: Run, report: ProcessReport, rest: list[Key] | None, deadline: float) -> None:
        self._run = run
        self._report = report
        self._rest = rest
        self._deadline = deadline
        self._events = run.folder / f"events-{report.process}.jsonl"
        self._case: Key | None = None
        self._began: dict[Key, float] = {}
        self._overdue: Key | None = None
        self._why = ""
        self._kill_at = float("inf")
        self._limit_s = 0.0
        self._alive_at = time.monotonic()
        self._signs: tuple[int, int] = (0, 0)

    def run(self) -> End:
        mark = self._run.log.total
        env = dict(self._run.env) | {"REPLAYBENCH_EVENTS": str(self._events)}
        chosen = self._rest if self._rest is not None else _chosen(self._run.suite)
        if chosen:
            selection = self._run.folder / f"select-{self._report.process}.json"
            with fresh_file(selection) as stream:
                stream.write(json.dumps(chosen).encode("ascii"))
            env["REPLAYBENCH_SELECT"] = str(selection)
        held = self._run.box.opened(self._report.process)
        with held as (confinement, group), Captured() as captured, fresh_file(self._events) as stream:
            self._lines, self._opener = EventLines(stream), Opener(captured.key)
            process = KeptProcess(
                self._run.command(),
                env=env | {"REPLAYBENCH_CAPTURED": str(captured.child)},
                cwd=self._run.tree,
                grace_s=self._run.grace_s,
                on_output=self._run.log.feed,
                pass_fds=(captured.child,),
                confinement=confinement,
            )
            while (ended := process.wait(0 if self._lines.more else _POLL_S)) is None:
                self._take()
                self._look_for_life(captured)
                self._keep_limits(process)
            self._take()
            while self._lines.more:
                self._take()
            if not self._report.finished and self._why != "stopped":
                self._show(captured.texts())
            return self._end(ended, mark, group)

    def _show(self, texts: Mapping[str, bytes]) -> None:
        """Add to the log what pytest would have shown of the output that it had captured."""
        for name, text in texts.items():
            self._run.log.note(f"captured {name} of what was under way:")
            self._run.log.feed(text if text.endswith(b"\n") else text + b"\n")

    def _take(self) -> None:
        """Hand on some whole lines of what the plugin has written since."""
        lines = self._lines.read()
        for line in filter(None, map(self._opener.open, lines)):
            for event in self._report.feed(line):
                self._run.send(event)
        if lines:
            self._alive_at = time.monotonic()
        now = time.monotonic()
        self._began = {case: self._began.get(case, now) for case in self._report.under_way}
        if self._report.running != self._case:
            self._case = self._report.running
            self._run.running(self._report.running_name)

    def _look_for_life(self, captured: Captured) -> None:
        """An event is a sign of life, and so is output, be it captured by pytest."""
        signs = (self._run.log.total, captured.size())
        if signs != self._signs:
            self._signs, self._alive_at = signs, time.monotonic()

    def _keep_limits(self, process: KeptProcess) -> None:
        now = time.monotonic()
        if self._why:
            if now >= self._kill_at:
                self._kill_at = float("inf")
                process.kill()
        elif self._run.stop.is_set():
            self._why = "stopped"
            process.terminate()
        elif now >= self._deadline:
            self._dump_and_kill(process, "cell-timeout", self._run.suite.cell_timeout_s, now)
        elif self._case is not None and now >= self._began[self._case] + self._run.suite.case_timeout_s:
            self._overdue = self._case
            self._dump_and_kill(process, "case-timeout", self._run.suite.case_timeout_s, now)
        elif 0 < self._run.suite.silent_timeout_s <= now - self._alive_at:
            self._dump_and_kill(process, "silent", self._run.suite.silent_timeout_s, now)

    def _dump_and_kill(self, process: KeptProcess, why: str, limit_s: float, now: float) -> None:
        self._why, self._limit_s = why, limit_s
        self._run.log.note(f"{LIMITS[why].format(f'{limit_s:g} s')}: the stacks of all threads follow")
        process.dump()
        self._kill_at = now + _DUMP_S

    def _end(self, ended: Ended, mark: int, group: Group | None) -> End:
        if ended.left:
            self._run.log.note(f"left behind and killed: {', '.join(ended.left)}")
        if self._why == "case-timeout" and self._report.running is None:
            self._why = ""  # The case came to its end after all, within the dump's moment.
        notes = [self._opener.complaint, self._lines.complaint]
        if group and (refused := group.refused_processes()):
            notes.append(
                f"{refused} times no process or thread more was let in than {group.limits.processes} (processes)"
            )
        for note in filter(None, notes):
            self._run.log.note(note)
        output = self._run.log.since(mark, _OUTPUT_FOR_A_CRASH)
        lost = _NO_EVENTS.search(output)
        if lost and ended.exit_code == _EVENTS_LOST and not self._report.finished:
            raise InfrastructureFault(f"{lost[0]} below {self._run.folder}: make room on the worker's disk")
        return End(
            exit_code=ended.exit_code,
            signal=ended.signal,
            why=self._why,
            output=output,
            limit_s=self._limit_s,
            out_of_memory=group.out_of_memory() if group else "",
            lost=self._opener.lost > 0,
            notes=tuple(filter(None, notes)),
            overdue=self._overdue,
        )
