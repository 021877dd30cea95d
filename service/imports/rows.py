"""Makes the rows of an imported report's cases before anything of the database is held.

To encode hundreds of thousands of cases takes far longer than to store them, and SQLite lets one writer in at a time:
workers' leases and batches would wait for as long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import Dialect, Table, insert
from sqlalchemy.orm import Session

from service.imports.cases import Cases
from service.models import Case
from service.results.ingest import case_row

AT_ONCE = 5_000
ATTEMPT = "attempt_id"


@dataclass(frozen=True)
class Rows:
    """An insert as the database's driver takes it. ``values`` has what follows the attempt's number in each row, in
    the order of ``names``; ``positional`` says whether the driver goes by that order, or else by the names.
    """

    statement: str
    names: Sequence[str]
    positional: bool
    values: Sequence[tuple[Any, ...]]

    def store(self, session: Session, attempt_id: int) -> None:
        """Inserts them as an attempt's."""
        connection = session.connection()
        for start in range(0, len(self.values), AT_ONCE):
            part = self.values[start : start + AT_ONCE]
            if self.positional:
                connection.exec_driver_sql(self.statement, [(attempt_id, *row) for row in part])
            else:
                keys = (ATTEMPT, *self.names)
                named = [dict(zip(keys, (attempt_id, *row), strict=True)) for row in part]
                connection.exec_driver_sql(self.statement, named)


def rows_of(dialect: Dialect, found: Cases) -> Rows:
    """The rows of a report's cases, encoded for a database: those that a later run replaced, then those that count."""
    table = cast("Table", Case.__table__)
    columns = [column for column in table.columns if not column.primary_key]
    compiled = insert(table).compile(dialect=dialect, column_keys=[column.key for column in columns])
    encoders = {column.key: _encoder(dialect, column.type) for column in columns if column.key != ATTEMPT}
    values = [_encoded(encoders, {**case_row(0, case), "last": False}) for case in found.earlier]
    values += [_encoded(encoders, case_row(0, case)) for case in found.last]
    return Rows(str(compiled), tuple(encoders), dialect.positional, values)


def _encoder(dialect: Dialect, kind: Any) -> Callable[[Any], Any]:
    return kind.dialect_impl(dialect).bind_processor(dialect) or _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _encoded(encoders: Mapping[str, Callable[[Any], Any]], row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(encode(row[name]) for name, encode in encoders.items())
