"""Values of an inventory that a type cannot hold to their bounds, read or refused."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Literal

from preflight.errors import UsageError
from preflight.fleet.own_numbers import told_baselines, told_limits
from preflight.fleet.switches import LEAF_NAME
from preflight.fleet.words import did_you_mean
from preflight.transport import TRANSPORTS

if TYPE_CHECKING:
    from preflight.fleet.inventory_tables import Layer
    from preflight.numbers import Told


def refuse_impossible(where: str, layer: Layer) -> None:
    """Refuse what has the right type and still cannot be."""
    if layer.transport is not None:
        refuse_unknown_transport(layer.transport, where)
    if layer.leaf is not None and not LEAF_NAME.fullmatch(layer.leaf):
        raise UsageError(
            f"leaf in {where} is {layer.leaf[:40]!a}: give a switch's name, up to 64 letters, "
            "digits and ._:/@+-"
        )
    for key in ("identity_file", "known_hosts", "ssh_config"):
        if any(sign in (getattr(layer, key) or "") for sign in ('"', "\\", "${")):
            raise UsageError(
                f"{key} in {where} holds a quote, a backslash or ${{, which ssh would read in its "
                "own way: rename it"
            )
    own_numbers(layer, "limits", where)
    own_numbers(layer, "baselines", where)
    for key in ("allreduce_min_gbs", "intra_node_min_gbs"):
        number = getattr(layer, key)
        if number is not None and not math.isfinite(number):
            raise UsageError(f"{key} in {where} is {number}: give a number of GB/s")


def own_numbers(layer: Layer, kind: Literal["limits", "baselines"], origin: str) -> dict[str, Told]:
    """The numbers that one table sets; only what is said of all nodes may set a sweep's."""
    if kind == "baselines":
        return told_baselines(layer.baselines, origin)
    return told_limits(layer.limits, origin, for_all=origin.endswith("[defaults]"))


def refuse_unknown_transport(name: str, where: str) -> None:
    """Raise UsageError with the nearest name there is."""
    if name not in TRANSPORTS:
        hint = did_you_mean(name, TRANSPORTS)
        raise UsageError(f"unknown transport {name[:40]!a} in {where}{hint}")


def command(words: str | list[str] | None, where: str) -> tuple[str, ...]:
    """Read the job's Python as an argv prefix; no shell will ever see it."""
    if words is None:
        return ("python3",)
    try:
        argv = shlex.split(words) if isinstance(words, str) else words
    except ValueError as error:
        raise UsageError(f"{where}: {error}; quote it as the shell would") from error
    if not argv or not argv[0]:
        raise UsageError(f"{where} is empty: give a command such as /opt/venv/bin/python")
    if not all(word.isprintable() for word in argv):
        raise UsageError(f"{where} holds a control character: {' '.join(argv)[:60]!a}; remove it")
    return tuple(argv)
