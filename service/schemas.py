"""What every request and answer of the API shares."""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

T = TypeVar("T")

MOST_ID = 2**63 - 1
"""What the databases' widest integer holds."""

Id = Annotated[int, Field(ge=1, le=MOST_ID)]
"""The number of a job, cell, attempt or artifact in an address."""


class Input(BaseModel):
    """A request's body: an unknown key is an error, since a misspelt one would otherwise be lost in silence."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _storable(cls, value: Any) -> Any:
        for text in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(text, str) and "\0" in text:
                raise ValueError("no database stores the NUL character; leave it out")
        return value


class Output(BaseModel):
    """An answer's body."""

    model_config = ConfigDict(from_attributes=True, frozen=True)


class Page(Output, Generic[T]):
    """One page of a listing. ``next`` is the query to add for the following page (``after=…`` or ``before=…``).

    It is absent on the last.
    """

    items: list[T]
    next: str | None = None
