"""`replaybench import`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.options import Json, Url

_Report = Annotated[
    typer.FileBinaryRead,
    typer.Argument(metavar="REPORT", help="The JUnit XML file; - is standard input.", show_default=False),
]
_Commit = Annotated[
    str,
    typer.Option(help="The commit, branch or tag that was tested. HEAD is this checkout's.", show_default=False),
]
_Gpu = Annotated[
    list[str] | None,
    typer.Option(help="A GPU's model, like 'NVIDIA H200'; several are allowed.", show_default=False),
]


def import_report(
    report: _Report,
    *,
    repository: Annotated[str, typer.Option(help="A registered repository.", show_default=False)],
    commit: _Commit,
    runtime: Annotated[str, typer.Option(help="Like py3.11-torch2.9.1-cu129-pl2.6.6.", show_default=False)],
    suite: Annotated[str, typer.Option(help="The suite's name; the tree need not declare it.", show_default=False)],
    gpu: _Gpu = None,
    driver: Annotated[str | None, typer.Option(help="The GPU's driver.", show_default=False)] = None,
    label: Annotated[str | None, typer.Option(help="A name for people.", show_default=False)] = None,
    work_package: Annotated[
        str | None, typer.Option(help="The page of the engineering log, like WP-207.", show_default=False)
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Why it is imported.", show_default=False)] = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Import a JUnit report of a run elsewhere. Exits 0 if it passed, 1 if a test failed, 2 if it proves neither.

    A report that has fewer cases than its totals tell proves neither; skipped ones, and what pytest counts as subtests
    or Catch2 as assertions, need not be there. Times and totals that are none are told.

    What is imported is shown and tabled like other results, and everywhere said to be imported.
    """
    told = {"repository": repository, "commit": commit, "runtime": runtime, "suite": suite, "gpu": gpu or []}
    _send(report.read(), url, {**told, "driver": driver, "label": label, "work_package": work_package,
                               "reason": reason}, json=json)  # fmt: skip


def _send(report: bytes, url: str | None, told: dict[str, Any], *, json: bool) -> None:
    from service.cli import checkout, output, submission, watching
    from service.cli.connect import connect
    from service.imports.schemas import ImportInput

    if checkout.is_own(told["commit"]):
        told = {**told, "commit": checkout.read(Path.cwd()).resolve(told["commit"])}
    with output.refusing():
        about = ImportInput(**told, requested_by=submission.user())
    with connect(url) as client:
        job = client.import_report(report, about)
        raise typer.Exit(watching.conclude(client, job.id, json=json))
