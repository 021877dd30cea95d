"""Compares what failed under a probe with the committed list of what must fail.

    python scripts/compare_probe.py EVIDENCE.json EXPECTED.txt FAILURES.txt

Reads a job's evidence (`replaybench export`), writes the ids that failed with the probe to FAILURES.txt, and exits
with 1 where a runtime's failures are not those of EXPECTED.txt or where the commit without the probe fails.
"""

from __future__ import annotations

import sys
from pathlib import Path

from service.client.evidence import Export
from worker.messages import Outcome, Verdict

BAD = {Outcome.FAILED, Outcome.ERROR, Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.NOT_OBSERVED}


def read_ids(text: str) -> set[str]:
    """The ids of a list: a line each; ``#`` begins a comment."""
    return {line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")}


def main(evidence: str, expected: str, failures: str) -> int:
    """Compares, and says what differs."""
    export = Export.model_validate_json(Path(evidence).read_text())
    wanted = read_ids(Path(expected).read_text()) if Path(expected).exists() else set()
    problems = export.unproven()
    if len({"+probe:" in attempt.cell for attempt in export.attempts}) < 2:
        problems.append("there is nothing to compare: attempts with the probe and without are needed")
    seen: set[str] = set()
    for attempt in export.attempts:
        bad = {case.node_id for case in attempt.cases if case.outcome in BAD}
        if "+probe:" not in attempt.cell:
            if attempt.verdict is not Verdict.PASSED:
                problems.append(f"{attempt.cell}: ended as {attempt.verdict} without the probe")
            problems += [f"{attempt.cell}: {node_id} fails without the probe" for node_id in sorted(bad)]
            continue
        seen |= bad
        problems += [f"{attempt.cell}: {node_id} fails and is not on the list" for node_id in sorted(bad - wanted)]
        problems += [f"{attempt.cell}: {node_id} is on the list and does not fail" for node_id in sorted(wanted - bad)]
    Path(failures).write_text("".join(f"{node_id}\n" for node_id in sorted(seen)))
    print("\n".join(problems) or f"as listed: {len(wanted)} ids fail with the probe, none without")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
