"""Cron lines: five fields, read and asked for their next moment. UTC alone, so that no hour comes twice or never."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
PART = re.compile(r"(\*|\w{1,9})(?:-(\w{1,9}))?(?:/([0-9]{1,9}))?")
FURTHEST = datetime.timedelta(days=366 * 8 + 31)
"""29 February comes after eight years at the latest (around 2100); what has not come by then never does."""


class CronError(ValueError):
    """The line cannot be read. The text names the field, its value and what it must be."""


@dataclass(frozen=True)
class Cron:
    """A read line. ``any_day`` and ``any_weekday`` say that the field is ``*``: two named ones are joined by "or"."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool

    def fits_day(self, day: datetime.date) -> bool:
        """Whether the line names the day at all."""
        if day.month not in self.months:
            return False
        by_day, by_weekday = day.day in self.days, (day.weekday() + 1) % 7 in self.weekdays
        if self.any_day or self.any_weekday:
            return by_day and by_weekday
        return by_day or by_weekday

    def next_after(self, moment: datetime.datetime) -> datetime.datetime | None:
        """The first moment later than this one, or ``None`` where the line never comes (30 February)."""
        moment = moment.astimezone(datetime.UTC).replace(second=0, microsecond=0) + datetime.timedelta(minutes=1)
        end = moment + FURTHEST
        while moment < end:
            if not self.fits_day(moment):
                moment = (moment + datetime.timedelta(days=1)).replace(hour=0, minute=0)
            elif moment.hour not in self.hours:
                moment = (moment + datetime.timedelta(hours=1)).replace(minute=0)
            elif moment.minute not in self.minutes:
                moment += datetime.timedelta(minutes=1)
            else:
                return moment
        return None


def parse(line: str) -> Cron:
    """The meaning of ``minute hour day month weekday``.

    Raises:
        CronError: it has other than five fields, or one of them cannot be read.
    """
    fields = line.split()
    if len(fields) != 5:
        raise CronError(
            f"{line!r} has {len(fields)} fields; write minute hour day month weekday, such as '30 2 * * 1-5'"
        )
    minute, hour, day, month, weekday = fields
    cron = Cron(
        minutes=_field("minute", minute, 0, 59, {}),
        hours=_field("hour", hour, 0, 23, {}),
        days=_field("day", day, 1, 31, {}),
        months=_field("month", month, 1, 12, {name: at + 1 for at, name in enumerate(MONTHS)}),
        weekdays=frozenset(
            at % 7 for at in _field("weekday", weekday, 0, 7, {name: at for at, name in enumerate(DAYS)})
        ),
        any_day=day == "*",
        any_weekday=weekday == "*",
    )
    if cron.next_after(datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)) is None:
        raise CronError(f"{line!r} never comes: no such month has such a day")
    return cron


def _field(name: str, text: str, low: int, high: int, words: Mapping[str, int]) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        match = PART.fullmatch(part)
        if match is None:
            raise CronError(f"{name} {text[:80]!r} is not understood; write *, a number, a range, a list or a step")
        first, last, step = match.groups()
        if first == "*":
            start, end = low, high
        else:
            start = _number(name, first, low, high, words)
            end = _number(name, last, low, high, words) if last else (high if step else start)
        if (first == "*" and last) or start > end or (step is not None and int(step) == 0):
            raise CronError(f"{name} {text!r}: a range goes from low to high, and a step is 1 or more")
        found.update(range(start, end + 1, int(step or 1)))
    return frozenset(found)


def _number(name: str, text: str, low: int, high: int, words: Mapping[str, int]) -> int:
    value = words.get(text.lower(), int(text) if text.isascii() and text.isdigit() else -1)
    if not low <= value <= high:
        raise CronError(f"{name} {text!r} is out of range; write {low} to {high}")
    return value
