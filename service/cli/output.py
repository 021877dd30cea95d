"""All that the commands print. What comes from tested code is cleaned: it may hold a terminal's control characters."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

import typer
from pydantic import BaseModel, TypeAdapter
from rich.console import Console, RenderableType
from rich.text import Text

WIDE = 240
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def clean(text: str) -> str:
    """A text without control characters, so that it can neither move the cursor nor start an escape sequence."""
    return _CONTROL.sub("�", text)


def line(text: str) -> str:
    """A text in one line."""
    return clean(" ".join(text.split()))


def console() -> Console:
    """Standard output; a pipe gets wide lines, not those of an imagined terminal."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=WIDE)


def note(text: str) -> None:
    """Tells something beside the result, on standard error."""
    typer.echo(f"note: {clean(text)}", err=True)


def show(value: BaseModel | Sequence[BaseModel], readable: RenderableType, *, json: bool) -> None:
    """Prints a result, for a program or for a person."""
    if json:
        typer.echo(value.model_dump_json(indent=2) if isinstance(value, BaseModel) else _list(value))
    elif isinstance(readable, str):
        typer.echo(clean(readable))
    else:
        console().print(readable)


def _list(values: Sequence[BaseModel]) -> str:
    return TypeAdapter(list[BaseModel]).dump_json(list(values), indent=2, serialize_as_any=True).decode()


def text(value: object, style: str = "") -> Text:
    """A cell of a table, in which brackets are brackets and not markup."""
    return Text(line(str(value)) if value is not None else "", style=style)
