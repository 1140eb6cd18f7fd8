"""What each RDMA NIC carries to itself and back, where perftest is there: its PCIe way and engine.

The server and the client are both here; nothing goes over a cable. All of it goes through the
memory of the NIC's NUMA node, which one NIC at 400 Gb/s loads with 50 GB/s each way: so one NIC at
a time on each NUMA node, and the NUMA nodes side by side.
"""

from __future__ import annotations

import math
import os
import queue
import shutil
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress

from probe import sysfs as pci
from probe.text import attempt, clean

from .bench import reading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Emit = Callable[["dict[str, Any]"], None]
    Sides = list[tuple[int, list[int]]]

TOOL = "ib_write_bw"
_LISTENS_S = 0.3
_AVERAGE = 3  # #bytes, #iterations, BW peak, BW average, MsgRate


def measure(
    how: dict[str, Any],
    sysfs: str,
    emit: Emit,
    sides: Sides,
    ends: float,
) -> None:
    """Write from each active NIC to itself; a NIC that cannot is told with the tool's words.

    `ends`: of the monotonic clock. No NIC is begun that would not end by then, but one of each
    NUMA node; those without a turn are named. Which come first: `how["first"]`.
    """
    folder = sysfs + "/class/infiniband"
    ports = active(folder)
    tool = shutil.which(TOOL)
    if tool is None or not ports:
        why = f"{TOOL} (perftest) is not installed" if ports else "no RDMA NIC with an active port"
        emit({"event": "absent", "what": "nic", "error": why})
        return
    events: queue.Queue[dict[str, Any] | list[str]] = queue.Queue()

    def take_turns(lane: list[tuple[str, int]], cpus: list[int]) -> None:
        longest_s, left = -math.inf, list(lane)
        try:
            with suppress(OSError):
                if cpus:
                    os.sched_setaffinity(0, cpus)  # of this thread, and of what it starts
            while left and time.monotonic() + longest_s <= ends:
                began = time.monotonic()
                events.put(_measure(tool, *left[0], how))
                del left[0]
                longest_s = max(longest_s, time.monotonic() - began)
        finally:
            events.put([name for name, _ in left])

    lanes = _lanes(folder, ports, how["first"])
    for numa, lane in lanes.items():
        near = dict(sides).get(numa, []) if numa is not None else []
        threading.Thread(target=take_turns, args=(lane, near), daemon=True).start()
    left_out: list[str] = []
    running = len(lanes)
    while running:
        event = events.get()
        if isinstance(event, dict):
            emit(event)
        else:
            left_out += event
            running -= 1
    if left_out:
        emit({"event": "no_time", "what": "nic", "names": sorted(left_out)})


def _lanes(
    folder: str, ports: list[tuple[str, int]], first: int
) -> dict[int | None, list[tuple[str, int]]]:
    """The NICs of each NUMA node, from the `first` one on; all in one lane where one's is unknown.

    In a virtual machine all NUMA nodes are unknown, and what NICs share is, too.
    """
    numa = {name: pci.numa(f"{folder}/{name}/device") for name, _ in ports}
    known = None not in numa.values()
    lanes: dict[int | None, list[tuple[str, int]]] = {}
    for name, port in ports:
        lanes.setdefault(numa[name] if known else None, []).append((name, port))
    return {
        side: lane[first % len(lane) :] + lane[: first % len(lane)] for side, lane in lanes.items()
    }


def _measure(tool: str, name: str, port: int, how: dict[str, Any]) -> dict[str, Any]:
    rates: list[float] = []
    error = ""
    for _ in range(how["samples"]):
        try:
            rate, error = _loop(tool, name, port, how)
        except OSError as failure:
            rate, error = None, str(failure)
        if rate is None:
            break
        rates.append(rate)
    if rates:
        return reading("nic_gbits", rates, name=name)
    return {"event": "trouble", "what": "nic", "error": f"{name}: {error}"[:500]}


def active(folder: str) -> list[tuple[str, int]]:
    """(device, port) of every port that is up, the first of each device."""
    found = []
    for name in _names(folder):
        for port in _names(f"{folder}/{name}/ports"):
            if port.isdigit() and "ACTIVE" in attempt(f"{folder}/{name}/ports/{port}/state"):
                found.append((clean(name, 64), int(port)))
                break
    return found


def average(printed: str) -> float | None:
    """Gb/s of the last line of figures; None where there is none."""
    for line in reversed(printed.splitlines()):
        fields = line.split()
        if len(fields) > _AVERAGE and fields[0].isdigit() and fields[1].isdigit():
            try:
                rate = float(fields[_AVERAGE])
            except ValueError:
                return None
            return rate if 0 < rate < 1e5 else None  # noqa: PLR2004 - Gb/s, and no NaN
    return None


def _loop(tool: str, name: str, port: int, how: dict[str, Any]) -> tuple[float | None, str]:
    """One run of server and client; the rate, or why there is none."""
    words = [tool, "-d", name, "-i", str(port), "-p", str(_free_port()), "-F", "--report_gbits"]
    words += ["-D", str(how["seconds"]), "-s", str(how["bytes"])]
    server = _start(words)
    time.sleep(_LISTENS_S)
    client = _start([*words, "127.0.0.1"])
    try:
        said = client.communicate(timeout=how["seconds"] + how["patience_s"])[0]
    except subprocess.TimeoutExpired:
        printed, error = "", "it did not end in time"
    else:
        printed = said.decode("utf-8", "replace").strip()
        error = clean(printed[-200:]) or "it said nothing"
    for one in (client, server):
        _end(one)
    rate = average(printed)
    return rate, "" if rate is not None else error


def _start(words: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def _end(one: subprocess.Popen[bytes]) -> None:
    if one.poll() is None:
        os.kill(one.pid, signal.SIGKILL)
    try:
        one.communicate(timeout=1.0)
    except subprocess.TimeoutExpired:
        return  # in D state: the agent's end is as far as a signal reaches


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
