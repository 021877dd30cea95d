"""Turns a submission into a plan: pins refs, reads configurations, tries probes, expands the matrix. Stores nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service import errors
from service.jobs.schemas import JobInput, PlannedCell, PlanOutput, TreeInput, TreeOutput
from service.matrix import config, expand, selection
from service.repositories.mirror import Mirror
from service.settings import Settings
from worker.messages import RuntimeSpec


@dataclass(frozen=True)
class PinnedTree:
    """A tree whose commit is pinned and whose probe is known to apply."""

    commit: str
    probe: bytes | None
    probe_digest: str | None
    digest: str
    config: config.TreeConfig

    @property
    def name(self) -> str:
        """``bb3c0b8+probe:1f2e3d``."""
        return expand.tree_name(self.commit, self.probe_digest)


@dataclass(frozen=True)
class Plan:
    """What a submission becomes. ``given`` are the trees as they were named, of which equal ones are one of ``trees``.
    ``left_out`` are the runtimes that a tree declares for a suite of the job and that the submission does without.
    """

    repository: str
    given: tuple[PinnedTree, ...]
    trees: tuple[PinnedTree, ...]
    cells: tuple[expand.PlannedCell, ...]
    left_out: tuple[str, ...] = ()

    def output(self) -> PlanOutput:
        """The plan as a dry run shows it."""
        return PlanOutput(
            repository=self.repository,
            trees=[
                TreeOutput(name=tree.name, commit=tree.commit, probe_digest=tree.probe_digest, digest=tree.digest)
                for tree in self.trees
            ],
            cells=[
                PlannedCell(
                    name=cell.name,
                    tree=self.trees[cell.tree].name,
                    runtime=cell.runtime.id,
                    suite=cell.suite.name,
                    kind=cell.suite.kind,
                    selection=cell.suite.selection.title if cell.suite.selection else None,
                )
                for cell in self.cells
            ],
        )


Failed = Mapping[tuple[str, str], Sequence[str]]
"""Node ids that failed in another job, by runtime and suite."""


def plan(body: JobInput, mirror: Mirror, settings: Settings, failed: Failed | None = None) -> Plan:
    """The plan of a submission; ``failed`` are the cases of the job that it names as ``only_failed_of``.

    Raises:
        RefRefused, CommitUnreachable, MirrorFailed, ProbeRefused: a tree cannot be had.
        ConfigurationMissing, ConfigurationInvalid: a tree's ``replaybench.toml`` cannot be used.
        RuntimeInvalid, SuiteUnknown, PatternUnmatched, MatrixEmpty, MatrixTooLarge: the matrix is wrong.
        SelectionEmpty: nothing that failed is in the matrix.
    """
    runtimes = _runtimes(body)
    pinned = [_pin(tree, mirror, settings) for tree in body.trees]
    trees = tuple({(tree.commit, tree.probe_digest): tree for tree in pinned}.values())
    try:
        cells = expand.expand(
            [expand.PlannedTree(tree.name, tree.config) for tree in trees],
            runtimes=runtimes,
            suites=body.suites,
            include=body.include,
            exclude=body.exclude,
        )
    except expand.UnknownSuite as error:
        raise errors.SuiteUnknown(str(error)) from error
    except expand.TooManyCells as error:
        raise errors.MatrixTooLarge(str(error)) from error
    except expand.UnmatchedPattern as error:
        raise errors.PatternUnmatched(str(error)) from error
    except expand.UnfitRuntime as error:
        raise errors.RuntimeInvalid(str(error)) from error
    if not cells:
        raise errors.MatrixEmpty(
            "no cell is left: name runtimes and suites, declare them in replaybench.toml, or exclude less"
        )
    cells = selection.narrow(cells, selection.Wish(body.keyword, body.cases, failed))
    if not cells:
        raise errors.SelectionEmpty(
            f"only_failed_of {body.only_failed_of}: nothing that failed there is in a runtime and suite of this matrix"
        )
    if len(cells) * body.repeat > settings.cell_cap:
        raise errors.MatrixTooLarge(
            f"{len(cells) * body.repeat} cells, and a job may have {settings.cell_cap}; name fewer trees, runtimes or "
            "suites, or repeat less"
        )
    left_out = expand.left_out([tree.config for tree in trees], cells, runtimes)
    return Plan(body.repository, tuple(pinned), trees, tuple(selection.repeated(cells, body.repeat)), left_out)


def configuration(mirror: Mirror, commit: str) -> config.TreeConfig:
    """What a commit of the mirror declares.

    Raises:
        ConfigurationMissing, ConfigurationInvalid: its ``replaybench.toml`` cannot be used.
    """
    size = mirror.size(commit, config.FILE)
    if size is not None and size > config.MOST_BYTES:
        raise errors.ConfigurationInvalid(
            f"{config.FILE} of {commit[:12]} has {size} bytes, and {config.MOST_BYTES} are read; make it shorter"
        )
    content = mirror.read(commit, config.FILE)
    if content is None:
        raise errors.ConfigurationMissing(
            f"commit {commit[:12]} has no {config.FILE}; add one that declares its suites"
        )
    try:
        return config.parse(content)
    except config.ConfigError as error:
        raise errors.ConfigurationInvalid(f"{config.FILE} of {commit[:12]}: {error}") from error


def _runtimes(body: JobInput) -> list[RuntimeSpec] | None:
    if body.runtimes is None:
        return None
    try:
        return list(dict.fromkeys(RuntimeSpec.parse(text) for text in body.runtimes))
    except ValueError as error:
        raise errors.RuntimeInvalid(str(error)) from error


def _pin(tree: TreeInput, mirror: Mirror, settings: Settings) -> PinnedTree:
    if tree.probe is not None and len(tree.probe) > settings.probe_cap_bytes:
        raise errors.ProbeRefused(
            f"the probe has {len(tree.probe)} bytes, and {settings.probe_cap_bytes} are taken; make it smaller"
        )
    commit = mirror.resolve(tree.ref)
    # The configuration is the commit's own, never the probe's: a probe must not choose what proves it.
    declared = configuration(mirror, commit)
    probe_digest = hashlib.sha256(tree.probe).hexdigest() if tree.probe is not None else None
    return PinnedTree(commit, tree.probe, probe_digest, mirror.tree(commit, tree.probe), declared)
