"""Failure rules as any tree may write them: none holds up the worker, and what is given up is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from tests.worker.support import is_alive, wait_for
from worker.messages import FailureClass, FailureRule
from worker.observing.rules import Rules

BACKTRACKS = ("(a+)+$", "a" * 60 + "!")
NAN = FailureRule("nan", FailureClass.NON_FINITE)


class Noted:
    """Rules, and what they say to the log."""

    def __init__(self, rules: Sequence[FailureRule], **limits: float) -> None:
        self.notes: list[str] = []
        self.rules = Rules(rules, self.notes.append, **limits)


@pytest.fixture
def slow() -> Iterator[Noted]:
    noted = Noted([FailureRule(BACKTRACKS[0], FailureClass.TIMEOUT), NAN], limit_s=0.1)
    with noted.rules:
        yield noted


def test_the_first_rule_that_fits_classes() -> None:
    """Characters that no encoding has are searched too."""
    first = FailureRule("\\bnan\\b|\udc80", FailureClass.CUDA_ERROR)
    with Rules([first, NAN], print) as rules:
        assert rules.match("loss is nan") is FailureClass.CUDA_ERROR
        assert rules.match("\udc80") is FailureClass.CUDA_ERROR
        assert rules.match("nano") is FailureClass.NON_FINITE
        assert rules.match("inf") is None


@pytest.mark.parametrize("pattern", ["(", "a{9999999999}", "(" * 400])
def test_a_rule_that_this_python_cannot_read_classes_nothing(pattern: str) -> None:
    """The service refuses such a rule when it plans; here it must not end the attempt."""
    with Rules([FailureRule(pattern, FailureClass.TIMEOUT), NAN], print) as rules:
        assert rules.match("nan") is FailureClass.NON_FINITE


@pytest.mark.parametrize(
    ("pattern", "text"),
    [BACKTRACKS, ("(a|a)+$", BACKTRACKS[1]), (r"(.*)*\1x", "a" * 60), ("(?=(a|aa)+$)b|(a|aa)+$", BACKTRACKS[1])],
)
def test_a_rule_that_backtracks_without_end_is_given_up_and_told(pattern: str, text: str) -> None:
    """It costs the limit once; the rules behind it still class that very text, and all later ones."""
    noted = Noted([FailureRule(pattern, FailureClass.TIMEOUT), NAN], limit_s=0.1)
    with noted.rules as rules:
        assert rules.match(f"{text} nan") is FailureClass.NON_FINITE
        assert rules.match("aaa") is None
    (note,) = noted.notes
    assert note.startswith(f"failure_rules[0] classes nothing more in this attempt: match = {pattern!r}")


def test_the_worker_goes_on_while_a_rule_is_searched_for(slow: Noted) -> None:
    """Its other threads beat the heart."""
    searching = threading.Thread(target=slow.rules.match, args=(BACKTRACKS[1],))
    searching.start()
    beats = 0
    while not slow.notes and searching.is_alive():
        beats += 1
    searching.join()
    assert beats > 1
    assert slow.notes


def test_rules_that_are_slow_again_and_again_are_given_up_together() -> None:
    """None of them is over the limit, and yet a thousand failures would take hours."""
    noted = Noted([NAN], budget_s=1e-6)
    with noted.rules as rules:
        assert rules.match("nan") is FailureClass.NON_FINITE
        assert rules.match("nan") is None
    (note,) = noted.notes
    assert "they took 1e-06 s in all" in note


def test_a_search_that_something_else_ended_starts_once_more() -> None:
    """The out-of-memory killer takes whom it likes."""
    noted = Noted([NAN])
    with noted.rules as rules:
        assert rules.match("nan") is FailureClass.NON_FINITE
        process = rules._process
        assert process
        process.kill()
        process.wait()
        assert rules.match("nan") is FailureClass.NON_FINITE
    assert noted.notes == []


def test_no_process_is_left(slow: Noted) -> None:
    """Neither of a search that was given up, nor at the end, and none is started without a rule."""
    slow.rules.match("nan")
    first = slow.rules._process
    slow.rules.match(BACKTRACKS[1])
    slow.rules.match("nan")
    second = slow.rules._process
    assert first
    assert second
    assert first.pid != second.pid
    slow.rules.__exit__(None, None, None)
    wait_for(lambda: not any(map(is_alive, (first.pid, second.pid))), "both to end")
    with Rules([], print) as rules:
        assert rules.match("nan") is None
        assert rules._process is None
