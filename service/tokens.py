"""The two tokens: who may submit and read, and who may work. Made at first start, mode 0600, in the data directory."""

from __future__ import annotations

import enum
import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path


class Scope(enum.StrEnum):
    """What a token allows."""

    SUBMIT = "submit"
    WORKER = "worker"


def path(data_dir: Path, scope: Scope) -> Path:
    """The file that holds a scope's token."""
    return data_dir / "tokens" / scope


@dataclass(frozen=True)
class Tokens:
    """The service's tokens by scope."""

    submit: str
    worker: str

    def scope_of(self, token: str) -> Scope | None:
        """What a caller with this token may do; the comparison takes the same time for every wrong one."""
        found = None
        for scope, known in ((Scope.SUBMIT, self.submit), (Scope.WORKER, self.worker)):
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
