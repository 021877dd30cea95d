"""Addresses that git may fetch from, and which of them a credential is for. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

_HOST = r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_][A-Za-z0-9_.-]*)"
_URL = re.compile(rf"(?P<scheme>https?|ssh|git)://(?:[^\s@/\\]+@)?{_HOST}(?::(?P<port>\d{{1,5}}))?(?P<path>/[^\s]*)?")
_SCP = re.compile(rf"(?:[A-Za-z0-9_.][A-Za-z0-9_.-]*@)?{_HOST}:(?P<path>[^\s:][^\s]*)")
_LOCAL = re.compile(r"(?:file://)?/.*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PORTS = {"http": 80, "https": 443, "ssh": 22, "git": 9418}


class AddressRefused(ValueError):
    """Not an address that git may fetch from. The text says why."""


@dataclass(frozen=True)
class Place:
    """Whom git speaks to. A credential for one place is sent to no other."""

    scheme: str
    host: str
    port: int


def check(url: str) -> Place | None:
    """Whom git speaks to at an address; nothing for one on this machine's own disk.

    Raises:
        AddressRefused: git could read it as an option, run a program for it, or be led elsewhere by it.
    """
    if _CONTROL.search(url):
        raise AddressRefused(f"address {url!r} has control characters")
    if _LOCAL.fullmatch(url):
        return None
    if match := _URL.fullmatch(url):
        if not (1 <= int(match["port"] or 1) < 1 << 16):
            raise AddressRefused(f"address {url!r} has no port that there is")
        return Place(match["scheme"], match["host"].lower(), int(match["port"] or _PORTS[match["scheme"]]))
    if "://" not in url and "::" not in url and (match := _SCP.fullmatch(url)):
        return Place("ssh", match["host"].lower(), _PORTS["ssh"])
    raise AddressRefused(
        f"address {url!r} is none that git may fetch from: give https://, ssh://, git://, user@host:path or a path"
    )


def resolve(parent: str, url: str) -> str:
    """A submodule's address; one that begins with a dot is looked for from its parent's.

    Raises:
        AddressRefused: it is none that git may fetch, leads above its parent's host, or is a local path although the
            parent is not: a repository from elsewhere must not reach into this machine's disk.
    """
    if url.startswith(("./", "../")) or url in (".", ".."):
        url = _joined(parent, url)
    if check(url) is None and check(parent) is not None:
        raise AddressRefused(f"submodule address {url!r} is a local path, but its parent {parent!r} is not")
    return url


def _joined(parent: str, url: str) -> str:
    if "://" in parent:
        parts = urlsplit(parent)
        head, path = f"{parts.scheme}://{parts.netloc}/", parts.path
    elif parent.startswith("/"):
        head, path = "/", parent
    else:
        head, colon, path = parent.partition(":")
        head += colon
        if path.startswith("/"):
            head += "/"
    steps = [step for step in path.split("/") if step]
    for step in url.split("/"):
        if step == ".." and not steps:
            raise AddressRefused(f"submodule address {url!r} leads above {parent!r}")
        if step == "..":
            steps.pop()
        elif step not in ("", "."):
            steps.append(step)
    return head + "/".join(steps)
