"""What a host's hardware looks like to its driver: the healthy machine, and each way to be ill."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from itertools import combinations

from tests.lab.nvml.machine import Gpu, Nic, h100_gpus, ndr_nics

P2P_OK, P2P_CAPS = 0, 5
P2P_NVLINK, P2P_NOT_SUPPORTED = 2, 5
GPU_IS_LOST, DRIVER_NOT_LOADED = 15, 9
NOT_SUPPORTED, NO_PERMISSION, CORRUPTED_INFOROM, UNKNOWN_ERROR = 3, 4, 14, 999
NODE, SYSTEM = 40, 50
_KINDS = {"gpu": 0, "switch": 2}
_LINK_LOCAL, _OF_IPV4 = ":".join(["fe80", *["0000"] * 4, "ffff"]), ":".join([*["0000"] * 5, "ffff"])


@dataclass(frozen=True, slots=True)
class Scenario:
    """A whole machine. Every method returns a changed copy, so healthy stays healthy."""

    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]
    driver: str = "550.90.07"
    name: str = "NVIDIA H100 80GB HBM3"
    memory_mib: int = 81559
    reserved_mib: int = 551
    slow_call_ms: int = 0
    """How long the driver takes to tell a GPU's PCI address."""
    init: str = ""
    """What nvmlInit does: "" answers, "hangs", "slow_ms N", "busy_ms N" (of CPU time),
    "error CODE", "blocks PATH"."""
    ancestors: dict[tuple[int, int], int] = field(default_factory=dict)
    """(slot, slot) to NVML level, where it differs from what the PCI tree says."""
    peers: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """(slot, slot, capability) to NVML's P2P status, where it is not "ok"."""

    def without_gpu(self, index: int) -> Scenario:
        """The GPU is gone, as after a reboot: the others move up, and sysfs lacks it."""
        return replace(self, gpus=self.gpus[:index] + self.gpus[index + 1 :])

    def gpu_lost(self, index: int) -> Scenario:
        """The GPU fell off the bus while running: it is counted, but answers "GPU is lost"."""
        return self._gpu(index, error=GPU_IS_LOST)

    def link_down(self, index: int, link: int) -> Scenario:
        """One NVLink of a GPU is not trained."""
        links = list(self.gpus[index].links)
        links[link] = replace(links[link], up=False)
        return self._gpu(index, links=tuple(links))

    def without_links(self) -> Scenario:
        """A PCIe machine: no NVLink at all, hence no peer access over it."""
        pcie = replace(self, gpus=tuple(replace(gpu, links=()) for gpu in self.gpus))
        for a, b in combinations(range(len(self.gpus)), 2):
            pcie = pcie.p2p(a, b, P2P_NOT_SUPPORTED, P2P_NVLINK)
        return pcie

    def ancestor(self, a: int, b: int, level: int) -> Scenario:
        """NVML tells this level (10 PIX, 20 PXB, 30 PHB, 40 NODE, 50 SYS) for two GPUs."""
        x, y = self.gpus[a].slot, self.gpus[b].slot
        return replace(self, ancestors=self.ancestors | {(x, y): level, (y, x): level})

    def p2p(self, a: int, b: int, status: int, capability: int | None = None) -> Scenario:
        """NVML tells this P2P status for two GPUs, for one capability (0 read ... 4) or all."""
        x, y = self.gpus[a].slot, self.gpus[b].slot
        which = range(P2P_CAPS) if capability is None else (capability,)
        changed = {key: status for c in which for key in ((x, y, c), (y, x, c))}
        return replace(self, peers=self.peers | changed)

    def used(self, index: int, mib: int) -> Scenario:
        """GPU memory is in use, whoever holds it."""
        return self._gpu(index, used_mib=mib)

    def process(self, index: int, pid: int, mib: int) -> Scenario:
        """A process holds GPU memory; what it holds also counts as used."""
        gpu = self.gpus[index]
        holders = (*gpu.processes, (pid, mib))
        return self._gpu(index, processes=holders, used_mib=gpu.used_mib + mib)

    def mig(self, index: int, count: int) -> Scenario:
        """The GPU is cut into MIG instances."""
        names = (f"{self.gpus[index].uuid}/mig{i}" for i in range(count))
        return self._gpu(
            index, mig=tuple(f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, name)}" for name in names)
        )

    def counted(self, index: int, name: str, value: int) -> Scenario:
        """A counter of a GPU stands at this value: "pcie_replay", "nvlink3_crc_flit", ...

        "nvlink_generation" 5 makes its links count by the numbers of NVLink 5; with "job_ends" 1 it
        is idle, with PCIe generation 1, once it has told its utilization.
        """
        others = tuple(each for each in self.gpus[index].counters if each[0] != name)
        return self._gpu(index, counters=(*others, (name, value)))

    def refused(self, index: int, name: str, error: int = NOT_SUPPORTED) -> Scenario:
        """One reading of a GPU ("ecc_uncorrected", "vbios", ...) answers with an NVML error."""
        return self._gpu(index, refusals=(*self.gpus[index].refusals, (name, error)))

    def worded(self, index: int, name: str, text: str) -> Scenario:
        """A GPU says this in words: "vbios", "inforom", "gsp_version"."""
        return self._gpu(index, words=(*self.gpus[index].words, (name, text)))

    def nic(self, index: int, **words: str) -> Scenario:
        """Change a NIC's words: `nic(3, state="1: DOWN", phys_state="2: Polling")`."""
        changed = replace(self.nics[index], **words)  # type: ignore[arg-type]  # all are words
        return replace(self, nics=(*self.nics[:index], changed, *self.nics[index + 1 :]))

    def roce(self, number: int) -> Scenario:
        """Each NIC is on Ethernet, with the GIDs of RoCE v1 and v2 of 10.100.`number`.slot."""
        kinds = ("IB/RoCE v1", "RoCE v2")
        return replace(
            self,
            nics=tuple(
                replace(
                    nic,
                    link_layer="Ethernet",
                    gids=tuple(
                        (kind, f"{prefix}:0a64:{number:02x}{nic.slot:02x}")
                        for prefix in (_LINK_LOCAL, _OF_IPV4)
                        for kind in kinds
                    ),
                )
                for nic in self.nics
            ),
        )

    def hanging(self) -> Scenario:
        """`nvmlInit` never returns and cannot be interrupted, only killed."""
        return replace(self, init="hangs")

    def blocking(self, path: str) -> Scenario:
        """`nvmlInit` writes to a file: on a frozen file system it stays in D state, unkillable."""
        return replace(self, init=f"blocks {path}")

    def slow(self, milliseconds: int) -> Scenario:
        """`nvmlInit` takes its time, then answers."""
        return replace(self, init=f"slow_ms {milliseconds}")

    def init_error(self, code: int = DRIVER_NOT_LOADED) -> Scenario:
        """`nvmlInit` fails with an NVML error code."""
        return replace(self, init=f"error {code}")

    def level(self, a: Gpu, b: Gpu) -> int:
        """NVML's common ancestor level of two GPUs."""
        return self.ancestors.get((a.slot, b.slot), NODE if a.numa == b.numa else SYSTEM)

    def text(self) -> str:
        """The scenario as the C library reads it."""
        lines = [f"driver {self.driver}", f"nvml 12.{self.driver}", "cuda 12040"]
        lines += [f"name {self.name}", f"memory_mib {self.memory_mib}"]
        lines += [f"reserved_mib {self.reserved_mib}"]
        if self.slow_call_ms:
            lines.append(f"slow_call_ms {self.slow_call_ms}")
        if self.init:
            lines.append(f"init {self.init}")
        for index, gpu in enumerate(self.gpus):
            lines.append(
                f"gpu {index} {gpu.bus_id} {gpu.uuid} {gpu.serial} {gpu.slot} {gpu.numa} "
                f"{gpu.cpus} {gpu.used_mib} {gpu.error}"
            )
            lines += [f"link {index} {int(k.up)} {_KINDS[k.kind]} {k.remote}" for k in gpu.links]
            lines += [f"process {index} {pid} {mib}" for pid, mib in gpu.processes]
            lines += [f"mig {index} {name}" for name in gpu.mig]
            lines += [f"counter {index} {name} {value}" for name, value in gpu.counters]
            lines += [f"refuse {index} {name} {error}" for name, error in gpu.refusals]
            lines += [f"word {index} {name} {text}" for name, text in gpu.words]
            lines += self._pairs(index, gpu)
        return "\n".join(lines) + "\n"

    def _pairs(self, index: int, gpu: Gpu) -> list[str]:
        others = [(i, other) for i, other in enumerate(self.gpus) if other is not gpu]
        lines = [f"ancestor {index} {i} {self.level(gpu, other)}" for i, other in others]
        for i, other in others:
            lines += [
                f"p2p {index} {i} {capability} {status}"
                for capability in range(P2P_CAPS)
                if (status := self.peers.get((gpu.slot, other.slot, capability), P2P_OK))
            ]
        return lines

    def _gpu(self, index: int, **changes: object) -> Scenario:
        changed = replace(self.gpus[index], **changes)  # type: ignore[arg-type]  # checked at run time
        return replace(self, gpus=(*self.gpus[:index], changed, *self.gpus[index + 1 :]))


def h100(host: str) -> Scenario:
    """The healthy machine: 8 H100, 18 NVLinks each to NVSwitches, one 400 Gb/s NIC beside each."""
    return Scenario(h100_gpus(host), ndr_nics())
