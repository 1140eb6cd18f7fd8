"""Whether the GID that NCCL will use exists: a wrong index ends a RoCE job at its first connect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from preflight.facts.odd_gpus import Oddity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from preflight.facts.rdma import Port
    from preflight.facts.rdma_model import Gid

_REFUSED: Final = 'NCCL ends with "ibv_modify_qp failed: Invalid argument"'
LOOKED_AT: Final = 32
"""So many entries of a GID table a node tells of (payload/probe/rdma_port.py)."""

_MAPPED: Final = "0000:0000:0000:0000:0000:ffff:"


def wrong_gids(ports: Sequence[Port], index: int | None) -> Iterator[Oddity]:
    """RoCE ports without a usable entry at the index, or anywhere where NCCL chooses (None)."""
    tables = {port.name: port.port.gids for port in ports}
    for port in ports:
        gids = tables[port.name]
        if gids is None:
            continue
        if index is None:
            yield from _none_to_choose(port, gids)
            continue
        usable = [gid.index for gid in gids if is_v2(gid) and is_ipv4(gid)]
        better = f"unset it (NCCL 2.21 and newer chooses), or set {usable[0]}" if usable else ""
        found = next((gid for gid in gids if gid.index == index), None)
        has = ", ".join(f"{gid.index} ({_kind(gid)})" for gid in gids) or "none"
        if found is None:
            sentence = (
                f"{port.name} has no GID {index}, which NCCL_IB_GID_INDEX asks for: {_REFUSED}"
            )
            yield Oddity(f"{sentence}; it has {has}", better or "give its interface an address")
        elif found.kind and not is_v2(found):
            sentence = f"GID {index} of {port.name}, which NCCL_IB_GID_INDEX asks for, is RoCE v1"
            advice = better or "enable RoCE v2 (cma_roce_mode)"
            yield Oddity(f"{sentence}: no router passes it on; it has {has}", advice, grave=False)


def without_gid(port: Port, index: int) -> bool:
    """Whether a port surely has no GID at that index; its first `LOOKED_AT` entries are told."""
    gids = port.port.gids
    return gids is not None and index < LOOKED_AT and index not in [gid.index for gid in gids]


def is_v2(gid: Gid) -> bool:
    """Whether it is of RoCE v2, in UDP."""
    return "v2" in gid.kind.lower()


def is_ipv4(gid: Gid) -> bool:
    """Whether it is an IPv4 address of its interface."""
    return gid.gid.startswith(_MAPPED)


def _none_to_choose(port: Port, gids: Sequence[Gid]) -> Iterator[Oddity]:
    routed = [gid for gid in gids if is_v2(gid) and not gid.gid.startswith("fe80")]
    if routed or not any(gid.kind for gid in gids):
        return
    device = port.port.netdev or "its interface"
    advice = f"give {device} an address (ip address add), and RoCE v2 (cma_roce_mode)"
    has = ", ".join(f"{gid.index} ({_kind(gid)})" for gid in gids) or "none"
    yield Oddity(
        f"{port.name} has no RoCE v2 GID beyond its own link; it has {has}", advice, grave=False
    )


def _kind(gid: Gid) -> str:
    local = ", link-local" if gid.gid.startswith("fe80") else ""
    return f"{gid.kind.replace('IB/', '')}{local}"
