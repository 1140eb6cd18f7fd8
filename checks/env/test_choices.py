"""A fast way switched off once to find a fault, and never switched on again, costs nine tenths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from preflight.facts.environ.numbers import switched_on
from preflight.facts.environ.remark import Remark, told
from preflight.facts.words import count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preflight.facts.model import Facts
    from preflight.fleet.model import Promise

_OFF: Final = ("LOC", "0")
_PORT_UP: Final = "ACTIVE"


def switched_off(environ: Mapping[str, str], promised: Promise, facts: Facts) -> list[Remark]:
    """Fast ways that the job may not use although this node has them."""
    rdma, direct, shared = _rdma(environ), _direct(environ), _shared(environ)
    found = [one for one in (_nics(rdma, promised, facts), _gpus(direct, promised, facts)) if one]
    if rdma and direct and shared and not any(one.weight == "fail" for one in found):
        off = f"{rdma}, {direct}, {shared}"
        said = f"all fast ways are switched off ({off}): everything goes over TCP"
        return [
            Remark(
                said, "if this was for debugging, unset them; else measure what it costs", "warn"
            )
        ]
    gpudirect = _gpudirect(environ, facts) if not rdma else None
    return [*found, gpudirect] if gpudirect else found


def unjudged(environ: Mapping[str, str], facts: Facts) -> str:
    """The setting of a captured text that switches a way off of which it does not tell."""
    if facts.nonce != "captured" or facts.nics is not None or facts.gpus is not None:
        return ""
    return _rdma(environ) or _direct(environ) or _shared(environ) or _gdr_level(environ)


def _rdma(environ: Mapping[str, str]) -> str:
    """The setting that keeps the job from its RDMA NICs."""
    if switched_on(environ.get("NCCL_IB_DISABLE")):
        return told("NCCL_IB_DISABLE", environ["NCCL_IB_DISABLE"])
    net = environ.get("NCCL_NET", "")
    return told("NCCL_NET", net) if net.upper() == "SOCKET" else ""


def _direct(environ: Mapping[str, str]) -> str:
    if switched_on(environ.get("NCCL_P2P_DISABLE")):
        return told("NCCL_P2P_DISABLE", environ["NCCL_P2P_DISABLE"])
    level = environ.get("NCCL_P2P_LEVEL", "")
    return told("NCCL_P2P_LEVEL", level) if level.strip() in _OFF else ""


def _shared(environ: Mapping[str, str]) -> str:
    value = environ.get("NCCL_SHM_DISABLE", "")
    return told("NCCL_SHM_DISABLE", value) if switched_on(value) else ""


def _nics(setting: str, promised: Promise, facts: Facts) -> Remark | None:
    """RDMA off where RDMA is promised, or there."""
    if not setting:
        return None
    number_promised = promised.nics or (len(promised.hcas) if promised.hcas else 0)
    if number_promised or promised.nic_gbits or promised.nic_link:
        had = count(number_promised, "RDMA NIC") + " per node" if number_promised else "RDMA NICs"
        said = f"{setting} sends all over TCP, {had} promised ({promised.origin or 'inventory'})"
        advice = "unset it: it is there to find a fault; else correct the inventory"
        return Remark(said, advice, cause=setting.partition("=")[0])
    up = [nic for nic in facts.nics or () if any(_PORT_UP in port.state for port in nic.ports)]
    if not up:
        return None
    said = f"{setting} sends everything over TCP; {count(len(up), 'RDMA NIC')} here with a port up"
    advice = "unset it, if it was there to find a fault"
    return Remark(said, advice, "warn", cause=setting.partition("=")[0])


def _gpus(setting: str, promised: Promise, facts: Facts) -> Remark | None:
    """Peer access off where GPUs have it."""
    if not setting:
        return None
    if promised.nvlinks_per_gpu:
        links = f"{promised.nvlinks_per_gpu} links per GPU promised"
        said = f"{setting} keeps the GPUs off NVLink, {links}"
        return Remark(said, "unset it: it is there to find a fault; else correct the inventory")
    linked = [gpu for gpu in facts.gpus or () if any(link.up for link in gpu.links or ())]
    if linked:
        said = (
            f"{setting} keeps the GPUs off NVLink; {count(len(linked), 'GPU')} here with links up"
        )
        return Remark(said, "unset it, if it was there to find a fault", "warn")
    pairs = [pair for pair in facts.gpu_pairs or () if pair.p2p_read == "ok"]
    if not pairs:
        return None
    there = count(len(pairs), "pair of GPUs", "pairs of GPUs")
    said = f"{setting} sends data through the host; {there} here with peer access"
    return Remark(said, "unset it, if it was there to find a fault", "warn")


def _gdr_level(environ: Mapping[str, str]) -> str:
    level = environ.get("NCCL_NET_GDR_LEVEL", environ.get("NCCL_IB_GDR_LEVEL", "")).strip()
    return f"NCCL_NET_GDR_LEVEL={level}" if level in _OFF else ""


def _gpudirect(environ: Mapping[str, str], facts: Facts) -> Remark | None:
    """NICs that must not read GPU memory."""
    setting = _gdr_level(environ)
    if not setting or not facts.nics or not facts.gpus:
        return None
    said = f"{setting} switches GPUDirect off: data go through host memory"
    return Remark(said, "unset it, if it was there to find a fault", "warn")
