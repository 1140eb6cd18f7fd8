"""Addresses of a public capture: others, of which checks say the same."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.report.hide import Addresses

V4, V6 = st.ip_addresses(v=4), st.ip_addresses(v=6)
NETWORKS = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "fe80::/64")
NEAR = st.sampled_from(NETWORKS).flatmap(lambda network: st.ip_addresses(network=network))


def shared(one: IPv4Address | IPv6Address, other: IPv4Address | IPv6Address) -> int:
    """How many first bits two addresses have in common."""
    return one.max_prefixlen - (int(one) ^ int(other)).bit_length()


@given(st.tuples(NEAR, NEAR).filter(lambda two: two[0].version == two[1].version))
def test_subnets_stay_what_they_are(two: tuple[IPv4Address, IPv4Address]) -> None:
    """As many first bits in common as before; none is what it was, each is of its class."""
    addresses = Addresses()
    first, second = (ip_address(addresses.other(str(one))) for one in two)
    for real, other in zip(two, (first, second), strict=True):
        assert other != real
        assert (other.is_private, other.is_link_local) == (real.is_private, real.is_link_local)
    both = len({*two}) == 1 or shared(first, second) == shared(*two)
    # The rare address that would stay what it was is scrambled twice.
    assert both or shared(first, second) >= 7


def test_a_key_that_flips_no_bit_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """One key in 65,536 leaves an address of 169.254.0.0/16 as it is, however often it is asked."""
    monkeypatch.setattr(Addresses, "_scramble", lambda _, real, __: real)
    assert Addresses().other("169.254.0.6") == "169.254.0.7"


@given(V4 | V6)
def test_it_is_the_same_each_time_however_it_is_written(real: IPv4Address | IPv6Address) -> None:
    """Short or in full, and embedded in a GID of RoCE."""
    addresses = Addresses()
    other = addresses.other(str(real))
    assert addresses.other(real.exploded) == ip_address(other).exploded
    if isinstance(real, IPv4Address):
        assert addresses.other(f"::ffff:{real}") == f"::ffff:{other}"
        gid = IPv6Address(f"::ffff:{real}").exploded
        assert addresses.other(gid) == IPv6Address(f"::ffff:{other}").exploded


@pytest.mark.parametrize("text", ["", "address", "10.1.2", "gpu041", "1:2:3", "b8:59:9f:0c:11"])
def test_what_is_no_address_gets_none(text: str) -> None:
    """It is numbered, as names are."""
    assert Addresses().other(text) == ""


@given(st.binary(min_size=8, max_size=8).filter(any))
def test_a_guid_gets_another_guid(real: bytes) -> None:
    """The same in every way of writing; one that is not set stays so."""
    addresses = Addresses()
    colons = re.compile("[0-9a-f]{4}(:[0-9a-f]{4}){3}")
    other = addresses.other(real.hex(":", 2))
    assert colons.fullmatch(other)
    assert other != real.hex(":", 2)
    assert addresses.other(f"0x{real.hex()}") == f"0x{other.replace(':', '')}"
    assert addresses.other("0000:0000:0000:0000") == "0000:0000:0000:0000"


@given(st.binary(min_size=6, max_size=20))
def test_a_mac_gets_another_of_its_length(real: bytes) -> None:
    """Locally administered, so that it is nobody's; multicast stays multicast."""
    other = bytes.fromhex(Addresses().other(real.hex(":")).replace(":", ""))
    assert len(other) == len(real)
    assert other[0] & 3 == 2 | real[0] & 1
