"""`replaybench verify`: checks exported evidence, without the service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.options import Json, path

if TYPE_CHECKING:
    from service.client.evidence import Export

WRONG = 1
_File = Annotated[
    Path,
    typer.Argument(metavar="FILE", parser=path, help="What `replaybench export` wrote.", show_default=False),
]


def verify(file: _File, *, json: Json = False) -> None:
    """Check that what every row of an export says follows from its attempt and cases. Exits 1 where it does not.

    Needs no service. Who holds the file could have changed cases and digests together: compare the digests that are
    printed with those that were quoted elsewhere, or with the service's own (`replaybench table JOB --format json`).
    """
    from service.cli import output
    from service.words import number

    export = _read(file)
    rows = export.table.rows
    wrong = export.unproven() if rows else ["there is no row"]
    shown = [
        {"row": f"{row.tree} / {row.runtime} / {row.suite}", "result": row.result, "digest": row.digest} for row in rows
    ]
    told = [f"{row['digest'] or 'no digest'}  {row['row']}: {row['result']}" for row in shown]
    told += [f"WRONG {one}" for one in wrong]
    told.append(f"{number(len(rows), 'row')} checked, {number(len(wrong), 'fault')} found")
    output.show({"rows": shown, "wrong": wrong}, "\n".join(told), json=json)
    raise typer.Exit(WRONG if wrong else 0)


def _read(file: Path) -> Export:
    from pydantic import ValidationError

    from service.cli.errors import UserError
    from service.client.evidence import SCHEMA, Export

    try:
        found = Export.model_validate_json(file.read_bytes())
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        why = f"{place}: {first['msg']}"
        raise UserError(f"{file} is no export: {why}; make one with `replaybench export JOB`") from error
    if found.schema_version != SCHEMA:
        raise UserError(
            f"{file} has schema_version {found.schema_version}, and this release knows {SCHEMA}; check it with its own"
        )
    return found
