"""Reads a JUnit report's XML into plain elements, and bounds what it can cost. Pure: no database, no framework.

Expat reads it, with handlers that refuse a document type: without one there are no entities to expand and nothing is
fetched. (defusedxml would do the same to a tree that is built whole; its last release is of 2021.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat

MOST_DEPTH = 40
MOST_OBSERVATIONS = 400_000
MOST_ELEMENTS = 2_000_000
"""What one report may hold: each becomes an object while it is read, however little it weighs in the file."""

RESULTS = frozenset({"failure", "error", "skipped", "rerunFailure", "rerunError", "flakyFailure", "flakyError"})
OUTPUTS = frozenset({"system-out", "system-err"})
_TEXTS = RESULTS | OUTPUTS | {"stackTrace", "property"}


class ReportUnreadable(ValueError):
    """The report cannot be taken. The text says where, and what to do."""


@dataclass(slots=True)
class Result:
    """A `failure`, `error`, `skipped` or one of surefire's words for earlier runs."""

    tag: str
    attributes: Mapping[str, str]
    text: str = ""


@dataclass(slots=True)
class CaseElement:
    """A `testcase`. ``outputs`` has the texts of its `system-out` and `system-err`, by tag; ``suite`` is the number of
    the outermost suite that it stands in, -1 where it stands in none."""

    attributes: Mapping[str, str]
    suite: int = -1
    results: list[Result] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, list[str]] = field(default_factory=dict)


@dataclass
class Report:
    """A report. ``whole`` are the attributes of its `testsuites`, ``suites`` those of the outermost suites, whose sums
    cover those inside; ``properties`` and ``output`` are those of all suites."""

    whole: Mapping[str, str] = field(default_factory=dict)
    suites: list[Mapping[str, str]] = field(default_factory=list)
    cases: list[CaseElement] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)
    output: list[str] = field(default_factory=list)


def read(content: bytes) -> Report:
    """The elements of a report.

    Raises:
        ReportUnreadable: it is no XML, has a document type, is no JUnit report, or is nested too deeply or too long.
    """
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = _refuse
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        where = f"line {error.lineno}, column {error.offset + 1}"
        raise ReportUnreadable(
            f"the report is not XML at {where}: {expat.ErrorString(error.code)}; send the file's own bytes as the body"
        ) from error
    except ReportUnreadable as error:
        raise ReportUnreadable(f"line {parser.CurrentLineNumber}: {error}") from error
    except (LookupError, ValueError) as error:  # an encoding that Python does not know, or expat cannot use
        raise ReportUnreadable(f"the report's encoding cannot be read ({error}); send it as UTF-8") from error
    return reader.report


def _refuse(*_: Any) -> None:
    raise ReportUnreadable("the report has a document type (<!DOCTYPE), which is never read; send it without")


class _Reader:
    def __init__(self) -> None:
        self.report = Report()
        self._tags: list[str] = []
        self._texts: list[list[str]] = []
        self._attributes: dict[str, str] = {}
        self._case: CaseElement | None = None
        self._result: Result | None = None
        self._elements = self._observations = 0

    def start(self, name: str, attributes: dict[str, str]) -> None:
        tag = name.rpartition(":")[2]
        self._check(tag)
        if tag == "testsuites" and not self._tags:
            self.report.whole = attributes
        elif tag == "testsuite" and "testsuite" not in self._tags:
            self.report.suites.append(attributes)
        elif tag == "testcase":
            self._case = CaseElement(attributes, len(self.report.suites) - 1 if "testsuite" in self._tags else -1)
            self.report.cases.append(self._case)
        elif tag in RESULTS and self._case is not None and self._tags[-1] == "testcase":
            self._result = Result(tag, attributes)
            self._case.results.append(self._result)
        elif tag == "property":
            self._attributes = attributes
        self._tags.append(tag)
        self._texts.append([])

    def _check(self, tag: str) -> None:
        self._elements += 1
        if not self._tags and tag not in {"testsuites", "testsuite"}:
            raise ReportUnreadable(f"the root is <{tag[:80]}>, where a JUnit report has <testsuites> or <testsuite>")
        if len(self._tags) == MOST_DEPTH:
            raise ReportUnreadable(f"elements are nested more than {MOST_DEPTH} deep; send a flatter report")
        if tag == "testcase" and self._case is not None:
            raise ReportUnreadable("a <testcase> stands inside another one; send them side by side")
        self._observations += int(tag == "testcase" or tag in RESULTS)
        if self._observations > MOST_OBSERVATIONS or self._elements > MOST_ELEMENTS:
            most = f"{MOST_OBSERVATIONS} cases and results, or {MOST_ELEMENTS} elements"
            raise ReportUnreadable(f"there are more than {most}; import it in parts")

    def text(self, text: str) -> None:
        if self._tags and self._tags[-1] in _TEXTS:
            self._texts[-1].append(text)

    def end(self, _: str) -> None:
        tag, text = self._tags.pop(), "".join(self._texts.pop())
        parent = self._tags[-1] if self._tags else ""
        if tag == "testcase":
            self._case = None
        elif self._result is not None and tag == self._result.tag and parent == "testcase":
            self._result.text = self._result.text or text
            self._result = None
        elif self._result is not None and tag == "stackTrace":
            self._result.text = text
        elif tag == "property":
            self._property(text)
        elif tag in OUTPUTS and parent == "testcase" and self._case is not None:
            self._case.outputs.setdefault(tag, []).append(text)
        elif tag in OUTPUTS and parent == "testsuite":
            self.report.output.append(text)

    def _property(self, text: str) -> None:
        name, value = self._attributes.get("name", ""), self._attributes.get("value", text)
        (self.report.properties if self._case is None else self._case.properties)[name] = value
