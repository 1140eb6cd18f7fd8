"""How grave an Xid is, and what to do about it: an operator must not look codes up by hand."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from datetime import date

Grade = Literal["fatal", "reset", "configurable", "application", "notice"]
GRADES: tuple[Grade, ...] = ("fatal", "reset", "configurable", "application", "notice")
"""The gravest first."""


@dataclass(frozen=True, slots=True)
class Known:
    """One code of `xids.toml`."""

    code: int
    grade: Grade
    meaning: str
    advice: str
    source: str
    date: date
    worded: bool = False
    """The line itself says "Fatal" or "Nonfatal", and that decides."""


@cache
def _table() -> dict[str, Any]:
    text = files("preflight.facts").joinpath("xids.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def in_recovery_action() -> frozenset[int]:
    """The codes after which NVML's recovery action says whether something is still to be done."""
    return frozenset(_table()["in_recovery_action"])


@cache
def advice_again() -> str:
    """What to do of a program's exception that comes back to one part of a GPU."""
    return str(_table()["again_on_one_tpc"]["advice"])


@cache
def catalog() -> dict[int, Known]:
    """Every code we know of."""
    table = _table()
    return {
        code: Known(
            code=code,
            grade=entry["class"],
            meaning=entry["meaning"],
            advice=entry["advice"],
            source=table["sources"][entry["source"]],
            date=table["date"],
            worded=entry.get("worded", False),
        )
        for entry in table["xid"]
        for code in entry["codes"]
    }


def known(code: int) -> Known:
    """What is known of a code; of one that is not in the catalog, that it should be looked up."""
    return catalog().get(code) or Known(
        code=code,
        grade="configurable",
        meaning="not in preflight's catalog",
        advice="look it up in NVIDIA's Xid catalog",
        source="",
        date=next(iter(catalog().values())).date,
    )


def explained(counter: str) -> str:
    """Add its meaning to an Xid that was counted around a load: "Xid 79 0000:1b:00 (...)"."""
    word, _, rest = counter.partition(" ")
    code = rest.partition(" ")[0]
    return (
        f"{counter} ({known(int(code)).meaning})" if word == "Xid" and code.isdecimal() else counter
    )
