"""What carried the data is read from NCCL's own log; the lines are written after its format."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest
from sweep import member, plan, supervisor, transports

from preflight.fabric.agent_events import NcclLog, Ready, decode_event
from preflight.fabric.collect import SweepAccounts
from preflight.fabric.roster import build_roster
from preflight.fabric.sweep_plan import LOGS_EACH, SweepPlan
from tests.lab.rehearsal.fake_cuda import nccl_text

HEAD = "gpu041:4711:4800 [3] NCCL INFO "


def log_of(*lines: str) -> str:
    """A log of these lines, with what NCCL puts before each."""
    return "".join(f"{HEAD}{line}\n" for line in lines)


IB = (
    "NET/IB : Made virtual device [0] name=mlx5_3 speed=400000 ndevs=1",
    "NET/IB : Using [0]mlx5_3:1/IB [RO]; OOB eth0:10.0.0.41<0>",
)
SOCKET = (
    "NET/IB : No device found.",
    "NET/IB : Using [RO]; OOB eth0:10.0.0.41<0>",
    "NET/Socket : Using [0]eth0:10.0.0.41<0> [1]eth0.100:fe80::1%eth0.100<0>",
)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        # transport/net.cc of v2.27.7-1: 218, 264; its GDRDMA(PCI) past a C2C link: 219.
        (
            (
                *IB,
                "Using network IB",
                "Channel 00/01 : 0 1",
                "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA",
                "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA/Shared",
            ),
            "NET/IB mlx5_3 GDRDMA",
        ),
        (
            (*IB, "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0(4)/GDRDMA(PCI)/Shared"),
            "NET/IB mlx5_3 GDRDMA(PCI)",
        ),
        # libnccl.so.2 of 2.31.2.
        (
            (*IB, "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA/flush=None"),
            "NET/IB mlx5_3 GDRDMA",
        ),
        # transport/net_ib.cc of v2.28.9-1: 835; net_ib/init.cc of v2.30.7-1 with rail, plane: 494.
        (
            (
                "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_3:1/RoCE [RO]; OOB eth0:10.0.0.41<0>",
                "Channel 00/0 : 0[1b000] -> 1[1b000] [send] via NET/IB/1",
                "Channel 01/0 : 1[1b000] -> 0[1b000] [receive] via NET/IB/0(1)",
            ),
            "NET/IB mlx5_3 RoCE + NET/IB mlx5_0 RoCE",
        ),
        (
            (
                "NET/IB : Using [0]mlx5_0:1:3:0/IB [1]mlx5_3:1::1/RoCE [RO]; OOB eth0:10.0.0.41<0>",
                "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA",
                "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/1",
            ),
            "NET/IB mlx5_0 GDRDMA + NET/IB mlx5_3 RoCE",
        ),
        # net_ib.cc of v2.27.7-1: merged ports 573, 595; the Data Direct interface of a NIC 709.
        (
            (
                "NET/IB : Made virtual device [0] name=mlx5_0 speed=200000 ndevs=1",
                "NET/IB : Made virtual device [1] name=mlx5_1 speed=200000 ndevs=1",
                "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.41<0>",
                "NET/IB : Made virtual device [2] name=mlx5_0+mlx5_1 speed=400000 ndevs=2",
                "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/2/GDRDMA",
            ),
            "NET/IB mlx5_0+mlx5_1 RoCE GDRDMA",
        ),
        (
            (
                "NET/IB : Using [0]mlx5_0_dma:1/IB [1]mlx5_1_dma:1/IB [RO]; OOB eth0:10.0.0.41<0>",
                "NET/IB : Made virtual device [2] name=mlx5_0_dma+mlx5_1_dma speed=800000 ndevs=2",
                "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/2/GDRDMA(PCI)",
                "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA(PCI)",
            ),
            "NET/IB mlx5_0+mlx5_1 GDRDMA(PCI) + NET/IB mlx5_0 GDRDMA(PCI)",
        ),
        # The copy of NET/IB in HPC-X: nccl-rdma-sharp-plugins, src/ib_plugin.c and p2p_plugin.c.
        (
            (
                *IB,
                "Using network IBext_v10",
                "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IBext_v10/0/GDRDMA",
            ),
            "NET/IB mlx5_3 GDRDMA",
        ),
        # net_socket.cc of v2.27.7-1: 67, and where a cloud's sockets are several: 330.
        (
            (
                *SOCKET,
                "Using network Socket",
                "NET/Socket: Using 4 threads and 8 sockets per thread",
                "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0",
            ),
            "NET/Socket eth0",
        ),
        ((*SOCKET, "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/1"), "NET/Socket eth0.100"),
        # aws-ofi-nccl before 1.14, and after: nccl_ofi_interface_nvidia.cpp.
        (
            (
                "NET/OFI Selected Provider is efa (found 4 nics)",
                "Using network AWS Libfabric",
                "Channel 00/0 : 0[0] -> 1[0] [send] via NET/AWS Libfabric/0/GDRDMA",
            ),
            "NET/OFI GDRDMA",
        ),
        (
            (
                "NET/OFI Selected provider is efa, fabric is efa (found 16 nics)",
                "Using network Libfabric",
                "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Libfabric/0/GDRDMA/Shared",
            ),
            "NET/OFI GDRDMA",
        ),
        # transport/p2p.cc of v2.27.7-1: 386 to 406; shm.cc: 128, of v2.30.7-1: 116.
        (("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",), "P2P"),
        (("Channel 00/0 : 0[0] -> 1[1] via P2P/IPC/read/CE",), "P2P"),
        (("Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer/read",), "P2P"),
        (("Channel 00/0 : 0[0] -> 1[1] via P2P/indirect/2[2]",), "P2P"),
        (("Channel 00/0 : 0[0] -> 1[0] via P2P/MNNVL",), "P2P MNNVL"),
        (("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct",), "SHM"),
        (("Channel 00 : 0[0] -> 1[1] via SHM/direct",), "SHM"),
        # transport/nvls.cc of v2.27.7-1: 339.
        (
            (
                "NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)",
                "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
                "NVLS comm 0x55d0 headRank 0 nHeads 8 nvlsRanks 8 buffSize 8 nvlsPerRankSize 8",
            ),
            "P2P + NVLS",
        ),
        (("NVLS multicast support is not available on dev 0 (NVLS_NCHANNELS 0)",), ""),
        ((*IB, "Using network IB"), "NET/IB mlx5_3"),
        (("Using network Socket",), "NET/Socket"),
        (("comm 0x55d0 rank 0 nranks 2 cudaDev 0 - Init COMPLETE",), ""),
        ((), ""),
    ],
)
def test_what_carried_the_data(lines: tuple[str, ...], words: str) -> None:
    """InfiniBand with its device, sockets with their interface, or whatever else it names."""
    text = log_of(*lines)
    assert transports.parse_log(text, text) == words


def test_each_communicator_is_known_by_its_own_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices are named once per process; the log is in memory and in no folder."""
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        monkeypatch.setenv(name, "")
    log = transports.NcclLog()
    log.begin()
    using = "NET/IB : Using [0]mlx5_3:1/IB [1]mlx5_4:1/IB [RO]; OOB eth0:10.0.0.41<0>"
    with open(os.environ["NCCL_DEBUG_FILE"], "w") as nccl:  # noqa: PTH123 - as NCCL opens it
        nccl.write(log_of(using, "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0"))
        nccl.flush()
        assert log.words() == "NET/IB mlx5_3"
        nccl.write(log_of("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/1"))
        nccl.flush()
        assert log.words() == "NET/IB mlx5_4"
        assert log.words() == ""


@pytest.mark.parametrize("version", nccl_text.RELEASES)
@pytest.mark.parametrize(
    ("carrier", "nics", "plugin", "words"),
    [
        ("NET/IB/1/GDRDMA", ["IB", "IB"], "IB", "NET/IB mlx5_1 GDRDMA"),
        ("NET/IB/1/GDRDMA(PCI)", ["IB", "RoCE"], "IB", "NET/IB mlx5_1 RoCE GDRDMA(PCI)"),
        ("NET/IB/2/GDRDMA", ["IB", "IB"], "IB", "NET/IB mlx5_0+mlx5_1 GDRDMA"),
        ("NET/Socket/0", [], "Socket", "NET/Socket eth0"),
        ("NET/Socket/0", ["IB"], "Socket", "NET/Socket eth0"),
        ("NET/Libfabric/0/GDRDMA", [], "OFI", "NET/OFI GDRDMA"),
        ("P2P/MNNVL", ["IB"], "IB", "P2P MNNVL"),
        ("P2P/CUMEM/read", ["IB"], "IB", "P2P"),
        ("SHM", ["IB"], "IB", "SHM"),
    ],
)
def test_the_log_of_every_version_says_the_same(
    version: str, carrier: str, nics: list[str], plugin: str, words: str
) -> None:
    """From 2.27 to 2.31, warnings between the lines or not."""
    merged = [(0, 1)] if len(nics) > 1 else []
    own = [(f"mlx5_{n}", 1, link) for n, link in enumerate(nics)]
    lines = nccl_text.init_lines(
        version,
        host="gpu041",
        pid=4711,
        tid=4800,
        cuda_dev=3,
        nics=own,
        sockets=[("eth0", "10.0.0.41")],
        plugin=plugin,
        merged=merged,
    )
    lines += nccl_text.communicator_lines(
        version, host="gpu041", pid=4711, tid=4800, cuda_dev=3, rank=0, ranks=2, plugin=plugin
    )
    failure = nccl_text.modify_qp_failed("mlx5_1")
    lines.append(nccl_text.warn_line(version, "gpu041", 4711, 4801, 3, failure))
    before = "\n".join(lines) + "\n"
    channels = nccl_text.channel_lines(
        version,
        host="gpu041",
        pid=4711,
        tid=4800,
        cuda_dev=3,
        rank=0,
        peer=1,
        ranks=2,
        carrier=carrier,
    )
    new = "\n".join(channels) + "\n"
    assert transports.parse_log(before + new, new) == words


ORDER: dict[str, Any] = {
    "run": "r", "index": 0, "nodes": 2, "rails": 1, "backend": "nccl", "address": "a",
    "towards": "b", "interface": None, "store": ["a", 1], "seed": 7, "ladder": [[64, 2, 10]],
    "meet_s": 1, "op_s": 1, "box_s": 1, "pair_s": 5, "barrier_s": 1,
    "turns": [{"round": 0, "a": "h1", "b": "h2", "rank": 0, "partner": 1}],
}  # fmt: skip


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.slow
def test_the_log_of_a_process_that_was_killed_is_kept_for_a_capture(
    monkeypatch: pytest.MonkeyPatch, *, keep: bool
) -> None:
    """It is where the reason of a hang stands; its account comes as ever. Unasked, none is sent."""

    def hang(rail: plan.Rail, first_round: int, say: Any, log: transports.NcclLog) -> None:
        log.begin()
        with open(os.environ["NCCL_DEBUG_FILE"], "w") as nccl:  # noqa: PTH123 - as NCCL opens it
            nccl.write(log_of("NET/IB : No device found.\x1b[31m"))
        del rail
        say(round=first_round, phase="pair", within_s=0.1)
        time.sleep(60)

    monkeypatch.setattr(member, "take_part", hang)
    events = supervised(keep=keep)
    assert [one["event"] for one in events] == [*["nccl_log"] * keep, "pair", "rail_done"]
    assert events[-2]["state"] == "hung"
    if keep:
        assert events[0]["text"] == log_of("NET/IB : No device found.[31m")
        assert isinstance(decode_event(json.dumps(events[0]).encode()), NcclLog)


def test_what_is_logged_is_sent_as_soon_as_a_step_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of the sweep may be up while the process goes on; at its end all of it is sent."""
    first, second = log_of("NCCL version 2.28.9"), log_of("NET/IB : No device found.") * 3

    def go_on(rail: plan.Rail, first_round: int, say: Any, log: transports.NcclLog) -> bool:
        log.begin()
        with open(os.environ["NCCL_DEBUG_FILE"], "w") as nccl:  # noqa: PTH123 - as NCCL opens it
            nccl.write(first)
            nccl.flush()
            say(
                account={"event": "pair", "rail": rail.rail, "round": first_round},
                round=first_round,
            )
            nccl.write(second)
        return True

    monkeypatch.setattr(member, "take_part", go_on)
    pair, *logs, done = supervised(keep=True)
    assert (pair["event"], done["event"]) == ("pair", "rail_done")
    assert {one["event"] for one in logs} == {"nccl_log"}
    assert logs[0]["text"].startswith(first)
    assert logs[-1]["text"] == first + second
    assert len({one["pid"] for one in logs}) == 1


def supervised(*, keep: bool) -> list[dict[str, Any]]:
    """What one rail of that order tells its agent."""
    reading, writing = os.pipe()
    orders, no_orders = os.pipe()
    os.close(no_orders)
    go = plan.read({**ORDER, "keep_log": keep})
    supervisor.supervise(plan.Rail(go, 0, "a", ("a", 1)), writing, orders)
    os.close(writing)
    with os.fdopen(reading) as file:
        events = [json.loads(line) for line in file]
    os.close(orders)
    return events


def test_of_a_long_log_both_ends_are_kept() -> None:
    """How it began, and its last lines; how much is missing stands between."""
    log = transports.NcclLog()
    os.write(log._file, b"first line\n" + b"x" * 400_000 + b"\nlast line\n")
    text = log.text()
    assert text.startswith("first line\n")
    assert text.endswith("\nlast line\n")
    assert "bytes are left out here]" in text
    assert len(text) < 260 << 10


def test_a_log_that_was_not_requested_is_not_taken() -> None:
    """It ends the node's part as any other word that was not asked; asked ones are bounded."""
    hosts = ("h1", "h2")
    ready = {name: Ready("2.9.0", cuda=True, gpus=1) for name in hosts}
    for keep in (True, False):
        sweep = SweepPlan(nodes=hosts, rounds=((hosts,),), keep_logs=keep)
        collected = SweepAccounts(build_roster(sweep, ready))
        pids = range(1, 2 * LOGS_EACH + 1)
        taken = [collected.add("h1", NcclLog(0, pid, "NCCL INFO")) for pid in pids]
        assert taken == [keep] * 2 * LOGS_EACH
        assert collected.add("h1", NcclLog(0, 1, "NCCL INFO\nmore")) == keep
        texts = [one.text for one in collected.logs.values()]
        assert texts == (["NCCL INFO\nmore", *["NCCL INFO"] * (LOGS_EACH - 1)] if keep else [])
        assert not collected.add("h1", NcclLog(1, 1, "another rail"))
