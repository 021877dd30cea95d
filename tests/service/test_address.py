"""Which addresses are called, and which never."""

from __future__ import annotations

import ipaddress

import pytest

from service.outgoing import address, call
from service.outgoing.address import AddressRefused, Private, check, target
from tests.support import forge_server

NOBODY = Private()


@pytest.mark.parametrize(
    "spelled",
    [
        "127.0.0.1",
        "127.255.0.3",
        "0.0.0.0",  # noqa: S104 -- an address to refuse
        "10.0.0.1",
        "172.16.3.4",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fc00::1",
        "ff02::1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "::7f00:1",
        "::ffff:0:7f00:1",
        "64:ff9b:1::7f00:1",
        "fec0::1",
        "3fff::1",
        "5f00::1",
        "2001::7f00:1",
        "192.0.0.8",
        "192.88.99.1",
    ],
)
def test_a_private_address_is_refused_however_it_is_spelled(spelled: str) -> None:
    """Loopback, private, shared, link-local and multicast, also inside another address."""
    with pytest.raises(AddressRefused, match="not public; REPLAYBENCH_PRIVATE_TARGETS"):
        check(target("https://ci.example.org/"), [ipaddress.ip_address(spelled)], NOBODY)


def test_every_address_of_a_name_is_looked_at() -> None:
    """A public one does not vouch for a private one; a name without any is refused too."""
    for other in ("2606:2800:220:1:248:1893:25c8:1946", "::ffff:93.184.216.34", "64:ff9b::5db8:d822"):
        assert check(target("https://ci.example.org/"), [ipaddress.ip_address(other)], NOBODY)
    public, private = ipaddress.ip_address("93.184.216.34"), ipaddress.ip_address("10.0.0.1")
    wanted = target("https://ci.example.org/")
    assert check(wanted, [public], NOBODY) == [public]
    for addresses in ([public, private], [private, public], []):
        with pytest.raises(AddressRefused):
            check(wanted, addresses, NOBODY)


def test_private_targets_that_the_operator_names() -> None:
    """By the host's name or by networks; they may be called in plain text too, which nobody else is."""
    private = Private.parse("Git.Internal.example, 10.0.0.0/8,::1")
    inside = ipaddress.ip_address("192.168.1.1")
    assert check(target("http://git.internal.example/"), [inside], private) == [inside]
    for spelled in ("10.3.2.1", "::1"):
        assert check(target("http://other.example/"), [ipaddress.ip_address(spelled)], private)
    with pytest.raises(AddressRefused, match="not public"):
        check(target("https://other.example/"), [inside], private)
    with pytest.raises(AddressRefused, match="use https"):
        check(target("http://other.example/"), [ipaddress.ip_address("93.184.216.34")], private)


@pytest.mark.parametrize("text", ["10.0.0.0/33", "10.0.0.1/8", "a b", "https://x", "-x", "1.2.3"])
def test_a_setting_that_is_neither_hosts_nor_networks(text: str) -> None:
    """Is said to be so, with the entry."""
    with pytest.raises(ValueError, match="neither a host name nor a network"):
        Private.parse(text)


def test_a_name_is_looked_up_once() -> None:
    """The connection goes to the address that was looked at, and not to what a second look-up would give."""
    asked = []

    def resolve(host: str, port: int) -> list[address.Address]:
        asked.append((host, port))
        return [ipaddress.ip_address("127.0.0.1")]

    bounds = call.Bounds(Private.parse("rebound.example.org"), 5.0)
    with pytest.raises(call.Unanswered, match=r"no connection to rebound\.example\.org:1: "):
        call.post(call.Request("http://rebound.example.org:1/", {}, b""), bounds, resolve)
    assert asked == [("rebound.example.org", 1)]
    with pytest.raises(AddressRefused, match=r"127\.0\.0\.1, which is not public"):
        call.post(call.Request("https://rebound.example.org:1/", {}, b""), call.Bounds(NOBODY, 5.0), resolve)


def test_the_next_address_is_tried_where_one_does_not_answer() -> None:
    """As on a machine whose network has no IPv6."""
    with forge_server.serving(lambda _: forge_server.Reply(200, b"")) as server:
        port = int(server.url.rpartition(":")[2])
        both = [ipaddress.ip_address("127.0.0.2"), ipaddress.ip_address("127.0.0.1")]
        bounds = call.Bounds(Private.parse("127.0.0.0/8"), 10.0)
        request = call.Request(f"http://two.example.org:{port}/x", {}, b"body")
        assert call.post(request, bounds, lambda _host, _port: both).status == 200
        (sent,) = server.calls
        assert (sent.path, sent.headers["host"], sent.body) == ("/x", f"two.example.org:{port}", b"body")
        assert "authorization" not in sent.headers
