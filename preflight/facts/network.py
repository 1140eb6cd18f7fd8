"""The network as a node has it: interfaces, addresses, RDMA and Ethernet ports, switches."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from preflight.facts.basics import Count, Device, HostName, Index, Line, Seconds, Text


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


class Ethernet(Struct, frozen=True, forbid_unknown_fields=True):
    """The link of one network interface, as its driver tells it."""

    duplex: Line = ""
    """ "full" or "half"; "" where it does not tell (down, virtual)."""
    most_mbits: Count | None = None
    """Of the fastest mode that the device supports; 0: it lists none; None: nobody asked it."""
    partner_mbits: Count | None = None
    """Of the fastest mode that the other end offers; None where it does not say."""
    mtu_wanted: Count | None = None
    """What this machine's own configuration asks for; None where none is readable."""
    counters: Annotated[tuple[Counter, ...], Meta(max_length=256)] | None = None
    """Packets and errors that are not zero, by their driver's names; None: could not be read."""


class Interface(Struct, frozen=True, forbid_unknown_fields=True):
    """One network interface; addresses are those that programs may choose it by."""

    name: Device
    index: Count = 0
    up: bool = False
    """Its administrator wants it up."""
    operstate: Line = ""
    loopback: bool = False
    physical: bool = False
    """It is a device, not a bridge, bond, tunnel or end of a veth pair."""
    mtu: Count | None = None
    speed_mbits: Count | None = None
    """None where it has none to tell (down, virtual)."""
    carrier_downs: Count | None = None
    fec: Device = ""
    """Forward error correction in use: "rs", "off"; "" where the driver does not tell."""
    master: Device = ""
    """The bond or bridge of which it is a part."""
    lower: tuple[Device, ...] = ()
    """What it is made of: a bond's links, a VLAN's interface."""
    ethernet: Ethernet | None = None
    """Its link; None where that was not asked for (loopback)."""
    addresses: tuple[Line, ...] = ()
    """"10.77.0.1/24", "fe80::1/64", in the kernel's order."""

    @property
    def running(self) -> bool:
        """IFF_RUNNING, as the kernel derives it (net/core/dev.c dev_get_flags)."""
        return self.up and self.operstate in ("up", "unknown", "")


class Resolved(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a name leads on this node; `error` says why nowhere."""

    name: HostName
    addresses: tuple[Line, ...] = ()
    error: Line = ""
    seconds: Seconds = 0.0


class Network(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything of a node's network that programs look at before they connect."""

    interfaces: Annotated[tuple[Interface, ...], Meta(max_length=8192)] | None = None
    """In the kernel's order (by index), in which NCCL takes them; None where unreadable."""
    ephemeral: tuple[Index, Index] | None = None
    """First and last port that the kernel gives to outgoing connections."""
    reserved: Line = ""
    """Ports within that it leaves alone, as the kernel lists them: "29500-29510"."""
    own_name: Resolved | None = None
    """Where its own host name leads; None where nobody asked (a fleet of one)."""
    names: tuple[Resolved, ...] = ()
    """Where the names lead under which the job finds its master."""
    source_address: Line = ""
    """This node's own address on its way to another node of the run; "" where none is known."""


class SwitchPart(Struct, frozen=True, forbid_unknown_fields=True):
    """A fan, a power supply, or something of one."""

    name: Line
    """"PSU0 fan status", "fan#3"."""
    status: Line = ""
    """In the tool's word: "OK", "ERROR"; "" where it has none."""
    rpm: Count | None = None


class Switch(Struct, frozen=True, forbid_unknown_fields=True):
    """One switch, from a captured text: nodes cannot ask without root and the maker's tools."""

    name: Line
    parts: Annotated[tuple[SwitchPart, ...], Meta(max_length=512)] = ()


class ConfSetting(Struct, frozen=True, forbid_unknown_fields=True):
    """One NAME=VALUE line as it stands, blanks included; a strange name's value is not told."""

    name: Line
    value: Text


class ConfFile(Struct, frozen=True, forbid_unknown_fields=True):
    """One file that exists. `error`: why it could not be read."""

    path: Text
    kind: Literal["user", "system"]
    settings: Annotated[tuple[ConfSetting, ...], Meta(max_length=512)] = ()
    without_equals: Count = 0
    """Lines that are neither empty, nor a comment, nor NAME=VALUE: NCCL skips them."""
    error: Text = ""
