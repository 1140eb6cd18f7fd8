"""What one node's facts take: time, bytes each way, and that one round trip brings them all."""

from __future__ import annotations

import json
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from preflight.fleet.model import Host
from preflight.run.probe_stage import probe_fleet
from preflight.transport.ways import Ways, transport_for
from tests.bench.overheard import Conversation, Overheard
from tests.bench.probing import AT_MOST, DEADLINE_S, some
from tests.bench.ratio import Bound, Row, extremes
from tests.lab.nvml.build import build
from tests.lab.nvml.scenario import h100

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.lab.cluster import Lab

_RUNS = 9
_BOUND = Bound("at most", 1)
_SETTLE_S = 0.2
"""For the last packets of a connection that was hung up."""


class Probed(Struct, frozen=True):
    """One probe."""

    seconds: float
    """From the login to the decoded facts, hanging up included."""
    on_node_s: float
    said: Conversation
    on_wire: int = 0
    """Bytes over the node's cable, both ways: SSH, TCP and the login included."""


def measure_here() -> Iterator[Row]:
    """Probe this machine by the local transport, as a prolog does."""
    with tempfile.TemporaryDirectory(prefix="preflight-bench-") as folder:
        python = (*emulated(Path(folder)), sys.executable)
        host = Host(name="here", address="here", transport="local", python=python)
        runs = _runs(lambda: probe(host))
    gpus = "8 emulated H100" if len(python) > 1 else "no driver: no gcc to build the emulator"
    yield _time("local", f"facts of this machine ({gpus}) by the local transport", runs)


def measure(lab: Lab) -> Iterator[Row]:
    """One lab host of 8 emulated H100 and 8 NICs, over SSH with its login."""
    host = replace(some(lab.inventory(), 1)[0], transport="paramiko")

    def over_ssh() -> Probed:
        before = _passed(lab)
        one = probe(host)
        time.sleep(_SETTLE_S)
        return replace(one, on_wire=_passed(lab) - before)

    runs = _runs(over_ssh)
    yield _time(
        "ssh", "facts of one lab host (8 emulated H100, 8 NICs) over SSH, login included", runs
    )
    sizes: dict[str, tuple[str, Callable[[Probed], int]]] = {
        "sent": ("payload and request, as sent", lambda one: one.said.sent),
        "answer": ("the answer, as received", lambda one: one.said.received),
        "wire": ("all that the host's cable carried, both ways", lambda one: one.on_wire),
    }
    for key, (what, read) in sizes.items():
        yield _row(f"ssh.{key}", f"the same: {what}", [read(one) / 1024 for one in runs], "KiB")


def probe(host: Host) -> Probed:
    """Ask one node; RuntimeError if it gives no facts, or only after more than one round trip."""
    ways, overheard = Ways([host]), Overheard(transport_for(host.transport))
    ways.use(overheard)
    began = time.perf_counter()
    reached = probe_fleet(
        [host],
        ways,
        secrets.token_hex(16),
        deadline_s=DEADLINE_S,
        at_most=AT_MOST,
        progress=lambda *_: None,
    )[host.name]
    if reached.connection is not None:
        reached.connection.close()
    seconds = time.perf_counter() - began
    ways.close()
    if reached.facts is None:
        raise RuntimeError(f"{host.name} gave no facts: {reached.reach.sentence}")
    said = overheard.said
    if (said.commands, said.round_trips) != (1, 1):
        raise RuntimeError(f"{host.name} took {said.commands} commands, {said.round_trips} turns")
    return Probed(seconds, reached.facts.seconds, said)


def emulated(folder: Path) -> tuple[str, ...]:
    """Words before a Python under which it finds 8 H100; none without a compiler."""
    if shutil.which("gcc") is None:
        return ()
    (folder / "scenario").write_text(h100("here").text())
    library = build(folder / "driver").parent
    told = (f"LD_LIBRARY_PATH={library}", f"PREFLIGHT_NVML_SCENARIO={folder / 'scenario'}")
    return ("env", *told)


def _passed(lab: Lab) -> int:
    """Bytes that the first host's cable carried so far."""
    told = lab.hosts["h1"].run(["ip", "-s", "-j", "link", "show", "eth0"]).stdout
    counted = json.loads(told)[0]["stats64"]
    return int(counted["rx"]["bytes"] + counted["tx"]["bytes"])


def _runs(work: Callable[[], Probed]) -> list[Probed]:
    work()  # imports and the payload's bundle: once per run, whatever the fleet
    return [work() for _ in range(_RUNS)]


def _time(key: str, what: str, runs: list[Probed]) -> Row:
    on_node = extremes([one.on_node_s for one in runs])
    sent, back = (max(sizes) / 1024 for sizes in zip(*map(_sizes, runs), strict=True))
    note = (
        f"one command and one round trip each time; {on_node.median:.2f} s of it on the node; "
        f"{sent:.0f} KiB there, {back:.0f} KiB back"
    )
    seconds = [one.seconds for one in runs]
    return _row(key, what, seconds, "s", bound=_BOUND, note=note)


def _sizes(one: Probed) -> tuple[int, int]:
    return one.said.sent, one.said.received


def _row(
    key: str,
    what: str,
    values: list[float],
    unit: str,
    *,
    bound: Bound | None = None,
    note: str = "",
) -> Row:
    return Row(
        id=f"probe.{key}",
        what=what,
        unit=unit,
        value=extremes(values),
        value_unit=unit,
        runs=len(values),
        bound=bound,
        note=note,
    )
