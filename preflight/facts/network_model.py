"""The network as a node has it: interfaces, addresses, names, and the kernel's own ports."""

from __future__ import annotations

from msgspec import Struct

from preflight.facts.basics import Count, Device, HostName, Index, Line, Seconds
from preflight.facts.ethernet_model import Ethernet


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

    interfaces: tuple[Interface, ...] | None = None
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
