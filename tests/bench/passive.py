"""What judging a large fleet's facts costs: the stages `reach` and `facts` of 1,000 nodes.

    python -m tests.bench.passive FOLDER

decodes and judges what lies in that folder, in a process of its own, and says what both took.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Struct

from preflight.core.registry import Registry, load_folder, shipped_folder
from preflight.facts.model import Facts, decode_document
from preflight.fleet.sources import FleetRequest, resolve
from preflight.run.expected_verdicts import Settings
from preflight.run.measured import Measured
from preflight.run.run import Run
from preflight.verdict import Outcome
from tests.bench import synthetic
from tests.bench.outside import cost
from tests.bench.ratio import Bound, Row, extremes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

_NODES, _RUNS = 1000, 5
_BOUND = Bound("at most", 10)
_STAGES = ("reach", "facts")
_DOCUMENTS, _INVENTORY = "facts.jsonl", "fleet.toml"


class Taken(Struct, frozen=True):
    """One run: every document decoded, every passive verdict reached."""

    nodes: int
    verdicts: int
    kib_per_node: float
    decode_s: float
    decode_cpu_s: float
    judge_s: float
    judge_cpu_s: float


def measure() -> Iterator[Row]:
    """The same fleet every time, in a fresh process each."""
    with tempfile.TemporaryDirectory(prefix="preflight-bench-") as name:
        folder = Path(name)
        write(folder, _NODES)
        runs = [_apart(folder) for _ in range(_RUNS)]
    one = runs[0]
    what = f"{one.verdicts} verdicts of passive checks on {one.nodes} nodes of 8 GPUs"
    decoding = statistics.median(run.decode_s for run in runs)
    note = f"besides, decoding {one.nodes} answers of {one.kib_per_node:.0f} KiB: {decoding:.2f} s"
    yield _row("judging", f"{what}: time", [run.judge_s for run in runs], _BOUND, note)
    yield _row("judging.cpu", f"{what}: processor time", [run.judge_cpu_s for run in runs])
    answers = f"{one.nodes} answers of {one.kib_per_node:.0f} KiB decoded: processor time"
    yield _row("decoding.cpu", answers, [run.decode_cpu_s for run in runs])


def write(folder: Path, number: int) -> None:
    """What the probes of that many nodes answer, as it travels, and their inventory."""
    (folder / _INVENTORY).write_text(synthetic.inventory(number))
    answers = (msgspec.json.encode(facts) for _, facts in synthetic.told(number))
    (folder / _DOCUMENTS).write_bytes(b"\n".join(answers))


def judged(folder: Path) -> Taken:
    """Decode, then judge; RuntimeError unless every verdict was reached."""
    documents = (folder / _DOCUMENTS).read_bytes().split(b"\n")
    answers, decode = _timed(
        lambda: [decode_document(Facts, one, synthetic.NONCE) for one in documents]
    )
    measured = Measured(
        nonce=synthetic.NONCE,
        reach={facts.host: synthetic.REACHED for facts in answers},
        facts={facts.host: facts for facts in answers},
    )
    fleet = resolve(FleetRequest(inventory=str(folder / _INVENTORY)))
    run = Run(fleet, Registry(load_folder(shipped_folder())), Settings())
    passive = [key for key in run.expected() if run.registry[key[0]].check.stage in _STAGES]
    _, judge = _timed(lambda: run.replay(measured, passive, lambda *_: None))
    known = run.judgement.verdicts()
    if missing := [key for key in passive if key not in known]:
        raise RuntimeError(f"{len(missing)} verdicts were not reached, such as {missing[0]}")
    if broken := [key for key in passive if known[key].outcome is Outcome.BROKEN]:
        raise RuntimeError(f"{len(broken)} checks broke, such as {broken[0]}")
    size_kib = sum(map(len, documents)) / len(documents) / 1024
    return Taken(len(documents), len(passive), size_kib, *decode, *judge)


def _apart(folder: Path) -> Taken:
    cost([sys.executable, "-m", "tests.bench.passive", str(folder)], folder, exits=0)
    return msgspec.json.decode((folder / "output.txt").read_bytes(), type=Taken)


def _timed(work: Callable[[], T]) -> tuple[T, tuple[float, float]]:
    began, before = time.perf_counter(), time.process_time()
    done = work()
    return done, (time.perf_counter() - began, time.process_time() - before)


def _row(
    key: str, what: str, values: list[float], bound: Bound | None = None, note: str = ""
) -> Row:
    return Row(
        id=f"passive.{key}",
        what=what,
        unit="s",
        value=extremes(values),
        value_unit="s",
        runs=len(values),
        bound=bound,
        note=note,
    )


if __name__ == "__main__":
    sys.stdout.write(json.dumps(msgspec.to_builtins(judged(Path(sys.argv[1])))) + "\n")
