"""Secrets that are known by their form, whatever they are called: a home folder, an address."""

from __future__ import annotations

import re
from typing import Final

_HEX = "[0-9a-fA-F]"

NAMING: Final = r"""
  (?P<mail>(?P<mail_user>[\w.+-]{1,64})@(?P<mail_host>[A-Za-z0-9](?:[\w.-]*\w)?))
| (?P<home>/(?:home|Users)/(?P<home_user>[^/\s"',;:)]+))
| (?P<serial>\b(?:serial|s/n)(?:\ (?:number|no\.?))?[\ :=\#]++
    (?P<serial_no>(?=\S{0,100}\d)[A-Za-z0-9-]{4,}))
| (?P<user>\buser(?:name)?[\ :=]+
    (?P<user_name>(?!root\b|guide\b)[a-z_][\w.-]*[\w-](?=[,;)]|$)(?<!-)))
| (?P<server>\b(?P<server_host>[A-Za-z][\w.-]{1,253})(?=:/[A-Za-z]))
| (?P<jump>\bjump\ host\ (?P<jump_host>[A-Za-z0-9](?:[\w.-]*\w)?)(?=$|\ is\ in\ the\ way))
"""
"""Who is named in them is hidden where he stands alone as well."""

PLAIN: Final = rf"""
  (?P<uuid>(?:GPU-|MIG-)?{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}})
| (?P<guid>0x{_HEX}{{16}}\b | \b{_HEX}{{4}}(?::{_HEX}{{4}}){{3}}\b(?!:))
| (?P<mac>\b{_HEX}{{2}}(?::{_HEX}{{2}}){{5,19}}\b)
| (?P<ip6>(?<!\w)(?:{_HEX}{{0,4}}:){{2,8}}(?:\d{{1,3}}(?:\.\d{{1,3}}){{3}}|{_HEX}{{1,4}}|(?<=::))
    (?!\w|:[\w:]))
| (?P<ip4>(?<![\w.])\d{{1,3}}(?:\.\d{{1,3}}){{3}}(?![\w]))
"""

_NAMED: Final = {
    "mail_user": "user",
    "mail_host": "host",
    "home_user": "user",
    "serial_no": "serial",
    "user_name": "user",
    "server_host": "host",
    "jump_host": "host",
}
_NAMING = re.compile(NAMING, re.VERBOSE | re.IGNORECASE)


def named_in(text: str) -> list[tuple[str, str]]:
    """Who is named in a sentence, and what he is: ("alice", "user")."""
    return [
        (said, _NAMED[name])
        for match in _NAMING.finditer(text)
        for name, said in match.groupdict().items()
        if said and name in _NAMED
    ]
