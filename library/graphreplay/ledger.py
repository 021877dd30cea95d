"""The books of a network's replay: its layouts, and what was given up and why."""

from __future__ import annotations

import logging
from collections import Counter

from graphreplay.entry import Entry
from graphreplay.errors import RetiredError, UnrecordableError
from graphreplay.labels import Label
from graphreplay.layout import Layout
from graphreplay.options import ReplayOptions
from graphreplay.report import Report, Retirement

_log = logging.getLogger("graphreplay")
EVERYTHING = "*"
# A recording that went stale is made anew; weights that move more often than this are moving all the time.
_MOVES = 4
# Unless the recording has served for so many forwards before, which is about what making it costs.
_PAID = 32
# How many layouts are watched at once, for each that may be recorded.
_WATCHED = 4


class Moves:
    """How often recordings went stale before they had paid for themselves, by layout."""

    def __init__(self) -> None:
        self._counts: Counter[Layout] = Counter()
        self._replayed: dict[Layout, int] = {}

    def begin(self, entry: Entry) -> None:
        """Take down that a recording was made."""
        self._replayed[entry.layout] = entry.replayed

    def note(self, entry: Entry) -> None:
        """Take down that the recording went stale."""
        if entry.replayed - self._replayed[entry.layout] >= _PAID:
            self._counts[entry.layout] = 0
        self._counts[entry.layout] += 1

    def require_rest(self, entry: Entry) -> None:
        """Refuse another recording where the last ones went stale one soon after the other.

        Raises:
            UnrecordableError: That is so.
        """
        count = self._counts[entry.layout]
        if count >= _MOVES:
            raise UnrecordableError(Label.MOVED, f"{count} recordings, each before it had served {_PAID} forwards")


class Ledger:
    """Entries by layout, retirements in their order, and forwards that ran native outside of any layout."""

    def __init__(self, options: ReplayOptions) -> None:
        self._options = options
        self.entries: dict[Layout, Entry] = {}
        self.native: Counter[str] = Counter()
        self._retirements: list[Retirement] = []

    def entry(self, layout: Layout) -> Entry:
        """The layout's entry; a new one while there is a place for another recording.

        Places are taken by recordings, and by layouts that were given up: each of those may have cost a capture.

        Raises:
            UnrecordableError: The layout has no place, and all are taken.
        """
        entry = self.entries.get(layout)
        if entry is not None and _has_place(entry):
            return entry
        if sum(map(_has_place, self.entries.values())) >= self._options.layouts:
            raise UnrecordableError(Label.LAYOUTS, f"layouts={self._options.layouts}, then came {layout}")
        if entry is None:
            self._forget_one_of_too_many()
            entry = self.entries[layout] = Entry(layout)
        return entry

    def _forget_one_of_too_many(self) -> None:
        """Bound the layouts that came and were never recorded, as an argument's ever new values make them.

        The older half stays: of layouts that come round in a longer row, at least those come a second time.
        """
        watched = [layout for layout, one in self.entries.items() if not one.recorded and one.retired is None]
        if len(watched) >= _WATCHED * self._options.layouts:
            self.native.update(self.entries.pop(watched[len(watched) // 2]).native)

    def retire(self, entry: Entry, label: Label, reason: str, error: BaseException | None = None) -> None:
        """Give one layout up; the others live on.

        Raises:
            RetiredError: With `strict=True`, from `error`.
        """
        entry.retired = label
        self._note(Retirement(str(entry.layout), label, reason), error)

    def retire_all(self, label: Label, reason: str, error: BaseException | None = None) -> None:
        """Say, once for each label, that the network as a whole runs native.

        Raises:
            RetiredError: With `strict=True`, from `error`.
        """
        if not any(one.layout == EVERYTHING and one.label is label for one in self._retirements):
            self._note(Retirement(EVERYTHING, label, reason), error)

    def _note(self, retirement: Retirement, error: BaseException | None) -> None:
        self._retirements.append(retirement)
        _log.warning("replay retired %s as %s: %s", retirement.layout, retirement.label.value, retirement.reason)
        if self._options.strict:
            raise RetiredError(retirement.layout, retirement.label, retirement.reason) from error

    def report(self) -> Report:
        """Everything so far."""
        layouts = tuple(entry.report() for entry in self.entries.values())
        return Report(layouts, tuple(self._retirements), dict(self.native))


def _has_place(entry: Entry) -> bool:
    return entry.recording is not None or entry.retired is not None
