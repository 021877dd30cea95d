"""When something is sent again, and when it is given up."""

from __future__ import annotations

import datetime
from email.utils import format_datetime

import pytest

from service.outgoing.retry import Again, Answer, Never, next_due, wait_asked

NOW = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)


def waited(
    step: Again, tries: int, *, since: datetime.datetime = NOW, give_up_s: float = 1e6, at: float = 1.0
) -> float:
    """The seconds until the next try; ``at`` is where between the bounds chance falls."""
    due = next_due(step, tries, since, NOW, give_up_s, lambda low, high: low + at * (high - low))
    assert isinstance(due, datetime.datetime)
    return (due - NOW).total_seconds()


def test_the_wait_doubles_up_to_a_quarter_of_an_hour() -> None:
    """And chance takes up to half of it away, so that what failed together does not come back together."""
    assert [waited(Again("500"), tries) for tries in (1, 2, 3, 8, 9, 500)] == [5, 10, 20, 640, 900, 900]
    assert [waited(Again("500"), tries, at=0) for tries in (1, 2, 9)] == [2.5, 5, 450]


def test_what_a_server_asks_for_is_waited_in_full() -> None:
    """Never less, and a little more, by chance."""
    assert waited(Again("429", 60.0), 1, at=0) == 60
    assert waited(Again("429", 60.0), 1) == 65
    assert waited(Again("429", 1.0), 9) == 900


def test_it_is_given_up_after_a_time_with_the_reason() -> None:
    """How often, how long, and what the last answer was."""
    hour_ago = NOW - datetime.timedelta(hours=1)
    step = next_due(Again("500 oops"), 12, hour_ago, NOW, 3600, max)
    assert step == Never("given up after 12 tries in 3600 s: 500 oops")
    step = next_due(Again("429", 7200.0), 1, NOW, NOW, 3600, max)
    assert step == Never("given up after 1 try in 0 s (the server asks to wait 7200 s): 429")
    assert isinstance(next_due(Again("429", 1e30), 1, NOW, NOW, 3600, max), Never)
    assert isinstance(next_due(Again("500"), 1, hour_ago, NOW, 3606, max), datetime.datetime)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "30"}, 30.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": format_datetime(NOW + datetime.timedelta(seconds=90), usegmt=True)}, 90.0),
        ({"retry-after": format_datetime(NOW - datetime.timedelta(seconds=90), usegmt=True)}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(NOW.timestamp()) + 600)}, 600.0),
        ({"x-ratelimit-remaining": "7", "x-ratelimit-reset": str(int(NOW.timestamp()) + 600)}, None),
        ({"ratelimit-remaining": "0", "ratelimit-reset": str(int(NOW.timestamp()) + 60)}, 60.0),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "never"}, None),
        ({"retry-after": "5", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "99999999999"}, 5.0),
        ({}, None),
    ],
)
def test_how_long_a_server_asks_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    """Seconds or a date (RFC 9110), or the reset of a limit that is used up, as GitHub and GitLab say it."""
    assert wait_asked(Answer(429, headers), NOW) == seconds
