"""All that the ranks and the node's ports had used at one moment, and what moved between two."""

from __future__ import annotations

import time

from probe import guard

from . import moments, rdma, wires

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .patience import Patience

    Told = dict[str, Any]

READ_S = 3.0
_GONE = "gone"
_STATIC = (
    "pid", "parent", "job", "rank", "local_rank", "world_size", "local_world_size", "restarts",
    "master", "age_s", "user", "program", "visible", "gpus",
)  # fmt: skip
_STANDING = ("wait_channel", "memory_mib", "oom_kills", "children", "dead_children")
_MOVED = ("cpu_s", "main_cpu_s", "switches", "read_bytes", "written_bytes")


class Instant:
    """One moment."""

    def __init__(self, patience: Patience, ranks: list[Told], sysfs: str) -> None:
        pids = [one["pid"] for one in ranks]
        wired = guard.spawn(wires.look, pids)
        ports = guard.spawn(rdma.look, sysfs)
        self.at = time.monotonic()
        moment = guard.spawn(moments.read, {str(one["pid"]): one["start"] for one in ranks})
        self._moments: Told = patience.hear("processes", moment, READ_S) or {}
        told = patience.hear("connections", wired, READ_S)
        for problem in told["problems"] if told else []:
            patience.complain(problem)
        self._wires: dict[str, list[Told]] = told["wires"] if told else {}
        self._interfaces: dict[str, Told] | None = told["ports"] if told else None
        self._rdma: dict[str, Told] | None = patience.hear("RDMA ports", ports, READ_S)

    def of(self, pid: int) -> Told:
        """Return what is known of a process; "gone" for one that nobody could tell of."""
        return self._moments.get(str(pid)) or {"state": _GONE}

    def alive(self, pid: int) -> bool:
        """Whether there is anything left of it to be read."""
        return self.of(pid)["state"] not in ("zombie", _GONE)

    def row(self, one: Told, before: Instant) -> Told:
        """Return a `RankLook` of the document as of now, without its stacks."""
        pid = one["pid"]
        then, now = before.of(pid), self.of(pid)
        told = {name: one[name] for name in _STATIC if one.get(name) is not None}
        told.update(look_s=round(self.at - before.at, 3), state=now["state"])
        told.update({name: now[name] for name in _STANDING if name in now})
        for name in _MOVED:
            if then.get(name) is not None and now.get(name) is not None:
                told[name] = max(0, round(now[name] - then[name], 3))
        told["connections"] = wires.moved(
            before._wires.get(str(pid), []), self._wires.get(str(pid), [])
        )
        return told

    def ports(self, before: Instant) -> list[Told] | None:
        """Return the `PortLook`s of both kinds; None where neither could be read twice."""
        pairs = ((before._interfaces, self._interfaces), (before._rdma, self._rdma))
        read = [(then, now) for then, now in pairs if then is not None and now is not None]
        if not read:
            return None
        return [port for then, now in read for port in rdma.moved(then, now)][:512]
