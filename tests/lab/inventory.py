"""The lab as an inventory file, so that preflight meets it as it meets any fleet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeAlias

Tables: TypeAlias = Mapping[str, "Tables | object"]


def toml(tables: Tables, path: tuple[str, ...] = ()) -> str:
    """Write nested tables as TOML; a value of None leaves its key out."""
    plain = {key: value for key, value in tables.items() if not isinstance(value, Mapping)}
    lines = [f"{key} = {_value(value)}" for key, value in plain.items() if value is not None]
    if path and lines:
        lines.insert(0, f"[{'.'.join(path)}]")
    parts = ["\n".join(lines)] if lines else []
    for key, value in tables.items():
        if isinstance(value, Mapping):
            parts.append(toml(value, (*path, key)))
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def merged(base: Tables, changes: Tables) -> Tables:
    """Lay changes over tables, table by table."""
    result: dict[str, object] = dict(base)
    for key, value in changes.items():
        below = result.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        result[key] = merged(below, value) if both else value  # type: ignore[arg-type]
    return result


def _value(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(item) for item in value)}]"
    # JSON's strings, numbers and booleans are TOML's too.
    return json.dumps(value)
