"""What carried the data is read from NCCL's own log; the lines are written after its format."""

from __future__ import annotations

import os

import pytest
from sweep import nccl_log

HEAD = "gpu041:4711:4800 [3] NCCL INFO "


def said(*lines: str) -> str:
    """A log of these lines, with what NCCL puts before each."""
    return "".join(f"{HEAD}{line}\n" for line in lines)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            (
                "NET/IB : Using [0]mlx5_3:1/IB [RO]; OOB eth0:10.0.0.41<0>",
                "Using network IB",
                "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA",
                "Channel 01/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA",
            ),
            "NET/IB mlx5_3 GDRDMA",
        ),
        (
            (
                "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_3:1/RoCE [RO]; OOB eth0:10.0.0.41<0>",
                "Channel 00/0 : 0[1b000] -> 1[1b000] [send] via NET/IB/1",
                "Channel 01/0 : 1[1b000] -> 0[1b000] [receive] via NET/IB/0(1)",
            ),
            "NET/IB mlx5_3 + NET/IB mlx5_0",
        ),
        (
            (
                "NET/IB : No device found.",
                "NET/Socket : Using [0]eth0:10.0.0.41<0>",
                "Using network Socket",
                "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0",
            ),
            "NET/Socket eth0",
        ),
        (
            (
                "NET/OFI Selected Provider is efa (found 4 nics)",
                "Using network AWS Libfabric",
                "Channel 00/0 : 0[0] -> 1[0] [send] via NET/AWS Libfabric/0/GDRDMA",
            ),
            "NET/OFI GDRDMA",
        ),
        (("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",), "P2P"),
        (("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct",), "SHM"),
        (
            ("NET/IB : Using [0]mlx5_3:1/IB ; OOB ib0:10.1.0.41<0>", "Using network IB"),
            "NET/IB mlx5_3",
        ),
        (("Using network Socket",), "NET/Socket"),
        (("comm 0x55d0 rank 0 nranks 2 cudaDev 0 - Init COMPLETE",), ""),
        ((), ""),
    ],
)
def test_what_carried_the_data(lines: tuple[str, ...], words: str) -> None:
    """InfiniBand with its device, sockets with their interface, or whatever else it names."""
    text = said(*lines)
    assert nccl_log.carried(text, text) == words


def test_each_communicator_is_told_by_its_own_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices are named once per process; the log is in memory and in no folder."""
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        monkeypatch.setenv(name, "")
    log = nccl_log.Log()
    using = "NET/IB : Using [0]mlx5_3:1/IB [1]mlx5_4:1/IB [RO]; OOB eth0:10.0.0.41<0>"
    with open(os.environ["NCCL_DEBUG_FILE"], "w") as nccl:  # noqa: PTH123 - as NCCL opens it
        nccl.write(said(using, "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0"))
        nccl.flush()
        assert log.words() == "NET/IB mlx5_3"
        nccl.write(said("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/1"))
        nccl.flush()
        assert log.words() == "NET/IB mlx5_4"
        assert log.words() == ""
