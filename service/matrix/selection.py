"""Narrows a matrix to cases and repeats its cells: what a job asks for beyond what its trees declare."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.matrix.expand import PlannedCell
from worker.messages import Selection


@dataclass(frozen=True)
class Wish:
    """What of each suite to run. ``failed`` holds the node ids that failed in another job, by runtime id and suite;
    ``None`` where no such job is named."""

    keyword: str = ""
    cases: tuple[str, ...] = ()
    failed: Mapping[tuple[str, str], Sequence[str]] | None = None


def narrow(cells: Sequence[PlannedCell], wish: Wish) -> list[PlannedCell]:
    """The cells with their selection. A cell in which nothing had failed is left out."""
    chosen = [(cell, _selection(cell, wish)) for cell in cells]
    return [
        dataclasses.replace(
            cell, suite=dataclasses.replace(cell.suite, selection=selection if selection.title else None)
        )
        for cell, selection in chosen
        if selection is not None
    ]


def repeated(cells: Sequence[PlannedCell], times: int) -> list[PlannedCell]:
    """Each cell that many times, with its number behind its name: ``bb3c0b8/py3.11/gate#2``."""
    if times == 1:
        return list(cells)
    return [
        dataclasses.replace(cell, name=f"{cell.name}#{run}", suite=dataclasses.replace(cell.suite, run=run))
        for cell in cells
        for run in range(1, times + 1)
    ]


def _selection(cell: PlannedCell, wish: Wish) -> Selection | None:
    if wish.failed is None:
        return Selection(wish.keyword, wish.cases)
    failed = wish.failed.get((cell.runtime.id, cell.suite.name), ())
    chosen = tuple(dict.fromkeys(case for case in failed if not wish.cases or case in wish.cases))
    return Selection(wish.keyword, chosen) if chosen else None
