"""Writes observations as JUnit XML, well-formed whatever they hold. Pure: no database, no framework.

What JUnit has no word for stands in properties of a case whose names begin with ``replaybench.``, so that an import
gives the same cases again: `node-id` and `occurrence` where file, class name and name do not say them, `outcome` where
the element does not, `message` and `failure-class` where no element carries them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from service.imports.nodes import Nodes, dotted
from service.results.schemas import CaseOutput
from worker.messages import Outcome

# What XML 1.0 has no way to write, be it as a reference (https://www.w3.org/TR/xml/#charsets).
UNWRITABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# The element that says what became of a case; one that passed has none.
ELEMENTS: Mapping[Outcome, str] = {
    Outcome.FAILED: "failure",
    Outcome.ERROR: "error",
    Outcome.CRASHED: "error",
    Outcome.TIMED_OUT: "error",
    Outcome.NOT_OBSERVED: "error",
    Outcome.SKIPPED: "skipped",
    Outcome.XFAILED: "skipped",
}


# The outcome that an element means by itself; every other needs a property beside it.
PLAIN = (Outcome.PASSED, Outcome.FAILED, Outcome.ERROR, Outcome.SKIPPED)

OWN = "replaybench."
"""What the names of properties that are ours begin with."""
FAULT = "replaybench.fault"
"""The type of an error that belongs to no case."""
OUTPUTS = ("system-out", "system-err")


def element_of(outcome: Outcome) -> str | None:
    """The element that says what became of a case; ``None`` where there is none."""
    return ELEMENTS.get(outcome)


@dataclass(frozen=True)
class Suite:
    """What one `testsuite` element tells: a cell's attempt, or a cell without one."""

    name: str
    counts: Mapping[str, int]
    duration_s: float
    started: str
    properties: Mapping[str, str]
    cases: Iterable[CaseOutput]
    fault: str = ""


def document(name: str, suites: Iterable[Suite]) -> Iterator[str]:
    """The document in pieces, so that a large one is never held whole."""
    yield f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites name={_attribute(name)}>\n'
    for suite in suites:
        yield from _suite(suite)
    yield "</testsuites>\n"


def _suite(suite: Suite) -> Iterator[str]:
    sums = dict.fromkeys(("failure", "error", "skipped"), 0)
    for outcome, count in suite.counts.items():
        element = ELEMENTS.get(Outcome(outcome))
        if element is not None:
            sums[element] += count
    faults = int(bool(suite.fault))
    yield (
        f'<testsuite name={_attribute(suite.name)} tests="{sum(suite.counts.values()) + faults}" '
        f'failures="{sums["failure"]}" errors="{sums["error"] + faults}" skipped="{sums["skipped"]}" '
        f'time="{suite.duration_s:.3f}" timestamp={_attribute(suite.started)}>\n<properties>\n'
    )
    for key, value in suite.properties.items():
        yield f"<property name={_attribute(key)} value={_attribute(value)}/>\n"
    yield "</properties>\n"
    if suite.fault:  # what kept the cell from running is an error of its own: nobody must read it as passed
        yield f'<testcase classname="replaybench" name={_attribute(suite.name)} time="0.000">'
        yield f"<error type={_attribute(FAULT)} message={_attribute(suite.fault)}/></testcase>\n"
    for case in suite.cases:
        yield _case(case)
    yield "</testsuite>\n"


def _case(case: CaseOutput) -> str:
    path, _, name = case.node_id.partition("::")
    shown = name or path
    if case.occurrence:
        shown = f"{shown} ({case.occurrence + 1})"
    element = ELEMENTS.get(case.outcome)
    message = case.message or (str(case.outcome) if element == "error" else "")
    derived = Nodes().of(path, dotted(path), shown)
    parts = [_properties({**_own(case, derived, message if element else ""), **_others(case.properties)})]
    if element is not None:
        kind = _attribute(case.failure_class or case.outcome)
        parts.append(f"<{element} type={kind} message={_attribute(message)}>{_text(case.traceback)}</{element}>")
    for tag in OUTPUTS:
        if isinstance(case.properties.get(tag), str):
            parts.append(f"<{tag}>{_text(case.properties[tag])}</{tag}>")
    inside = "".join(parts)
    return (
        f"<testcase classname={_attribute(dotted(path))} name={_attribute(shown)} file={_attribute(path)} "
        f'time="{_seconds(case.duration_s)}"' + (f">{inside}</testcase>\n" if inside else "/>\n")
    )


def _own(case: CaseOutput, derived: str, shown: str) -> dict[str, str]:
    """What the case's element does not say: it gives a reader the node id ``derived`` and the message ``shown``."""
    said: dict[str, str] = {}
    if derived != case.node_id:
        said["node-id"] = case.node_id
    if case.occurrence:
        said["occurrence"] = str(case.occurrence)
    if case.outcome not in PLAIN:
        said["outcome"] = case.outcome
    if case.failure_class and case.outcome not in ELEMENTS:
        said["failure-class"] = case.failure_class
    if shown != case.message:
        said["message"] = case.message
    return {f"{OWN}{key}": value for key, value in said.items()}


def _others(properties: Mapping[str, Any]) -> dict[str, str]:
    """What the test recorded. A name that would be read as one of ours is left out."""
    return {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        for key, value in properties.items()
        if not key.startswith(OWN) and not (key in OUTPUTS and isinstance(value, str))
    }


def _properties(properties: Mapping[str, str]) -> str:
    inside = "".join(
        f"<property name={_attribute(key)} value={_attribute(value)}/>" for key, value in properties.items()
    )
    return f"<properties>{inside}</properties>" if inside else ""


def _seconds(duration: float) -> str:
    """All digits, and never an exponent, which JUnit's schemas do not allow."""
    return format(Decimal(repr(duration)), "f")


def _writable(text: str) -> str:
    r"""What XML cannot hold is made visible: ``\x1b``, ``\ud800``."""
    return UNWRITABLE.sub(
        lambda match: f"\\x{ord(match[0]):02x}" if ord(match[0]) < 256 else f"\\u{ord(match[0]):04x}", text
    )


def _text(text: str) -> str:
    return escape(_writable(text), {"\r": "&#13;"})


def _attribute(text: str) -> str:
    return quoteattr(_writable(text), {"\r": "&#13;", "\n": "&#10;", "\t": "&#9;"})
