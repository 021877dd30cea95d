"""The options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def path(text: str) -> Path:
    """A path that was typed. Nothing typed is none: ``Path("")`` would be the current directory."""
    if not text:
        raise typer.BadParameter("'' names no file or directory; name one, or leave this out")
    return Path(text)


Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="REPLAYBENCH_URL",
        help="The service's address. Without it: the one that `replaybench up` noted in the data directory.",
        show_default=False,
    ),
]
Limit = Annotated[int, typer.Option(help="How many, the latest first.", min=1, max=500)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JobId = Annotated[int, typer.Argument(metavar="JOB", help="The job's number.", min=1, show_default=False)]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        parser=path,
        envvar="REPLAYBENCH_DATA_DIR",
        help="Where database, tokens and logs are. Default: replaybench in the user's data directory.",
        show_default=False,
    ),
]
