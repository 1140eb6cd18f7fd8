"""Reads counters before and after each pair's load, in a process that may hang without harm.

A NIC's firmware or a GPU's driver may never answer; the measuring process itself queries neither.

Only error counters are read, not those of congestion or traffic.

A counter that a driver or a GPU lacks is absent, which proves nothing. A reading of a GPU is two
calls: all counters as numbered fields, and the clock event reasons.

A login that may not read the kernel log gets no Xids, which is no proof of health.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from typing import Any, Collection, Iterator

import children
import start
from probe import node_files, nvml_calls
from probe.node_files import attempt_lines, names
from probe.nvml_calls import Nvml
from probe.rdma import errors

from .transports import Transport

_ETHERNET = (
    "statistics/rx_errors",
    "statistics/rx_crc_errors",
    "statistics/tx_errors",
    "statistics/tx_carrier_errors",
    "carrier_down_count",
)
_TCP = {"/proc/net/snmp": {"Tcp: RetransSegs": "retrans_segs"},
        "/proc/net/netstat": {"TcpExt: TCPTimeouts": "timeouts"}}  # fmt: skip


def rdma(root: str, devices: Collection[str] | None) -> dict[str, float]:
    """Read the ports of these RDMA devices (None: of all) under `root`/class/infiniband."""
    counts: dict[str, float] = {}
    folder = root + "/class/infiniband"
    for device in names(folder):
        if devices is not None and device not in devices:
            continue
        for port in names(f"{folder}/{device}/ports"):
            for name, value in errors(f"{folder}/{device}/ports/{port}").items():
                counts[f"{device}/{port} {name}"] = float(value)
    return counts


def ethernet(root: str, interface: str) -> dict[str, float]:
    """Read an interface's error counters; drops prove nothing."""
    folder = f"{root}/class/net/{interface}"
    paths = {f"{interface} {name.rpartition('/')[2]}": f"{folder}/{name}" for name in _ETHERNET}
    return {name: float(count) for name, count in node_files.counters(paths).items()}


def tcp() -> dict[str, float]:
    """Read TCP retransmissions and timeouts of this network namespace."""
    counts: dict[str, float] = {}
    for path, word_of in _TCP.items():
        for name, value in table(attempt_lines(path)):
            if name in word_of:
                counts["tcp " + word_of[name]] = value
    return counts


def table(lines: list[str]) -> Iterator[tuple[str, float]]:
    """Read the kernel's two-line tables: a line of names, then one of values."""
    for heading, values in zip(lines[::2], lines[1::2]):  # noqa: B905 - Python 3.8
        group, *columns = heading.split()
        for column, value in zip(columns, values.split()[1:]):  # noqa: B905 - Python 3.8
            if value.isdigit():
                yield f"{group} {column}", float(value)


_LINK_COUNT = 91  # nvml.h: NVML_FI_DEV_*, as all numbers below
_FIELDS = {"pcie_replay": 94, "ecc_corrected": 3, "ecc_uncorrected": 4}
_LINK_FIELDS = {
    # up to NVLink 4
    "dl_replay": 161,
    "dl_recovery": 162,
    "crc": 163,
    # from NVLink 5 on, where those are not supported
    "rcv_errors": 208,
    "recovery_failed": 214,
    "recovery": 215,
}
_LINK_TOTALS = {"crc_flit": 38, "crc_data": 45, "dl_replay": 52, "dl_recovery": 59}
"""Totals of all links, for drivers without the fields of one link."""

_CALLS: dict[str, tuple[Any, ...]] = {
    "pcie_replay": ("PcieReplayCounter",),
    "ecc_corrected": ("TotalEccErrors", 0, 0),  # nvmlMemoryErrorType_t; volatile
    "ecc_uncorrected": ("TotalEccErrors", 1, 0),
}
"""Calls for drivers without the field."""

_MOST_LINKS = 36
_EXCLUSIVE_PROCESS = 3  # nvmlComputeMode_t


class Gpus:
    """The GPUs of this node, or one of them; none without a driver, or if it fails."""

    def __init__(self) -> None:
        self._nvml: Nvml | None = None
        self._gpus: dict[str | int, Gpu | None] = {}
        # No library, no module, NVML's own errors: no counters.
        with contextlib.suppress(Exception):
            pynvml = nvml_calls.load()
            pynvml.nvmlInit()
            self._nvml = nvml_calls.Nvml(pynvml)

    def read(self, bus_id: str | None) -> tuple[dict[str, float], list[str]]:
        """Return the counters and the current throttle reasons of one GPU, or of all."""
        counters: dict[str, float] = {}
        throttled: list[str] = []
        for gpu in self.by_bus_id(bus_id):
            name = f"GPU {gpu.index} "
            counters.update({name + kind: float(value) for kind, value in gpu.counters().items()})
            throttled += [f"{name}throttle {reason}" for reason in gpu.throttled() or ()]
        return counters, throttled

    def sole_holders(self, index: int) -> tuple[bool | None, list[int]]:
        """Whether a GPU (NVML's index) is in exclusive-process mode, and the processes on it.

        None where NVML does not report the mode.
        """
        gpu = self._gpu(index)
        mode = None if gpu is None else gpu.ask("ComputeMode")
        if gpu is None or mode != _EXCLUSIVE_PROCESS:
            return None if mode is None else False, []
        return True, [int(process.pid) for process in gpu.ask("ComputeRunningProcesses") or ()]

    def bus_ids(self, visible: list[Any]) -> list[str]:
        """PCI addresses of the GPUs that answer, of those with these NVML indices or UUIDs.

        NVML numbers GPUs by PCI address (nvml.h, nvmlDeviceGetHandleByIndex), as CUDA does with
        CUDA_DEVICE_ORDER=PCI_BUS_ID; a UUID may be shortened, as in CUDA_VISIBLE_DEVICES. [] if one
        is not known.
        """
        count = self._ask("Count") or 0
        gpus = {at: self._ask("HandleByIndex", at) for at in range(count)}
        uuids = {at: nvml_calls.as_text(self._ask("UUID", gpu)) for at, gpu in gpus.items() if gpu}
        infos: list[Any] = []
        for name in visible:
            at = name if isinstance(name, int) else _index_of(uuids, name)
            if at is None:
                return []
            if gpus.get(at) is not None:  # NVML counts a lost GPU, CUDA skips it
                infos.append(self._ask("PciInfo", gpus[at]))
        return [] if None in infos else [nvml_calls.as_text(pci.busId).lower() for pci in infos]

    def by_bus_id(self, bus_id: str | None) -> list[Gpu]:
        """Return one GPU, or all; handles are found once, and stay valid with the library."""
        keys = range(self._ask("Count") or 0) if bus_id is None else [bus_id]
        gpus = {key: self._gpus.get(key) or self._gpu(key) for key in keys}
        self._gpus.update(gpus)
        return [gpu for gpu in gpus.values() if gpu is not None]

    def _gpu(self, key: str | int) -> Gpu | None:
        if isinstance(key, int):
            index, handle = key, self._ask("HandleByIndex", key)
        else:
            handle = self._ask("HandleByPciBusId", key.encode("ascii"))
            index = handle and self._ask("Index", handle)
        if self._nvml is None or handle is None or index is None:
            return None
        return Gpu(self._nvml, index, handle)

    def _ask(self, call: str, *arguments: Any) -> Any:
        """Return the result of nvmlDeviceGet`call`; None on any error, and without a driver."""
        nvml = self._nvml
        return None if nvml is None else nvml.ask_by_name("nvmlDeviceGet" + call, *arguments)


class Gpu:
    """One GPU; the first reading finds its counters, and later ones read only those."""

    def __init__(self, nvml: Nvml, index: int, handle: Any) -> None:
        self.index = index
        self._nvml = nvml
        self._handle = handle
        self._fields: dict[str, tuple[int, int]] = {}
        self._calls: dict[str, tuple[Any, ...]] = {}
        self._reasons = nvml.reasons_call()

    def counters(self) -> dict[str, int]:
        """Return its counters by name: "pcie_replay", "nvlink3_crc"."""
        if not self._fields and not self._calls:
            self._learn()
        counts = self._read(self._fields)
        for name, call in self._calls.items():
            value = self.ask(*call)
            if value is not None:
                counts[name] = value
        return counts

    def throttled(self) -> list[str] | None:
        """Return why hardware or heat throttle it now; None where NVML does not answer."""
        bits = self._nvml.ask_by_name(self._reasons, self._handle)
        reasons = nvml_calls.reasons(int(bits or 0))
        return None if bits is None else [name for name in reasons if name in nvml_calls.FORCED]

    def _learn(self) -> None:
        links = self._read({"links": (_LINK_COUNT, 0)}).get("links", _MOST_LINKS)
        per_link = {
            f"nvlink{link}_{kind}": (number, link)
            for link in range(min(links, _MOST_LINKS))
            for kind, number in _LINK_FIELDS.items()
        }
        totals = {f"nvlink_{kind}": (number, 0) for kind, number in _LINK_TOTALS.items()}
        fields = {name: (number, 0) for name, number in _FIELDS.items()}
        values = self._read({**fields, **per_link, **totals})
        fields.update(totals if per_link.keys().isdisjoint(values) else per_link)
        self._fields = {name: field for name, field in fields.items() if name in values}
        self._calls = {
            name: call
            for name, call in _CALLS.items()
            if name not in values and self.ask(*call) is not None
        }

    def _read(self, fields: dict[str, tuple[int, int]]) -> dict[str, int]:
        """Read numbered fields (number, link) in one call; each has its own result."""
        answers = self._nvml.fields(self._handle, list(fields.values())) if fields else []
        return {
            name: value
            for name, (value, refusal) in zip(fields, answers)  # noqa: B905 - Python 3.8
            if refusal is None and 0 <= value <= nvml_calls.MOST
        }

    def ask(self, call: str, *arguments: Any) -> Any:
        """Return the result of nvmlDeviceGet`call`; None on any error."""
        return self._nvml.ask_by_name("nvmlDeviceGet" + call, self._handle, *arguments)


def _index_of(uuids: dict[int, str], start: str) -> int | None:
    """The index of the only GPU whose UUID begins with `start`; None if there is not one."""
    indices = [index for index, uuid in uuids.items() if uuid.startswith(start)]
    return indices[0] if len(indices) == 1 else None


LOG = "/dev/kmsg"
_RECORD = 8192
_XID = re.compile(
    rb"(?m)^\d[^;\n]{0,80};NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{5,16})[^)\n]{0,40}\): (\d{1,4})\b"
)


class KernelLog:
    """Counts the Xids written since it was opened."""

    def __init__(self, path: str = LOG) -> None:
        self._counts: dict[str, float] = {}
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError:
            self._file = -1

    def xids(self, bus_id: str | None) -> dict[str, float]:
        """How often each Xid came so far; only those of one GPU if its PCI address is given."""
        for match in _XID.finditer(self._new_records()):
            address, number = (text.decode("ascii") for text in match.groups())
            name = f"Xid {number} {address}"
            self._counts[name] = self._counts.get(name, 0) + 1
        return {
            name: count
            for name, count in self._counts.items()
            if bus_id is None or _slot(name.rpartition(" ")[2]) == _slot(bus_id)
        }

    def _new_records(self) -> bytes:
        """Return the records written since the last call; the kernel returns one per read."""
        records = b""
        while self._file >= 0:
            try:
                record = os.read(self._file, _RECORD)
            except BrokenPipeError:
                continue  # records were overwritten before we read them: go on with the next
            except OSError:
                break  # EAGAIN: nothing more
            if not record:
                break
            records += record
        return records


def _slot(address: str) -> str:
    """A PCI address without the device's function, the domain without leading zeros."""
    return address.partition(".")[0].lower().lstrip("0")


PATIENCE_S = 1.0
"""Time limit of one reading; the partner may be waiting."""

MOST_COUNTERS = 64
"""Most counters in the account of one pair."""

_STRIKES = 2  # consecutive late answers before a reading process is replaced

_ENDING_S = 0.2


class Watch:
    """Queries the reading process. `read` never raises, and never waits for long."""

    def __init__(self, root: str) -> None:
        """Start two processes, one of them as a spare; `root` is /sys except in tests.

        Later, a fork would copy CUDA's memory and the locks of NCCL's threads.
        """
        self._readers = [_Reader(root), _Reader(root)]
        self._readers[0].wake()
        self._number = 0
        self._misses = 0
        self._error = ""

    def read(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return one reading: "counters" and "throttled", or "unread" with the reason.

        `question`: "bus_id" of the GPU, "devices" for RDMA, "interface" for Ethernet; None is all
        of the first two, and none of the last.
        """
        if self._readers:
            self._number += 1
            try:
                answer = self._readers[0].answer(dict(question, number=self._number))
            except TimeoutError:
                self._misses += 1
                self._error = f"error counters were not read: no answer within {PATIENCE_S:g} s"
            except OSError:
                self._misses = _STRIKES
                self._error = "error counters were not read: the reading process ended"
            else:
                self._misses = 0
                return answer
            if self._misses >= _STRIKES:
                self._replace()
        return {"unread": self._error}

    def since(self, before: dict[str, Any], transport: Transport) -> dict[str, Any]:
        """Return an account's fields on counters: which `moved`, and why some are `unread`."""
        after = before if "unread" in before else self.read(transport.question())
        reasons = [transport.unplaced, after.get("unread", "")]
        return {
            "moved": [] if "unread" in after else changes(before, after, transport),
            "unread": "; ".join(filter(None, reasons)),
        }

    def _replace(self) -> None:
        self._readers.pop(0).end()
        self._misses = 0
        if self._readers:
            self._readers[0].wake()  # the driver can load until the next question
        else:
            self._error += ", nor from a second process: no further readings"


class _Reader:
    """One reading process, forked at once; it uses no driver before `wake`."""

    def __init__(self, root: str) -> None:
        asking, self._asking = os.pipe()
        reading, writing = os.pipe()

        def work() -> None:
            children.close_all_but({asking, writing})
            _serve(asking, writing, root)

        self._pid = children.fork("preflight-count", work)
        os.close(asking)
        os.close(writing)
        self._answers = start.Reader(reading)

    def wake(self) -> None:
        """Let it load the driver's library."""
        start.write(self._asking, {"number": 0})

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the answer; TimeoutError if it is late, another OSError if the process ended."""
        start.write(self._asking, question)
        while True:
            answer = self._answers.next(PATIENCE_S)
            if answer is None:
                raise BrokenPipeError
            if answer["number"] == question["number"]:
                return answer  # an earlier number is a late answer to an earlier question

    def end(self) -> None:
        """Kill it; do not wait for one in D state."""
        os.close(self._asking)
        os.close(self._answers.descriptor)
        os.kill(self._pid, signal.SIGKILL)
        children.wait_for_exit(self._pid, _ENDING_S)


def changes(
    before: dict[str, Any], after: dict[str, Any], transport: Transport
) -> list[dict[str, Any]]:
    """Return the counters that rose, and the current throttle reasons, for an account.

    Those that may belong to another rail come last, and are marked.
    """
    past = before["counters"]
    steps = {
        name: value - past.get(name, 0 if name.startswith("Xid ") else value)
        for name, value in after["counters"].items()
    }
    steps.update(dict.fromkeys(after["throttled"], 1))
    rises = [(name, rise) for name, rise in steps.items() if rise > 0]
    own = [{"name": name, "by": rise} for name, rise in rises if transport.owns(name)]
    unassigned = [
        {"name": name, "by": rise, "assigned": False}
        for name, rise in rises
        if not transport.owns(name)
    ]
    return (own + unassigned)[:MOST_COUNTERS]


def _serve(asking: int, writing: int, root: str) -> None:
    """In the reading process: answer until the questions end."""
    questions = start.Reader(asking)
    if questions.next(None) is None:
        return
    gpus, log = Gpus(), KernelLog()
    while True:
        question = questions.next(None)
        if question is None:
            return
        counts, throttled = gpus.read(question["bus_id"])
        counts.update(log.xids(question["bus_id"]))
        counts.update(rdma(root, question["devices"]))
        if question["interface"]:
            counts.update(ethernet(root, question["interface"]))
            counts.update(tcp())
        answer = {"counters": counts, "throttled": throttled, "number": question["number"]}
        start.write(writing, answer)
