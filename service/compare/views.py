"""What people see of a comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.compare import comparison, sides, trees
from service.compare.comparison import Change, Compared, Side
from service.compare.cursor import Cursor
from service.compare.schemas import (
    ComparedCase,
    ComparedTree,
    CompareOutput,
    ObservationOutput,
    PairOutput,
    PlaceOutput,
    SideOutput,
)
from service.compare.sides import Counting, Place
from service.errors import ComparisonIncomplete, NotFound
from service.matrix.expand import tree_name
from service.models import Case, Job, Repository, Tree
from service.repositories import service as repositories
from worker.messages import RuntimeSpec


@dataclass(frozen=True)
class Question:
    """What is to be compared. Trees are named; what is not named comes from the job."""

    repository: str | None = None
    base: str | None = None
    head: str | None = None
    job: int | None = None


@dataclass(frozen=True)
class Listing:
    """Which cases to list: those of one change, else all but those that pass as before."""

    change: Change | None = None
    after: Cursor | None = None
    limit: int = 200

    def wants(self, change: Change) -> bool:
        """Whether cases of a change are listed."""
        return change is self.change if self.change else change is not Change.STILL_PASSING


@dataclass(frozen=True)
class _Pair:
    place: Place
    base: Counting | None
    head: Counting | None
    output: PairOutput
    listed: list[Compared]


def compare(session: Session, question: Question, listing: Listing) -> CompareOutput:
    """Two trees over every runtime and suite that both were asked for.

    Raises:
        RepositoryUnknown, NotFound: there is no such repository or job.
        ComparisonIncomplete, TreeUnknown, TreeAmbiguous: the two trees are not told.
    """
    repository = repository_of(session, question)
    base, head = trees.pair(session, repository.id, question.job, question.base, question.head)
    before, after = (sides.places(session, tree.id, question.job) for tree in (base, head))
    counting = [sides.counting(session, tree.id, question.job) for tree in (base, head)]
    pairs = [
        _pair(session, place, (counting[0].get(place), counting[1].get(place)), listing)
        for place in sorted(before & after)  # the order of the cursor
    ]
    total = Counter[str]()
    for pair in pairs:
        total.update(pair.output.counts)
    listed = [(pair, case) for pair in pairs for case in pair.listed]
    page = listed[: listing.limit]
    last = page[-1] if len(listed) > listing.limit else None
    return CompareOutput(
        repository=repository.name,
        job=question.job,
        base=_tree(base),
        head=_tree(head),
        counts={change: total[change] for change in Change if total[change]},
        broke=any(pair.output.broke for pair in pairs),
        complete=bool(pairs) and all(pair.output.compared and not pair.output.lost for pair in pairs),
        pairs=[pair.output for pair in pairs],
        alone=[_place(place, "base" if place in before else "head") for place in sorted(before ^ after)],
        cases=_cases(session, page),
        next=Cursor(*last[0].place, *last[1].place).query if last else None,
    )


def repository_of(session: Session, question: Question) -> Repository:
    """The repository that is asked about.

    Raises:
        RepositoryUnknown, NotFound: there is no such repository or job, or they do not belong together.
        ComparisonIncomplete: neither is named.
    """
    if question.job is None:
        if question.repository is None:
            raise ComparisonIncomplete("repository is not named; name it, or a job of it")
        return repositories.find(session, question.repository, removed=True)
    statement = select(Repository).join(Job, Job.repository_id == Repository.id).where(Job.id == question.job)
    found = session.scalar(statement)
    if found is None:
        raise NotFound(f"there is no job {question.job}")
    if question.repository not in (None, found.name):
        raise NotFound(f"job {question.job} is not of repository {question.repository!r} but of {found.name!r}")
    return found


def _place(place: Place, side: Literal["base", "head"]) -> PlaceOutput:
    title = RuntimeSpec.parse(place[0]).full_title
    return PlaceOutput(runtime=place[0], runtime_title=title, suite=place[1], side=side)


def _pair(session: Session, place: Place, found: tuple[Counting | None, Counting | None], listing: Listing) -> _Pair:
    base, head = sides.side(session, found[0]), sides.side(session, found[1])
    cases = comparison.compare(base, head)
    counts = comparison.counts(cases)
    compared = base.ran and head.ran and base.key == head.key
    lost = sum(case.lost for case in cases) if compared else 0
    output = PairOutput(
        runtime=place[0],
        runtime_title=RuntimeSpec.parse(place[0]).full_title,
        suite=place[1],
        base=_side(found[0]),
        head=_side(found[1]),
        counts=dict(counts),
        broke=compared and bool(counts.get(Change.BROKEN) or comparison.stopped(base, head)),
        compared=compared,
        lost=lost,
        note=comparison.note(base, head, lost),
    )
    return _Pair(place, *found, output, _listed(place, cases, listing, base, head))


def _listed(place: Place, cases: Sequence[Compared], listing: Listing, base: Side, head: Side) -> list[Compared]:
    if not (base.ran and head.ran):
        return []  # a list of everything that one side has not run helps nobody; the pair's note says it
    after = listing.after
    return [
        case
        for case in cases
        if listing.wants(case.change) and (after is None or (*place, *case.place) > after.position)
    ]


def _cases(session: Session, page: Sequence[tuple[_Pair, Compared]]) -> list[ComparedCase]:
    ids = [seen.id for _, case in page for seen in (case.base, case.head) if seen]
    rows = {case.id: case for case in session.scalars(select(Case).where(Case.id.in_(ids)))}
    outputs = []
    for pair, case in page:
        one = rows[case.shown.id]
        outputs.append(
            ComparedCase(
                runtime=pair.place[0],
                suite=pair.place[1],
                node_id=one.node_id,
                occurrence=one.occurrence,
                change=case.change,
                base=_observation(rows[case.base.id]) if case.base else None,
                head=_observation(rows[case.head.id]) if case.head else None,
            )
        )
    return outputs


def _observation(case: Case) -> ObservationOutput:
    return ObservationOutput(
        case=case.id,
        attempt=case.attempt_id,
        outcome=case.outcome,
        failure_class=case.failure_class,
        message=case.message,
    )


def _side(found: Counting | None) -> SideOutput | None:
    if found is None:
        return None
    return SideOutput(
        job=found.job,
        cell=found.cell,
        attempt=found.attempt,
        verdict=found.verdict,
        comparison_key=found.key,
        selection=found.selection,
        origin=found.origin,
    )


def _tree(tree: Tree) -> ComparedTree:
    return ComparedTree(
        name=tree_name(tree.commit, tree.probe_digest), commit=tree.commit, probe_digest=tree.probe_digest
    )
