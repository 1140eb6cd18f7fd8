"""Hangs of real torchrun jobs in the lab for the contest, recorded once and read again and again.

A recording is what `preflight diagnose --save` wrote while the job hung: the code that is under
test reads it as it would read a job. A hang that is recorded already is not brought about again.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec

from tests.bench.contest_cases import Case
from tests.lab.cluster import Lab, why_not
from tests.lab.hangs.asked import diagnose
from tests.lab.hangs.job import HOSTS, PER_HOST
from tests.lab.hangs.kept import KeptJob
from tests.lab.hangs.situations import situations

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from tests.lab.hangs.situations import Situation

_CASE = "case.json"
MOST = 2 * len(situations(2, (2, 3, 4)))
"""Each way of hanging once in both halves."""


def hangs(number: int, halves: Collection[int], build: Path) -> Iterator[Case]:
    """Record what is missing, if the lab can run here; yield what is recorded."""
    seeds = [one for one in range(number) if one % 2 in halves]
    wanted = [(seed, build / "hang" / str(seed)) for seed in seeds]
    if missing := [(seed, folder) for seed, folder in wanted if not (folder / _CASE).exists()]:
        if reason := why_not():
            sys.stderr.write(f"{len(missing)} hangs are not recorded: {reason}\n")
        else:
            # Of each half the ones that end the job come last.
            _record(sorted(missing, key=lambda one: (one[0] % 2, one[0])))
    for _, folder in wanted:
        if (folder / _CASE).exists():
            data = (folder / _CASE).read_bytes()
            yield msgspec.json.decode(data, type=Case, dec_hook=lambda kind, text: kind(text))


def situation(seed: int) -> Situation:
    """The way of hanging of a seed, with ranks drawn by it.

    All those of a half that end the job happen to the same rank: they happen to one job.
    """
    found = _situation(seed, f"contest {seed}")
    return _situation(seed, f"contest half {seed % 2}") if found.final else found


def _situation(seed: int, text: str) -> Situation:
    draw = random.Random(text)  # noqa: S311  the same ranks each time
    ranks = range(HOSTS * PER_HOST)
    every = situations(draw.choice(ranks[PER_HOST:]), tuple(sorted(draw.sample(ranks, 3))))
    return every[seed // 2 % len(every)]


def _record(todo: list[tuple[int, Path]]) -> None:
    with Lab(hosts=HOSTS) as lab, KeptJob(lab) as job:
        inventory = lab.inventory("hang.toml")
        for seed, folder in todo:
            one = situation(seed)
            if one.name == "healthy":
                job.drop()  # the next half: no hang inherits what earlier ones left behind
                lab.heal()
            shutil.rmtree(folder, ignore_errors=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            try:
                with job.hanging(one):
                    _look(inventory, seed, folder, one)
            except (OSError, subprocess.SubprocessError) as error:
                sys.stderr.write(f"{seed} ({one.name}) could not be made to hang: {error}\n")
                job.drop()
                lab.heal()


def _look(inventory: Path, seed: int, folder: Path, one: Situation) -> None:
    asked = diagnose(inventory, "--json", "--save", str(folder))
    if not folder.exists():
        raise OSError(asked.err[-500:])
    case = Case(
        kind="hang", seed=seed, fault=one.name, folder=folder,
        culprits=one.expected.culprits, besides=one.expected.besides,
        categories=one.expected.categories,
        must_name=bool(one.expected.besides),
    )  # fmt: skip
    (folder / _CASE).write_bytes(msgspec.json.encode(case, enc_hook=str))
