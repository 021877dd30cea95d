"""Which addresses this service calls: public ones, and of private ones those that a setting names. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

NAT64 = ipaddress.ip_network("64:ff9b::/96")
UNICAST = ipaddress.ip_network("2000::/3")
"""All of IPv6 that was ever given out for public hosts. What lies outside leads into some network's own translation."""
SPECIAL = tuple(ipaddress.ip_network(net) for net in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "3fff::/20"))
"""Of the registries of special-purpose addresses what not every Python knows to be no host's (RFC 6890, RFC 9637)."""
NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*\.?")
SETTING = "REPLAYBENCH_PRIVATE_TARGETS"


class AddressRefused(ValueError):
    """The address is not called. The text names it, why, and the setting that would allow it."""


@dataclass(frozen=True)
class Private:
    """The private hosts and networks that may be called nevertheless."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Private:
        """Those of a setting: host names and networks, with commas between.

        Raises:
            ValueError: an entry is neither.
        """
        hosts, networks = set(), []
        for entry in filter(None, (part.strip().lower() for part in text.split(","))):
            try:
                networks.append(ipaddress.ip_network(entry))
            except ValueError as error:
                if not NAME.fullmatch(entry) or re.fullmatch(r"[0-9./]+", entry):
                    raise ValueError(f"{entry!r} is neither a host name nor a network ({error})") from error
                hosts.add(entry)
        return cls(frozenset(hosts), tuple(networks))

    def names(self, host: str, address: Address) -> bool:
        """Whether a host or its address is among them."""
        return host.lower() in self.hosts or any(address in network for network in self.networks)


@dataclass(frozen=True)
class Target:
    """An http or https URL, taken apart."""

    scheme: str
    host: str
    port: int


def target(url: str) -> Target:
    """The parts of a URL that can be called.

    Raises:
        AddressRefused: it is no http or https URL of a host, or carries a user or password, which would be shown.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise AddressRefused(f"url {url!r} is not understood: {error}") from error
    if parts.scheme not in {"http", "https"} or not parts.hostname or re.search(r"[\s\\\x00-\x20\x7f]", url):
        raise AddressRefused(f"url {url!r} is refused; give http://HOST/… or https://HOST/…")
    if parts.username is not None or parts.password is not None:
        raise AddressRefused("the url holds a user or password, which readers of this service would see; leave it out")
    if literal(parts.hostname) is None and not NAME.fullmatch(parts.hostname):
        raise AddressRefused(f"url {url!r} is refused: {parts.hostname!r} is no host's name")
    if not url.isascii():
        raise AddressRefused(f"url {url!r} has characters that no URL has; percent-encode them")
    return Target(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80))


def literal(host: str) -> Address | None:
    """The address that a host is spelled as, or ``None`` if it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def check(wanted: Target, addresses: Iterable[Address], private: Private) -> list[Address]:
    """The addresses to connect to, if all may be called.

    All are looked at, since a name with one public and one private address would get past a look at the first.

    Raises:
        AddressRefused: one may not be called, or would be called in plain text.
    """
    found = list(addresses)
    for address in found:
        named = private.names(wanted.host, address)
        if not named and not _public(address):
            raise AddressRefused(
                f"{wanted.host} is {address}, which is not public; {SETTING} can name it as one that may be called"
            )
        if not named and wanted.scheme == "http":
            raise AddressRefused(
                f"http://{wanted.host} would carry secrets readable by everybody on the way; use https, or name the "
                f"host in {SETTING}"
            )
    if not found:
        raise AddressRefused(f"{wanted.host} has no address")
    return found


def check_literal(url: str, private: Private) -> None:
    """Looks at what a URL shows by itself; a name is looked up only when it is called.

    Raises:
        AddressRefused: it can never be called.
    """
    wanted = target(url)
    address = literal(wanted.host)
    if wanted.host.lower() in {"localhost", "localhost."} and address is None:
        address = ipaddress.ip_address("127.0.0.1")
    if address is not None:
        check(wanted, [address], private)


def _public(address: Address) -> bool:
    """Whether everybody can reach the address. One that carries another inside is as public as that."""
    inner = _carried(address)
    if inner is not None:
        return _public(inner)
    if isinstance(address, ipaddress.IPv6Address) and address not in UNICAST:
        return False
    return address.is_global and not address.is_multicast and not any(address in network for network in SPECIAL)


def _carried(address: Address) -> Address | None:
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour
