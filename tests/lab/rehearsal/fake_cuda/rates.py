"""How long one all-reduce takes on a machine with real rates, noise and planted faults.

Time is `latency + bytes on the wire / bandwidth`, as nccl-tests' curves go, times noise. Sources of
the default rates: NVIDIA/nccl-tests issue 150 (8 B between nodes: 16 to 20 us), 400 Gb/s InfiniBand
at 46 GB/s of bus bandwidth, H100 with NVSwitch at 360 GB/s (ring, without NVLS) at 1 GiB and about
two thirds of it at 64 MiB. Noise comes from several generators; `drift` and `bursts` are kept
unseen: nobody looks at them while limits are chosen.
"""

from __future__ import annotations

import math
import random
from typing import Any

_FILL_BYTES = 16 << 20


class Noise:
    """Multiplies and adds: healthy, and different from one operation to the next."""

    def __init__(self, name: str, draw: random.Random) -> None:
        self._name = name
        self._draw = draw
        self._state = draw.gauss(0.0, 1.0)
        self._burst = 0
        self._count = 0
        self._phase = draw.uniform(0.0, 2 * math.pi)

    def factor(self, *, across: bool) -> float:
        """What one operation's time is multiplied by; `across`: over an uplink that rails share."""
        self._count += 1
        spread = math.exp(self._draw.gauss(0.0, 0.004))
        if self._name == "contended" and across:
            self._state = 0.98 * self._state + self._draw.gauss(0.0, 0.2)
            return spread * (1.0 + 0.06 * max(0.0, self._state))
        if self._name == "drift":
            slow = 0.02 * math.sin(self._phase + self._count / 700.0)
            return math.exp(self._draw.gauss(0.0, 0.01)) * (1.0 + slow)
        return spread

    def added_us(self) -> float:
        """Microseconds on top: the tail of a healthy fabric, all of it below a millisecond."""
        if self._name == "heavy" and self._draw.random() < 1e-3:
            return min(600.0, 15.0 * self._draw.paretovariate(1.3))
        if self._name == "bursts":
            if self._burst == 0 and self._draw.random() < 2e-4:
                self._burst = self._draw.randint(3, 40)
            if self._burst:
                self._burst -= 1
                return self._draw.uniform(10.0, 90.0)
        return abs(self._draw.gauss(0.0, 0.15))


class Wire:
    """What connects the ranks of one communicator."""

    def __init__(self, ends: list[dict[str, Any]], fabric: dict[str, Any], seed: str) -> None:
        self._ends = ends
        self._fabric = fabric
        self._draw = random.Random(seed)  # noqa: S311  # a simulation
        self._noise = Noise(fabric["noise"], self._draw)
        self.carrier = ends[0]["carrier"]
        over_nics = "domain" if self.carrier == "P2P" else "network"
        self.where = "inside" if len({end["host"] for end in ends}) == 1 else over_nics
        self._done = 0

    def takes_us(self, size_bytes: int) -> float:
        """Microseconds of the next all-reduce of that size."""
        self._done += 1
        ranks = len(self._ends)
        moved = size_bytes * 2 * (ranks - 1) / ranks
        across = len({end["leaf"] for end in self._ends}) > 1
        if self.carrier == "P2P":
            latency_us = 8.0 + 2.2 * ranks
            gbs = self._fabric["nvlink_gbs"]
            latency_us += self._fabric["nvlink_fill_us"] * (1 - math.exp(-size_bytes / _FILL_BYTES))
        elif self.carrier == "SHM":
            latency_us, gbs = 10.0 + 3.0 * ranks, self._fabric["shm_gbs"]
        elif self.carrier == "Socket":
            latency_us, gbs = 60.0, self._fabric["socket_gbs"]
        else:
            latency_us, gbs = self._fabric["latency_us"], self._fabric["rail_gbs"]
        gbs *= min(end["share"] for end in self._ends)
        for fault in self._faults():
            gbs *= fault.get("factor", 1.0)
            latency_us += fault.get("latency_us", 0.0)
        takes_us: float = (latency_us + moved / (gbs * 1e3)) * self._noise.factor(across=across)
        return takes_us + self._noise.added_us() + self._spike_us()

    def corrupts(self, size_bytes: int) -> int | None:
        """Which rank's result of this operation is wrong, if one is."""
        for rank, end in enumerate(self._ends):
            for fault in end["faults"]:
                large = size_bytes >= fault.get("from_bytes", 0)
                here = fault["kind"] == "wrong sum" and self.concerns(fault)
                if here and large and self._hits(fault):
                    return rank
        return None

    def _spike_us(self) -> float:
        spikes = (each for each in self._faults() if each["kind"] == "spikes")
        return max((each["ms"] * 1000.0 for each in spikes if self._hits(each)), default=0.0)

    def _hits(self, fault: dict[str, Any]) -> bool:
        return self._draw.random() < float(fault["rate"])

    def concerns(self, fault: dict[str, Any]) -> bool:
        """Whether it is planted on this kind of way, and to a host at one of its ends.

        Ways: the network, inside of a node, NVLink between nodes.
        """
        names = {end["host"] for end in self._ends}
        return bool(fault["where"] == self.where and (fault["to"] is None or fault["to"] in names))

    def _faults(self) -> list[dict[str, Any]]:
        return [fault for end in self._ends for fault in end["faults"] if self.concerns(fault)]
