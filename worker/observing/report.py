"""Turns the plugin's lines, and what became of the process, into the contract's events. Pure: no files, no clock."""

from __future__ import annotations

import json
import re
import signal as signals
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from worker.cleaning import Cleaner
from worker.messages import (
    CaseEvent,
    CollectedEvent,
    Event,
    FailureClass,
    Outcome,
    ProcessEndedEvent,
)
from worker.observing.classify import classify

MESSAGE_BYTES = 8 << 10
TRACEBACK_BYTES = 64 << 10
EVIDENCE_BYTES = 64 << 10

Key = tuple[str, int]
"""A case's key as pytest has it: node id, and occurrence among equal ids."""

_SAID_BY = {
    2: re.compile(r"^!+ .* !+$"),
    3: re.compile(r"^INTERNALERROR> \S*(Error|Exception|Exit|Interrupt)\b|unexpected SystemExit"),
    4: re.compile(r"^ERROR: |: error: "),
    5: re.compile(r"^collected \d+ items? "),
}
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_MOST_SAID = 3
_FATAL = re.compile(r"Fatal Python error: |^(?:Thread|Current thread) 0x", re.MULTILINE)

_PYTEST_TIMEOUT = re.compile(r"\+{3,} Timeout \+{3,}$", re.MULTILINE)
"""What the thread method of pytest-timeout prints around the stacks, before it ends its process with exit code 1."""
_CLASS_OF = {Outcome.CRASHED: FailureClass.CRASH}
_ODD = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What data of an unexpected shape raises."""
_MOST_DIGITS = 4000
"""Python reads no longer number by default, and a test may have switched that off for itself alone."""


@dataclass
class Names:
    """The stored names of cases. Cleaning may make two ids equal; their occurrences then tell them apart, and the same
    case has the same name in every process of an attempt."""

    known: dict[Key, tuple[str, int, bool]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def of(self, key: Key) -> tuple[str, int, bool]:
        """Stored node id, occurrence, and whether it was cleaned."""
        if key not in self.known:
            cleaner = Cleaner()
            node_id = cleaner.text(key[0])
            occurrence = self.counts.get(node_id, 0)
            self.counts[node_id] = occurrence + 1
            self.known[key] = (node_id, occurrence, cleaner.cleaned)
        return self.known[key]


@dataclass(frozen=True)
class End:
    """How a process ended. ``why`` is set where the worker ended it: ``case-timeout``, ``silent``, ``cell-timeout``,
    ``stopped``; ``limit_s`` is the limit's value then. ``output`` is what it printed last, ``out_of_memory`` what the
    kernel's out-of-memory killer did to it or to what it started, ``lost`` whether some of its events never came, and
    ``notes`` what else is to be told. ``overdue`` is the case whose limit ran out: others may have run beside it."""

    exit_code: int | None
    signal: int | None
    why: str = ""
    output: str = ""
    limit_s: float = 0.0
    out_of_memory: str = ""
    lost: bool = False
    notes: tuple[str, ...] = ()
    overdue: Key | None = None

    @property
    def limit(self) -> str:
        """The limit that ran out, its value and its key."""
        return LIMITS.get(self.why, "").format(f"{self.limit_s:g} s")


LIMITS = {
    "case-timeout": "no end within the case limit of {} (case_timeout_s)",
    "silent": "no event and no output for {} (silent_timeout_s)",
    "cell-timeout": "the cell's limit of {} ran out (cell_timeout_s)",
    "stopped": "stopped",
}


class ProcessReport:
    """What one pytest process has reported so far."""

    def __init__(self, process: int, by_rule: Callable[[str], FailureClass | None], names: Names) -> None:
        self.process = process
        self.under_way: dict[Key, None] = {}
        self.poisoned = ""
        self.started = False
        self.finished = False
        self.observed: set[Key] = set()
        self.cases: list[Key] = []
        self._by_rule = by_rule
        self._names = names
        self._broken_in: list[Key] = []
        self._told: set[tuple[str, int]] = set()

    @property
    def running(self) -> Key | None:
        """The case under way; where workers of pytest-xdist run several, the one that began first."""
        return next(iter(self.under_way), None)

    @property
    def running_name(self) -> str | None:
        """The stored node id of the case under way."""
        return self._names.of(self.running)[0] if self.running else None

    def unobserved(self) -> list[Key]:
        """The collected cases without an observation."""
        return [key for key in self.cases if key not in self.observed]

    def feed(self, line: bytes) -> list[Event]:
        """The events that one line of the plugin amounts to. A line that is none (a test wrote into the file) is
        passed over."""
        try:
            data = json.loads(line, parse_int=_integer)
            handler = getattr(self, "_on_" + data["e"].replace("-", "_"), None)
            return self._once(handler(data)) if handler else []
        except _ODD:
            return []

    def _once(self, events: list[Event]) -> list[Event]:
        """The events without a second observation of one case by one process: the first is what was seen."""
        fresh: list[Event] = []
        for event in events:
            if isinstance(event, CaseEvent):
                if (event.node_id, event.occurrence) in self._told:
                    continue
                self._told.add((event.node_id, event.occurrence))
            fresh.append(event)
        return fresh

    def _on_session(self, _data: Mapping[str, Any]) -> list[Event]:
        self.started = True
        return []

    def _on_cases(self, data: Mapping[str, Any]) -> list[Event]:
        for node_id, occurrence in data["cases"]:
            key = (str(node_id), int(occurrence))
            self.cases.append(key)
            self._names.of(key)
        return []

    def _on_collected(self, data: Mapping[str, Any]) -> list[Event]:
        return [CollectedEvent(self.process, int(data["count"]))]

    def _on_started(self, data: Mapping[str, Any]) -> list[Event]:
        key = self.cases[data["index"]]
        if not data.get("beside"):
            self.under_way.clear()
        self.under_way[key] = None
        return []

    def _on_poisoned(self, data: Mapping[str, Any]) -> list[Event]:
        self.poisoned = Cleaner().text(str(data["message"]), MESSAGE_BYTES)
        return []

    def _on_session_finished(self, _data: Mapping[str, Any]) -> list[Event]:
        self.finished = True
        return []

    def _on_collector(self, data: Mapping[str, Any]) -> list[Event]:
        cleaner = Cleaner()
        failed = data["outcome"] == "error"
        event = CaseEvent(
            process=self.process,
            node_id=cleaner.text(str(data["id"])) or "(collection)",
            occurrence=0,
            outcome=Outcome.ERROR if failed else Outcome.SKIPPED,
            failure_class=FailureClass.COLLECTION if failed else None,
            message=cleaner.text(str(data["message"]), MESSAGE_BYTES),
            traceback=cleaner.text(str(data["traceback"]), TRACEBACK_BYTES),
            cleaned=cleaner.cleaned,
        )
        return [event]

    def _on_missing(self, data: Mapping[str, Any]) -> list[Event]:
        """What was selected and is not there must not pass in silence."""
        message = "selected, but the suite collects no such case"
        names = [Cleaner().text(str(name)) for name in data["ids"]]
        return [CaseEvent(self.process, name, 0, Outcome.NOT_OBSERVED, message=message) for name in names]

    def _on_finished(self, data: Mapping[str, Any]) -> list[Event]:
        key = self.cases[data["index"]]
        outcome = Outcome(data["outcome"])
        try:
            event = self._with_details(key, outcome, data)
        except _ODD as error:  # The outcome is what counts: no detail may take it along.
            event = self._with_details(key, outcome, _without_details(data, error))
        self.observed.add(key)
        self.under_way.pop(key, None)
        return [event]

    def _with_details(self, key: Key, outcome: Outcome, data: Mapping[str, Any]) -> CaseEvent:
        cleaner = Cleaner()
        exception, message = data["exception"], str(data["message"])
        bad = outcome in (Outcome.FAILED, Outcome.ERROR)
        node_id, occurrence, cleaned = self._names.of(key)
        evidence = exception.get("evidence")
        return CaseEvent(
            process=self.process,
            node_id=node_id,
            occurrence=occurrence,
            outcome=outcome,
            failure_class=classify(exception, message, self._by_rule) if bad else _CLASS_OF.get(outcome),
            duration_s=cleaner.seconds(float(data["duration"])),
            message=cleaner.text(message, MESSAGE_BYTES),
            traceback=cleaner.text(str(data["traceback"]), TRACEBACK_BYTES),
            properties=cleaner.mapping(data["properties"], EVIDENCE_BYTES),
            evidence=None if evidence is None else cleaner.mapping(evidence, EVIDENCE_BYTES),
            cleaned=cleaned or cleaner.cleaned,
        )

    def ended(self, end: End) -> list[Event]:
        """What is left to say when the process is gone: the case under way, the cases not observed, its end."""
        events: list[Event] = []
        self.finished = self.finished and not end.lost  # What was lost may have been a case.
        limited = end.why == "case-timeout"
        self._broken_in = [key for key in self.under_way if not limited or key == end.overdue]
        events += [self._interrupted(key, end) for key in self._broken_in]
        events += [self._case(key, Outcome.NOT_OBSERVED) for key in self.rest()]
        events.append(
            ProcessEndedEvent(
                process=self.process,
                exit_code=end.exit_code,
                signal=end.signal,
                collected=len(self.cases),
                reported=len(self.observed),
                finished=self.finished,
                detail=self.detail(end),
            )
        )
        return self._once(events)

    def _case(self, key: Key, outcome: Outcome, **more: Any) -> CaseEvent:
        node_id, occurrence, cleaned = self._names.of(key)
        return CaseEvent(self.process, node_id, occurrence, outcome, cleaned=cleaned, **more)

    def _interrupted(self, key: Key, end: End) -> CaseEvent:
        """The case that was under way when its process ended."""
        if end.why in ("case-timeout", "silent"):
            self.observed.add(key)
            return self._case(
                key,
                Outcome.TIMED_OUT,
                failure_class=FailureClass.TIMEOUT,
                duration_s=end.limit_s,
                message=end.limit,
                traceback=_stacks(end.output),
            )
        if end.why == "cell-timeout":
            message = f"{end.limit} while this case ran"
            return self._case(key, Outcome.NOT_OBSERVED, failure_class=FailureClass.TIMEOUT, message=message)
        if end.why or self.finished:
            return self._case(key, Outcome.NOT_OBSERVED, message="the run was ended while this case ran")
        if end.signal is not None:
            self.observed.add(key)
            killed = end.out_of_memory if end.signal == signals.SIGKILL else ""
            message = f"the process was ended by {_signal_name(end.signal)} while this case ran"
            return self._case(
                key,
                Outcome.CRASHED,
                failure_class=FailureClass.OUT_OF_MEMORY if killed else FailureClass.CRASH,
                message=f"{message}: {killed}" if killed else message,
                traceback=_stacks(end.output),
            )
        if end.exit_code == 1 and (found := _PYTEST_TIMEOUT.search(plain := _ESCAPES.sub("", end.output))):
            self.observed.add(key)
            return self._case(
                key,
                Outcome.TIMED_OUT,
                failure_class=FailureClass.TIMEOUT,
                message="pytest-timeout's limit ran out, and its thread method ended the process with this case",
                traceback=Cleaner().text(plain[found.start() :], TRACEBACK_BYTES),
            )
        message = f"the process ended with exit code {end.exit_code} in the middle of this case"
        return self._case(
            key,
            Outcome.NOT_OBSERVED,
            failure_class=FailureClass.CRASH,
            message=message,
            traceback=_stacks(end.output),
        )

    def detail(self, end: End) -> str:
        killed = f"the out-of-memory killer was here: {end.out_of_memory}" if end.out_of_memory else ""
        return "; ".join(filter(None, [self._own_detail(end), killed, *end.notes]))

    def _own_detail(self, end: End) -> str:
        if self.poisoned:
            return f"poisoned: {self.poisoned}"
        if end.why:
            return end.limit
        if end.signal is not None:
            return f"ended by {_signal_name(end.signal)}"
        said = last_words(end.output, end.exit_code)
        if self.finished:
            return said
        missing = "ended without pytest's session end" if not end.lost else "not all that it said has come"
        if not self.started and end.exit_code == 0:
            missing += ", and the plugin never spoke: is it switched off (-p no:replaybench_plugin)?"
        return f"{missing}: {said}" if said else missing

    def needs_fresh_process(self, end: End) -> bool:
        """Whether what was not observed deserves a fresh process: this one broke, and not by anybody's will."""
        limit = end.why in ("case-timeout", "silent") and self.running is not None
        broke = bool(self.poisoned) or limit or (not end.why and not self.finished)
        return broke and (bool(self.observed) or self.running is not None)

    def rest(self) -> list[Key]:
        """What a fresh process is to run: all unobserved cases but the one that took this process down, or those under
        way with it. Known once it has ended."""
        return [key for key in self.unobserved() if key not in self._broken_in]


def last_words(output: str, exit_code: int | None) -> str:
    """What pytest said of an end that is no result: interrupted (2), internal error (3), wrong usage (4), nothing to
    run (5); empty otherwise."""
    if exit_code not in _SAID_BY:
        return ""
    lines = [_ESCAPES.sub("", line).strip() for line in output.splitlines()]
    said = [line for line in lines if _SAID_BY[exit_code].search(line)] or [line for line in lines if line][-1:]
    return Cleaner().text(" ".join(said[-_MOST_SAID:]), MESSAGE_BYTES // 4)


def _without_details(data: Mapping[str, Any], error: Exception) -> dict[str, Any]:
    """A finished case's line with nothing in it that can be odd, and a word on what was."""
    texts = {name: str(data.get(name, "")) for name in ("message", "traceback")}
    exception = {"type": "unreadable", "text": texts["message"]}
    return {"duration": 0.0, "properties": {"unreadable": type(error).__name__}, "exception": exception, **texts}


def _integer(text: str) -> int | str:
    return int(text) if len(text) <= _MOST_DIGITS else text


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _stacks(output: str) -> str:
    """The stacks that faulthandler printed, or the last lines of the output where there are none."""
    found = _FATAL.search(output)
    text = output[found.start() :] if found else output[-4096:]
    return Cleaner().text(text, TRACEBACK_BYTES)
