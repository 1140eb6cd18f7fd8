"""What a node turned out to have, in the words of a promise: for an inventory as it is."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from preflight.facts.wiring import link_counts
from preflight.fleet.model import Promise

if TYPE_CHECKING:
    from collections.abc import Iterable

    from preflight.facts.model import Facts, NicPort

_T = TypeVar("_T")
_RATE = re.compile(r"(\d+)(?:\.\d+)?\s*Gb/sec")
_LINKS = {"infiniband": "ib", "ethernet": "roce"}


def why_not(facts: Facts) -> str:
    """Why nothing can be learned from what a node said; empty where it can.

    A node whose driver does not answer would be written down as one without GPUs.
    """
    if facts.driver.state in ("hung", "error"):
        return f"its GPU driver does not answer ({facts.driver.error or facts.driver.state})"
    if facts.driver.state == "answered" and facts.gpus is None:
        return "its driver does not tell its GPUs"
    lost = [line for line in facts.problems if line.startswith("GPU ")]
    return f"a GPU of it cannot be read: {lost[0]}" if lost else ""


def found(facts: Facts) -> Promise:
    """What a node has, as far as that can be promised of its like."""
    gpus = facts.gpus or ()
    nics, rates, links = _rails(facts)
    return Promise(
        gpus=len(gpus) or None,
        gpu_model=_one(gpu.name for gpu in gpus),
        nvlinks_per_gpu=_one(link_counts(facts) or ()) or None,
        nics=nics or None,
        nic_gbits=_one(rates),
        nic_link="ib" if links == "ib" else "roce" if links == "roce" else None,
    )


def _rails(facts: Facts) -> tuple[int, list[int | None], str]:
    """Devices with a live port of the layer that most of them have, their rates, and the layer.

    A front end of another layer, and ports without a cable, are promised to nobody.
    """
    live = [
        (nic.name, _LINKS.get(port.link_layer.lower(), ""), _gbits(port))
        for nic in facts.nics or ()
        for port in nic.ports
        if "ACTIVE" in port.state.upper()
    ]
    layers = Counter(layer for _, layer, _ in live)
    layer = max(layers, key=lambda name: (layers[name], name == "ib"), default="")
    names = {name for name, its, _ in live if its == layer}
    return len(names), [rate for _, its, rate in live if its == layer], layer


def _gbits(port: NicPort) -> int | None:
    match = _RATE.match(port.rate)
    return int(match[1]) if match else None


def _one(values: Iterable[_T | None]) -> _T | None:
    """The value that all share; None where they differ, or one cannot be told."""
    several = set(values)
    return several.pop() if len(several) == 1 else None
