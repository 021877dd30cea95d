"""Where the service is, and with which token it is called."""

from __future__ import annotations

import os

from service import settings, tokens
from service.cli.errors import UserError
from service.client.client import Client, is_loopback
from service.up.lock import address


def load_settings() -> settings.Settings:
    """This process's settings.

    Raises:
        UserError: one does not fit.
    """
    try:
        return settings.load()
    except settings.SettingsError as error:
        raise UserError(str(error)) from error


def connect(url: str | None) -> Client:
    """A client of the service at ``url``, else of the one that noted its address in the data directory."""
    known = load_settings()
    where = url or address(known.data_dir) or known.url
    return Client(where, os.environ.get("REPLAYBENCH_TOKEN") or _local_token(known, where))


def _local_token(known: settings.Settings, url: str) -> str | None:
    """The token in the data directory. It goes to this machine's service only: another one has no business with it."""
    if not is_loopback(url):
        return None
    try:
        return tokens.path(known.data_dir, tokens.Scope.SUBMIT).read_text().strip()
    except OSError:
        return None
