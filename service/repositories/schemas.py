"""The bodies of the repository endpoints."""

from __future__ import annotations

import datetime
from typing import Annotated

from pydantic import Field

from service.schemas import Input, Output
from service.states import CredentialKind
from service.statuses.schemas import ForgeInput, ForgeOutput


class RepositoryInput(Input):
    """Registers a git URL under a short name. ``forge`` says where its commits get their statuses, if anywhere."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,99}$", examples=["graphreplay"])]
    url: Annotated[str, Field(min_length=1, max_length=2000, examples=["https://git.example.org/team/graphreplay.git"])]
    forge: ForgeInput | None = None


class CredentialInput(Input):
    """What opens a private repository: a token for https addresses, a private SSH key for ssh ones.

    ``credential`` is it, or ``env:NAME`` or ``file:NAME`` for one that the service's operator keeps. It is never shown
    again. ``user`` goes with a token; most forges take any. ``known_hosts`` are the lines of OpenSSH's file by which
    the host is known (``ssh-keyscan HOST``); without them, service and workers look into their machines' own files.
    """

    kind: CredentialKind
    credential: Annotated[str, Field(min_length=1, max_length=20_000, examples=["env:GIT_TOKEN"], repr=False)]
    user: Annotated[str, Field(pattern=r"^[!-9;-~]{1,200}$", examples=["oauth2"])] = "x-access-token"
    known_hosts: Annotated[str, Field(max_length=20_000, pattern=r"^[\x20-\x7e\t\r\n]*$")] = ""


class CredentialOutput(Output):
    """A repository's credential. ``credential`` says where it is kept: ``stored``, ``env:NAME`` or ``file:NAME``.

    It is sent to ``host`` alone. ``known_hosts`` says whether the host's key came along.
    """

    kind: CredentialKind
    credential: str
    user: str
    host: str
    known_hosts: bool
    changed_at: datetime.datetime


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
    credential: CredentialOutput | None = None
