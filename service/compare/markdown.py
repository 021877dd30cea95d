"""A comparison as Markdown. Pure: no database, no framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from service.compare.comparison import SIDES, Change, conclusion
from service.compare.schemas import ComparedCase, CompareOutput, ObservationOutput
from service.results.table import escape


def words(change: str) -> str:
    """``failing differently``."""
    return change.replace("-", " ")


def counted(counts: Mapping[str, int]) -> str:
    """``1 broken, 26 still passing``."""
    return ", ".join(f"{counts[change]} {words(change)}" for change in Change if counts.get(change)) or "no cases"


def observed(seen: ObservationOutput | None) -> str:
    """``failed (bitwise-mismatch)``, or ``-`` where the side lacks the case."""
    if seen is None:
        return "-"
    return f"{seen.outcome} ({seen.failure_class})" if seen.failure_class else str(seen.outcome)


def named(case: ComparedCase) -> str:
    """A case's node id, with its occurrence where it is not the first."""
    return f"{case.node_id} [{case.occurrence + 1}]" if case.occurrence else case.node_id


def sentence(found: CompareOutput) -> str:
    """The whole in one line: ``bb3c0b8 to bb3c0b8+probe:1f2e3d: 18 broken, 9 still passing``."""
    return f"{found.base.name} to {found.head.name}: {counted(found.counts)}"


def alone(found: CompareOutput) -> list[str]:
    """``Only base was asked for suite gate under Python 3.11``: a line for each tree that has such places."""
    lines = []
    for side in SIDES:
        places = [f"suite {place.suite} under {place.runtime_title}" for place in found.alone if place.side == side]
        if places:
            lines.append(f"Only {side} was asked for {', '.join(places)}")
    return lines


def markdown(found: CompareOutput) -> str:
    """The pairs, then the listed cases."""
    pairs = [[pair.runtime, pair.suite, counted(pair.counts), pair.note] for pair in found.pairs]
    cases = [
        [words(case.change), case.runtime, case.suite, named(case), observed(case.base), observed(case.head)]
        for case in found.cases
    ]
    told = conclusion(broke=found.broke, complete=found.complete)
    parts = [
        f"{escape(sentence(found))}\n",
        f"{told.capitalize()}.\n",
        _table(["Runtime", "Suite", "Cases", "Note"], pairs),
        *(f"{escape(line)}.\n" for line in alone(found)),
    ]
    if cases:
        parts.append(_table(["Change", "Runtime", "Suite", "Case", found.base.name, found.head.name], cases))
    if found.next:
        parts.append(f"More cases follow: {escape(found.next)}\n")
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [[escape(text) for text in line] for line in (head, *rows)]
    lines.insert(1, ["---" for _ in head])
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
