"""NICs that write to themselves: the tool's figures are read, and its refusals are passed on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from burn import nic, topology
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from pathlib import Path

HOW = {"samples": 2, "seconds": 1, "bytes": 65536, "patience_s": 10}

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


def test_the_average_is_read() -> None:
    """In duration mode the peak is 0.00; the average counts."""
    assert nic.average(PRINTED) == 393.25


@given(st.text(max_size=300))
def test_anything_else_has_no_figure(printed: str) -> None:
    """Truncated, translated, empty: no number, no crash."""
    found = nic.average(printed)
    assert found is None or found > 0


@pytest.mark.parametrize("line", [" 65536 5000 0.00 nan 0.1", " 65536 5000 0.00 -3 0.1", "65536 5"])
def test_figures_that_are_none(line: str) -> None:
    """What is no rate is no rate."""
    assert nic.average(line) is None


def test_every_active_nic_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three NICs one is down and one refuses: one figure, and the words of the other."""
    for name, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "4: ACTIVE"), ("mlx5_2", "1: DOWN")):
        port = tmp_path / "class" / "infiniband" / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(state + "\n")
    page, tool = tmp_path / "page", tmp_path / "ib_write_bw"
    page.write_text(PRINTED)
    tool.write_text(TOOL.format(page=page))
    tool.chmod(0o755)
    said: list[dict[str, Any]] = []
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    nic.measure(HOW, str(tmp_path), said.append)
    assert [(one["event"], one.get("name", one.get("error"))) for one in said] == [
        ("reading", "mlx5_0"),
        ("trouble", "mlx5_1: Couldn't allocate MR"),
    ]
    assert said[0]["samples"] == [393.25, 393.25]


def test_without_nics_or_the_tool_it_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing to measure is no trouble."""
    said: list[dict[str, Any]] = []
    monkeypatch.setenv("PATH", str(tmp_path))
    nic.measure(HOW, str(tmp_path), said.append)
    assert said == [{"event": "absent", "what": "nic", "error": "no RDMA NIC with an active port"}]


@given(st.text(alphabet="0123456789-, x", max_size=40))
def test_lists_of_cpus(text: str) -> None:
    """As sysfs writes them, and anything else."""
    assert all(cpu >= 0 for cpu in topology.expand(text))


def test_a_list_of_cpus() -> None:
    """Ranges, single ones, several."""
    assert topology.expand("0-2,8,10-11\n") == [0, 1, 2, 8, 10, 11]
