"""NCCL falls back to sockets without an error: where InfiniBand is promised, that is a fault.

What carried the data is NCCL's own word, from each end for itself; who is at fault is decoded from
who was with whom. Gloo goes over TCP by nature, so it never counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

    from preflight.fabric.samples import End, Sweep
    from preflight.fleet.model import Host, Promise

_TOGETHER = " + "
_NET, _IB, _SOCKETS = "NET/", "NET/IB ", "NET/Socket"
_NO_DEVICE = frozenset(("GDRDMA", "GDRDMA(PCI)"))


class Carried(Struct, frozen=True, kw_only=True):
    """One pair on one rail: what each end's data went over, and whether that was promised."""

    a: str
    b: str
    rail: int
    ways: tuple[str, str]
    """Of either end, as NCCL says: "NET/Socket eth0", "NET/IB mlx5_3 GDRDMA"; "": it did not."""
    fell: tuple[bool, bool]
    """Which ends went another way than was promised."""

    @property
    def bad(self) -> bool:
        """One end or both did not go the promised way."""
        return any(self.fell)

    @property
    def good(self) -> bool:
        """Both ends went the promised way, over their NICs (not `P2P MNNVL` inside a rack)."""
        ways = [way for end in self.ways for way in end.split(_TOGETHER)]
        return not self.bad and all(way.startswith(_NET) for way in ways)

    @property
    def suspect(self) -> str:
        """The one end that did not, where the other says that it did."""
        if all(self.ways) and self.fell[0] != self.fell[1]:
            return self.a if self.fell[0] else self.b
        return ""

    @property
    def name(self) -> str:
        """The pair as reports write it."""
        return f"{self.a}-{self.b}"

    @property
    def fallen(self) -> tuple[str, ...]:
        """The nodes of the ends that did not."""
        return tuple(name for name, fell in zip((self.a, self.b), self.fell, strict=True) if fell)

    def way(self, name: str) -> str:
        """That node's."""
        return self.ways[(self.a, self.b).index(name)]


def carried(sweep: Sweep, hosts: Iterable[Host]) -> tuple[Carried, ...]:
    """What carried each pair of which both nodes were promised NICs, or which ones."""
    promised = {host.name: host.promised for host in hosts if promises_ib(host.promised)}
    return tuple(
        Carried(
            a=pair.a,
            b=pair.b,
            rail=pair.rail,
            ways=(_way(pair.first), _way(pair.second)),
            fell=(
                _fell(_way(pair.first), promised[pair.a], pair.rail),
                _fell(_way(pair.second), promised[pair.b], pair.rail),
            ),
        )
        for pair in sweep.pairs
        if pair.backend == "nccl" and pair.a in promised and pair.b in promised
    )


def promises_ib(promise: Promise) -> bool:
    """Whether a group's inventory entry says that its data go over RDMA NICs."""
    return bool(promise.nics or promise.hcas)


def promised_words(promise: Promise, rails: Iterable[int]) -> str:
    """What was promised for these rails: "mlx5_3 (fleet.toml [group.train])", "8 NICs (...)"."""
    known = promise.hcas or ()
    hcas = [known[rail] for rail in rails if rail < len(known)]
    count = promise.nics or len(known)
    what = ", ".join(hcas) if hcas else f"{count} NIC{'s' * (count != 1)}"
    return f"{what} ({promise.origin})" if promise.origin else what


def _way(end: End | None) -> str:
    return end.net if end is not None else ""


def _fell(way: str, promise: Promise, rail: int) -> bool:
    """Sockets anywhere, or a device that another rail was promised."""
    ways = way.split(_TOGETHER)
    if any(each.startswith(_SOCKETS) for each in ways):
        return True
    mine = {*(promise.hcas or ())[rail : rail + 1]}
    return bool(mine) and any(known and not known & mine for known in map(_devices, ways))


def _devices(way: str) -> set[str]:
    """Its device, or those that NCCL merged into one: "NET/IB mlx5_0+mlx5_1 RoCE GDRDMA"."""
    return {*way.split()[1].split("+")} - _NO_DEVICE if way.startswith(_IB) else set()
