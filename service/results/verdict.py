"""An attempt's verdict, from why it was ended and what was observed. Pure: no database, no framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worker.messages import Cause, Outcome, Verdict

GIVEN = {
    Cause.TIMED_OUT: Verdict.TIMED_OUT,
    Cause.CANCELLED: Verdict.CANCELLED,
    Cause.ENVIRONMENT: Verdict.ENVIRONMENT,
    Cause.INFRASTRUCTURE: Verdict.INFRASTRUCTURE,
}

# https://docs.pytest.org/en/stable/reference/exit-codes.html
EXIT_CODES = {2: Verdict.INTERRUPTED, 3: Verdict.INTERNAL_ERROR, 4: Verdict.USAGE_ERROR, 5: Verdict.NO_CASES}

NOTHING_COLLECTED = 5

FAILING = (Outcome.FAILED, Outcome.ERROR)
RAN = (Outcome.PASSED, Outcome.XFAILED, Outcome.XPASSED)
# What no attempt holds that passed.
UNPASSABLE = (*FAILING, Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.NOT_OBSERVED)


@dataclass(frozen=True)
class ProcessFacts:
    """How a pytest process ended. ``finished`` says that pytest's own session end was seen."""

    exit_code: int | None
    signal: int | None
    finished: bool


def decide(cause: Cause, processes: Sequence[ProcessFacts], counts: Mapping[str, int], collected: int) -> Verdict:
    """The verdict. ``counts`` maps outcomes to cases by their last observation, ``collected`` is how many there were.

    Passed means: the last process exited with 0 after its own session end, at least one case ran, and every collected
    case was reported.
    """
    if cause in GIVEN:
        return GIVEN[cause]
    if counts.get(Outcome.CRASHED):
        return Verdict.CRASHED
    if counts.get(Outcome.TIMED_OUT):
        return Verdict.TIMED_OUT
    if not processes:
        return Verdict.INCOMPLETE
    return _by_last_process(processes[-1], counts, collected)


def observed(counts: Mapping[str, int]) -> int:
    """How many cases were reported; what was asked for and never seen counts as an outcome, and was not."""
    return sum(counts.values()) - counts.get(Outcome.NOT_OBSERVED, 0)


def may_have_passed(counts: Mapping[str, int]) -> bool:
    """Whether cases of these outcomes can be those of an attempt that passed."""
    return any(counts.get(outcome) for outcome in RAN) and not any(counts.get(outcome) for outcome in UNPASSABLE)


def _by_last_process(last: ProcessFacts, counts: Mapping[str, int], collected: int) -> Verdict:
    if last.signal is not None:
        return Verdict.CRASHED
    complete = not counts.get(Outcome.NOT_OBSERVED) and observed(counts) >= collected
    failing = any(counts.get(outcome) for outcome in FAILING)
    if complete and collected and failing and last.finished:
        return Verdict.FAILED  # also where the session was stopped behind its last case, which pytest calls interrupted
    if last.exit_code in EXIT_CODES and (last.finished or last.exit_code != NOTHING_COLLECTED):
        return EXIT_CODES[last.exit_code]
    # pytest's word that a test failed counts where a failure was seen, or everything was and a plugin spoke.
    unproven = last.exit_code == 1 and not failing and not (complete and counts)
    if not last.finished or unproven or (last.exit_code == 0 and not complete):
        return Verdict.INCOMPLETE
    if last.exit_code == 0:
        return Verdict.PASSED if any(counts.get(outcome) for outcome in RAN) else Verdict.NO_CASES
    return Verdict.FAILED if last.exit_code == 1 else Verdict.INTERNAL_ERROR
