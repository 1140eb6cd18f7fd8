"""How NICs reach GPU memory, and what PCIe settings stand in between."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from preflight.checks.gpu.deviations import Oddity
from preflight.checks.rdma.ports import ports_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.facts.model import Facts
    from preflight.facts.node import Group

_DMABUF_KERNEL: Final = (5, 12)
"""First kernel whose ib_core takes dma-buf; NCCL's documentation of NCCL_DMABUF_ENABLE."""

_GRACE: Final = "aarch64"
"""There GPUs are always behind the SMMU, and its translation costs nothing of the kind."""

_CLEAR: Final = (
    "clear ACS on it (setpci -s {0} ECAP_ACS+6.w=0) at boot, or switch it off in the BIOS"
)
_THROUGH: Final = "boot with iommu=pt (or intel_iommu=off / amd_iommu=off), recheck"


def uses_rdma(facts: Facts) -> bool:
    """Whether there are GPUs and NICs that could talk directly; EFA and the like have own ways."""
    layers = {port.layer for port in ports_of(facts) if port.active}
    return bool(facts.gpus) and bool(layers & {"infiniband", "ethernet"})


def way(facts: Facts) -> str | None:
    """Name the way by which NICs reach GPU memory: "" for none, None where that is not known."""
    direct = facts.gpudirect
    if direct is None:
        return None
    if direct.peermem:
        return "nvidia_peermem"
    if not _takes_dmabuf(facts.kernel):
        return None if direct.peermem is None else ""
    if direct.open_modules:
        return "dma-buf"
    return None if direct.peermem is None or direct.open_modules is None else ""


def redirects(facts: Facts) -> tuple[str, ...] | None:
    """PCIe ports that send traffic between GPU and NIC up to the root complex."""
    if facts.gpudirect is None or facts.gpudirect.acs is None:
        return None
    ports = facts.gpudirect.acs
    return tuple(one.bus_id for one in ports if one.redirects and not one.translated)


def mapping(facts: Facts) -> str | None:
    """How the IOMMU maps the devices: none, identity, or the kernel's word for translation."""
    direct = facts.gpudirect
    return None if direct is None or direct.machine == _GRACE else direct.iommu


def strict_nics(facts: Facts) -> tuple[str, ...] | None:
    """NICs whose writes may not overtake one another."""
    nics = facts.nics or ()
    if not nics or any(nic.relaxed_ordering is None for nic in nics):
        return None
    return tuple(nic.name for nic in nics if not nic.relaxed_ordering)


def obstacles(facts: Facts, group: Group) -> Iterator[Oddity]:
    """Settings that send traffic between GPUs and NICs a long way round."""
    mine, vote = redirects(facts), group.majority(redirects)
    if mine:
        unlike = vote is not None and vote.decides and not vote.value
        whom = f"none does on {vote.votes} of {vote.of} nodes" if vote and unlike else "none should"
        sentence = f"ACS redirects what GPUs and NICs say to each other at {_few(mine)}; {whom}"
        yield Oddity(sentence, _CLEAR.format(mine[0]), grave=bool(unlike))
    how, usual = mapping(facts), group.majority(mapping)
    if how is not None and how.startswith("DMA"):
        plain = usual is not None and usual.decides and not usual.value.startswith("DMA")
        whom = f"{usual.value} on {usual.votes} of {usual.of} nodes" if usual and plain else ""
        sentence = f"the IOMMU translates for GPUs and NICs ({how}), {whom or 'identity expected'}"
        yield Oddity(sentence, _THROUGH, grave=bool(plain))
    strict, others = strict_nics(facts), group.majority(strict_nics)
    if strict and others is not None and others.decides and not others.value:
        whom = f"on for all on {others.votes} of {others.of} nodes"
        advice = "set PCI_WR_ORDERING=1 (mlxconfig), or relaxed ordering in the BIOS"
        yield Oddity(f"relaxed ordering is off for {_few(strict)}, {whom}", advice, grave=False)


def _takes_dmabuf(kernel: str) -> bool:
    found = re.match(r"([0-9]+)\.([0-9]+)", kernel)
    return found is not None and (int(found.group(1)), int(found.group(2))) >= _DMABUF_KERNEL


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")  # noqa: PLR2004
