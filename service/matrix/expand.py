"""Makes the cells of a matrix: trees x runtimes x suites, less what is excluded."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from service.matrix.config import FILE, TreeConfig
from worker.messages import RuntimeSpec, SuiteSpec


class UnknownSuite(ValueError):
    """A tree does not declare a suite that was asked for."""


class UnmatchedPattern(ValueError):
    """A pattern matches no cell."""


class TooManyCells(ValueError):
    """So many cells before any is excluded that they are not even listed."""


class UnfitRuntime(ValueError):
    """A suite needs CUDA and the runtime's torch has none."""


@dataclass(frozen=True)
class PlannedTree:
    """A tree of a submission with what it declares. ``name`` is what people see: ``bb3c0b8+probe:1f2e3d``."""

    name: str
    config: TreeConfig


@dataclass(frozen=True)
class PlannedCell:
    """One cell. ``tree`` is the index of its tree in the submission."""

    tree: int
    name: str
    runtime: RuntimeSpec
    suite: SuiteSpec


MOST_CANDIDATES = 100_000
"""Cells of a matrix before include and exclude."""
PROBED = "+probe:"
"""Stands between commit and probe in a tree's name."""


def tree_name(commit: str, probe_digest: str | None) -> str:
    """``bb3c0b8``, or ``bb3c0b8+probe:1f2e3d``."""
    return commit[:7] + (f"{PROBED}{probe_digest[:6]}" if probe_digest else "")


def expand(
    trees: Sequence[PlannedTree],
    *,
    runtimes: Sequence[RuntimeSpec] | None = None,
    suites: Sequence[str] | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> list[PlannedCell]:
    """The cells in the order of trees, runtimes, suites. What is ``None`` comes from each tree's own configuration.

    Raises:
        UnknownSuite: a tree lacks a suite.
        TooManyCells: the matrix is beyond all measure, whatever is excluded from it.
        UnfitRuntime: a suite needs CUDA and the runtime named for it is a build without.
        UnmatchedPattern: a pattern matches no cell, so it is misspelt.
    """
    cells: list[PlannedCell] = []
    for index, tree in enumerate(trees):
        names = list(dict.fromkeys(suites if suites is not None else tree.config.default_suites))
        chosen = [_suite(tree, name) for name in names]
        offered = {
            suite.name: runtimes if runtimes is not None else _own_runtimes(tree.config, suite) for suite in chosen
        }
        if len(cells) + sum(map(len, offered.values())) > MOST_CANDIDATES:
            raise TooManyCells(
                f"over {MOST_CANDIDATES} cells before any is excluded; name fewer trees, runtimes or suites"
            )
        every = dict.fromkeys(runtime for suite in chosen for runtime in offered[suite.name])
        cells += [
            PlannedCell(index, f"{tree.name}/{runtime.id}/{suite.name}", runtime, suite)
            for runtime in every
            for suite in chosen
            if runtime in offered[suite.name]
        ]
    left = _select(cells, include, exclude)
    for cell in left:
        if cell.suite.devices and cell.runtime.build == "cpu":
            raise UnfitRuntime(
                f"{cell.name}: suite {cell.suite.name!r} needs CUDA and {cell.runtime.title} has none; name another "
                f"runtime, or exclude '*/{cell.runtime.id}/{cell.suite.name}'"
            )
    return left


def left_out(
    configs: Sequence[TreeConfig], cells: Sequence[PlannedCell], named: Sequence[RuntimeSpec] | None
) -> tuple[str, ...]:
    """The runtimes that trees declare for the suites of their cells and that are not among those ``named``."""
    if named is None:
        return ()
    of_suites = dict.fromkeys((cell.tree, cell.suite.name) for cell in cells)
    declared = [_own_runtimes(configs[tree], configs[tree].suites[suite]) for tree, suite in of_suites]
    return tuple(dict.fromkeys(runtime.id for own in declared for runtime in own if runtime not in named))


def _suite(tree: PlannedTree, name: str) -> SuiteSpec:
    try:
        return tree.config.suites[name]
    except KeyError:
        commit, probed, _ = tree.name.partition(PROBED)
        where = f"commit {commit}" if probed else f"tree {commit}"
        why = f" (a probe's changes to {FILE} do not count: commit the file to have its suites)" if probed else ""
        raise UnknownSuite(f"{where} declares no suite {name!r}; it has {', '.join(tree.config.suites)}{why}") from None


def _own_runtimes(config: TreeConfig, suite: SuiteSpec) -> Sequence[RuntimeSpec]:
    return config.suite_runtimes.get(suite.name, config.runtimes)


def _select(cells: list[PlannedCell], include: Sequence[str], exclude: Sequence[str]) -> list[PlannedCell]:
    for pattern in (*include, *exclude):
        if not any(fnmatch.fnmatchcase(cell.name, pattern) for cell in cells):
            example = f" such as {cells[0].name!r}" if cells else ""
            raise UnmatchedPattern(f"pattern {pattern!r} matches no cell; patterns are over whole names{example}")
    return [
        cell
        for cell in cells
        if (not include or any(fnmatch.fnmatchcase(cell.name, pattern) for pattern in include))
        and not any(fnmatch.fnmatchcase(cell.name, pattern) for pattern in exclude)
    ]
