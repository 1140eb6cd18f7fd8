"""Replaces each secret name by a number, the same in fields, sentences and patterns.

`gpu041` becomes `node-41` in the exclude list, in sentences and inside a path. Secrets known only
by their form (addresses, UUIDs, home folders) are numbered as they appear.

Two addresses share as many leading bits as before (prefix-preserving, as in Crypto-PAn by Xu, Fan,
Ammar and Moon, 2002), so subnets, gateways and GIDs that embed an address still agree. The key is
random for each use and stored nowhere.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from preflight.core.text import TOKEN
from preflight.errors import UsageError
from preflight.fleet.nodeset import expand, fold
from preflight.report.secret_names import GROUPS, NAMING_FORMS, PLAIN_FORMS, Kind, short_name

_Trie = dict[str, "_Trie"]


def longest_of(words: Iterable[str]) -> str:
    """A pattern that matches the longest of these words; without words it matches nothing."""
    root: _Trie = {}
    for word in words:
        node = root
        for char in word:
            node = node.setdefault(char, {})
        if word:
            node[""] = {}
    return _pattern(root) if root else r"(?!)"


_DEEP = 40
"""The deepest chain of words that extend each other; beyond, any rest of a word matches."""


def _pattern(node: _Trie, depth: int = 0) -> str:
    """Longest first: the end of a word matches only where no longer word does."""
    if depth > _DEEP:
        return r"[\w.-]*"
    steps: list[str] = []
    for char, first_child in node.items():
        if not char:
            continue
        run, child = char, first_child
        while len(child) == 1 and "" not in child:
            ((next_char, child),) = child.items()
            run += next_char
        tail = "" if set(child) == {""} else _pattern(child, depth + 1)
        steps.append(re.escape(run) + tail)
    body = steps[0] if len(steps) == 1 else f"(?:{'|'.join(steps)})"
    return f"(?:{body})?" if "" in node else body


T = TypeVar("T")

_OWN_WORDS = frozenset(
    ("check", "outcome", "tier", "kind", "state", "turn", "slow", "phase", "backend", "also")
)
"""Fields that hold preflight's own words, which stay as they are."""

_OWN_AT_TOP = frozenset(("preflight", "run", "started"))
_FORMS = rf"""
  (?P<folded>(?<![A-Za-z0-9])[A-Za-z0-9][\w.-]{{0,252}}+(?:\[[0-9,-]+\][\w.-]*){{1,8}})
| {NAMING_FORMS}
| {PLAIN_FORMS}
"""
_LONGEST = 253
"""The longest name that is matched whole; a longer one takes the rest of its line with it."""
_LABELS = 64
_MOST_UNFOLDED = 1 << 19
"""The most names in all node sets of a document: 4,096 nodes in 128 different sets."""


class Hider:
    """Replaces secrets, and remembers each replacement so that it is the same everywhere."""

    def __init__(self, names: Mapping[str, Kind], addresses: Addresses | None = None) -> None:
        """`addresses`: replaces addresses by valid ones, which checks can still judge."""
        self._addresses = addresses
        self._known_names = tuple(names)
        self._stems: dict[Kind, str] = {}
        self._counts: dict[Kind, int] = {}
        self._numbered: dict[str, str] = {}
        self._texts: dict[str, str] = {}
        self._sets: dict[str, str] = {}
        self._unfolded_names = 0
        for name, kind in names.items():
            self._number(name, kind)
        self._number_short_names([name for name, kind in names.items() if kind in ("node", "host")])
        reasons = [name.lower() for name, kind in names.items() if kind == "reason"]
        # A short name without digits is part of many words: it is hidden only as a whole word.
        others = self._numbered.keys() - {*reasons}
        long = {name for name in others if len(name) > _LONGEST}
        loose = [name for name in others - long if len(name) > 3 and any(map(str.isdigit, name))]  # noqa: PLR2004
        whole_words = others.difference(long, loose)
        self._pattern = re.compile(
            f"(?:(?P<reason>{longest_of(reasons)})| {_FORMS}"
            f"| (?P<long>(?:{longest_of(name[:_LONGEST] for name in long)}).*)"
            f"| (?P<loose>(?:{longest_of(loose)})(?![0-9])(?:\\.[A-Za-z0-9-]+)*)"
            f"| (?<![A-Za-z0-9])(?P<known>(?:{longest_of(whole_words)})"
            f"(?![A-Za-z0-9])(?:\\.[A-Za-z0-9-]+)*)| (?P<token>(?-i:{TOKEN.pattern})))",
            re.VERBOSE | re.IGNORECASE,
        )

    def _number_short_names(self, names: Sequence[str]) -> None:
        """Give `gpu041` the number of `gpu041.corp.example`, unless several hosts share it."""
        host_counts = Counter(short_name(name).lower() for name in names)
        for name in names:
            short = short_name(name).lower()
            if short and host_counts[short] == 1:
                self._numbered.setdefault(short, self._numbered[name.lower()])
            elif short:
                self._number(short, "host")

    def words(self, text: str) -> str:
        """Replace the secrets in a text."""
        if text not in self._texts:
            self._texts[text] = self._pattern.sub(self._replace, text)
        return self._texts[text]

    def hide(self, value: T) -> T:
        """Replace the secrets in a value: in structures, lists, keys and strings."""
        hidden: Any = self._hidden(value)
        return hidden  # type: ignore[no-any-return]  # of the very type that went in

    def _hidden(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.words(value) if type(value) is str else value
        if isinstance(value, Struct):
            fields = {
                name: self._hidden(getattr(value, name))
                for name in value.__struct_fields__
                if name not in _OWN_WORDS and not (name in _OWN_AT_TOP and hasattr(value, "schema"))
            }
            return msgspec.structs.replace(value, **fields)
        if isinstance(value, dict):
            return {self._hidden(key): self._hidden(child) for key, child in value.items()}
        if isinstance(value, tuple | list | frozenset):
            return type(value)(self._hidden(child) for child in value)
        return value

    def _replace(self, match: re.Match[str]) -> str:
        # Groups inside of the alternative that matched come after it.
        kind = next(name for name, value in match.groupdict().items() if value is not None)
        text = match[0]
        if kind == "folded":
            if text not in self._sets:
                self._sets[text] = self._replace_set(text)
            return self._sets[text]
        if kind == "token":
            return "***"
        if kind in ("loose", "known"):
            return self._replacement(text) or self._number(text, "other")
        if kind in _HIDDEN_GROUP:
            return self._replace_form(kind, match)
        if kind in ("ip4", "ip6"):
            return self._replace_address(text)
        return self._number(text, _KIND_OF.get(kind, kind))

    def _replace_address(self, text: str) -> str:
        """Replace an address, or the parts of what only looks like one."""
        if _is_address(text):
            return self._number(text, "address")
        if _is_address(text[:-1]):  # "2001:4:112:::", with a colon that is the sentence's
            return self._number(text[:-1], "address") + text[-1]
        parts = text.split(":")  # "ab12:22:7": a host, and numbers
        return ":".join(map(self.words, parts)) if len(parts) > 1 else text

    def _replace_form(self, kind: str, match: re.Match[str]) -> str:
        group, stem = _HIDDEN_GROUP[kind]
        name = match[group]
        if kind == "mail":
            return f"{self._number(name, stem)}@{self._host(match['mail_host'])}"
        hidden = self._host(name) if stem == "host" else self._number(name, stem)
        return match[0].removesuffix(name) + hidden

    def _host(self, name: str) -> str:
        """Replace a host's name; one outside the fleet gets a number of its own."""
        return self._replacement(name) or self._number(name, "host")

    def _replacement(self, name: str) -> str | None:
        """The replacement of a known name, with or without its domain; None if it is not known."""
        lower = name.lower()
        parts = lower.split(".", _LABELS)
        shorter = (".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1))
        numbered = self._numbered
        return next((numbered[key] for key in (lower, *shorter) if key in numbered), None)

    def _replace_set(self, folded: str) -> str:
        """Replace each name of a node set, and fold the replacements."""
        if self._unfolded_names > _MOST_UNFOLDED:
            return self._number(folded, "host")
        try:
            names = expand(folded)
        except UsageError:
            names = ()
        self._unfolded_names += len(names)
        if not any(map(self._replacement, names)):  # it only looks like a node set
            return "[".join(map(self.words, folded.split("[", 1)))
        return fold(self._replacement(name) or self._number(name, "host") for name in names)

    def _number(self, name: str, kind: Kind) -> str:
        lower = name.lower()
        if lower not in self._numbered and kind in _VALID and self._addresses is not None:
            self._numbered.update({lower: fake} if (fake := self._addresses.other(lower)) else {})
        if lower not in self._numbered:
            if kind not in self._stems:
                # No real name may look like a numbered one.
                same_form = re.compile(rf"{kind}-\d+", re.IGNORECASE)
                is_taken = any(map(same_form.fullmatch, self._known_names))
                self._stems[kind] = f"some-{kind}" if is_taken else kind
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._numbered[lower] = f"{self._stems[kind]}-{self._counts[kind]}"
        return self._numbered[lower]


_KIND_OF = {"mac": "address", "long": "other"}
_HIDDEN_GROUP = {
    name.partition("_")[0]: (name, kind) for name, kind in GROUPS.items() if name != "mail_host"
}
"""By form, the group that is hidden, and its kind."""

_VALID = ("address", "guid")
"""Kinds that can be replaced by a valid address."""


def _is_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified)


_CLASSES = tuple(
    IPv6Network(network) if ":" in network else IPv4Network(network)
    for network in (
        *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16"),
        *("127.0.0.0/8", "224.0.0.0/4", "240.0.0.0/4"),
        *("fe80::/64", "fc00::/7", "ff00::/8", "2000::/3"),
    )
)
"""Address classes that checks distinguish: their bits stay. Link-local addresses share a subnet."""

_MAPPED = IPv6Network("::ffff:0:0/96")
_MAC = re.compile("[0-9a-f]{2}(:[0-9a-f]{2}){5,19}", re.IGNORECASE)
_GUID = re.compile("0x[0-9a-f]{16}|[0-9a-f]{4}(:[0-9a-f]{4}){3}", re.IGNORECASE)
_FULL_LENGTH = 8 * 5 - 1  # characters of an IPv6 address that leaves no zero out


_TRIES = 64


class Addresses:
    """Maps a real address to the one that is shown, the same each time."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def other(self, text: str) -> str:
        """Another IP, MAC or GUID, written in the same form; "" if `text` is not an address."""
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
        other = self._replace(real)
        if isinstance(other, IPv4Address):
            return str(other)
        if real in _MAPPED and "." in text:
            return text[: text.rindex(":") + 1] + str(IPv4Address(int(other) & 0xFFFFFFFF))
        return other.exploded if len(text) == _FULL_LENGTH else str(other)

    def _mac(self, real: bytes) -> bytes:
        """As many bytes, locally administered, and multicast if this one is."""
        digest = hashlib.blake2b(real, key=self._key, digest_size=len(real)).digest()
        return bytes((2 | real[0] & 1, *digest[1:]))

    def _replace(self, real: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
        if real in _MAPPED:
            low_bits = self._replace(IPv4Address(int(real) & 0xFFFFFFFF))
            return IPv6Address(int(_MAPPED.network_address) | int(low_bits))
        address_class = _address_class(real)
        address = real
        for _ in range(_TRIES):
            address = self._scramble(address, address_class)
            if address != real and _address_class(address) == address_class:
                return address
        return type(real)(int(real) ^ 1)  # for 16 bits, one key in 65,536 never flips any

    def _scramble(
        self, real: IPv4Address | IPv6Address, address_class: IPv4Network | IPv6Network | None
    ) -> IPv4Address | IPv6Address:
        """Flip each bit after the class by a keyed hash of the bits before it."""
        bits, value = real.max_prefixlen, int(real)
        flips = 0
        for bit in range(address_class.prefixlen if address_class else 0, bits):
            prefix = f"{bits}/{bit}/{value >> (bits - bit)}".encode()
            flip = hashlib.blake2b(prefix, key=self._key, digest_size=1).digest()[0] & 1
            flips = flips << 1 | flip
        return type(real)(value ^ flips)


def _address_class(address: IPv4Address | IPv6Address) -> IPv4Network | IPv6Network | None:
    return next((network for network in _CLASSES if address in network), None)
