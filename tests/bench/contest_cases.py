"""The cases of the contest: what a tool is given to read, and who is at fault.

Each case is drawn by its seed, and its label is known because the fault was planted. Cases with an
even seed were read during the work, those with an odd seed were not. The corpus of real logs beside
the project has no seeds: it is a kind of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from tests.bench import logs_of_hangs
from tests.bench.full_dumps import write
from tests.lab.hangs.ras_jobs import FAULTS as RAS_FAULTS
from tests.lab.hangs.ras_jobs import draw
from tests.lab.hangs.ras_mesh import report
from tests.lab.hangs.ras_score import asked
from tests.simulate.parallel_job import FAULTS, draw_case

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Kind = Literal["hang", "ras", "dumps", "log", "corpus"]
KINDS: tuple[Kind, ...] = ("hang", "ras", "dumps", "log", "corpus")
CORPUS = Path(__file__).resolve().parents[3] / "shared" / "corpus" / "nccl_logs"
FIRST_RAS, FIRST_DUMPS, FIRST_LOGS = 20000, 3000, 4000
"""Lower seeds were used while the code was written."""
RAS_TEXT = "ras.txt"
"""What `ncclras -v` prints of the job; the state that `diagnose` reads stands beside it."""
_MOST_RANKS = 100_000
"""Any of them may be named where the label names none."""


class Case(Struct, frozen=True, kw_only=True):
    """What is read, and the truth."""

    kind: Kind
    seed: int
    fault: str
    folder: Path
    culprits: frozenset[str] = frozenset()
    """`rank 3`: all of them must be named."""
    besides: frozenset[str] = frozenset()
    """May be named too."""
    categories: tuple[str, ...] = ()
    """Of an answer that has one; empty: any."""
    must_name: bool = False
    """Where there are no `culprits`, one of `besides` must be named."""
    nameless: bool = False
    """No reader can name who is at fault: another fault leaves the same files."""

    @property
    def is_unseen(self) -> bool:
        """Whether it is of the half that was not read during the work."""
        return self.kind != "corpus" and self.seed % 2 == 1


def ras(seeds: Iterable[int], build: Path) -> Iterator[Case]:
    """Generated jobs whose RAS service was asked by a node's client, through a connection."""
    for seed in seeds:
        drawn = draw(seed, faults=(RAS_FAULTS[seed // 2 % len(RAS_FAULTS)],))
        folder = _folder(build, "ras", seed)
        (folder / "state.json").write_bytes(msgspec.json.encode(asked(drawn)))
        (folder / RAS_TEXT).write_text(report(drawn.ras, is_json=False))
        ranks = frozenset(f"rank {one}" for one in drawn.culprits)
        # Nobody sees from outside which member of a communicator holds up its kernel.
        yield Case(
            kind="ras", seed=seed, fault=drawn.fault, folder=folder,
            culprits=frozenset() if drawn.any_of or drawn.nameless else ranks,
            besides=ranks if drawn.any_of else frozenset(),
            must_name=drawn.any_of and not drawn.nameless, nameless=drawn.nameless,
        )  # fmt: skip


def dumps(seeds: Iterable[int], build: Path) -> Iterator[Case]:
    """Flight recorder dumps of generated jobs, each fault as often as the others in both halves."""
    for seed in seeds:
        case = draw_case(seed, FAULTS[seed // 2 % len(FAULTS)])
        folder = _folder(build, "dumps", seed)
        write(case, folder)
        yield Case(
            kind="dumps", seed=seed, fault=case.fault, folder=folder,
            culprits=frozenset(f"rank {one}" for one in case.culprits),
        )  # fmt: skip


def logs(seeds: Iterable[int], build: Path) -> Iterator[Case]:
    """Generated logs of dead jobs; any of the ranks that ended the job may be named."""
    for seed in seeds:
        text, label = logs_of_hangs.case(seed)
        path = _folder(build, "log", seed) / "job.log"
        path.write_text(text)
        yield Case(
            kind="log", seed=seed, fault=label.kind, folder=path,
            besides=frozenset(f"rank {one}" for one in label.ranks),
            categories=tuple(label.categories), must_name=label.named,
        )  # fmt: skip


def corpus() -> Iterator[Case]:
    """Logs of real jobs with the labels that people gave them; nothing if they are not there."""
    for place, path in enumerate(sorted(CORPUS.glob("*.txt"))):
        if not path.with_suffix(".json").exists():
            continue
        label: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
        faulty = label.get("faulty_ranks")
        known = faulty if isinstance(faulty, list) and faulty else range(_MOST_RANKS)
        yield Case(
            kind="corpus", seed=place, fault=label["category"], folder=path,
            besides=frozenset(f"rank {one}" for one in known),
            categories=(label["category"],),
        )  # fmt: skip


def _folder(build: Path, kind: Kind, seed: int) -> Path:
    folder = build / kind / str(seed)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
