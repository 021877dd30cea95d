"""A job's cells as a table: trees x runtimes down, suites across."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.jobs.schemas import CellOutput
from worker.messages import RuntimeSpec


@dataclass(frozen=True)
class Row:
    """One tree under one runtime. ``cells`` stand in the order of the suites; None where the job has no such cell."""

    runtime: str
    title: str
    cells: tuple[CellOutput | None, ...]


@dataclass(frozen=True)
class TreeGroup:
    """The rows of one tree."""

    tree: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Matrix:
    """The whole table, in the job's own order."""

    suites: tuple[str, ...]
    groups: tuple[TreeGroup, ...]


def arrange(cells: Sequence[CellOutput]) -> Matrix:
    """The table of a job's cells. A runtime's title names lightning only where the job varies it."""
    suites = tuple(dict.fromkeys(_column(cell) for cell in cells))
    varied = len({_lightning(cell.runtime) for cell in cells}) > 1
    grid: dict[str, dict[str, dict[str, CellOutput]]] = {}
    for cell in cells:
        grid.setdefault(cell.tree, {}).setdefault(cell.runtime, {})[_column(cell)] = cell
    groups = (
        TreeGroup(tree, tuple(_row(by_suite, suites, varied=varied) for by_suite in runtimes.values()))
        for tree, runtimes in grid.items()
    )
    return Matrix(suites, tuple(groups))


def _row(by_suite: dict[str, CellOutput], suites: Sequence[str], *, varied: bool) -> Row:
    first = next(iter(by_suite.values()))
    title = RuntimeSpec.parse(first.runtime).full_title if varied else first.runtime_title
    return Row(first.runtime, title, tuple(by_suite.get(suite) for suite in suites))


def _column(cell: CellOutput) -> str:
    """A cell's suite, with its number where it is repeated: ``gate#2``."""
    number = f"#{cell.run}"
    return f"{cell.suite}{number}" if cell.name.endswith(number) else cell.suite


def _lightning(runtime: str) -> str | None:
    return RuntimeSpec.parse(runtime).lightning
