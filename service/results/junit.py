"""Writes observations as JUnit XML, well-formed whatever they hold. Pure: no database, no framework."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

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
        yield f"<error message={_attribute(suite.fault)}/></testcase>\n"
    for case in suite.cases:
        yield _case(case)
    yield "</testsuite>\n"


def _case(case: CaseOutput) -> str:
    path, _, name = case.node_id.partition("::")
    shown = name or path
    if case.occurrence:
        shown = f"{shown} ({case.occurrence + 1})"
    start = f'<testcase classname={_attribute(_class(path))} name={_attribute(shown)} time="{case.duration_s:.3f}"'
    element = ELEMENTS.get(case.outcome)
    if element is None:
        return f"{start}/>\n"
    kind = case.failure_class or case.outcome
    message = case.message or (str(case.outcome) if element == "error" else "")
    said = f"<{element} type={_attribute(kind)} message={_attribute(message)}>{_text(case.traceback)}</{element}>"
    return f"{start}>{said}</testcase>\n"


def _class(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def _writable(text: str) -> str:
    r"""What XML cannot hold is made visible: ``\x1b``, ``\ud800``."""
    return UNWRITABLE.sub(
        lambda match: f"\\x{ord(match[0]):02x}" if ord(match[0]) < 256 else f"\\u{ord(match[0]):04x}", text
    )


def _text(text: str) -> str:
    return escape(_writable(text), {"\r": "&#13;"})


def _attribute(text: str) -> str:
    return quoteattr(_writable(text), {"\r": "&#13;", "\n": "&#10;", "\t": "&#9;"})
