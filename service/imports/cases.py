"""Makes observations of a JUnit report's elements. Pure: no database, no framework.

What a report says with less words than we have becomes the nearest of ours: a case without a result passed, unless its
`status` or `result` says that it did not run. What it says with ours, since we wrote it, comes back as it was
(``service.results.junit`` has the properties for that).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from service.imports.nodes import Nodes
from service.imports.reading import CaseElement, Report, Result
from service.results.junit import ELEMENTS, FAULT, OWN, element_of
from worker.messages import CaseEvent, FailureClass, Outcome

LONGEST_MESSAGE = 8 << 10
LONGEST_TRACEBACK = 64 << 10
"""What is kept of a text, in characters; a worker cuts at the same sizes. The report itself is kept whole."""
LONGEST_S = 1e9
MOST_OCCURRENCE = 10**6

RAN_BEFORE: Mapping[str, Outcome] = {
    "rerunFailure": Outcome.FAILED,
    "rerunError": Outcome.ERROR,
    "flakyFailure": Outcome.FAILED,
    "flakyError": Outcome.ERROR,
}
SAID_BY_STATUS: Mapping[str, Outcome] = {
    **dict.fromkeys(("notrun", "skipped", "disabled", "suppressed", "ignored", "pending"), Outcome.SKIPPED),
    **dict.fromkeys(("failed", "failure", "fail"), Outcome.FAILED),
    "error": Outcome.ERROR,
}
XFAIL = "pytest.xfail"
OF_FILES: Mapping[str, FailureClass | None] = {
    "collection failure": FailureClass.COLLECTION,
    "collection skipped": None,
}
"""What pytest says of a file that has no cases, since it could not be collected."""
TEARDOWN = "failed on teardown"

_NUMBER = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d{1,3})?", re.ASCII | re.IGNORECASE)
_GROUPED = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?", re.ASCII)  # as surefire writes thousands
_WORDS = {item.value: item for item in Outcome}
_CLASSES = {item.value: item for item in FailureClass}


@dataclass
class Cases:
    """A report's observations: ``last`` those that count, ``earlier`` those of runs before in the same report.
    ``faults`` are errors that belong to no case; ``failing`` is how many failures and errors were seen, ``odd_times``
    are the durations that are no length of time.
    """

    last: list[CaseEvent] = field(default_factory=list)
    earlier: list[CaseEvent] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    failing: int = 0
    odd_times: list[str] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """Outcomes to how many cases have them."""
        found = dict.fromkeys(Outcome, 0)
        for case in self.last:
            found[case.outcome] += 1
        return {str(outcome): count for outcome, count in found.items() if count}


def cases(report: Report, nodes: Nodes) -> Cases:
    """The observations of a report, in its order. Equal node ids are told apart by their occurrence."""
    found, numbers = Cases(), _Occurrences()
    before: tuple[CaseElement, CaseEvent] | None = None
    for element in report.cases:
        found.failing += sum(result.tag in ("failure", "error") for result in element.results)
        if fault := _fault(element):
            found.faults.append(fault)
            continue
        event = _event(element, nodes)
        if event.cleaned and not seconds(time := element.attributes.get("time", ""))[1]:
            found.odd_times.append(time)
        found.failing += int(not element.results and event.outcome in (Outcome.FAILED, Outcome.ERROR))
        if before is not None and _is_teardown_of(*before, element, event):
            whole = f"{found.last[-1].traceback}\n\n{event.message}\n{event.traceback}"
            found.last[-1] = _fit(replace(found.last[-1], traceback=whole))
            continue
        before = (element, event)
        own = element.properties.get(f"{OWN}occurrence", "")
        event = replace(
            event, occurrence=numbers.of(event.node_id, int(own) if own.isdecimal() and len(own) < 8 else 0)
        )
        runs = _runs_before(element, event)
        found.earlier += runs
        found.last.append(_after(event, runs))
    return found


class _Occurrences:
    """Numbers equal node ids from 0 on; a number that a report gives itself is kept where it is free."""

    def __init__(self) -> None:
        self._taken: set[tuple[str, int]] = set()
        self._next: dict[str, int] = {}

    def of(self, node_id: str, wanted: int) -> int:
        number = wanted if wanted <= MOST_OCCURRENCE else 0
        if (node_id, number) in self._taken:
            number = self._next.get(node_id, 0)
            while (node_id, number) in self._taken:
                number += 1
            self._next[node_id] = number + 1
        self._taken.add((node_id, number))
        return number


def was_skipped(element: CaseElement) -> bool:
    """Whether the case counts among those that its report calls skipped or disabled."""
    return _outcome(element)[1] in (Outcome.SKIPPED, Outcome.XFAILED)


def _fault(element: CaseElement) -> str:
    """What our own export says of a cell beside its cases; empty for a case."""
    found = [result for result in element.results if result.attributes.get("type") == FAULT]
    return found[0].attributes.get("message") or "the report tells of a fault" if found else ""


def _event(element: CaseElement, nodes: Nodes) -> CaseEvent:
    shown, outcome = _outcome(element)
    message, traceback = _texts(element, shown)
    said = element.properties
    duration, exact = seconds(element.attributes.get("time", ""))
    rest = {key: value for key, value in said.items() if not key.startswith(OWN)}
    event = CaseEvent(
        process=1,
        node_id=said.get(f"{OWN}node-id") or _node_id(element, message, nodes),
        occurrence=0,
        outcome=outcome,
        failure_class=_class(element, shown, outcome, message, traceback),
        duration_s=duration,
        message=said.get(f"{OWN}message", message),
        traceback=traceback,
        properties={**rest, **{tag: "".join(texts) for tag, texts in element.outputs.items()}},
        cleaned=not exact,
    )
    return _fit(event)


def _outcome(element: CaseElement) -> tuple[Result | None, Outcome]:
    """The result that counts, and what it means. A property of ours is believed where it means the same element."""
    of = {result.tag: result for result in reversed(element.results)}  # the first of each kind
    shown = of.get("failure") or of.get("error") or of.get("skipped")
    own = _WORDS.get(element.properties.get(f"{OWN}outcome", ""))
    if own is not None and element_of(own) == (shown.tag if shown else None):
        return shown, own
    if shown is None:
        status = (element.attributes.get(key, "").lower() for key in ("status", "result"))
        return None, next((SAID_BY_STATUS[word] for word in status if word in SAID_BY_STATUS), Outcome.PASSED)
    if shown.tag == "skipped":
        return shown, Outcome.XFAILED if shown.attributes.get("type") == XFAIL else Outcome.SKIPPED
    return shown, Outcome.FAILED if shown.tag == "failure" else Outcome.ERROR


def _texts(element: CaseElement, shown: Result | None) -> tuple[str, str]:
    """Message and traceback. Where a case has several results, what the others say stands behind."""
    if shown is None:
        return "", ""
    message = shown.attributes.get("message")
    if message is None:
        message = next(iter(shown.text.strip().splitlines()), "")
    others = [result for result in element.results if result is not shown and result.tag in ELEMENTS.values()]
    behind = (f"{result.attributes.get('message', '')}\n{result.text}" for result in others)
    return message, "\n\n".join((shown.text, *behind))


def _node_id(element: CaseElement, message: str, nodes: Nodes) -> str:
    file, classname, name = (element.attributes.get(key, "") for key in ("file", "classname", "name"))
    if not classname and message in OF_FILES:
        return nodes.of_file(file, name)
    return nodes.of(file, classname, name)


def _class(
    element: CaseElement, shown: Result | None, outcome: Outcome, message: str, traceback: str
) -> FailureClass | None:
    """The failure class: the report's own word where it is one of ours, else what its texts show."""
    kind = shown.attributes.get("type", "") if shown else element.properties.get(f"{OWN}failure-class", "")
    if kind in _CLASSES:
        return _CLASSES[kind]
    if outcome not in (Outcome.FAILED, Outcome.ERROR) or kind in _WORDS:
        return None
    if message in OF_FILES:
        return OF_FILES[message]
    end = traceback.rstrip().rpartition("\n")[2]
    text = f"{kind}: {message}"
    if "CUDA out of memory" in text:
        return FailureClass.OUT_OF_MEMORY
    if "CUDA error" in text:
        return FailureClass.CUDA_ERROR
    asserted = "AssertionError" in text or message.startswith(("assert ", "Failed: ", "[XPASS(strict)]"))
    return FailureClass.ASSERTION if asserted or end.endswith(": AssertionError") else FailureClass.EXCEPTION


def _is_teardown_of(first: CaseElement, failed: CaseEvent, element: CaseElement, event: CaseEvent) -> bool:
    """Whether this is the second element of a case which failed and whose tear-down failed too: pytest writes two."""
    return (
        failed.outcome is Outcome.FAILED
        and event.outcome is Outcome.ERROR
        and event.node_id == failed.node_id
        and event.message.startswith(TEARDOWN)
        and f"{OWN}occurrence" not in element.properties
        and first.attributes.get("classname") == element.attributes.get("classname")
    )


def _runs_before(element: CaseElement, event: CaseEvent) -> list[CaseEvent]:
    """The observations that surefire keeps of a case that it ran again."""
    again = [result for result in element.results if result.tag in RAN_BEFORE]
    return [
        _fit(
            CaseEvent(
                process=number,
                node_id=event.node_id,
                occurrence=event.occurrence,
                outcome=RAN_BEFORE[result.tag],
                message=result.attributes.get("message", ""),
                traceback=result.text,
            )
        )
        for number, result in enumerate(again, 1)
    ]


def _after(event: CaseEvent, runs: list[CaseEvent]) -> CaseEvent:
    """The observation that counts, numbered behind the earlier ones. One that passed at last says that it did."""
    if runs and event.outcome is Outcome.PASSED:
        event = replace(event, message=f"passed after {len(runs)} earlier run(s) that did not")
    return replace(event, process=len(runs) + 1)


def seconds(text: str) -> tuple[float, bool]:
    """A duration, and whether that is what the report says; what is none or no length of time counts as 0."""
    if not text:
        return 0.0, True
    plain = text.replace(",", "") if _GROUPED.fullmatch(text) else text
    value = float(plain) if _NUMBER.fullmatch(plain) else math.inf
    return (value, True) if value <= LONGEST_S else (0.0, False)


def _fit(event: CaseEvent) -> CaseEvent:
    message, traceback = cut(event.message, LONGEST_MESSAGE), cut(event.traceback, LONGEST_TRACEBACK)
    same = message == event.message and traceback == event.traceback
    return event if same else replace(event, message=message, traceback=traceback, cleaned=True)


def cut(text: str, most: int) -> str:
    """The text, its middle left out where it is longer."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def total_s(durations: Iterable[float]) -> float:
    """The sum of durations, as long as that is a length of time."""
    return min(math.fsum(durations), LONGEST_S)
