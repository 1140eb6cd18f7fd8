"""What an RDMA port counts and which addresses it has: half of all slow rails confess here."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from preflight.facts.basics import Count, Index, Line, Seconds


class Counter(Struct, frozen=True, forbid_unknown_fields=True):
    """One error counter of a port that is not zero; `moved` between the probe's two looks."""

    name: Line
    """As in sysfs: "symbol_error", "link_downed"; "carrier_downs" is of its net device."""
    value: Count
    moved: Count = 0


class Counters(Struct, frozen=True, forbid_unknown_fields=True):
    """The error counters of one port at the second of two looks."""

    read: Count
    """How many of them could be read; those that are zero are not listed."""
    apart_s: Seconds = 0.0
    """Between the two looks; 0 where there was one."""
    nonzero: tuple[Counter, ...] = ()

    def value(self, name: str) -> int:
        """Where a counter stands; 0 also where the device has none of that name."""
        return next((one.value for one in self.nonzero if one.name == name), 0)


class PcieLink(Struct, frozen=True, forbid_unknown_fields=True):
    """How a device is joined to its slot; numbers that a virtual function lacks are None."""

    gts: Annotated[float, Meta(ge=0, le=1024)] | None = None
    """Speed of one lane now, GT/s: 32.0 is generation 5."""
    width: Index | None = None
    """Lanes in use."""
    gts_max: Annotated[float, Meta(ge=0, le=1024)] | None = None
    width_max: Index | None = None
    """What the card could do."""


class Gid(Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of a port's GID table that is in use."""

    index: Index
    kind: Line
    """In sysfs's words: "IB/RoCE v1", "RoCE v2"; "" where it does not tell."""
    gid: Line


class AcsPort(Struct, frozen=True, forbid_unknown_fields=True):
    """A PCIe port between a GPU and a NIC, and what its access control does to their traffic."""

    bus_id: Line
    redirects: bool
    """Requests or completions between its devices go up to the root complex (P2P RR or CR)."""
    translated: bool = False
    """Direct Translated P2P is on: devices that ask the IOMMU themselves (ATS) go straight."""


class GpuDirect(Struct, frozen=True, forbid_unknown_fields=True):
    """What lets NICs reach GPU memory, or is in their way."""

    peermem: bool | None = None
    """nvidia_peermem (or its older name) is loaded; None where modules cannot be listed."""
    open_modules: bool | None = None
    """The driver is NVIDIA's open kernel module, which dma-buf needs; None where hidden."""
    iommu: Line | None = None
    """ "none", or the kernel's word for how GPUs and NICs are mapped: "identity", "DMA-FQ"."""
    acs: tuple[AcsPort, ...] | None = None
    """The ports with access control; None where this login may not read it (it needs root)."""
    machine: Line = ""
    """`uname -m`."""
