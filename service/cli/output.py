"""All that the commands print. What comes from tested code is cleaned: it may hold a terminal's control characters."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence

import typer
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from rich.console import Console, RenderableType
from rich.text import Text

from service.cli import wording
from service.cli.errors import UserError
from service.client.errors import InputError, ProblemError

WIDE = 240
# Controls but tab and newline, and what hides or reorders the text around it.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")


def clean(text: str) -> str:
    """A text without control characters: it cannot move the cursor, start an escape sequence or reorder a line."""
    return _CONTROL.sub("�", text)


def clean_json(text: str) -> str:
    """The same JSON, its control characters spelled as escapes."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


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


def show(
    value: BaseModel | Sequence[BaseModel] | Mapping[str, object], readable: RenderableType, *, json: bool
) -> None:
    """Prints a result, for a program or for a person."""
    if json:
        typer.echo(clean_json(to_json(value, indent=2).decode()))
    elif isinstance(readable, str):
        typer.echo(clean(readable))
    else:
        console().print(readable)


def say(text: str) -> None:
    """Prints a sentence."""
    typer.echo(clean(text))


@contextlib.contextmanager
def refusing(**names: str) -> Iterator[None]:
    """Says in a sentence what of the arguments no request can be made of, or the service does not understand.

    ``names`` is how a command calls fields of the API that other commands call otherwise: ``url="TARGET-URL"``.

    Raises:
        UserError: one does not fit. Its value is shown, unless it is a secret.
    """
    try:
        yield
    except ValidationError as error:
        raise UserError(wording.complaints(error.errors(), names)) from error
    except InputError as error:
        raise UserError(wording.complaints(error.problems, names)) from error
    except ProblemError as error:
        if not error.problems:
            raise
        raise UserError(f"{wording.refusals(error.problems, names)} ({error.status} {error.code})") from error


def text(value: object, style: str = "") -> Text:
    """A cell of a table, in which brackets are brackets and not markup."""
    return Text(line(str(value)) if value is not None else "", style=style)
