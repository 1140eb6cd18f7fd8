"""How many NVLinks a board has by its name: where peers are few, that alone shows a dead link.

Only names of boards that are never sold without their links are known here; a card that takes a
bridge has as many as the buyer paid for.
"""

from __future__ import annotations

import re
import tomllib
from datetime import date
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.facts.model import Gpu

_MAKER: Final = r"(?:NVIDIA |Tesla )*"


class Board(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of board_links.toml."""

    name: str
    links: int
    gbs: float
    """What they carry one way, all together, GB/s."""
    fabric: bool
    off_in_mig: bool
    source: str
    date: date


@cache
def boards() -> dict[str, Board]:
    """Every board whose name settles its links."""
    text = files("preflight.facts").joinpath("board_links.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Board])


@cache
def board(name: str) -> Board | None:
    """The board of that name; None for a card that may do without links, or an unknown one."""
    found = (one for one in boards().values() if re.fullmatch(_MAKER + one.name, name))
    return next(found, None)


def settled(gpu: Gpu) -> Board | None:
    """Its board, where every link of that is listed: a part of them tells nothing of the rest."""
    one = board(gpu.name)
    return one if one is not None and len(gpu.links or ()) == one.links else None


def nvlink_gbs(gpus: Sequence[Gpu], rails: int) -> float | None:
    """What the NVLinks of each GPU carry one way, GB/s, where they join all GPUs of the node.

    Through switches they join any of them; from GPU to GPU, all of them together, so that as many
    `rails` must take part. None where links are down, lead elsewhere, or are not known.
    """
    found = [settled(gpu) for gpu in gpus if not gpu.mig_enabled]
    links = [link for gpu in gpus for link in gpu.links or ()]
    if not found or len(found) < len(gpus) or not all(link.up for link in links):
        return None
    switched = all(link.remote_kind == "switch" for link in links)
    bus_ids = {gpu.bus_id.lower() for gpu in gpus}
    joined = rails == len(gpus) and all(link.remote.lower() in bus_ids for link in links)
    if not (switched or joined):
        return None
    return min((one.gbs for one in found if one is not None), default=None) if all(found) else None


def must_be_up(gpu: Gpu, gpus: Sequence[Gpu]) -> bool:
    """Whether this GPU without any live link is surely at fault, however its peers fare.

    A GPU that is handed alone to a virtual machine has nobody to be linked with.
    """
    one = settled(gpu)
    alone = len(gpus) == 1 and gpu.index == 0
    return one is not None and one.fabric and not alone


def may_be_off(gpu: Gpu) -> bool:
    """Whether MIG may have switched its links off, and nobody told whether it is on."""
    one = settled(gpu)
    return one is None or (one.off_in_mig and gpu.mig_enabled is None)
