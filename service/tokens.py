"""The two tokens that are there from the first start: of people, and of workers. Mode 0600, in the data directory."""

from __future__ import annotations

import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from service.access.scopes import Scope

__all__ = ["FILES", "Scope", "Tokens", "ensure", "path"]

FILES = (Scope.SUBMIT, Scope.WORKER)
"""The scopes whose token lies in the data directory."""


def path(data_dir: Path, scope: Scope) -> Path:
    """The file that holds a scope's token."""
    return data_dir / "tokens" / scope


@dataclass(frozen=True)
class Tokens:
    """The service's tokens by file.

    ``people`` is what the submit token allows. Who can read its file owns the data directory, and so may do everything;
    one that the operator set in the environment was meant for people and CI, and submits and reads.
    """

    submit: str
    worker: str
    people: Scope = Scope.ADMIN

    def scope_of(self, token: str) -> Scope | None:
        """What a caller with this token may do; the comparison takes the same time for every wrong one."""
        found = None
        for scope, known in ((self.people, self.submit), (Scope.WORKER, self.worker)):
            if hmac.compare_digest(token.encode(), known.encode()):
                found = scope
        return found


def ensure(data_dir: Path, submit: str = "", worker: str = "") -> Tokens:
    """The tokens given, and for the others those of the data directory, made where they are missing.

    Raises:
        OSError: the directory cannot be written.
    """
    return Tokens(
        submit=submit or _ensure(path(data_dir, Scope.SUBMIT)),
        worker=worker or _ensure(path(data_dir, Scope.WORKER)),
        people=Scope.SUBMIT if submit else Scope.ADMIN,
    )


def _ensure(file: Path) -> str:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(f"rb_{secrets.token_urlsafe(32)}\n")
    try:
        os.link(draft, file)  # fails where another process was first, so that both see one token
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    return file.read_text().strip()
