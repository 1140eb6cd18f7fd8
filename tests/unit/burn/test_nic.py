"""NICs that write to themselves: the tool's figures are read, and its refusals are passed on."""

from __future__ import annotations

import math
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from burn import main as agent
from hypothesis import given
from hypothesis import strategies as st
from probe import node_files

if TYPE_CHECKING:
    from pathlib import Path

    from burn.device import Sides

HOW = {"samples": 2, "seconds": 1, "bytes": 65536, "patience_s": 10, "first": 0}

PRINTED = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF          Device         : mlx5_0
 Mtu             : 4096[B]
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      7501           0.00               393.25               0.750066
---------------------------------------------------------------------------------------
"""

TOOL = """\
#!/bin/sh
# Stands for perftest, which needs an RDMA NIC: a server waits, a client prints.
case "$*" in *127.0.0.1*) ;; *) exec sleep 30;; esac
case "$*" in
  *mlx5_1*) echo "Couldn't allocate MR"; exit 1;;
esac
cat {page}
"""


@given(st.text(max_size=80))
def test_anything_else_has_no_figure(printed: str) -> None:
    """Truncated, translated, empty: no number, no crash."""
    found = agent.parse_average(printed)
    assert found is None or found > 0


@pytest.mark.parametrize("line", [" 65536 5000 0.00 nan 0.1", " 65536 5000 0.00 -3 0.1", "65536 5"])
def test_figures_that_are_none(line: str) -> None:
    """What is no rate is no rate."""
    assert agent.parse_average(line) is None


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose perftest is a script."""
    page, tool = tmp_path / "page", tmp_path / "ib_write_bw"
    page.write_text(PRINTED)
    tool.write_text(TOOL.format(page=page))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def _nic(node: Path, name: str, *, state: str = "4: ACTIVE", numa: int | None = None) -> None:
    device = node / "class" / "infiniband" / name
    (device / "ports" / "1").mkdir(parents=True)
    (device / "ports" / "1" / "state").write_text(state + "\n")
    if numa is not None:
        (device / "device").mkdir()
        (device / "device" / "numa_node").write_text(f"{numa}\n")


def _measured(
    node: Path, ends: float = math.inf, sides: Sides | None = None, **how: int
) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    agent.measure_nics({**HOW, **how}, str(node), events.append, sides or [], ends)
    return events


@pytest.mark.slow
def test_every_active_nic_is_measured(node: Path) -> None:
    """Of three NICs one is down and one refuses: one figure, and the words of the other.

    In duration mode perftest prints a peak of 0.00: the average counts.
    """
    _nic(node, "mlx5_0")
    _nic(node, "mlx5_1")
    _nic(node, "mlx5_2", state="1: DOWN")
    events = _measured(node)
    assert [(one["event"], one.get("name", one.get("error"))) for one in events] == [
        ("reading", "mlx5_0"),
        ("trouble", "mlx5_1: Couldn't allocate MR"),
    ]
    assert events[0]["samples"] == [393.25, 393.25]


def test_one_nic_at_a_time_on_each_numa_node(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of two NUMA nodes run side by side, next to their memory; two of one never do."""
    numa = {"mlx5_0": 0, "mlx5_3": 0, "mlx5_4": 1, "mlx5_5": 1}
    for name, side in numa.items():
        _nic(node, name, numa=side)
    busy: list[int] = []
    both = threading.Barrier(2)

    def loop(_tool: str, name: str, *_: object) -> tuple[float, str]:
        assert numa[name] not in busy
        busy.append(numa[name])
        both.wait(30.0)  # until one of the other NUMA node is at it, too
        busy.remove(numa[name])
        return 390.0, ""

    pinned: list[list[int]] = []
    monkeypatch.setattr(agent, "_loopback", loop)
    monkeypatch.setattr(os, "sched_setaffinity", lambda _pid, cpus: pinned.append(cpus))
    events = _measured(node, sides=[(0, [0, 1]), (1, [2, 3])], samples=1)
    assert sorted(one["name"] for one in events) == [*numa]
    assert sorted(pinned) == [[0, 1], [2, 3]]


def test_nics_of_unknown_places_are_measured_one_by_one(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a virtual machine it is not known what they share."""
    _nic(node, "mlx5_0", numa=0)
    _nic(node, "mlx5_1")
    threads: set[int] = set()

    def loop(*_: object) -> tuple[float, str]:
        threads.add(threading.get_ident())
        return 390.0, ""

    monkeypatch.setattr(agent, "_loopback", loop)
    assert len(_measured(node)) == 2
    assert len(threads) == 1


@pytest.mark.parametrize(("first", "begun"), [(0, "mlx5_0"), (2, "mlx5_2"), (7, "mlx5_1")])
def test_who_had_no_time_is_named(
    node: Path, monkeypatch: pytest.MonkeyPatch, first: int, begun: str
) -> None:
    """Without time one is measured all the same, by turns, and the others are listed."""
    names = [f"mlx5_{number}" for number in range(3)]
    for name in names:
        _nic(node, name)
    monkeypatch.setattr(agent, "_loopback", lambda *_: (390.0, ""))
    events = _measured(node, ends=0.0, first=first)
    assert [one["event"] for one in events] == ["reading", "no_time"]
    assert events[0]["name"] == begun
    assert events[1]["names"] == [name for name in names if name != begun]


def test_without_nics_or_the_tool_it_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing to measure is no trouble."""
    monkeypatch.setenv("PATH", str(tmp_path))
    absent = {"event": "absent", "what": "nic", "error": "no RDMA NIC with an active port"}
    assert _measured(tmp_path) == [absent]


@given(st.text(alphabet="0123456789-, x", max_size=40))
def test_lists_of_cpus(text: str) -> None:
    """As sysfs writes them, and anything else, which is no list."""
    with suppress(ValueError):
        assert all(cpu >= 0 for cpu in node_files.cpus_in(text))


def test_a_list_of_cpus() -> None:
    """Ranges, single ones, several."""
    assert node_files.cpus_in("0-2,8,10-11\n") == [0, 1, 2, 8, 10, 11]
