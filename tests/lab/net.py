"""The lab's wiring in the root namespace: one bridge, which also tells whose lab it is."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

_MARK = "preflight-lab"
_LAST = 250


def ip(*words: str, check: bool = True) -> str:
    """Run iproute2's `ip`; returns what it printed."""
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
    if check and done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Bridge:
    """One lab's bridge: its name and number fix the subnet 10.77.NUMBER.0/24."""

    number: int
    owner: str
    """"PID START" of the process that made it."""
    folder: Path

    @property
    def name(self) -> str:
        """The interface: pf0, pf1, ..."""
        return f"pf{self.number}"

    @property
    def abandoned(self) -> bool:
        """Whether the process that made it is no more."""
        return self.owner != identity(int(self.owner.split()[0]))

    def address(self, last: int) -> str:
        """An address of the lab's subnet."""
        return f"10.77.{self.number}.{last}"


def claim(folder: Path) -> Bridge:
    """Make a bridge of a number that is free; the kernel sees to it that no two labs share one."""
    owner = identity(os.getpid())
    for number in range(_LAST):
        bridge = Bridge(number, owner, folder)
        made = subprocess.run(
            ["ip", "link", "add", bridge.name, "type", "bridge"], check=False, capture_output=True
        )
        if made.returncode == 0:
            # Left alone, a bridge takes its lowest port's MAC: a host that goes would change it.
            ip("link", "set", bridge.name, "address", f"02:00:0a:4d:{bridge.number:02x}:fe")
            ip("link", "set", bridge.name, "alias", f"{_MARK} {owner} {folder}", "up")
            ip("address", "add", f"{bridge.address(254)}/24", "dev", bridge.name)
            return bridge
    raise OSError("no free subnet 10.77.X.0/24 for a lab: see `ip link show type bridge`")


def bridges() -> list[Bridge]:
    """Every lab of this machine."""
    found = []
    for link in json.loads(ip("-json", "link", "show", "type", "bridge") or "[]"):
        mark, _, rest = link.get("ifalias", "").partition(" ")
        if mark == _MARK:
            pid, start, folder = rest.split(" ", 2)
            found.append(Bridge(int(link["ifname"][2:]), f"{pid} {start}", Path(folder)))
    return found


def identity(pid: int) -> str:
    """A process, told apart from a later one of the same number by its start time."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return f"{pid} {stat.rpartition(')')[2].split()[19]}"
