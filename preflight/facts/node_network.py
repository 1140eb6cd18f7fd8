"""A node's network: interfaces, addresses, RDMA and Ethernet ports, switches."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from preflight.facts.basics import Count, Device, HostName, Index, Line, Seconds, Text


class Counter(Struct, frozen=True, forbid_unknown_fields=True):
    """A nonzero error counter of a port; `moved`: its rise between the probe's two readings."""

    name: Line
    """As in sysfs: "symbol_error", "link_downed"; "carrier_downs" belongs to its net device."""
    value: Count
    moved: Count = 0


class Counters(Struct, frozen=True, forbid_unknown_fields=True):
    """The error counters of one port at the second of two readings."""

    read: Count
    """How many counters could be read; `nonzero` lists those that are not zero."""
    apart_s: Seconds = 0.0
    """Time between the two readings; 0 where there was one."""
    nonzero: tuple[Counter, ...] = ()

    def value(self, name: str) -> int:
        """The value of a counter; also 0 where the device has none of that name."""
        return next((counter.value for counter in self.nonzero if counter.name == name), 0)


class PcieLink(Struct, frozen=True, forbid_unknown_fields=True):
    """A device's PCIe link; numbers that a virtual function lacks are None."""

    gts: Annotated[float, Meta(ge=0, le=1024)] | None = None
    """Speed of one lane now, GT/s: 32.0 is generation 5."""
    width: Index | None = None
    """Lanes in use."""
    gts_max: Annotated[float, Meta(ge=0, le=1024)] | None = None
    width_max: Index | None = None
    """The most that the card supports."""


class Gid(Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of a port's GID table that is in use."""

    index: Index
    kind: Line
    """In sysfs's words: "IB/RoCE v1", "RoCE v2"; "" where not known."""
    gid: Line


class AcsPort(Struct, frozen=True, forbid_unknown_fields=True):
    """A PCIe port between a GPU and a NIC, and the effect of its access control (ACS)."""

    bus_id: Line
    redirects: bool
    """It sends requests or completions between its devices to the root complex (P2P RR, CR)."""
    translated: bool = False
    """Direct Translated P2P is on: traffic of devices with ATS takes the direct path."""


class GpuDirect(Struct, frozen=True, forbid_unknown_fields=True):
    """What lets NICs reach GPU memory directly, or prevents it."""

    peermem: bool | None = None
    """nvidia_peermem (or its older name) is loaded; None where modules cannot be listed."""
    open_modules: bool | None = None
    """The driver is NVIDIA's open kernel module, which dma-buf needs; None where not known."""
    iommu: Line | None = None
    """ "none", or the kernel's IOMMU domain type of GPUs and NICs: "identity", "DMA-FQ"."""
    acs: tuple[AcsPort, ...] | None = None
    """The ports with access control; None where this login may not read it (root only)."""
    machine: Line = ""
    """`uname -m`."""


class Ethernet(Struct, frozen=True, forbid_unknown_fields=True):
    """The link of one network interface, as its driver reports it."""

    duplex: Line = ""
    """ "full" or "half"; "" where not known (down, virtual)."""
    most_mbits: Count | None = None
    """The fastest mode that the device supports; 0: it lists none; None: not queried."""
    partner_mbits: Count | None = None
    """The fastest mode that the other end offers; None where not known."""
    mtu_wanted: Count | None = None
    """The MTU in this machine's configuration files; None where none is readable."""
    counters: Annotated[tuple[Counter, ...], Meta(max_length=256)] | None = None
    """Nonzero packet and error counters, by the driver's names; None: could not be read."""


class Interface(Struct, frozen=True, forbid_unknown_fields=True):
    """One network interface, with the addresses by which programs may choose it."""

    name: Device
    index: Count = 0
    up: bool = False
    """Its administrative state is up."""
    operstate: Line = ""
    loopback: bool = False
    physical: bool = False
    """Whether it is a device, not a bridge, bond, tunnel or end of a veth pair."""
    mtu: Count | None = None
    speed_mbits: Count | None = None
    """None where it has none (down, virtual)."""
    carrier_downs: Count | None = None
    fec: Device = ""
    """Forward error correction in use: "rs", "off"; "" where the driver does not report it."""
    master: Device = ""
    """The bond or bridge that it belongs to."""
    lower: tuple[Device, ...] = ()
    """The interfaces under it: a bond's links, a VLAN's interface."""
    ethernet: Ethernet | None = None
    """Its link; None where that was not queried (loopback)."""
    addresses: tuple[Line, ...] = ()
    """"10.77.0.1/24", "fe80::1/64", in the kernel's order."""

    @property
    def running(self) -> bool:
        """IFF_RUNNING, as the kernel derives it (net/core/dev.c dev_get_flags)."""
        return self.up and self.operstate in ("up", "unknown", "")


class Resolved(Struct, frozen=True, forbid_unknown_fields=True):
    """The addresses to which a name resolves on this node; `error` says why to none."""

    name: HostName
    addresses: tuple[Line, ...] = ()
    error: Line = ""
    seconds: Seconds = 0.0


class Network(Struct, frozen=True, forbid_unknown_fields=True):
    """The parts of a node's network that programs read before they connect."""

    interfaces: Annotated[tuple[Interface, ...], Meta(max_length=8192)] | None = None
    """In the kernel's order (by index), which NCCL uses; None where unreadable."""
    ephemeral: tuple[Index, Index] | None = None
    """First and last port that the kernel uses for outgoing connections."""
    reserved: Line = ""
    """Ports that the kernel does not use for these, as it lists them: "29500-29510"."""
    own_name: Resolved | None = None
    """What its own host name resolves to; None where not queried (a fleet of one)."""
    names: tuple[Resolved, ...] = ()
    """What the names resolve to under which the job finds its master."""
    source_address: Line = ""
    """This node's source address to another node of the run; "" where not known."""


class SwitchPart(Struct, frozen=True, forbid_unknown_fields=True):
    """A fan, a power supply, or a part of one."""

    name: Line
    """"PSU0 fan status", "fan#3"."""
    status: Line = ""
    """In the tool's words: "OK", "ERROR"; "" where it has none."""
    rpm: Count | None = None


class Switch(Struct, frozen=True, forbid_unknown_fields=True):
    """One switch, from a captured text: nodes need root and the vendor's tools to query it."""

    name: Line
    parts: Annotated[tuple[SwitchPart, ...], Meta(max_length=512)] = ()


class ConfSetting(Struct, frozen=True, forbid_unknown_fields=True):
    """One NAME=VALUE line unchanged, blanks included; the value of an unknown name is left out."""

    name: Line
    value: Text


class ConfFile(Struct, frozen=True, forbid_unknown_fields=True):
    """One file of NCCL settings that exists. `error`: why it could not be read."""

    path: Text
    kind: Literal["user", "system"]
    settings: Annotated[tuple[ConfSetting, ...], Meta(max_length=512)] = ()
    without_equals: Count = 0
    """Lines that NCCL skips: not empty, no comment, and not NAME=VALUE."""
    error: Text = ""
