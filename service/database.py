"""The database: one engine, transactions with one commit each, wake-ups after it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self
from weakref import WeakSet

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.orm import Session

from service.dispatch import outbox

ROOT = Path(__file__).parent.parent
BUSY_S = 30
CURSORS = "open cursors"


def _url(url: str) -> str:
    """Postgres URLs as operators write them, for the driver that is installed."""
    for prefix in ("postgres://", "postgresql://"):
        if url.startswith(prefix):
            return "postgresql+psycopg://" + url.removeprefix(prefix)
    return url


class Database:
    """An engine and the two kinds of transaction on it.

    SQLite lets one writer in at a time: a transaction that will write says so from its first statement (BEGIN
    IMMEDIATE) and waits its turn. One that starts as a reader and then writes can instead fail at once with "database
    is locked".
    """

    def __init__(self, url: str, send: Callable[[Sequence[str]], None] | None = None) -> None:
        self.url = _url(url)
        self.engine = _engine(self.url)
        self._writing = self.engine.execution_options(writing=True)
        self._send = send
        self._before_commit: Callable[[Session], None] | None = None

    @property
    def embedded(self) -> bool:
        """Whether it is SQLite, which nobody else looks after."""
        return self.engine.dialect.name == "sqlite"

    @contextlib.contextmanager
    def write(self) -> Iterator[Session]:
        """One transaction: committed at the end and its wake-ups sent, or rolled back and none sent."""
        with Session(self._writing, expire_on_commit=False) as session:
            with session.begin():
                yield session
                if self._before_commit is not None:
                    self._before_commit(session)
            wakes = outbox.take(session)
        if wakes and self._send is not None:
            self._send(wakes)

    @contextlib.contextmanager
    def read(self) -> Iterator[Session]:
        """One transaction that only reads."""
        with Session(self.engine, expire_on_commit=False) as session:
            yield session

    def before_commit(self, act: Callable[[Session], None]) -> Self:
        """The same database, whose writing transactions end with this act."""
        view = copy.copy(self)
        view._before_commit = act
        return view

    def answers(self) -> bool:
        """Whether the database can be read."""
        with self.read() as session:
            return bool(session.scalar(text("SELECT 1")) == 1)

    def close(self) -> None:
        """Closes the connections; one that a request still has, when it is given back."""
        event.listen(self.engine.pool, "checkin", _close_late)
        self.engine.dispose()


def _engine(url: str) -> Engine:
    """The engine. No error repeats a statement's values: errors are logged, and the values may be secrets."""
    if make_url(url).get_backend_name() != "sqlite":
        return create_engine(url, pool_pre_ping=True, pool_size=20, max_overflow=30, hide_parameters=True)
    file = make_url(url).database
    if file:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url, pool_size=20, max_overflow=30, connect_args={"timeout": BUSY_S}, hide_parameters=True)
    event.listen(engine, "connect", _sqlite_connect)
    event.listen(engine, "begin", _sqlite_begin)
    event.listen(engine, "after_cursor_execute", _sqlite_note)
    event.listen(engine, "checkin", _sqlite_checkin)
    return engine


def _close_late(_: Any, record: Any) -> None:
    record.invalidate()  # closes it; whoever still asks gets a new one


def _sqlite_connect(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves; Python would leave it out before some statements
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", f"busy_timeout={int(BUSY_S * 1000)}"):
        connection.execute(f"PRAGMA {pragma}")


def _sqlite_begin(connection: Connection) -> None:
    writing = connection.get_execution_options().get("writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _sqlite_note(connection: Connection, cursor: Any, *_: Any) -> None:
    connection.info.setdefault(CURSORS, WeakSet()).add(cursor)


def _sqlite_checkin(_: Any, record: Any) -> None:
    """Ends what is still being read when a connection is given back.

    Whoever fails between a statement and its last row keeps the cursor alive in the traceback. Its read would outlive
    the rollback, and whoever gets the connection next would begin to write behind an old read: SQLite refuses that at
    once, as "database is locked", without waiting.
    """
    for cursor in record.info.pop(CURSORS, ()):
        cursor.close()


def alembic_config(url: str) -> Config:
    """Alembic's configuration for a database, wherever the process was started."""
    config = Config()
    config.set_main_option("script_location", str(ROOT / "alembic"))
    config.set_main_option("path_separator", "os")
    config.attributes["url"] = _url(url)
    return config


def upgrade(url: str, revision: str = "head") -> None:
    """Brings a database's tables to a revision, by default the newest."""
    command.upgrade(alembic_config(url), revision)


def downgrade(url: str, revision: str) -> None:
    """Takes a database's tables back to a revision (``base``: no tables)."""
    command.downgrade(alembic_config(url), revision)
