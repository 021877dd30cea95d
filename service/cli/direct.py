"""What the operator does to the database itself, past the service: the first admin token."""

from __future__ import annotations

from sqlalchemy.exc import OperationalError, ProgrammingError

from service.access import service
from service.access.schemas import NewToken, TokenInput
from service.access.scopes import Caller, Scope, granted
from service.audit import service as audit
from service.cli.connect import load_settings
from service.cli.errors import UserError
from service.database import Database

OPERATOR = Caller("operator", granted([Scope.ADMIN]), "operator", "database")


def make_token(asked: TokenInput) -> NewToken:
    """Makes a token in this machine's database.

    Raises:
        UserError: the database does not answer, or lacks the tables.
    """
    database = Database(load_settings().database)
    try:
        with database.write() as session:
            made = service.create(session, asked, OPERATOR.name)
            audit.note(session, OPERATOR, "token.create", f"token {made.id}", **service.told(made, asked))
    except (OperationalError, ProgrammingError) as error:
        raise UserError(f"{error.orig}; is DATABASE_URL right, and was `replaybench db upgrade` run?") from error
    finally:
        database.close()
    return made
