"""The bodies of the forge and status endpoints."""

from __future__ import annotations

import datetime
from typing import Annotated

from pydantic import Field

from service.forges import Forge
from service.schemas import Input, Output
from service.states import CommitState, SendState

Project = Annotated[str, Field(max_length=400, pattern=r"^[\w.-]+(/[\w.-]+)+$", examples=["team/graphreplay"])]


class ForgeInput(Input):
    """Where a repository's commits get their statuses.

    What is left out follows from the repository's git URL. ``credential`` is a token that may write statuses, or
    ``env:NAME`` or ``file:NAME`` for one that the service's operator keeps. It is never shown again.
    """

    forge: Forge
    api_url: Annotated[str, Field(max_length=2000, examples=["https://git.example.org/api/v1"])] | None = None
    project: Project | None = None
    credential: Annotated[str, Field(min_length=1, max_length=2000, examples=["env:GITEA_TOKEN"], repr=False)]


class ForgeOutput(Output):
    """A repository's forge. ``credential`` says where the token is kept: ``stored``, ``env:NAME`` or ``file:NAME``."""

    forge: Forge
    api_url: str
    project: str
    credential: str


class StatusOutput(Output):
    """What a forge is to show for a commit under a context, and what became of telling it.

    ``detail`` says how the last try ended; ``next_try_at`` is set while it waits.
    """

    id: int
    repository: str
    commit: str
    context: str
    job: int
    wanted: CommitState
    text: str
    state: SendState
    tries: int
    posts: int
    status: int | None
    detail: str
    changed_at: datetime.datetime
    sent_at: datetime.datetime | None
    next_try_at: datetime.datetime | None
