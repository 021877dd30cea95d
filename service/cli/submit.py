"""`replaybench submit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.options import Json, Url, path

if TYPE_CHECKING:
    from service.cli.submission import Request

_Many = list[str]
_Trees = Annotated[
    _Many | None,
    typer.Option(
        help="A commit, branch or tag; several are allowed. Default: this checkout's HEAD.", show_default=False
    ),
]
_Probes = Annotated[
    list[Path] | None,
    typer.Option(help="A patch to put on each tree; several are allowed.", show_default=False, parser=path),
]
_Runtimes = Annotated[
    _Many | None,
    typer.Option(help="Like py3.11-torch2.9.1-cu129-pl2.6.6. Default: the tree's.", show_default=False),
]
_Dirty = Annotated[
    bool,
    typer.Option(
        "--dirty", help="This checkout as it stands, untracked files too, as a probe on HEAD; nothing is touched."
    ),
]
_Baseline = Annotated[
    str | None, typer.Option(help="A commit, branch or tag to compare with: one tree more.", show_default=False)
]
_Cases = Annotated[
    _Many | None,
    typer.Option(help="Only this node id, or the file or class above; several are allowed.", show_default=False),
]
_OnlyFailed = Annotated[
    int | None,
    typer.Option(help="Only what failed in this job, per runtime and suite.", min=1, show_default=False),
]
_Repository = Annotated[
    str | None,
    typer.Option(help="A registered repository. Default: the one that this checkout belongs to.", show_default=False),
]


def submit(
    *,
    repository: _Repository = None,
    tree: _Trees = None,
    probe: _Probes = None,
    with_plain: Annotated[bool, typer.Option("--with-plain", help="Each tree without a probe, too.")] = False,
    dirty: _Dirty = False,
    baseline: _Baseline = None,
    runtime: _Runtimes = None,
    suite: Annotated[_Many | None, typer.Option(help="Default: the tree's suites.", show_default=False)] = None,
    include: Annotated[
        _Many | None, typer.Option(help="Only cells whose name fits, like '*/py3.11-*/gate'.", show_default=False)
    ] = None,
    exclude: Annotated[_Many | None, typer.Option(help="No cells whose name fits.", show_default=False)] = None,
    keyword: Annotated[str, typer.Option("-k", metavar="EXPR", help="Only cases that fit, as pytest's -k.")] = "",
    case: _Cases = None,
    only_failed_of: _OnlyFailed = None,
    repeat: Annotated[int, typer.Option(help="Run each cell so many times, each with a result of its own.", min=1)] = 1,
    priority: Annotated[int, typer.Option(help="Higher goes first: -100 to 100.")] = 0,
    label: Annotated[str | None, typer.Option(help="A name for people.", show_default=False)] = None,
    work_package: Annotated[
        str | None, typer.Option(help="The page of the engineering log, like WP-207.", show_default=False)
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Why it is asked for.", show_default=False)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the cells, and store nothing.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it to its end, as `watch` does.")] = False,
    json: Json = False,
    url: Url = None,
) -> None:
    """Submit a commit and a matrix. What is left out comes from the tree's replaybench.toml."""
    from service.cli.submission import Request

    request = Request(
        repository=repository,
        trees=tree or [],
        probes=probe or [],
        with_plain=with_plain,
        runtimes=runtime or [],
        suites=suite or [],
        include=include or [],
        exclude=exclude or [],
        priority=priority,
        label=label,
        work_package=work_package,
        reason=reason,
        dirty=dirty,
        baseline=baseline,
        keyword=keyword,
        cases=case or [],
        only_failed_of=only_failed_of,
        repeat=repeat,
    )
    _send(request, url, dry_run=dry_run, watch=watch, json=json)


def _send(request: Request, url: str | None, *, dry_run: bool, watch: bool, json: bool) -> None:
    from service.cli import output, watching
    from service.cli.connect import connect
    from service.cli.render import plan_table
    from service.cli.submission import make_job
    from service.words import number

    with connect(url) as client:
        job = make_job(request, client, Path.cwd(), output.note)
        if dry_run:
            plan = client.plan(job)
            output.show(plan, plan_table(plan), json=json)
            return
        made = client.submit(job)
        if watch:
            output.note(f"job {made.id}: {client.page(made.url)}")
            raise typer.Exit(watching.follow(client, made.id, json=json))
        output.show(
            made, f"job {made.id}: {number(sum(made.cells.values()), 'cell')}, {client.page(made.url)}", json=json
        )
