"""A credential: kept in the database, or only named there and kept in the environment or in a file.

Who registers a repository chooses where its credential is sent. So what the operator keeps outside goes only to the
host that the operator says: for a variable in a setting, for a file by the folder that it lies in.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from service.settings import Settings, variable

ENV = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")
FILE = re.compile(r"file:([A-Za-z0-9][A-Za-z0-9._-]{0,99})")
TOKEN = re.compile(r"[!-~]{1,2000}")
SSH_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----\r?\n[\x20-\x7e\r\n]{1,19000}-----END [A-Z0-9 ]*PRIVATE KEY-----"
)


class CredentialUnusable(ValueError):
    """There is no such credential, or it is not for this host. The text never holds the credential."""


def shown(credential: str) -> str:
    """What people see of it: where it is, or that it is stored."""
    return credential if ENV.fullmatch(credential) or FILE.fullmatch(credential) else "stored"


def check(credential: str, host: str, settings: Settings, form: re.Pattern[str] = TOKEN) -> None:
    """Looks whether a credential may go to this host; whether it is there is seen when it is needed.

    Raises:
        CredentialUnusable: it may not, or is none.
    """
    _reader(credential, host, settings, form)


def resolve(credential: str, host: str, settings: Settings, form: re.Pattern[str] = TOKEN) -> str:
    """The credential itself, which has the form of a token or of an SSH key.

    Raises:
        CredentialUnusable: it is not there, or not for this host.
    """
    text = _reader(credential, host, settings, form)().strip()
    if not form.fullmatch(text):
        raise CredentialUnusable(f"credential {shown(credential)} is empty or not of the form that {_named(form)} has")
    return text


def _named(form: re.Pattern[str]) -> str:
    return "a token" if form is TOKEN else "a private SSH key"


def _reader(credential: str, host: str, settings: Settings, form: re.Pattern[str]) -> Callable[[], str]:
    if found := ENV.fullmatch(credential):
        name = found[1]
        allowed = [entry.rpartition("@") for entry in settings.credential_env.split(",")]
        if not any((name, host) == (one, other.lower()) for one, _, other in allowed):
            raise CredentialUnusable(
                f"credential env:{name} may not go to {host}; the operator allows it with {name}@{host} in "
                "REPLAYBENCH_CREDENTIAL_ENV"
            )
        return lambda: variable(name)
    if found := FILE.fullmatch(credential):
        file = Path(settings.data_dir) / "credentials" / host / found[1]
        return lambda: _read(file)
    if credential.startswith(("env:", "file:")) or not form.fullmatch(credential.strip()):
        raise CredentialUnusable(f"credential is not {_named(form)}, no env:NAME and no file:NAME; give one of these")
    return lambda: credential


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CredentialUnusable(f"credential file:{file.name} cannot be read: {_why(error)}") from error


def _why(error: OSError | UnicodeDecodeError) -> str:
    """Without the path, which is the operator's business."""
    return error.strerror or "" if isinstance(error, OSError) else "it is no text"
