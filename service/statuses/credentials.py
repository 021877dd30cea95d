"""A forge's credential: kept in the database, or only named there and kept in the environment or in a file.

Who registers a repository chooses where its credential is sent. So what the operator keeps outside goes only to the
host that the operator says: for a variable in a setting, for a file by the folder that it lies in.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from service.outgoing.address import target
from service.settings import Settings, variable

ENV = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")
FILE = re.compile(r"file:([A-Za-z0-9][A-Za-z0-9._-]{0,99})")
TOKEN = re.compile(r"[!-~]{1,2000}")


class CredentialUnusable(ValueError):
    """There is no such credential, or it is not for this host. The text never holds the credential."""


def shown(credential: str) -> str:
    """What people see of it: where it is, or that it is stored."""
    return credential if ENV.fullmatch(credential) or FILE.fullmatch(credential) else "stored"


def check(credential: str, api_url: str, settings: Settings) -> None:
    """Looks whether a credential may go to this API; whether it is there is seen when it is needed.

    Raises:
        CredentialUnusable: it may not, or is none.
    """
    _reader(credential, api_url, settings)


def resolve(credential: str, api_url: str, settings: Settings) -> str:
    """The token itself.

    Raises:
        CredentialUnusable: it is not there, or not for this host.
    """
    token = _reader(credential, api_url, settings)().strip()
    if not TOKEN.fullmatch(token):
        raise CredentialUnusable(f"credential {shown(credential)} is empty or has characters that no token has")
    return token


def _reader(credential: str, api_url: str, settings: Settings) -> Callable[[], str]:
    host = target(api_url).host
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
    if credential.startswith(("env:", "file:")) or not TOKEN.fullmatch(credential):
        raise CredentialUnusable("credential is no token, no env:NAME and no file:NAME; give one of these")
    return lambda: credential


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CredentialUnusable(f"credential file:{file.name} cannot be read: {error}") from error
