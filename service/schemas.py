"""What every request and answer of the API shares."""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

T = TypeVar("T")


class Input(BaseModel):
    """A request's body: an unknown key is an error, since a misspelt one would otherwise be lost in silence."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Output(BaseModel):
    """An answer's body."""

    model_config = ConfigDict(from_attributes=True, frozen=True)


class Page(Output, Generic[T]):
    """One page of a listing. ``next`` is the query to add for the following page (``after=…`` or ``before=…``).

    It is absent on the last.
    """

    items: list[T]
    next: str | None = None
