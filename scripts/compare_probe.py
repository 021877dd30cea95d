"""Compares what failed under a probe with the committed list of what must fail.

    python scripts/compare_probe.py EVIDENCE.json EXPECTED.txt FAILURES.txt

Reads a job's evidence (`replaybench export`), writes the ids that failed with the probe to FAILURES.txt and tells their
failure classes. Exits with 1 where an id of EXPECTED.txt was run with the probe and did not fail, under any runtime, or
where the commit without the probe fails. What fails beside the list is told and no fault: a suite grows.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from service.client.evidence import Export, ExportedCase
from worker.messages import Outcome, Verdict

BAD = {Outcome.FAILED, Outcome.ERROR, Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.NOT_OBSERVED}


def read_ids(text: str) -> set[str]:
    """The ids of a list: a line each; ``#`` begins a comment."""
    return {line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")}


def by_class(cases: Iterable[ExportedCase]) -> str:
    """How many did not pass, by failure class; of those that have none, by outcome."""
    counts = Counter(str(case.failure_class or case.outcome) for case in cases if case.outcome in BAD)
    return ", ".join(f"{count} {name}" for name, count in counts.most_common()) or "none fails"


def main(evidence: str, expected: str, failures: str) -> int:
    """Compares, and says what differs."""
    export = Export.model_validate_json(Path(evidence).read_text())
    listed = read_ids(Path(expected).read_text())
    problems = export.unproven()
    if len({"+probe:" in attempt.cell for attempt in export.attempts}) < 2:
        problems.append("there is nothing to compare: attempts with the probe and without are needed")
    seen: set[str] = set()
    due: set[str] = set()
    for attempt in export.attempts:
        bad = {case.node_id for case in attempt.cases if case.outcome in BAD}
        if "+probe:" not in attempt.cell:
            if attempt.verdict is not Verdict.PASSED:
                problems.append(f"{attempt.cell}: ended as {attempt.verdict} without the probe")
            problems += [f"{attempt.cell}: {node_id} fails without the probe" for node_id in sorted(bad)]
            continue
        wanted = listed & {case.node_id for case in attempt.cases}
        problems += [f"{attempt.cell}: {node_id} is on the list and does not fail" for node_id in sorted(wanted - bad)]
        print(f"{attempt.cell}: {by_class(attempt.cases)}")
        seen, due = seen | bad, due | wanted
    Path(failures).write_text("".join(f"{node_id}\n" for node_id in sorted(seen)))
    told = f"{len(seen)} ids fail with the probe, {len(seen & due)} of the {len(due)} listed, and none without"
    print("\n".join(problems) or told)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
