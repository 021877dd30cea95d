"""Signs what is sent to a webhook, as the Standard Webhooks specification has it (version 1.0.0). Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Iterable

PREFIX = "whsec_"
LEAST, MOST = 24, 64
"""How many bytes a secret has, by the specification and by the block of SHA-256."""


def new_secret() -> str:
    """A random secret."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def key_of(secret: str) -> bytes:
    """The bytes of a secret.

    Raises:
        ValueError: it is no ``whsec_`` and base64 of 24 to 64 bytes. The text does not hold it.
    """
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if not secret.startswith(PREFIX) or not LEAST <= len(key) <= MOST:
        raise ValueError(f"a secret is {PREFIX} and the base64 of {LEAST} to {MOST} random bytes")
    return key


def headers(message: str, timestamp: int, body: bytes, signers: Iterable[str]) -> dict[str, str]:
    """The headers that prove a message, by every secret that counts."""
    signed = f"{message}.{timestamp}.".encode() + body
    signatures = [
        base64.b64encode(hmac.new(key_of(secret), signed, hashlib.sha256).digest()).decode() for secret in signers
    ]
    return {
        "webhook-id": message,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
