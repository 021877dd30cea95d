"""What an imported report belongs to."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from service.jobs.schemas import Label, Reason, RepositoryName, RequestedBy, RuntimeName, WorkPackage
from service.schemas import Input


class ImportInput(Input):
    """What a report belongs to, as its sender says; nobody asserted it. ``commit`` is a SHA, branch or tag, pinned to
    its SHA; ``runtime`` is a runtime's id; ``suite`` need not be declared by the tree; ``gpu`` names the models.
    """

    repository: RepositoryName
    commit: Annotated[str, Field(min_length=1, max_length=250, examples=["main"])]
    runtime: RuntimeName
    suite: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$", examples=["gate"])]
    gpu: Annotated[list[Annotated[str, Field(min_length=1, max_length=100)]], Field(max_length=64)] = []  # noqa: RUF012
    driver: Annotated[str, Field(max_length=100)] | None = None
    label: Label | None = None
    work_package: WorkPackage | None = None
    requested_by: RequestedBy | None = None
    reason: Reason | None = None
