"""What all tables share: names of constraints, types that mean the same on SQLite and Postgres."""

from __future__ import annotations

import datetime
import enum
from typing import Any

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Enum, Integer, MetaData, TypeDecorator
from sqlalchemy.orm import DeclarativeBase

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

# SQLite numbers rows by itself only where the key is spelled INTEGER; its INTEGER holds 64 bits all the same.
Key = BigInteger().with_variant(Integer, "sqlite")


class UTCDateTime(TypeDecorator[datetime.datetime]):
    """A moment in UTC. SQLite keeps no zone, so it is put back on the way out; naive values are refused."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime.datetime | None, dialect: Dialect) -> datetime.datetime | None:  # noqa: ARG002
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone; use service.clock.now()")
        return value.astimezone(datetime.UTC)

    def process_result_value(self, value: datetime.datetime | None, dialect: Dialect) -> datetime.datetime | None:  # noqa: ARG002
        return value.replace(tzinfo=datetime.UTC) if value is not None and value.tzinfo is None else value


def words(kind: type[enum.StrEnum]) -> Enum:
    """A column of an enumeration's values as text, so that a new word needs no change of the table's type."""
    return Enum(kind, native_enum=False, length=32, values_callable=lambda members: [m.value for m in members])


class Base(DeclarativeBase):
    """The base of every table."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {datetime.datetime: UTCDateTime, dict[str, Any]: JSON, list[Any]: JSON}  # noqa: RUF012
