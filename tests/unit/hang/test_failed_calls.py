"""A call that failed at once says more than the time-outs and lost peers that follow from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.hang.logs import explained, status, timed_out

if TYPE_CHECKING:
    from pathlib import Path

USAGE = "NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9"
INTERNAL = "NCCL error: internal error - please report this issue, NCCL version 2.28.9"
REMOTE = "NCCL error: remote process exited or there was a network error, NCCL version 2.28.9"
SIZES = (
    "NET/Socket : peer 10.8.0.4<41200> message truncated : receiving 98304 bytes instead of 16384."
    " If you believe your socket network is in a healthy state, there may be a mismatch in "
    "collective sizes or environment settings (e.g. NCCL_PROTO, NCCL_ALGO) between ranks"
)
CLOSED = "socketProgress: Connection closed by remote peer n2<50500>"


def failed(
    rank: int, seq: int, how: str, why: str, *, op: str = "ALLREDUCE", numel: int = 64,
    at: str = "10:00:00.1",
) -> str:  # fmt: skip
    """What torch's watchdog reports of a call that failed, over four lines."""
    return (
        f"[rank{rank}]:[E1005 {at} ProcessGroupNCCL.cpp:612] [Rank {rank}] Collective "
        f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, "
        f"Timeout(ms)=600000) raised the following async exception: {how}\n"
        "ncclResult: what the result usually means.\nLast error:\n"
        f"{why}\nException raised from checkForNCCLErrorsInternal at /pytorch/x.cpp:7\n"
    )


def test_a_truncated_message_is_a_mismatch_without_a_name(tmp_path: Path) -> None:
    """The receiver that expected less may be innocent: its peer may be the odd one."""
    warn = f"[2026-10-05 10:00:00] n1:5:9 [0] transport/net_socket.cc:567 NCCL WARN {SIZES}\n"
    later = f"[2026-10-05 10:01:10] n1:6:8 [1] misc/socket.cc:72 NCCL WARN {CLOSED}\n"
    call = failed(2, 40, USAGE, SIZES, op="BROADCAST", numel=16) + status(2, 41)
    lost = failed(3, 41, REMOTE, CLOSED, at="10:01:10.2")
    answer = explained(tmp_path, warn + call + later + lost)
    assert (answer.category, answer.culprits) == ("collective_mismatch", ())
    assert answer.confidence >= 0.8
    assert "rank 2 received 98304 bytes where its call expects at most 16384" in answer.sentence
    assert "env_misconfig" in [one.category for one in answer.alternatives]
    without_warnings = explained(tmp_path, call + later + lost)
    assert without_warnings.sentence == answer.sentence


def test_the_rank_whose_call_under_one_number_differs_is_named(tmp_path: Path) -> None:
    """Most ranks' time-outs show what this number was."""
    late = "".join(timed_out(rank, 41, numel=4096, at="10:01:15.1") for rank in (0, 1, 3))
    answer = explained(tmp_path, failed(2, 41, USAGE, SIZES, numel=16) + late)
    assert (answer.category, answer.culprits) == ("collective_mismatch", ("rank 2",))
    assert {place.line for place in answer.evidence} >= {1, 4, 6}


def test_an_innocent_rank_that_finds_the_mismatch_is_not_named(tmp_path: Path) -> None:
    """It failed first, but its call is as most ranks' calls."""
    late = "".join(timed_out(rank, 41, at="10:01:15.1") for rank in (1, 3))
    other = timed_out(2, 41, numel=4096, at="10:01:15.2")
    answer = explained(tmp_path, failed(0, 41, USAGE, SIZES) + late + other)
    assert (answer.category, answer.culprits) == ("collective_mismatch", ("rank 2",))


def test_the_rank_with_which_all_others_differ_is_named(tmp_path: Path) -> None:
    """Each of them reports its own call, and that of the odd rank."""
    call = "CollectiveFingerPrint(SequenceNumber=7, OpType={}, TensorShape=[4])"
    line = "[rank{0}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {0} is "
    line += f"running collective: {call.format('ALLREDUCE')}, but Rank 3 is running collective: "
    line += f"{call.format('BROADCAST')}.\n"
    answer = explained(tmp_path, "".join(map(line.format, range(3))))
    assert (answer.category, answer.culprits) == ("collective_mismatch", ("rank 3",))


def test_two_ranks_that_differ_do_not_show_which_is_odd(tmp_path: Path) -> None:
    """One of them is healthy."""
    answer = explained(tmp_path, failed(0, 41, USAGE, SIZES) + timed_out(1, 41, numel=4096))
    assert (answer.category, answer.culprits) == ("collective_mismatch", ())


def test_an_exception_before_the_mismatch_is_its_cause(tmp_path: Path) -> None:
    """A rank that raises, and calls another collective while it cleans up."""
    log = (
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/home/u/train.py", line 7, in <module>\n'
        "[rank1]: KeyError: 'x'\n"
    )
    answer = explained(tmp_path, log + failed(2, 41, USAGE, SIZES))
    assert (answer.category, answer.culprits) == ("other", ("rank 1",))


def test_the_first_failed_call_without_a_known_cause_is_quoted(tmp_path: Path) -> None:
    """What other ranks report a minute later follows from it."""
    first = failed(2, 40, INTERNAL, "proxy request 4 is unknown", op="BROADCAST", numel=16)
    late = "".join(timed_out(rank, 41, at="10:01:15.1") for rank in (0, 1))
    lost = failed(3, 41, REMOTE, CLOSED, at="10:01:10.2")
    for log in (first + lost, first + late, first + status(2, 40) + late):
        answer = explained(tmp_path, log)
        assert (answer.category, answer.confidence) == ("unknown", 0.4), log
        assert "rank 2 failed first, in its BROADCAST number 40" in answer.sentence
        assert "proxy request 4 is unknown" in answer.sentence


@pytest.mark.parametrize("why", [CLOSED, "Call to recv failed : Broken pipe"])
def test_a_failed_call_that_only_lost_its_peer_is_no_cause(tmp_path: Path, why: str) -> None:
    """NCCL calls it a system error in old versions."""
    how = "NCCL error: unhandled system error, NCCL version 2.18.6"
    answer = explained(tmp_path, failed(2, 40, how, why))
    assert answer.confidence <= 0.3
    assert "failed first" not in answer.sentence


@pytest.mark.parametrize("op", ["ALLTOALL_BASE", "SEND", "ALLGATHER"])
def test_sizes_that_may_differ_by_rank_are_no_mismatch(tmp_path: Path, op: str) -> None:
    """Experts get unequal numbers of tokens; sends have numbers of their own."""
    sizes = (96, 64, 80, 72)
    answer = explained(
        tmp_path, "".join(timed_out(rank, 9, op, size) for rank, size in enumerate(sizes))
    )
    assert answer.category != "collective_mismatch"


def test_a_truncated_message_of_the_bootstrap_is_unclear(tmp_path: Path) -> None:
    """Two versions of NCCL had this without a fault of the job."""
    warn = "n1:5:9 [0] bootstrap.cc:77 NCCL WARN Message truncated : received 640 bytes instead of "
    answer = explained(tmp_path, warn + "12\n")
    assert (answer.category, answer.culprits) == ("collective_mismatch", ())
    assert answer.confidence < 0.5


def test_a_connection_that_gloo_refuses_is_no_fault_of_the_script(tmp_path: Path) -> None:
    """Its exception passes on that no process listens where the peer should."""
    answer = explained(
        tmp_path,
        "Traceback (most recent call last):\n"
        '  File "/job/train.py", line 7, in <module>\n    dist.new_group(backend="gloo")\n'
        "RuntimeError: [gloo/tcp/pair.cc:9] connect [10.1.2.3]:4000: Connection refused\n",
    )
    assert answer.sentence == "no process listens at 10.1.2.3 port 4000"
    assert (answer.category, answer.culprits) == ("timeout_rank_missing", ("node 10.1.2.3",))
