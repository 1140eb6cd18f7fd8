"""How fast `preflight explain` reads what NCCL_DEBUG=INFO leaves, and how often it is right."""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.hang.explain.scan import Scanner
from preflight.hang.explain.symptom import shipped
from preflight.hang.explain.weigh import explain
from tests.bench.logs_of_hangs import UNSEEN, case, verdict
from tests.bench.outside import cost
from tests.bench.proportion import clopper_pearson
from tests.bench.ratio import Bound, Row, Spread, extremes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_RANKS, _RUNS = 64, 5
_BOUND = Bound("at least", 50)
_TRAINING = {
    "Channel {n:02d}/0 : {rank}[{gpu}] -> {next}[{gpu}] [send] via NET/IB/{gpu}/GDRDMA": 60,
    "AllReduce: opCount {n:x} sendbuff 0x7f{n:08x} recvbuff 0x7e{n:08x} count {n} datatype 9 "
    "op 0 root 0 comm 0x55 [nranks=64] stream 0x5": 25,
    "Trees [0] {rank}/-1/-1->{next}->-1 [1] {next}/-1/-1->{rank}->-1": 10,
    "threadThresholds 8/8/64 | 512/8/64 | 512 | 512": 2,
    "Connected all rings": 2,
    "comm 0x5555 rank {rank} nranks 64 cudaDev {gpu} busId {gpu}b000 - Init COMPLETE": 0.2,
    "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.{gpu}<0>": 0.2,
}
"""A line and its part of the whole, in per cent; as a job of 64 ranks leaves them."""
_COMM = "comm 0x7f12{n:08x} rank {rank} nranks 64 cudaDev {gpu} nvmlDev {gpu} busId {gpu}b000"
_STARTS = {
    _COMM + " commId 0x8f3a21bc{n:08x} - Init COMPLETE": 30,
    "ncclCommInitRankConfig " + _COMM + " commId 0x8f3a21bc{n:08x} - Init START": 30,
    "Init timings - ncclCommInitRankConfig: rank {rank} nranks 64 total 1.{n} (kernels 0.{n}, "
    "alloc 0.65, bootstrap 0.01, allgathers 0.00, topo 0.17, graphs 0.00, rest 0.00)": 10,
    "Using network IB": 10,
    _COMM + " - Destroy COMPLETE": 10,
    _COMM + " - Abort COMPLETE": 10,
}
"""The same of a job that makes new communicators all the time."""
_LAST = (
    "gpu000:4000:1 [0] transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer "
    "10.0.0.7<4242> with error 12, opcode 0, len 0, vendor err 129 (Recv)\n"
)


def measure() -> Iterator[Row]:
    """The whole command in a process of its own, and how often it is right."""
    yield _speed("explain.speed", "NCCL_DEBUG=INFO", _TRAINING, 1_000_000)
    yield _speed("explain.starts", "NCCL's lines on communicators", _STARTS, 700_000)
    yield from right(UNSEEN)


def _speed(row: str, of: str, kinds: Mapping[str, float], lines: int) -> Row:
    """Explain a log of so many lines of these kinds: the answer must name the link at its end."""
    with tempfile.TemporaryDirectory(prefix="preflight-bench-") as name:
        folder = Path(name)
        log = folder / "nccl.log"
        write(log, lines, kinds)
        size_mb = log.stat().st_size / 1e6
        words = [sys.executable, "-m", "preflight", "explain", "--json", str(log)]
        runs = []
        for _ in range(_RUNS):
            spent = cost(words, folder, exits=1)
            told = (folder / "output.txt").read_text()
            if '"nic_or_ib_link"' not in told:
                raise RuntimeError(f"the link at the end of the log was not named: {told[:200]}")
            runs.append(size_mb / spent.cpu_s)
    return Row(
        id=row,
        what=f"explain {size_mb:.0f} MB of {of} of {_RANKS} ranks: MB per second of CPU",
        unit="MB/s",
        value=extremes(runs),
        value_unit="MB/s",
        runs=_RUNS,
        bound=_BOUND,
    )


def right(seeds: Iterable[int]) -> Iterator[Row]:
    """How often the answer to a drawn log is right, of all and by the confidence it is given."""
    by_confidence: dict[str, list[bool]] = {}
    with tempfile.TemporaryDirectory(prefix="preflight-bench-") as name:
        log = Path(name) / "job.log"
        for seed in seeds:
            text, label = case(seed)
            log.write_text(text)
            answer = explain(Scanner(shipped()).read([log]))
            outcome = verdict(answer, label)
            by_confidence.setdefault("all", []).append(outcome == "right")
            by_confidence.setdefault(outcome, []).append(True)
            if answer.category not in ("unknown", "no_failure"):
                given = f"{answer.confidence:.1f}"
                by_confidence.setdefault(given, []).append(outcome == "right")
    for given, outcomes in sorted(by_confidence.items()):
        known = given == "all" or given[0].isdigit()
        of = outcomes if known else by_confidence["all"]
        hits = sum(outcomes)
        low, high = clopper_pearson(hits, len(of))
        what = f"answers of confidence {given}: right" if known else f"answers: {given}"
        yield Row(
            id=f"explain.{given.replace(' ', '_')}",
            what=f"{what} in {hits} of {len(of)} drawn logs",
            unit="%",
            value=Spread(100 * hits / len(of), 100 * low, 100 * high),
            value_unit="%",
            runs=len(of),
            bound=None,
            note="brackets: exact 95 % interval (Clopper-Pearson)",
        )


def write(path: Path, lines: int, kinds: Mapping[str, float]) -> None:
    """A log of so many lines of these kinds, and a failed link at its end."""
    choose = random.Random(7)  # noqa: S311  the same log each time
    picked = choose.choices(list(kinds), list(kinds.values()), k=lines)
    with path.open("w") as log:
        for text in picked:
            rank = choose.randrange(_RANKS)
            said = text.format(
                n=choose.randrange(100_000), rank=rank, next=(rank + 1) % _RANKS, gpu=rank % 8
            )
            log.write(
                f"gpu{rank // 8:03d}:{4000 + rank}:{5000 + rank} [{rank % 8}] NCCL INFO {said}\n"
            )
        log.write(_LAST)
