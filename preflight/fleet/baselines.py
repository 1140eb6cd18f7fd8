"""What a promised NIC must reach at least, so that two nodes alone are not held against nothing.

Two nodes have no peers, and of a fleet in which all are slow none is slower than its peers.
"""

from __future__ import annotations

import tomllib
from datetime import date
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from preflight.fleet.model import Promise

LINKS = {"ib": "InfiniBand", "roce": "RoCE"}
"""What `nic_link` may be."""


class Baseline(Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of baselines.toml."""

    value: float
    unit: str
    kind: str
    source: str
    date: date


class Floor(Struct, frozen=True):
    """The least of one rail, and of which platform that is, in words."""

    gbs: float
    platform: str


@cache
def baselines() -> dict[str, Baseline]:
    """Every floor of a rail, by "ib-400"."""
    text = files("preflight.fleet").joinpath("baselines.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text)["rail"], dict[str, Baseline])


def rail_floor(promise: Promise) -> Floor | None:
    """The floor of a rail with the promised NIC, GB/s; None where none is promised or known.

    Without a promised link the lower of both counts. Where fewer NICs than GPUs are promised,
    rails share them, as all rails run at once.
    """
    rate = promise.nic_gbits
    if rate is None:
        return None
    links = LINKS if promise.nic_link is None else (promise.nic_link,)
    known = [found for link in links if (found := baselines().get(f"{link}-{rate}"))]
    if not known:
        return None
    link = "" if promise.nic_link is None else f"{LINKS[promise.nic_link]} "
    share, shared = 1.0, ""
    if promise.nics and promise.gpus and promise.nics < promise.gpus:
        share, shared = promise.nics / promise.gpus, f", {promise.nics} for {promise.gpus} GPUs"
    least = min(one.value for one in known)
    return Floor(least * share, f"{rate} Gb/s {link}NICs{shared}")
