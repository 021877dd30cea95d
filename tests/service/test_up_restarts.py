"""When a dead child starts again."""

from __future__ import annotations

import pytest

from service.up.restarts import LIMIT, LONGEST_DELAY_S, WINDOW_S, Restarts


def test_a_child_that_never_died_may_start_at_once() -> None:
    assert Restarts().due == 0.0


def test_each_death_doubles_the_wait_up_to_the_longest() -> None:
    waits = []
    restarts = Restarts()
    for _ in range(7):
        restarts.deaths.append(100.0)
        waits.append(restarts.due - 100.0)
    assert waits == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])


def test_five_deaths_within_the_window_are_past_hope() -> None:
    restarts = Restarts()
    for number in range(LIMIT):
        assert not restarts.hopeless
        restarts.died(1000.0 + number, was_up=False)
    assert restarts.hopeless


def test_a_child_that_was_up_is_never_past_hope_and_waits_ever_longer() -> None:
    """Tests kill their worker as often as they like; five deaths in a row that came before it was up are the end."""
    restarts = Restarts()
    for number in range(3 * LIMIT):
        restarts.died(1000.0 + number, was_up=True)
        assert not restarts.hopeless
    assert restarts.due - restarts.deaths[-1] == LONGEST_DELAY_S
    for number in range(LIMIT):
        assert not restarts.hopeless
        restarts.died(1020.0 + number, was_up=False)
    assert restarts.hopeless


def test_deaths_before_the_window_are_forgotten() -> None:
    restarts = Restarts()
    for number in range(20):
        restarts.died(number * WINDOW_S / (LIMIT - 1), was_up=False)
        assert not restarts.hopeless
