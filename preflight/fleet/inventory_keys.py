"""What an inventory's reader refuses, in words that name the table, the key and the nearest one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from preflight.errors import UsageError
from preflight.fleet.inventory_tables import FileTable, GroupTable, JobTable, Layer, NodeTable
from preflight.fleet.own_numbers import BaselineTable
from preflight.fleet.waivers import CheckTable, WaiveTable
from preflight.fleet.words import did_you_mean

if TYPE_CHECKING:
    from msgspec import Struct

_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "a table",
    "array": "a list",
    "null": "nothing",
}


def plainly(reason: str) -> str:
    """Say a schema's complaint in words: "expected a whole number, got text, at job.port"."""

    def words(match: re.Match[str]) -> str:
        named = [_WORDS.get(word, word) for word in match[1].split(" | ")]
        # That a key may be left out is nobody's question.
        return " or ".join(word for word in named if word != "nothing" or len(named) == 1)

    said, _, place = reason.partition(" - at `")
    said = re.sub(r" matching regex .*", " without blanks, signs or a leading dash", said)
    said = re.sub(r"`([a-z |]+)`", words, said).replace("`", "'")
    place = place.rstrip("`").removeprefix("$").removeprefix(".") or "the top of the file"
    return f"{said[:1].lower()}{said[1:]}, at {place}"


def refuse_unknown_keys(content: Any) -> None:
    """Name an unknown key by its table and the nearest known one, which msgspec does not do."""
    if not isinstance(content, dict):
        raise UsageError('holds no tables: write [group.NAME] with nodes = "gpu[001-064]"')
    _refuse_others(content, FileTable, "the file")
    tables: tuple[tuple[str, type[Struct]], ...] = (("defaults", Layer), ("job", JobTable))
    for table, kind in tables:
        if isinstance(content.get(table), dict):
            _refuse_others(content[table], kind, f"[{table}]")
    for table, kind in (("group", GroupTable), ("node", NodeTable)):
        named = content.get(table)
        for name, keys in named.items() if isinstance(named, dict) else ():
            if isinstance(keys, dict):
                _refuse_others(keys, kind, f"[{table}.{name}]")
    waived = content.get("waive")
    for keys in waived if isinstance(waived, list) else ():
        if isinstance(keys, dict):
            _refuse_others(keys, WaiveTable, "[[waive]]")
    _refuse_nested(content)


def _refuse_nested(content: dict[Any, Any]) -> None:
    """The same one level below: tables of checks and of learned baselines."""
    named: list[tuple[str, Any]] = [("", content), ("defaults.", content.get("defaults"))]
    for table in ("group", "node"):
        below = content.get(table)
        if isinstance(below, dict):
            named += [(f"{table}.{name}.", keys) for name, keys in below.items()]
    kinds: tuple[tuple[str, type[Struct]], ...] = (
        ("checks", CheckTable),
        ("baselines", BaselineTable),
    )
    for where, keys in named:
        for key, kind in kinds:
            tables = keys.get(key) if isinstance(keys, dict) else None
            for name, inner in tables.items() if isinstance(tables, dict) else ():
                if isinstance(inner, dict):
                    _refuse_others(inner, kind, f'[{where}{key}."{name}"]')


def _refuse_others(keys: dict[Any, Any], kind: type[Struct], where: str) -> None:
    for key in keys:
        if key not in kind.__struct_fields__:
            hint = did_you_mean(str(key), kind.__struct_fields__)
            raise UsageError(f"unknown key {str(key)!a} in {where}{hint}")
