"""Files of schema 1 as schema 2 writes them: the one converter for old reports and events.

Schema 2 renamed: outcome `lost` is `missing`; in report.json the fields `lost` and `missed` are
`missing` and `sensitivity`; in events.jsonl the field `owed` is `expected`.
"""

from __future__ import annotations

from typing import Any

_OUTCOMES = {"lost": "missing"}


def report_from_schema_1(old: dict[str, Any]) -> dict[str, Any]:
    """Return a decoded report.json of schema 1 with the keys and words of schema 2."""
    new = _renamed(old, {"lost": "missing", "missed": "sensitivity"})
    if isinstance(old.get("counts"), dict):
        new["counts"] = _renamed(old["counts"], _OUTCOMES)
    if isinstance(old.get("verdicts"), list):
        new["verdicts"] = [_verdict(row) for row in old["verdicts"]]
    return {**new, "schema": 2}


def event_from_schema_1(old: dict[str, Any]) -> dict[str, Any]:
    """Return a decoded line of events.jsonl of schema 1 with the keys and words of schema 2."""
    new: dict[str, Any] = _verdict(_renamed(old, {"owed": "expected"}))
    if isinstance(old.get("night"), dict):
        new["night"] = _renamed(old["night"], {"lost": "missing"})
    return new


def _verdict(row: Any) -> Any:
    if not isinstance(row, dict) or not isinstance(row.get("outcome"), str):
        return row
    return {**row, "outcome": _OUTCOMES.get(row["outcome"], row["outcome"])}


def _renamed(old: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in old.items()}
