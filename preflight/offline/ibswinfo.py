"""ibswinfo as somebody pasted it: the fans and power supplies of a switch that has no screen."""

from __future__ import annotations

import re
from typing import Final

from msgspec.structs import replace

from preflight.facts.switch_model import Switch, SwitchPart
from preflight.offline.captured import Captured, bare_facts
from preflight.offline.plain import plain

KIND: Final = "ibswinfo"
_ROW: Final = re.compile(r"^(\s*)(\S[^|]{0,60}?)\s*\|\s*(.*?)\s*$")
_RULE: Final = re.compile(r"^\s*[-=]{5,}\s*$")
_SUPPLY: Final = re.compile(r"^(PSU\s?\d+)\b", re.IGNORECASE)
_FAN: Final = re.compile(r"^(fan\s?#?\d+)\b", re.IGNORECASE)
_STATUS: Final = re.compile(r"status$|power$", re.IGNORECASE)
_OWN: Final = ("psid", "guid", "part number", "firmware version", "uptime (d-h:m:s)")
_EACH: Final = {
    "power supplies": re.compile(r"^PSU", re.IGNORECASE),
    "fans": re.compile(r"^fan", re.IGNORECASE),
    "temperature": re.compile(r"^temperature", re.IGNORECASE),
}


def read(text: str) -> Captured | None:
    """Read one switch; None for a text that is not of this tool."""
    lines = [line for line in plain(text).expandtabs().splitlines() if line.strip()]
    found = (_ROW.match(line) for line in lines)
    rows = [(one.group(1), one.group(2), one.group(3)) for one in found if one]
    keys = [key for _, key, _ in rows]
    known = sum(key.lower() in _OWN for key in keys)
    hardware = any(_SUPPLY.match(key) or _FAN.match(key) for key in keys)
    if not (known > 1 or (known and hardware)):
        return None
    damaged = next((f"it tells nothing of {w}" for w, p in _EACH.items() if not _any(p, keys)), "")
    if not damaged and not (_RULE.match(lines[-1]) and _FAN.match(keys[-1])):
        damaged = "it does not end as the tool does, with a line below its fans"
    facts = replace(bare_facts(), switches=(Switch(_name(rows), tuple(_parts(rows))),))
    return Captured(kind=KIND, facts=facts, checks=("ib.switch",), damaged=damaged)


def _parts(rows: list[tuple[str, str, str]]) -> list[SwitchPart]:
    """What has a status or turns; an indented row belongs to the supply above it."""
    supply, parts = "", []
    for indent, key, value in rows:
        own = _SUPPLY.match(key)
        supply = own.group(1) if own else supply if indent else ""
        name = f"{supply} {key}" if supply and not own else key
        if _FAN.match(key):
            rpm = int(value) if re.fullmatch(r"[0-9]{1,6}", value) else None
            status = "" if rpm is not None else value
            parts.append(SwitchPart(name.partition(" (")[0][:128], status[:128], rpm))
        elif _STATUS.search(key):
            parts.append(SwitchPart(name[:128], value[:128]))
    return parts


def _name(rows: list[tuple[str, str, str]]) -> str:
    words = {key.lower(): value for _, key, value in rows}
    told = words.get("node description") or words.get("guid") or words.get("serial number")
    return f"switch {told or 'without a name'}"[:128]


def _any(pattern: re.Pattern[str], keys: list[str]) -> bool:
    return any(pattern.match(key) for key in keys)
