"""The bodies of the repository endpoints."""

from __future__ import annotations

import datetime
from typing import Annotated

from pydantic import Field

from service.schemas import Input, Output
from service.statuses.schemas import ForgeInput, ForgeOutput


class RepositoryInput(Input):
    """Registers a git URL under a short name. ``forge`` says where its commits get their statuses, if anywhere."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,99}$", examples=["graphreplay"])]
    url: Annotated[str, Field(min_length=1, max_length=2000, examples=["https://git.example.org/team/graphreplay.git"])]
    forge: ForgeInput | None = None


class RepositoryRemoved(Output):
    """What became of a removed repository: ``jobs`` are kept, with their evidence."""

    name: str
    jobs: int


class RepositoryOutput(Output):
    """A registered repository."""

    id: int
    name: str
    url: str
    created_at: datetime.datetime
    forge: ForgeOutput | None = None
