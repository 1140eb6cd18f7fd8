"""Other addresses in place of real ones, of which checks say the same: each one of its own class.

Two addresses share as many first bits as before (prefix-preserving, as Crypto-PAn of Xu, Fan, Ammar
and Moon, 2002), so subnets, gateways and GIDs that embed an address still agree.
The key is drawn anew for each use and kept nowhere.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_CLASSES = tuple(
    IPv6Network(each) if ":" in each else IPv4Network(each)
    for each in (
        *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16"),
        *("127.0.0.0/8", "224.0.0.0/4", "240.0.0.0/4"),
        *("fe80::/64", "fc00::/7", "ff00::/8", "2000::/3"),
    )
)
"""What a check may tell apart: the bits of its class stay. A link-local address has one subnet."""

_MAPPED = IPv6Network("::ffff:0:0/96")
_MAC = re.compile("[0-9a-f]{2}(:[0-9a-f]{2}){5,19}", re.IGNORECASE)
_GUID = re.compile("0x[0-9a-f]{16}|[0-9a-f]{4}(:[0-9a-f]{4}){3}", re.IGNORECASE)
_WHOLE_GROUPS = 8 * 5 - 1  # characters of an IPv6 address that leaves no zero out


_TRIES = 64


class Addresses:
    """Real address → the one that is shown, the same each time."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def other(self, text: str) -> str:
        """Another address, IP, MAC or GUID, written as this one is; "" for what is none."""
        if _MAC.fullmatch(text):
            return self._mac(bytes.fromhex(text.replace(":", ""))).hex(":")
        if _GUID.fullmatch(text):
            guid = bytes.fromhex(text.lower().removeprefix("0x").replace(":", ""))
            guid = self._mac(guid) if any(guid) else guid
            return guid.hex(":", 2) if ":" in text else f"0x{guid.hex()}"
        try:
            real = ip_address(text)
        except ValueError:
            return ""
        other = self._other(real)
        if isinstance(other, IPv4Address):
            return str(other)
        if real in _MAPPED and "." in text:
            return text[: text.rindex(":") + 1] + str(IPv4Address(int(other) & 0xFFFFFFFF))
        return other.exploded if len(text) == _WHOLE_GROUPS else str(other)

    def _mac(self, real: bytes) -> bytes:
        """As many bytes: locally administered, and multicast where this one is."""
        digest = hashlib.blake2b(real, key=self._key, digest_size=len(real)).digest()
        return bytes((2 | real[0] & 1, *digest[1:]))

    def _other(self, real: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
        if real in _MAPPED:
            low = self._other(IPv4Address(int(real) & 0xFFFFFFFF))
            return IPv6Address(int(_MAPPED.network_address) | int(low))
        own = _class_of(real)
        other = real
        for _ in range(_TRIES):
            other = self._scrambled(other, own)
            if other != real and _class_of(other) == own:
                return other
        return type(real)(int(real) ^ 1)  # of 16 bits one key in 65,536 flips none, ever

    def _scrambled(
        self, real: IPv4Address | IPv6Address, own: IPv4Network | IPv6Network | None
    ) -> IPv4Address | IPv6Address:
        """Flip each bit behind the class by what stands before it."""
        bits, value = real.max_prefixlen, int(real)
        flips = 0
        for place in range(own.prefixlen if own else 0, bits):
            before = f"{bits}/{place}/{value >> (bits - place)}".encode()
            flip = hashlib.blake2b(before, key=self._key, digest_size=1).digest()[0] & 1
            flips = flips << 1 | flip
        return type(real)(value ^ flips)


def _class_of(one: IPv4Address | IPv6Address) -> IPv4Network | IPv6Network | None:
    return next((each for each in _CLASSES if one in each), None)
