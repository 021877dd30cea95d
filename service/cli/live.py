"""A job's progress as it is seen: one table that changes, or lines."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable

from rich.console import Group, RenderableType
from rich.spinner import Spinner
from rich.text import Text

from service.cli.output import text
from service.cli.render import STYLES, counted, grid, stated, word
from service.jobs.schemas import CellOutput, JobOutput, Snapshot
from service.results.table import LONGEST_WHY, duration
from service.results.verdict import observed
from service.states import CellState
from service.words import brief, number
from worker.messages import Outcome

_FIRST = {CellState.RUNNING: 0, CellState.PREPARING: 1, CellState.CLAIMED: 2, CellState.QUEUED: 3, CellState.ENDED: 4}
_GOOD = frozenset({Outcome.PASSED, Outcome.SKIPPED, Outcome.XFAILED})


class Progress:
    """What is known of a job so far. ``say`` gets a line for each change of a cell's state."""

    def __init__(self, say: Callable[[str], None] = lambda _line: None) -> None:
        self.job: JobOutput | None = None
        self._cells: dict[int, CellOutput] = {}
        self._said: dict[int, tuple[str, int, int]] = {}
        self._since: dict[int, tuple[CellState, float]] = {}
        self._say = say

    @property
    def cells(self) -> list[CellOutput]:
        """The cells in the job's order."""
        return sorted(self._cells.values(), key=lambda cell: cell.position)

    def take(self, snapshot: Snapshot) -> None:
        """Takes in an event of the stream."""
        before = self.job.state if self.job else None
        self.job = snapshot.job
        if snapshot.job.state != before:
            self._say(f"{_clock()} job {snapshot.job.id} {stated(snapshot.job)}")
        for cell in snapshot.cells:
            self._cells[cell.id] = cell
            if self._since.get(cell.id, ("",))[0] != cell.state:
                self._since[cell.id] = (cell.state, time.monotonic())
            state = (word(cell), cell.attempts, _bad(cell))
            if self._said.get(cell.id) != state:
                self._said[cell.id] = state
                self._say(f"{_clock()} {cell.name} {_plain(cell)}")

    def render(self, height: int = 40) -> RenderableType:
        """The table as it stands, with what is under way first where not all fits."""
        if self.job is None:
            return Spinner("dots", text="waiting for the job's state")
        shown = self.cells
        if len(shown) > height:
            shown = sorted(shown, key=lambda cell: (_FIRST[cell.state], cell.position))[:height]
        table = grid("Cell", "State", "Cases", "Time", "Now")
        for cell in shown:
            table.add_row(
                text(cell.name),
                text(word(cell), STYLES.get(word(cell), "")),
                _cases(cell),
                self._time(cell),
                _now(cell),
            )
        return Group(table, Text(self._summary(len(shown))))

    def _time(self, cell: CellOutput) -> Text:
        if cell.state in {CellState.CLAIMED, CellState.PREPARING}:  # the service counts from the first case on
            return text(duration(time.monotonic() - self._since[cell.id][1]))
        return _time(cell)

    def _summary(self, shown: int) -> str:
        job = self.job
        assert job is not None  # noqa: S101 -- `render` looked
        ended = sum(cell.state is CellState.ENDED for cell in self._cells.values())
        hidden = f", {len(self._cells) - shown} not shown" if shown < len(self._cells) else ""
        cases = counted(job.counts)
        return f"job {job.id} {stated(job)}: {ended} of {number(len(self._cells), 'cell')} ended{hidden}" + (
            f"; {cases}" if cases else ""
        )


def _cases(cell: CellOutput) -> Text:
    if cell.state is CellState.ENDED:
        return text(counted(cell.counts) + (" (flaky)" if cell.flaky else ""))
    bad = counted({key: value for key, value in cell.counts.items() if key not in _GOOD})
    seen = observed(cell.counts)
    done = f"{seen} of {max(seen, cell.collected)}" if cell.collected else ""
    return text(", ".join(filter(None, (done, bad))))


def _bad(cell: CellOutput) -> int:
    return sum(number for outcome, number in cell.counts.items() if outcome not in _GOOD)


def _time(cell: CellOutput) -> Text:
    start, end = cell.started_at, cell.ended_at
    if start is None:
        return text("")
    if start.tzinfo is None:
        start = start.replace(tzinfo=datetime.UTC)
        end = end.replace(tzinfo=datetime.UTC) if end else None
    now = datetime.datetime.now(datetime.UTC)
    return text(duration(max(0.0, ((end or now) - start).total_seconds())))


def _now(cell: CellOutput) -> Text:
    if cell.state is CellState.ENDED:
        return text(brief(cell.detail, LONGEST_WHY))
    preparing = "checking out; building the runtime where it is new" if cell.state is CellState.PREPARING else ""
    return text(_cut(cell.running_case or cell.waiting_reason or cell.detail or preparing))


def _cut(words: str, most: int = 100) -> str:
    return words if len(words) <= most else words[: most - 1] + "…"


def _plain(cell: CellOutput) -> str:
    parts: Iterable[str] = (word(cell), str(_cases(cell)), str(_time(cell)), str(_now(cell)))
    return "  ".join(part for part in parts if part)


def _clock() -> str:
    return datetime.datetime.now().astimezone().strftime("%H:%M:%S")
