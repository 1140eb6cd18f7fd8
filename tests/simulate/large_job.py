"""The dumps of a large job that has run for long: the buffer of each rank is full.

The last iterations are those of `parallel_job`; before them stand as many like the first one as
fill the buffer. The stack of each call has 25 lines.
"""

from __future__ import annotations

import multiprocessing
import random
from functools import partial
from typing import TYPE_CHECKING

from tests.simulate.parallel_job import Job, Layout, plant

if TYPE_CHECKING:
    from pathlib import Path

_TENSOR, _STAGES, _EXPERTS = 8, 8, 8
_DEEP = 23


def write(folder: Path, ranks: int, entries: int, fault: str, processes: int = 2) -> set[int]:
    """Write the dumps as torch names them; the ranks at fault."""
    draw = random.Random(ranks)  # noqa: S311  the same job each time
    layout = Layout(_TENSOR, _STAGES, _EXPERTS, ranks // _TENSOR // _STAGES)
    job = Job(layout, draw)
    faulty = plant(job, ranks // 2 + 5, fault, draw)
    job.run()
    fewest = min(sum(op.iteration == 0 for op in ops) for ops in job.ops.values())
    work = partial(_write, job, folder, entries, entries // fewest + 1)
    # A forked process has the job already: it is too large to be sent.
    fork = multiprocessing.get_context("fork")
    writers = [
        fork.Process(target=lambda some: [*map(work, some)], args=(range(at, ranks, processes),))
        for at in range(processes)
    ]
    for one in writers:
        one.start()
    for one in writers:
        one.join()
        if one.exitcode:
            raise RuntimeError(f"a process that wrote the dumps ended with {one.exitcode}")
    return set(faulty)


def _write(job: Job, folder: Path, entries: int, earlier: int, rank: int) -> None:
    content = job.dump(
        rank, entries=entries, timing=False, active=False, earlier=earlier, deep=_DEEP
    )
    (folder / f"nccl_trace_rank_{rank}").write_bytes(content)
